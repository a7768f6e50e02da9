// Growable byte buffers, and JSON written into them. A program that runs out of memory ends: `must` reports it and
// exits with 1.
#ifndef BN_SERVER_BUFFER_H
#define BN_SERVER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long ull; // for %llu

struct buffer {
    char *data;
    size_t start, end; // bytes not taken yet
    size_t capacity;
};

void *must(void *allocated);
size_t buffer_length(const struct buffer *b);
void buffer_reserve(struct buffer *b, size_t more);
// The capacity with room for `more` bytes: doubled, but not beyond `most` if that is enough.
size_t buffer_capacity(const struct buffer *b, size_t more, size_t most);
void buffer_grow(struct buffer *b, size_t more, size_t most); // to it
void buffer_trim(struct buffer *b);                           // gives back the unused capacity
void buffer_add(struct buffer *b, const void *data, size_t length);
void buffer_move(struct buffer *b, struct buffer *from); // and frees it
void buffer_text(struct buffer *b, const char *text);
void buffer_number(struct buffer *b, uint64_t number);
void buffer_format(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void buffer_json(struct buffer *b, const char *text, size_t length);
void buffer_json_text(struct buffer *b, const char *text);
void buffer_base64(struct buffer *b, const void *data, size_t length);
// Takes up to `room` bytes from the front.
size_t buffer_take(struct buffer *b, char *out, size_t room);
void buffer_clear(struct buffer *b);
void buffer_free(struct buffer *b);

#endif
