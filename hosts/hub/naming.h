// The library's messages name fields of its structs. For a person who typed options, they shall name those.
#ifndef BN_HUB_NAMING_H
#define BN_HUB_NAMING_H

#include <stddef.h>

typedef struct {
    const char *field, *option;
} field_option;

// Writes the message with options in place of fields, and a NUL; it is cut where `room` ends. A field's name that is
// part of a longer one, or of a path, stays.
void fields_as_options(char *out, size_t room, const char *message, size_t length, const field_option *table,
                       size_t count);

#endif
