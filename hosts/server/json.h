// Request bodies: bounded before they are parsed.
#ifndef BN_SERVER_JSON_H
#define BN_SERVER_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

struct json_limits {
    uint32_t depth; // of arrays and objects
    uint32_t items; // values, names included
};

// Returns NULL, or why `text` cannot be an object within the limits, and `*at` is where. `*items` is an upper bound on its values.
const char *json_check(const char *text, size_t length, const struct json_limits *limits, size_t *items, size_t *at);
// Call this first: without memory, cJSON ends the program, except while it parses bodies.
void json_start(void);
// Parses the checked object in `text`. On NULL, `error` has the reason, or is not set if memory was short,
// and `*at` the place. `text[length]` must be NUL. Free the object with cJSON_Delete.
cJSON *json_object(const char *text, size_t length, const char **error, size_t *at);

#endif
