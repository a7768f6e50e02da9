// Scores documents for queries, for /v1/rerank and /v1/score: each pair is a prompt, scored by its log probabilities.
#ifndef BN_SERVER_PAIRS_H
#define BN_SERVER_PAIRS_H

#include "server.h"
#include "tokens.h"

// Reads --rerank-template. Returns false after reporting an error on stderr.
bool pairs_start(struct server *server);
// The template's words must be tokens of a model. Any thread may call it.
bn_status pairs_loaded(const bn_model *model, bn_error *error);
// Call this once all fields are read.
void pairs_check(struct exchange *ex);
// Puts the prompts of an exchange's requests into `t`. Any thread may call it.
bn_status pairs_fill(const struct exchange *ex, bn_request_params *params, struct tokens *t, bn_error *error);
// The score of a request's last event, from 0 to 1.
double pairs_score(const struct exchange *ex, const bn_event *event);

#endif
