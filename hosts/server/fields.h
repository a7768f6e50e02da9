// The fields of request bodies.
#ifndef BN_SERVER_FIELDS_H
#define BN_SERVER_FIELDS_H

#include "server.h"

// Reads the exchange's body into `ex->ask`, whose texts point into `root`. False: `ex` has failed.
bool fields_read(struct exchange *ex, const cJSON *root);
// Frees data that is needed only until the requests are submitted.
void ask_over(struct exchange *ex);
void ask_let_go(struct work *work); // the same, as `run` of a work

#endif
