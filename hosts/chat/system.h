// The parts of the system that Unix and Windows have each in their own way: system_posix.c and system_windows.c.
// Paths and texts are UTF-8.
#ifndef CHAT_SYSTEM_H
#define CHAT_SYSTEM_H

#include "chat.h"

#include <stddef.h>

// Prepares the terminal and Ctrl-C, which sets `interrupted`. Returns the arguments, which stay valid.
char **system_start(char **args);
bool is_terminal_in(void);
bool is_terminal_out(void);
// Whether sequences for terminals may be written to standard error.
bool is_terminal_err(void);
bool file_exists(const char *path);
// A number that other runs of this program at the same time do not have.
uint64_t process_number(void);

// Reads standard input once it has something. Returns the bytes, 0 at its end, -1 where `interrupted` or `redraw` was
// set meanwhile, -2 after an error, with errno set.
ptrdiff_t read_input(char *to, size_t room);

// Both return NULL, or what is wrong. Devices, pipes and folders are refused.
// Writes a file as a whole or not at all: what stood there stays after an error. A link's target is written.
const char *write_file(const char *path, const char *data, size_t length);
// Reads a whole file of at most `most` bytes.
const char *read_file(const char *path, uint64_t most, buffer *out);
void remove_file(const char *path);
// The user's folder, or NULL.
const char *home_folder(void);
// Whether `c` stands between folders.
bool is_separator(char c);
// `asprintf` that ends the program where it fails.
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
