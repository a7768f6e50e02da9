// Lines for the user.
#include "../hub/naming.h"
#include "system.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void note(const char *format, ...) {
    va_list args;
    fflush(stdout);
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

void complain_of(const char *message, size_t length) {
    static const field_option names[] = {{"context_length", "--context"}, {"draft_model", "--draft-model"}};
    size_t room = 2 * length + 1; // no option is twice as long as its field
    char *text = must(malloc(room));
    fields_as_options(text, room, message, length, names, sizeof names / sizeof *names);
    complain("%s", text);
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
