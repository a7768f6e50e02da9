// Completion: commands, the names of settings, the names of files behind /save and /load.
#include "chat.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *word; // what is there of it
    size_t length, count;
    buffer *more, *list;
} found;

// Takes a possibility; `end` goes behind it where it is the only one.
static void offer(found *f, const char *name, char end) {
    if (strncmp(name, f->word, f->length) != 0) return;
    const char *rest = name + f->length;
    size_t length = strlen(rest);
    if (f->count++ == 0) {
        buffer_add(f->more, rest, length);
        buffer_add(f->more, &end, 1);
    } else {
        size_t same = 0;
        while (same < length && same < f->more->length && f->more->data[same] == rest[same]) same++;
        f->more->length = same;
    }
    if (f->list->length > 0) buffer_add(f->list, "  ", 2);
    buffer_add(f->list, name, strlen(name));
}

// The files in a folder. `text` is the path before the cursor, f->word its last part.
static void offer_files(found *f, bn_string text) {
    bn_string folder = {text.data, (size_t)(f->word - text.data)};
    char *path = folder.length > 0 ? path_of(folder) : strdup(".");
    DIR *all = opendir(must(path));
    struct dirent *file;
    while (all != NULL && (file = readdir(all)) != NULL) {
        struct stat about;
        if (file->d_name[0] == '.' && (f->length == 0 || *f->word != '.')) continue;
        bool is_folder = fstatat(dirfd(all), file->d_name, &about, 0) == 0 && S_ISDIR(about.st_mode);
        offer(f, file->d_name, is_folder ? '/' : ' ');
    }
    if (all != NULL) closedir(all);
    free(path);
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

size_t completions(bn_string text, buffer *more, buffer *list) {
    char *line = must(strndup(text.data, text.length));
    char *space = strchr(line, ' ');
    found f = {.word = line, .length = strlen(line), .more = more, .list = list};
    setting s;
    bool takes_text;
    const char *name;
    if (*line == '/' && space == NULL) {
        for (size_t i = 0; (name = command_name(i, &takes_text)) != NULL; i++) offer(&f, name, takes_text ? ' ' : '\0');
    } else if (begins(line, "/set ")) {
        f.word = space + 1, f.length = strlen(f.word);
        for (size_t i = 0; setting_at(&(options){0}, i, &s); i++) offer(&f, s.name, ' ');
        offer(&f, "system", ' ');
    } else if (begins(line, "/save ") || begins(line, "/load ")) {
        char *path = space + 1 + strspn(space, " ") - 1, *slash = strrchr(path, '/');
        f.word = slash != NULL ? slash + 1 : path;
        f.length = strlen(f.word);
        offer_files(&f, (bn_string){path, strlen(path)});
    }
    buffer_add(more, "", 1);
    buffer_add(list, "", 1);
    free(line);
    return f.count;
}
