// The parts of bn-chat: options (options.c), the conversation (history.c), a turn of it (turn.c), commands
// (commands.c), lines from the keyboard or a pipe (lines.c), and main.c, which opens the model and reads on.
#ifndef CHAT_H
#define CHAT_H

#include "bn_engine.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the command line says.
typedef struct {
    const char *model;                // NULL: the embedded one
    const char *system, *draft_model; // NULL: none
    const char *device;               // NULL: the CPU
    uint32_t threads, context, max_tokens;
    uint32_t given; // which of the sampling fields were given, BN_SAMPLING_*
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint64_t seed;
} options;

// Returns -1 to go on, or the program's exit code.
int options_parse(options *out, int count, char **args);

// Bytes that grow.
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
// Sets the system message, or removes it where `content` is empty.
void history_set_system(history *h, bn_string content);

// The numbers of a turn's last event.
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

// The name of the engine's session that holds the conversation's keys and values.
#define SESSION BN_STRING("chat")

// Asks the model and prints its answer as it comes. False if it failed, which a line on stderr has told.
bool turn(chat *c, bn_string text);

typedef enum { GO_ON, QUIT, FAILED } outcome;

// Runs a line that begins with '/'.
outcome command(chat *c, bn_string line);

typedef enum { LINE, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

// The next line of standard input, without its end. It is valid until the next call.
line_result next_line(bn_string *line);

// Whether a line begins with """: what follows it, up to a line that ends with """, is one prompt, for what is pasted.
bool opens_block(bn_string line);
// The rest of such a block, without blank lines around it. It is valid until the next call.
line_result next_block(bn_string *text, bn_string line);

// Terminals take no more of a line.
enum { TERMINAL_LINE = 4095 };

// SIGINT came since this was last set to 0.
extern volatile sig_atomic_t interrupted;

// A line for the user on stderr.
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The same as an error.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
