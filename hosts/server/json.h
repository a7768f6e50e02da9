// Request bodies: bounded before they are parsed.
#ifndef BN_SERVER_JSON_H
#define BN_SERVER_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

struct json_limits {
    uint32_t depth; // of arrays and objects
    uint32_t items; // values, names included: each takes 64 bytes
};

// The object that `text` holds, or NULL and why in `error`. `text[length]` must be NUL. Free it with cJSON_Delete.
cJSON *json_object(const char *text, size_t length, const struct json_limits *limits, const char **error);

#endif
