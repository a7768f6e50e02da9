// Prompts from a person or a pipe. A SIGINT ends the wait for one.
#include "chat.h"

#include <errno.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

volatile sig_atomic_t interrupted, redraw;

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

static line_result taken(bn_string *line, const buffer *input, size_t from, size_t to) {
    if (to > from && input->data[to - 1] == '\r') to--;
    *line = (bn_string){input->data + from, to - from};
    return LINE;
}

line_result plain_line(bn_string *line) {
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

static line_result next_line(const chat *c, const char *prompt, bn_string *line) {
    return c->interactive ? edit_line(prompt, line) : plain_line(line);
}

static const char FENCE[] = {'"', '"', '"'};
static const char MORE[] = "... ";

static bool has_fence(bn_string line) {
    return line.length >= sizeof FENCE && memcmp(line.data, FENCE, sizeof FENCE) == 0;
}

// The rest of a block, without blank lines around it. `line` is the first one.
static line_result read_block(const chat *c, buffer *text, bn_string line) {
    text->length = 0;
    line = (bn_string){line.data + sizeof FENCE, line.length - sizeof FENCE};
    for (;;) {
        size_t end = line.length - sizeof FENCE;
        bool last = line.length >= sizeof FENCE && memcmp(line.data + end, FENCE, sizeof FENCE) == 0;
        buffer_add(text, line.data, last ? end : line.length);
        if (last) break;
        if (text->length > 0) buffer_add(text, "\n", 1);
        line_result result = next_line(c, MORE, &line);
        if (result != LINE) return result;
    }
    while (text->length > 0 && text->data[text->length - 1] == '\n') text->length--;
    return LINE;
}

// Joins lines that a person ends with a backslash.
static line_result read_joined(const chat *c, buffer *text, bn_string line) {
    text->length = 0;
    for (;;) {
        buffer_add(text, line.data, line.length);
        bool more = c->interactive && line.length > 0 && line.data[line.length - 1] == '\\';
        if (!more) return LINE;
        text->data[text->length - 1] = '\n';
        line_result result = next_line(c, MORE, &line);
        if (result != LINE) return result;
    }
}

// The history has the fences too, so that a prompt that is taken from it again is the same.
static void remember(bn_string text, bool block) {
    buffer whole = {0};
    if (block) buffer_add(&whole, FENCE, sizeof FENCE);
    buffer_add(&whole, text.data, text.length);
    if (block) buffer_add(&whole, FENCE, sizeof FENCE);
    buffer_add(&whole, "", 1);
    edit_remember(whole.data);
    buffer_free(&whole);
}

line_result next_prompt(const chat *c, bn_string *prompt, bool *block) {
    static buffer text;
    bn_string line;
    line_result result = next_line(c, "> ", &line);
    *block = result == LINE && has_fence(line);
    if (result == LINE) result = *block ? read_block(c, &text, line) : read_joined(c, &text, line);
    if (result != LINE) return result;
    while (c->interactive && text.length > 0 && text.data[text.length - 1] == '\n') text.length--; // of pasted text
    *prompt = (bn_string){text.data, text.length};
    if (c->interactive && text.length > 0) remember(*prompt, *block);
    return LINE;
}
