// A small reader of JSON: the lists of Hugging Face's hub, and saved conversations.
#ifndef BN_JSONDOC_H
#define BN_JSONDOC_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } jsondoc_kind;

typedef struct jsondoc {
    jsondoc_kind kind;
    char *key;   // in an object
    char *text;  // of a string, in UTF-8 and with a NUL behind it; of a number, as it was written
    size_t size; // of the text
    struct jsondoc *child, *next;
} jsondoc;

// Returns NULL if the text is not one JSON value, is nested deeper than 64, or memory is short. Free it with
// jsondoc_free.
jsondoc *jsondoc_parse(const char *text, size_t length);
void jsondoc_free(jsondoc *value);
// The member of an object, or NULL: also if `object` is NULL or no object.
const jsondoc *jsondoc_member(const jsondoc *object, const char *key);
// The text of an object's member that is a string, or NULL.
const char *jsondoc_string(const jsondoc *object, const char *key);

#endif
