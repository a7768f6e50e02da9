// Routes that answer at once.
#ifndef BN_SERVER_INFO_H
#define BN_SERVER_INFO_H

#include "server.h"

void models(struct exchange *ex);
void model(struct exchange *ex); // the one named by the path
void metrics(struct exchange *ex);
void stats(struct exchange *ex);
void health(struct exchange *ex);
void version(struct exchange *ex);
void props(struct exchange *ex); // llama.cpp's
void page(struct exchange *ex);

#endif
