// LoRA adapters: clients ask for them as models, by name.
#ifndef BN_SERVER_ADAPTERS_H
#define BN_SERVER_ADAPTERS_H

#include "server.h"

struct adapter {
    struct adapter *next;
    const char *name;
    bn_adapter *handle;
};

// Opens the adapters of `list`, "NAME=PATH,NAME=PATH", into `*out`, in order. A mistake is BN_ERR_INVALID_ARGUMENT.
bn_status adapters_open(bn_engine *engine, const char *list, struct adapter **out, bn_error *error);
// Returns NULL if there is none of this name.
const struct adapter *adapters_find(const struct model *model, const char *name);
// Whether the list has this name; nothing is opened.
bool adapters_list(const char *list, const char *name);
void adapters_close(struct adapter *first);

#endif
