// Responses that are kept for a next turn, within --keep-responses bytes. Any thread may call it.
#ifndef BN_SERVER_STORE_H
#define BN_SERVER_STORE_H

#include "server.h"

enum { STORE_ID = 24 }; // bytes of an id with its NUL

// Keeps a response and the items of its conversation, both as JSON, in place of older ones. False: it is too large.
bool store_put(const struct server *server, const char *id, const struct buffer *response, const struct buffer *items);
// Adds a response, or the items of its conversation, to `out`. False: there is none of this id.
bool store_get(const char *id, struct buffer *response, struct buffer *items);
bool store_drop(const char *id);

#endif
