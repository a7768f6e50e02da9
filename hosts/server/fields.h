// The fields of request bodies.
#ifndef BN_SERVER_FIELDS_H
#define BN_SERVER_FIELDS_H

#include "server.h"

enum {
    FIELDS_COMPLETION = 1,
    FIELDS_CHAT = 2,
    FIELDS_EMBEDDING = 4,
    FIELDS_BATCH = 8,
    FIELDS_TOKENIZE = 16,
    FIELDS_RESPONSE = 32,
    FIELDS_MESSAGE = 64,
    FIELDS_COUNT = 128,
    FIELDS_RERANK = 256,
    FIELDS_SCORE = 512,
};

// Reads the exchange's body into `ex->ask`, whose texts point into `root`. False: `ex` has failed.
bool fields_read(struct exchange *ex, const cJSON *root);
// Frees data that is needed only until the requests are submitted.
void ask_free(struct ask *ask);

#endif
