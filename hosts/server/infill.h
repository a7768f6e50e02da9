// Fill in the middle: a completion's prompt stands before its text, and `suffix` behind it.
#ifndef BN_SERVER_INFILL_H
#define BN_SERVER_INFILL_H

#include "server.h"
#include "tokens.h"

// Puts the prompts of an exchange with a suffix into `t`, as its model was trained to read them. Any thread may call it.
bn_status infill_fill(const struct exchange *ex, bn_request_params *params, struct tokens *t, bn_error *error);

#endif
