#include "adapters.h"

#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bn_status wrong(bn_error *error, const char *what, const char *item) {
    snprintf(error->message, sizeof error->message, "--adapters: '%.200s' %s", item, what);
    return error->status = BN_ERR_INVALID_ARGUMENT;
}

static bn_status add(bn_engine *engine, char *item, struct adapter **first, bn_error *error) {
    char *path = strchr(item, '=');
    struct adapter **end = first;
    if (path == NULL || path == item || path[1] == 0) return wrong(error, "is not NAME=PATH", item);
    *path++ = 0;
    for (; *end != NULL; end = &(*end)->next)
        if (strcmp((*end)->name, item) == 0) return wrong(error, "is there twice", item);
    bn_adapter *handle = NULL;
    bn_status status = bn_adapter_open(engine, BN_TEXT(path), &handle, error);
    if (status != BN_OK) return status;
    *end = must(calloc(1, sizeof **end));
    **end = (struct adapter){NULL, must(strdup(item)), handle};
    return BN_OK;
}

bn_status adapters_open(bn_engine *engine, const char *list, struct adapter **out, bn_error *error) {
    char *copy = must(strdup(list)), *rest = copy, *item;
    bn_status status = BN_OK;
    while (status == BN_OK && (item = strsep(&rest, ",")) != NULL)
        if (*item != 0) status = add(engine, item, out, error);
    free(copy);
    return status;
}

const struct adapter *adapters_find(const struct model *model, const char *name) {
    const struct adapter *found = model->adapters;
    while (found != NULL && strcmp(found->name, name) != 0) found = found->next;
    return found;
}

bool adapters_list(const char *list, const char *name) {
    size_t length = strlen(name);
    while (*list != 0) {
        if (strncmp(list, name, length) == 0 && list[length] == '=' && length > 0) return true;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return false;
}

void adapters_close(struct adapter *first) {
    while (first != NULL) {
        struct adapter *next = first->next;
        bn_adapter_free(first->handle);
        free((char *)first->name);
        free(first);
        first = next;
    }
}
