// Token ids of texts and conversations.
#ifndef BN_SERVER_TOKENS_H
#define BN_SERVER_TOKENS_H

#include "server.h"

struct tokens {
    uint32_t *ids; // for free()
    size_t count, room;
};

// Appends the ids of a text, with BN_TOKENIZE_* as `flags`, or of a conversation in JSON.
bn_status tokens_add_text(struct tokens *t, const bn_model *model, bn_string text, uint32_t flags, bn_error *error);
bn_status tokens_add_chat(struct tokens *t, const bn_model *model, const bn_chat *chat, bn_error *error);
void tokens_add_ids(struct tokens *t, const uint32_t *ids, size_t count);
// Answers with the token ids of the text or conversation in `ex->ask`, or with their number (tokenize.c).
void tokenize(struct exchange *ex);
void detokenize(struct exchange *ex); // the reverse

#endif
