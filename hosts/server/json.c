// cJSON reads 64-bit numbers as doubles, ends strings at \u0000 and goes on after the value: what it would change in
// silence is refused here.
#include "json.h"

#include <stdbool.h>
#include <string.h>

// Skips a string, from its first byte to its closing quote. SIZE_MAX: it does not end. A NUL in it sets `*nul`.
static size_t end_of_string(const char *text, size_t length, size_t at, bool *nul) {
    for (; at < length; at++) {
        if (text[at] == '"') return at;
        if (text[at] != '\\') continue;
        if (length - at > 5 && memcmp(text + at, "\\u0000", 6) == 0) *nul = true;
        at++;
    }
    return SIZE_MAX;
}

static const char *check(const char *text, size_t length, const struct json_limits *limits) {
    uint32_t depth = 0, items = 0;
    bool nul = memchr(text, 0, length) != NULL;
    for (size_t i = 0; i < length && !nul; i++) {
        char c = text[i];
        if (c == '"' && (i = end_of_string(text, length, i + 1, &nul)) == SIZE_MAX) return "the body is not valid JSON";
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth-- == 0) return "the body is not valid JSON";
        if (c == ',' || c == ':' || c == '[' || c == '{') items++;
        if (depth > limits->depth) return "the body's JSON is nested too deeply";
        if (items > limits->items) return "the body's JSON has too many values";
    }
    return nul ? "the body has a NUL character" : NULL;
}

cJSON *json_object(const char *text, size_t length, const struct json_limits *limits, const char **error) {
    const char *end = NULL;
    if ((*error = check(text, length, limits)) != NULL) return NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length + 1, &end, false);
    if (root != NULL) end += strspn(end, " \t\r\n");
    if (root != NULL && cJSON_IsObject(root) && (size_t)(end - text) == length) return root;
    *error = root == NULL || (size_t)(end - text) != length ? "the body is not valid JSON"
                                                            : "the body must be a JSON object";
    cJSON_Delete(root);
    return NULL;
}
