// Lines from standard input. A SIGINT ends the wait for one.
#include "chat.h"

#include <errno.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

volatile sig_atomic_t interrupted;

// Waits for input; returns false if SIGINT arrived first. The signal is blocked except while pselect waits, so that
// none is lost between the check of the flag and the wait.
static bool wait_for_input(void) {
    sigset_t sigint, before;
    sigemptyset(&sigint);
    sigaddset(&sigint, SIGINT);
    pthread_sigmask(SIG_BLOCK, &sigint, &before);
    int ready = 0;
    while (!interrupted && ready <= 0) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        ready = pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &before);
        if (ready < 0 && errno != EINTR) break; // read reports the error
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !interrupted;
}

static line_result taken(bn_string *line, const buffer *input, size_t from, size_t to) {
    if (to > from && input->data[to - 1] == '\r') to--;
    *line = (bn_string){input->data + from, to - from};
    return LINE;
}

line_result next_line(bn_string *line) {
    static buffer input;
    static size_t done; // bytes of it that earlier lines took
    static bool ended;
    size_t searched = done;
    for (;;) {
        char *end = searched < input.length ? memchr(input.data + searched, '\n', input.length - searched) : NULL;
        size_t from = done;
        if (end != NULL) {
            done = (size_t)(end - input.data) + 1;
            return taken(line, &input, from, done - 1);
        }
        if (ended) {
            done = input.length;
            return done > from ? taken(line, &input, from, done) : LINE_END;
        }
        if (done > 0) {
            memmove(input.data, input.data + done, input.length -= done);
            done = 0;
        }
        searched = input.length;
        if (!wait_for_input()) return LINE_INTERRUPTED;
        char chunk[4096];
        ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
        if (count < 0 && errno != EINTR) return LINE_FAILED;
        if (count == 0) ended = true;
        if (count > 0) buffer_add(&input, chunk, (size_t)count);
    }
}

static const char FENCE[] = {'"', '"', '"'};

bool opens_block(bn_string line) {
    return line.length >= sizeof FENCE && memcmp(line.data, FENCE, sizeof FENCE) == 0;
}

line_result next_block(bn_string *text, bn_string line) {
    static buffer block;
    block.length = 0;
    line = (bn_string){line.data + sizeof FENCE, line.length - sizeof FENCE};
    for (;;) {
        size_t end = line.length - sizeof FENCE;
        bool last = line.length >= sizeof FENCE && memcmp(line.data + end, FENCE, sizeof FENCE) == 0;
        buffer_add(&block, line.data, last ? end : line.length);
        if (last) break;
        if (block.length > 0) buffer_add(&block, "\n", 1);
        line_result result = next_line(&line);
        if (result != LINE) return result;
    }
    while (block.length > 0 && block.data[block.length - 1] == '\n') block.length--;
    *text = (bn_string){block.data, block.length};
    return LINE;
}
