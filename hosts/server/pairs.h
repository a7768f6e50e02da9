// Documents scored for queries, /v1/rerank and /v1/score: each pair is a prompt, whose log probabilities tell.
#ifndef BN_SERVER_PAIRS_H
#define BN_SERVER_PAIRS_H

#include "server.h"
#include "tokens.h"

// Reads --rerank-template. False: it says on stderr what is wrong.
bool pairs_start(struct server *server);
// Once the model is loaded, whose tokens the words must be. False: it says on stderr what is wrong.
bool pairs_loaded(const struct server *server);
// Once all fields are read.
void pairs_check(struct exchange *ex);
// The prompts of an exchange's requests, which are in `t` then. Any thread.
bn_status pairs_fill(const struct exchange *ex, bn_request_params *params, struct tokens *t, bn_error *error);
// From 0 to 1, of a request's last event.
double pairs_score(const struct exchange *ex, const bn_event *event);

#endif
