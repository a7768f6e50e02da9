#include "naming.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

// Whether a character is part of a field's or a file's name.
static bool in_name(char c) {
    return isalnum((unsigned char)c) || (c != 0 && strchr("_/\\.-", c) != NULL);
}

// Whether a name goes on at `at`: a full stop may also end a sentence.
static bool goes_on(const char *message, size_t length, size_t at) {
    if (at < length && message[at] == '.') at++;
    return at < length && in_name(message[at]);
}

static const field_option *at(const char *message, size_t length, size_t from, const field_option *table,
                              size_t count) {
    if (from > 0 && in_name(message[from - 1])) return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t own = strlen(table[i].field);
        bool same = own <= length - from && memcmp(message + from, table[i].field, own) == 0;
        if (same && !goes_on(message, length, from + own)) return &table[i];
    }
    return NULL;
}

void fields_as_options(char *out, size_t room, const char *message, size_t length, const field_option *table,
                       size_t count) {
    size_t used = 0;
    for (size_t from = 0; from < length;) {
        const field_option *found = at(message, length, from, table, count);
        const char *text = found != NULL ? found->option : message + from;
        size_t size = found != NULL ? strlen(text) : 1;
        if (size >= room - used) break;
        memcpy(out + used, text, size);
        used += size;
        from += found != NULL ? strlen(found->field) : 1;
    }
    out[used] = 0;
}
