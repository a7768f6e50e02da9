// The system, where it is Unix.
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
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

bool write_file(const char *path, const char *data, size_t length) {
    char *next = format_text("%s.part", path);
    int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0;
    for (size_t done = 0; good && done < length;) {
        ssize_t count = write(fd, data + done, length - done);
        good = count > 0 || (count < 0 && errno == EINTR);
        if (count > 0) done += (size_t)count;
    }
    int error = errno;
    if (fd >= 0 && close(fd) != 0 && good) good = false, error = errno;
    if (good && rename(next, path) != 0) good = false, error = errno;
    if (!good && fd >= 0) unlink(next);
    free(next);
    errno = error;
    return good;
}

bool read_file(const char *path, buffer *out) {
    char chunk[1 << 16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : 1;
    while (count > 0 && (count = read(fd, chunk, sizeof chunk)) > 0) buffer_add(out, chunk, (size_t)count);
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    return count == 0;
}

void remove_file(const char *path) {
    unlink(path);
}
