// The system, where it is Unix.
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

char **system_start(char **args) {
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    return args;
}

bool is_terminal_in(void) {
    return isatty(STDIN_FILENO);
}

bool is_terminal_out(void) {
    return isatty(STDOUT_FILENO);
}

bool is_terminal_err(void) {
    return isatty(STDERR_FILENO);
}

bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

uint64_t process_number(void) {
    return (uint64_t)getpid();
}

const char *home_folder(void) {
    return getenv("HOME");
}

bool is_separator(char c) {
    return c == '/';
}

// The signals are blocked except while pselect waits, so that none is lost between the check of a flag and the wait.
bool wait_for_input(void) {
    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGWINCH);
    sigaddset(&signals, SIGCONT);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    int ready = 0;
    while (!interrupted && !redraw && ready <= 0) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        ready = pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &before);
        if (ready < 0 && errno != EINTR) break; // read reports the error
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !interrupted && !redraw;
}

ptrdiff_t read_input(char *to, size_t room) {
    ssize_t count = -1;
    while (count < 0) {
        if (!wait_for_input()) return -1;
        count = read(STDIN_FILENO, to, room);
        if (count < 0 && errno != EINTR) return -2;
    }
    return count;
}

static const char not_regular[] = "it is not a regular file", too_large[] = "it is too large";

const char *write_file(const char *path, const char *data, size_t length) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) return not_regular;
    char *real = realpath(path, NULL), *next = format_text("%s.XXXXXX", real != NULL ? real : path);
    int fd = mkstemp(next);
    bool good = fd >= 0;
    for (size_t done = 0; good && done < length;) {
        ssize_t count = write(fd, data + done, length - done);
        good = count > 0 || (count < 0 && errno == EINTR);
        if (count > 0) done += (size_t)count;
    }
    int error = errno;
    if (fd >= 0 && close(fd) != 0 && good) good = false, error = errno;
    if (good && rename(next, real != NULL ? real : path) != 0) good = false, error = errno;
    if (!good && fd >= 0) unlink(next);
    free(next);
    free(real);
    return good ? NULL : strerror(error);
}

// Opened without waiting for a pipe's other end.
const char *read_file(const char *path, uint64_t most, buffer *out) {
    char chunk[1 << 16];
    struct stat there;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &there) != 0) return strerror(errno);
    const char *wrong = !S_ISREG(there.st_mode) ? not_regular : (uint64_t)there.st_size > most ? too_large : NULL;
    ssize_t count = 1;
    while (wrong == NULL && count > 0 && out->length <= most && (count = read(fd, chunk, sizeof chunk)) > 0)
        buffer_add(out, chunk, (size_t)count);
    if (count < 0) wrong = strerror(errno);
    close(fd);
    return wrong;
}

void remove_file(const char *path) {
    unlink(path);
}
