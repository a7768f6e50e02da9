// Routes that answer at once.
#ifndef BN_SERVER_INFO_H
#define BN_SERVER_INFO_H

#include "server.h"

void models(struct exchange *ex);
void metrics(struct exchange *ex);
void stats(struct exchange *ex);
void health(struct exchange *ex);
void page(struct exchange *ex);
// Of texts or a conversation: `ex->ask` is read.
void tokenize(struct exchange *ex);

#endif
