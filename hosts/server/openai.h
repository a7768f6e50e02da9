// The APIs, and the code shared by those that resemble OpenAI's.
#ifndef BN_SERVER_OPENAI_H
#define BN_SERVER_OPENAI_H

#include "server.h"

extern const struct style openai_style, responses_style, messages_style, embeddings_style, batch_style, rerank_style,
    score_style;

// Responses that are kept, by their ids.
void response_get(struct exchange *ex);
void response_delete(struct exchange *ex);
const char *finish_name(int32_t reason); // as JSON
void write_usage(struct buffer *out, const struct exchange *ex);
// The list of an event's tokens with their log probabilities, as OpenAI's chats have it.
void write_token_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event);
// The parts of all jobs, with commas.
void write_parts(struct exchange *ex);

#endif
