// Lines from a person: with editing and a history (edit.c), or as the terminal takes them (plain.c).
#ifndef EDIT_H
#define EDIT_H

#include "chat.h"

// Returns false for an option that cannot be kept, after saying so.
bool edit_start(const options *o);
void edit_stop(void);
// The keys, for /help; may be empty.
const char *edit_help(void);

// The prompts of earlier chats, in a file that all chats add to.
// Returns its path, or NULL: none is wanted, or there is no folder for it. `option` is the option's value or NULL.
const char *past_file(const char *option);
// Calls `each` with the newest prompts, oldest first.
void past_read(const char *path, void (*each)(const char *text));
// Returns false, with errno set, if the file cannot be written.
bool past_add(const char *path, const char *text);

#endif
