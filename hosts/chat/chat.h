// The parts of bn-chat: options (options.c), the conversation (history.c), a turn of it (turn.c), commands
// (commands.c), lines from the keyboard or a pipe (lines.c), lines for the user (say.c), and main.c, which opens the
// model and reads on.
#ifndef CHAT_H
#define CHAT_H

#include "bn_engine.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Options of the command line.
typedef struct {
    const char *model;                // NULL: the embedded one
    const char *system, *draft_model; // NULL: none
    const char *device;               // NULL: the CPU
    uint32_t threads, context, max_tokens, mtp;
    uint32_t given; // which of the sampling fields were given, BN_SAMPLING_*
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint64_t seed;
} options;

// Returns -1 to continue, or the program's exit code.
int options_parse(options *out, int count, char **args);

// A growable byte buffer.
typedef struct {
    char *data;
    size_t length, room;
} buffer;

void buffer_add(buffer *b, const char *data, size_t length);
void buffer_free(buffer *b);

// The messages so far. A system message is the first one; after it, users and assistants take turns.
typedef struct {
    bn_chat_message *messages;
    size_t count, room;
} history;

void history_add(history *h, const char *role, bn_string content);
void history_drop(history *h, size_t first, size_t count);
bool history_has_system(const history *h);
// Sets the system message, or removes it if `content` is empty.
void history_set_system(history *h, bn_string content);

// Usage numbers of a turn's last event.
typedef struct {
    uint32_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t first_token_ns, decode_ns;
} timing;

typedef struct {
    options options;
    bn_engine *engine;
    bn_model *model;
    bn_model_info info;
    uint64_t context;  // the most tokens of a request
    bool interactive;  // a person types and reads
    bool terminal_out; // the answers go to a terminal
    history history;
    uint64_t turns;
    timing last;
} chat;

// Name of the engine's session that holds the conversation's keys and values.
#define SESSION BN_STRING("chat")

// Asks the model and prints its answer as it arrives. Returns false if that failed, after reporting it on stderr.
bool turn(chat *c, bn_string text);

typedef enum { GO_ON, QUIT, FAILED } outcome;

// Runs a line that begins with '/'.
outcome command(chat *c, bn_string line);

typedef enum { LINE, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

// The next line of standard input, without its end. It is valid until the next call.
line_result next_line(bn_string *line);

// Returns true if a line begins with """. All lines from there to one that ends with """ are one prompt, for pasted
// text.
bool opens_block(bn_string line);
// The rest of such a block, without blank lines around it. It is valid until the next call.
line_result next_block(bn_string *text, bn_string line);

// Terminals accept no longer line.
enum { TERMINAL_LINE = 4095 };

// Set when SIGINT arrives; cleared by the program.
extern volatile sig_atomic_t interrupted;

// Prints a line for the user on stderr.
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Prints an error on stderr.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
