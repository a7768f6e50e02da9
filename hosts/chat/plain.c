// Lines as the terminal takes them: in place of edit.c where there was no libedit when this was built.
#include "edit.h"

#include <stdio.h>

// Terminals accept no longer line.
enum { TERMINAL_LINE = 4095 };

bool edit_start(const options *o) {
    if (o->history == NULL) return true;
    complain("--history: this bn-chat was built without libedit, so it keeps no history");
    return false;
}

void edit_stop(void) {}

const char *edit_help(void) {
    return "";
}

line_result edit_line(const char *prompt, bn_string *line) {
    for (;;) {
        fputs(prompt, stdout);
        fflush(stdout);
        line_result result = plain_line(line);
        if (result != LINE || line->length < TERMINAL_LINE) return result;
        complain("the terminal cuts lines at %d bytes: break it up between two lines of \"\"\"", TERMINAL_LINE);
    }
}

void edit_remember(const char *text) {
    (void)text;
}
