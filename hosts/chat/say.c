// Lines for the user.
#include "system.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void complain(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fputs("bn-chat: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

// Whether a character is part of a field's or a file's name.
static bool in_name(char c) {
    return isalnum((unsigned char)c) || (c != 0 && strchr("_/.-", c) != NULL);
}

void complain_of(const char *message, size_t length) {
    static const char *const names[][2] = {{"max_sequence_length", "--context"}, {"draft_model", "--draft-model"}};
    char *text = must(malloc(2 * length + 1)); // no option is twice as long as its field
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t own = 0;
        for (size_t n = 0; n < sizeof names / sizeof *names && own == 0; n++) {
            size_t size = strlen(names[n][0]);
            if (size > length - i || memcmp(message + i, names[n][0], size) != 0) continue;
            if ((i > 0 && in_name(message[i - 1])) || (i + size < length && in_name(message[i + size]))) continue;
            own = size;
            used += (size_t)sprintf(text + used, "%s", names[n][1]);
        }
        if (own == 0) text[used++] = message[i];
        i += own == 0 ? 1 : own;
    }
    complain("%.*s", (int)used, text);
    free(text);
}

char *format_text(const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    char *text = must(malloc((size_t)length + 1));
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}
