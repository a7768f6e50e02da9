// cJSON reads 64-bit numbers as doubles, ends strings at \u0000 and ignores bytes after the value. Values that it would
// change silently are refused here.
#include "json.h"

#include "buffer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Skips a string, from its first byte to its closing quote. Returns SIZE_MAX if it does not end. A NUL in it sets
// `*nul`.
static size_t end_of_string(const char *text, size_t length, size_t at, bool *nul) {
    for (; at < length; at++) {
        if (text[at] == '"') return at;
        if ((unsigned char)text[at] < ' ') return SIZE_MAX; // cJSON accepts it
        if (text[at] != '\\') continue;
        if (length - at > 5 && memcmp(text + at, "\\u0000", 6) == 0) *nul = true;
        at++;
    }
    return SIZE_MAX;
}

const char *json_check(const char *text, size_t length, const struct json_limits *limits, size_t *count, size_t *at) {
    uint32_t depth = 0, items = 0;
    bool nul = memchr(text, 0, length) != NULL;
    for (size_t i = 0; i < length && !nul; i++) {
        char c = text[i];
        *at = i;
        if (c == '"' && (i = end_of_string(text, length, i + 1, &nul)) == SIZE_MAX) return "the body is not valid JSON";
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth-- == 0) return "the body is not valid JSON";
        if (c == ',' || c == ':' || c == '[' || c == '{') items++;
        if (depth > limits->depth) return "the body's JSON is nested too deeply";
        if (items > limits->items) return "the body's JSON has too many values";
    }
    *count = items + 1;
    return nul ? "the body has a NUL character" : NULL;
}

// A body may need much memory, and is refused if there is none. Data made from it is small: lack of memory there ends
// the program, since a missing part would change the request.
static _Thread_local bool parsing, starved;

static void *allocate(size_t size) {
    void *allocated = malloc(size);
    starved |= allocated == NULL;
    return parsing ? allocated : must(allocated);
}

void json_start(void) {
    cJSON_InitHooks(&(cJSON_Hooks){allocate, free});
}

cJSON *json_object(const char *text, size_t length, const char **error, size_t *at) {
    const char *end = NULL;
    parsing = true;
    starved = false;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length + 1, &end, false);
    parsing = false;
    if (starved) return cJSON_Delete(root), NULL;
    *at = end == NULL || end < text ? 0 : (size_t)(end - text);
    if (root != NULL) end += strspn(end, " \t\r\n");
    if (root != NULL && cJSON_IsObject(root) && (size_t)(end - text) == length) return root;
    *error = root == NULL || (size_t)(end - text) != length ? "the body is not valid JSON"
                                                            : "the body must be a JSON object";
    cJSON_Delete(root);
    return NULL;
}
