#include "tokens.h"

#include <stdlib.h>
#include <string.h>

// A text has seldom more tokens than bytes.
static void make_room(struct tokens *t, size_t more) {
    if (t->room - t->count >= more) return;
    t->room = t->room > more ? 2 * t->room : t->room + more;
    t->ids = must(realloc(t->ids, t->room * sizeof *t->ids));
}

void tokens_add_ids(struct tokens *t, const uint32_t *ids, size_t count) {
    if (count == 0) return;
    make_room(t, count);
    memcpy(t->ids + t->count, ids, count * sizeof *ids);
    t->count += count;
}

// `chat` has the conversation; NULL: it is a text.
static bn_status add(struct tokens *t, const bn_model *model, bn_string text, uint32_t flags, const bn_chat *chat,
                     bn_error *error) {
    size_t count = text.length + 1;
    bn_status status;
    do {
        make_room(t, count);
        uint32_t *to = t->ids + t->count;
        size_t room = t->room - t->count;
        status = chat != NULL ? bn_model_chat_tokenize(model, chat, to, room, &count, error)
                              : bn_model_tokenize(model, text, flags, to, room, &count, error);
    } while (status == BN_ERR_BUFFER_TOO_SMALL);
    if (status == BN_OK) t->count += count;
    return status;
}

bn_status tokens_add_text(struct tokens *t, const bn_model *model, bn_string text, uint32_t flags, bn_error *error) {
    return add(t, model, text, flags, NULL, error);
}

bn_status tokens_add_chat(struct tokens *t, const bn_model *model, const bn_chat *chat, bn_error *error) {
    return add(t, model, chat->json, 0, chat, error);
}
