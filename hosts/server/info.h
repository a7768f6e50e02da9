// Routes that answer at once.
#ifndef BN_SERVER_INFO_H
#define BN_SERVER_INFO_H

#include "server.h"

void models(struct exchange *ex);
void metrics(struct exchange *ex);
void stats(struct exchange *ex);
void health(struct exchange *ex);
void page(struct exchange *ex);
// Of a text or a conversation in `ex->ask`.
void tokenize(struct exchange *ex);
void count_tokens(struct exchange *ex);

#endif
