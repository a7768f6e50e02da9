// Prompts from a person or a pipe. A SIGINT ends the wait for one.
#include "system.h"

#include <string.h>

volatile sig_atomic_t interrupted, redraw;

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
        char chunk[4096];
        ptrdiff_t count = read_input(chunk, sizeof chunk);
        if (count < 0) return count == -1 ? LINE_INTERRUPTED : LINE_FAILED;
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
