// Lines for the user.
#include "chat.h"

#include <stdarg.h>
#include <stdio.h>

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
