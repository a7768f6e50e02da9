// The file of earlier prompts: one to a line, oldest first, with "\n" for a line break and "\\" for a backslash. Each
// chat adds a line as it is sent, so that none is lost however a chat ends, and several may run.
#include "edit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT = 1000, TOO_MANY = 2 * KEPT };

const char *past_file(const char *option) {
    static char path[4096];
    if (option != NULL) return strcmp(option, "none") == 0 ? NULL : option;
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (state != NULL && *state == '/') length = snprintf(path, sizeof path, "%s/bn-chat", state);
    else if (home != NULL && *home == '/') length = snprintf(path, sizeof path, "%s/.local/state/bn-chat", home);
    if (length < 0 || (size_t)length + sizeof "/history" > sizeof path) return NULL;
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700); // past_add reports what is wrong
    strcpy(path + length, "/history");
    return path;
}

// Decodes a line in place, without its end.
static void decode(char *line, size_t length) {
    char *to = line;
    if (length > 0 && line[length - 1] == '\n') length--;
    for (size_t i = 0; i < length; i++) {
        bool escape = line[i] == '\\' && i + 1 < length;
        if (escape) i++;
        *to++ = escape && line[i] == 'n' ? '\n' : line[i];
    }
    *to = 0;
}

// Writes the newest lines alone, in place of all.
static void shorten(const char *path, FILE *all, size_t count) {
    char *line = NULL, *next = NULL;
    size_t room = 0;
    ssize_t length;
    if (asprintf(&next, "%s.%d", path, (int)getpid()) < 0) return;
    int fd = open(next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    rewind(all);
    for (size_t i = 0; out != NULL && (length = getline(&line, &room, all)) > 0; i++)
        if (i + KEPT >= count) fwrite(line, 1, (size_t)length, out);
    if (out != NULL && (ferror(out) | fclose(out) || rename(next, path) != 0)) unlink(next);
    free(line);
    free(next);
}

void past_read(const char *path, void (*each)(const char *text)) {
    FILE *all = fopen(path, "re");
    char *line = NULL;
    size_t room = 0, count = 0;
    ssize_t length;
    if (all == NULL) return; // there is none yet
    while (getline(&line, &room, all) > 0) count++;
    rewind(all);
    for (size_t i = 0; (length = getline(&line, &room, all)) > 0; i++) {
        if (i + KEPT < count) continue;
        decode(line, (size_t)length);
        each(line);
    }
    if (count > TOO_MANY) shorten(path, all, count);
    free(line);
    fclose(all);
}

bool past_add(const char *path, const char *text) {
    buffer line = {0};
    for (const char *c = text; *c != 0; c++) {
        if (*c == '\n') buffer_add(&line, "\\n", 2);
        else if (*c == '\\') buffer_add(&line, "\\\\", 2);
        else buffer_add(&line, c, 1);
    }
    buffer_add(&line, "\n", 1);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write(fd, line.data, line.length) == (ssize_t)line.length;
    int error = errno;
    if (fd >= 0) close(fd);
    buffer_free(&line);
    errno = error;
    return good;
}
