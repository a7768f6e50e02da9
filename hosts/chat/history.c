// The conversation: messages whose contents are owned here, and growable byte buffers.
#include "chat.h"

#include <stdlib.h>
#include <string.h>

void *must(void *memory) {
    if (memory != NULL) return memory;
    complain("out of memory");
    exit(1);
}

static void *resized(void *old, size_t size) {
    return must(realloc(old, size));
}

void buffer_add(buffer *b, const char *data, size_t length) {
    if (b->length + length > b->room) {
        b->room = 2 * (b->length + length);
        b->data = resized(b->data, b->room);
    }
    if (length > 0) memcpy(b->data + b->length, data, length);
    b->length += length;
}

void buffer_free(buffer *b) {
    free(b->data);
    *b = (buffer){0};
}

static void insert(conversation *h, size_t at, const char *role, bn_string content) {
    if (h->count == h->room) {
        h->room = 2 * h->room + 8;
        h->messages = resized(h->messages, h->room * sizeof *h->messages);
    }
    char *copy = resized(NULL, content.length + 1);
    memcpy(copy, content.data, content.length);
    memmove(h->messages + at + 1, h->messages + at, (h->count - at) * sizeof *h->messages);
    h->messages[at] = (bn_chat_message){BN_TEXT(role), {copy, content.length}};
    h->count++;
}

void history_add(conversation *h, const char *role, bn_string content) {
    insert(h, h->count, role, content);
}

void history_drop(conversation *h, size_t first, size_t count) {
    if (count == 0) return; // `messages` may be NULL
    for (size_t i = first; i < first + count; i++) free((char *)h->messages[i].content.data);
    memmove(h->messages + first, h->messages + first + count, (h->count - first - count) * sizeof *h->messages);
    h->count -= count;
}

bool history_has_system(const conversation *h) {
    return h->count > 0 && strcmp(h->messages[0].role.data, "system") == 0;
}

void history_set_system(conversation *h, bn_string content) {
    if (history_has_system(h)) history_drop(h, 0, 1);
    if (content.length > 0) insert(h, 0, "system", content);
}
