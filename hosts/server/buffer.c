#include "buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *must(void *allocated) {
    if (allocated != NULL) return allocated;
    fprintf(stderr, "bn-server: out of memory\n");
    exit(1);
}

size_t buffer_length(const struct buffer *b) {
    return b->end - b->start;
}

size_t buffer_capacity(const struct buffer *b, size_t more, size_t most) {
    size_t needed = buffer_length(b) + more, doubled = b->capacity * 2 < 256 ? 256 : b->capacity * 2;
    if (needed <= b->capacity) return b->capacity;
    if (doubled > most) doubled = most;
    return needed > doubled ? needed : doubled;
}

static void front(struct buffer *b) {
    if (b->start > 0) memmove(b->data, b->data + b->start, b->end - b->start);
    b->end -= b->start;
    b->start = 0;
}

static void resize(struct buffer *b, size_t capacity) {
    b->data = must(realloc(b->data, capacity));
    b->capacity = capacity;
}

void buffer_grow(struct buffer *b, size_t more, size_t most) {
    if (b->capacity - b->end >= more) return;
    front(b); // frees the space of taken bytes first
    size_t capacity = buffer_capacity(b, more, most);
    if (capacity > b->capacity) resize(b, capacity);
}

void buffer_trim(struct buffer *b) {
    front(b);
    if (b->end == 0) buffer_free(b);
    else if (b->end < b->capacity) resize(b, b->end);
}

static char *room(struct buffer *b, size_t more) {
    buffer_grow(b, more, SIZE_MAX);
    return b->data + b->end;
}

void buffer_reserve(struct buffer *b, size_t more) {
    buffer_grow(b, more, SIZE_MAX);
}

void buffer_add(struct buffer *b, const void *data, size_t length) {
    if (length == 0) return;
    memcpy(room(b, length), data, length);
    b->end += length;
}

void buffer_move(struct buffer *b, struct buffer *from) {
    buffer_add(b, from->data + from->start, buffer_length(from));
    buffer_free(from);
}

void buffer_text(struct buffer *b, const char *text) {
    buffer_add(b, text, strlen(text));
}

void buffer_number(struct buffer *b, uint64_t number) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    buffer_add(b, digits + at, sizeof digits - at);
}

void buffer_format(struct buffer *b, const char *format, ...) {
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int length = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (length > 0) {
        vsnprintf(room(b, (size_t)length + 1), (size_t)length + 1, format, again);
        b->end += (size_t)length;
    }
    va_end(again);
}

// Length of the UTF-8 character at `s`, which is not ASCII; 0 if there is none.
static size_t character(const unsigned char *s, size_t left) {
    size_t n = s[0] >= 0xC2 && s[0] < 0xE0 ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F)) return 0; // too long a form, surrogates
    if ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0;
    return n;
}

static void escape(struct buffer *b, unsigned char c) {
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *name = names; *name != 0; name += 2)
        if ((unsigned char)name[0] == c) {
            buffer_add(b, (char[]){'\\', name[1]}, 2);
            return;
        }
    buffer_format(b, "\\u%04x", c);
}

void buffer_json(struct buffer *b, const char *text, size_t length) {
    const unsigned char *s = (const unsigned char *)text;
    size_t from = 0, i = 0;
    buffer_add(b, "\"", 1);
    while (i < length) {
        size_t n = s[i] < 0x80 ? 1 : character(s + i, length - i);
        if (n > 0 && s[i] >= 0x20 && s[i] != '"' && s[i] != '\\') {
            i += n;
            continue;
        }
        buffer_add(b, text + from, i - from);
        if (n == 0) buffer_text(b, "\\ufffd");
        else escape(b, s[i]);
        from = ++i;
    }
    buffer_add(b, text + from, length - from);
    buffer_add(b, "\"", 1);
}

void buffer_json_text(struct buffer *b, const char *text) {
    buffer_json(b, text, strlen(text));
}

void buffer_base64(struct buffer *b, const void *data, size_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = data;
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t v =
            (uint32_t)s[i] << 16 | (uint32_t)(left > 1 ? s[i + 1] : 0) << 8 | (uint32_t)(left > 2 ? s[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                        left > 2 ? digits[v & 63] : '='};
        buffer_add(b, four, 4);
    }
}

size_t buffer_take(struct buffer *b, char *out, size_t most) {
    size_t n = b->end - b->start < most ? b->end - b->start : most;
    memcpy(out, b->data + b->start, n);
    b->start += n;
    if (b->start == b->end) b->start = b->end = 0;
    return n;
}

void buffer_clear(struct buffer *b) {
    b->start = b->end = 0;
}

void buffer_free(struct buffer *b) {
    free(b->data);
    *b = (struct buffer){0};
}
