// The parts of bn-chat: options (options.c), the conversation (history.c), a turn of it (turn.c), commands
// (commands.c, settings.c, complete.c, saved.c), prompts from a person or a pipe (lines.c; edit.h), lines for the user
// (say.c), and main.c, which opens the model and reads on.
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
    const char *history;              // the file of earlier prompts; "none"; NULL: the usual one
    uint32_t threads, context, max_tokens, mtp, skip_zeros;
    uint32_t given; // which of the sampling fields were given, BN_SAMPLING_*
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
    uint64_t seed;
} options;

// Returns -1 to continue, or the program's exit code.
int options_parse(options *out, int count, char **args);

// A value that /set changes. Names are as it shows them: with underscores, without dashes.
typedef struct {
    char name[32], value[32];
    uint32_t field; // BN_SAMPLING_*, or 0
    bool usual;     // the value is the default
} setting;
// Returns false behind the last one.
bool setting_at(const options *o, size_t index, setting *out);
// `value` NULL: the default again. Returns false if there is no such setting, or it cannot have this value.
bool setting_change(options *o, const char *name, const char *value);

// A growable byte buffer.
typedef struct {
    char *data;
    size_t length, room;
} buffer;

void buffer_add(buffer *b, const char *data, size_t length);
void buffer_free(buffer *b);

// `malloc` that ends the program where it fails.
void *must(void *memory);

// The messages so far. A system message is the first one; after it, users and assistants take turns.
typedef struct {
    bn_chat_message *messages;
    size_t count, room;
} conversation;

void history_add(conversation *h, const char *role, bn_string content);
void history_drop(conversation *h, size_t first, size_t count);
bool history_has_system(const conversation *h);
// Sets the system message, or removes it if `content` is empty.
void history_set_system(conversation *h, bn_string content);

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
    conversation history;
    uint64_t turns;
    timing last;
    buffer asked; // the last prompt of a model without a chat template, for turn_again
} chat;

// Name of the engine's session that holds the conversation's keys and values.
#define SESSION BN_STRING("chat")

// Asks the model and prints its answer as it arrives. Returns false if that failed, after reporting it on stderr.
bool turn(chat *c, bn_string text);
// Sampling values of the next request: the user's, or else the model's, where `given` says so.
options sampling_of(const chat *c);
// Another answer to the last question, in place of the one that it has.
bool turn_again(chat *c);

typedef enum { GO_ON, QUIT, FAILED } outcome;

// Runs a line that begins with '/'.
outcome command(chat *c, bn_string line);
// Commands in files of their own. `rest` is what follows the name.
outcome command_set(chat *c, bn_string rest);
outcome command_system(chat *c, bn_string rest);
outcome command_save(chat *c, bn_string rest);
outcome command_load(chat *c, bn_string rest);
// The name of a command by its place, or NULL behind the last one; whether text follows it.
const char *command_name(size_t index, bool *takes_text);

// Completes `text`, what stands before the cursor: `more` is what all possibilities have in common beyond it, `list`
// the possibilities, set apart by spaces. Both end with a NUL. Returns how many there are.
size_t completions(bn_string text, buffer *more, buffer *list);

// A file's path as the user writes it, with ~/ for the home folder. Free it.
char *path_of(bn_string text);

typedef enum {
    LINE,
    LINE_END,
    LINE_INTERRUPTED,
    LINE_DROPPED, // interrupted after something was typed
    LINE_FAILED
} line_result;

// The next prompt or command. `block` is set if it stood between two of """, so that it is no command. It is valid
// until the next call.
line_result next_prompt(const chat *c, bn_string *prompt, bool *block);
// The next line of standard input, without its end. It is valid until the next call.
line_result plain_line(bn_string *line);
// Waits for standard input; returns false if SIGINT arrived first or `redraw` was set.
bool wait_for_input(void);

// A line from a person, behind a prompt: by edit.c or plain.c.
line_result edit_line(const char *prompt, bn_string *line);
// Adds to what the keys for earlier prompts find.
void edit_remember(const char *text);

// Set when SIGINT arrives; cleared by the program.
extern volatile sig_atomic_t interrupted;
// Set when the terminal has to be drawn again.
extern volatile sig_atomic_t redraw;

// Prints a line for the user on stderr.
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Prints an error on stderr.
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The same for what the library says: it names fields where this program has options.
void complain_of(const char *message, size_t length);

#endif
