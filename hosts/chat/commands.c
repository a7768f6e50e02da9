// Lines that begin with '/'.
#include "edit.h"

#include <stdio.h>
#include <string.h>

static outcome show_stats(chat *c, bn_string rest) {
    (void)rest;
    const timing *t = &c->last;
    char report[4096];
    size_t length = 0;
    bn_error error = {0};
    if (t->prompt_tokens > 0) {
        double rate = t->decode_ns > 0 ? (t->generated_tokens - 1) * 1e9 / (double)t->decode_ns : 0;
        printf("last turn: %u prompt tokens, %u of them cached, the first token after %.1f ms; "
               "%u tokens, %.1f per second\n",
               t->prompt_tokens, t->cached_tokens, (double)t->first_token_ns / 1e6, t->generated_tokens, rate);
    }
    printf("seed %llu, context %llu tokens\n", (unsigned long long)c->options.seed, (unsigned long long)c->context);
    if (bn_engine_report(c->engine, report, sizeof report, &length, &error) != BN_OK)
        return complain("%s", error.message), FAILED;
    printf("%.*s", (int)length, report);
    return GO_ON;
}

outcome command_system(chat *c, bn_string rest) {
    if (!c->info.has_chat_template) return complain("this model has no chat template, so no system prompt"), FAILED;
    history_set_system(&c->history, rest);
    if (c->interactive) note(rest.length > 0 ? "(the system prompt is set)" : "(there is no system prompt now)");
    return GO_ON;
}

static outcome reset(chat *c, bn_string rest) {
    (void)rest;
    size_t first = history_has_system(&c->history) ? 1 : 0;
    history_drop(&c->history, first, c->history.count - first);
    bn_session_free(c->engine, SESSION, NULL); // there is none before the first turn
    if (c->interactive) note("(the conversation is forgotten)");
    return GO_ON;
}

static outcome regenerate(chat *c, bn_string rest) {
    (void)rest;
    return turn_again(c) ? GO_ON : FAILED;
}

static outcome quit(chat *c, bn_string rest) {
    (void)c, (void)rest;
    return QUIT;
}

static outcome show_help(chat *c, bn_string rest);

static const struct {
    const char *name, *takes; // NULL: nothing
    outcome (*run)(chat *c, bn_string rest);
    const char *help;
} table[] = {
    {"/help", NULL, show_help, "this list"},
    {"/set", "[NAME [VALUE]]", command_set, "temperature, top_k, system ...; without VALUE the default; alone a list"},
    {"/system", "[TEXT]", command_system, "another system prompt, none without TEXT; the conversation goes on"},
    {"/regen", NULL, regenerate, "another answer to the last question"},
    {"/save", "FILE", command_save, "write the conversation, and what was computed of it to FILE.kv"},
    {"/load", "FILE", command_load, "go on with a conversation that was saved"},
    {"/reset", NULL, reset, "forget the conversation, but not the system prompt"},
    {"/stats", NULL, show_stats, "the last turn's timing, and the engine's report"},
    {"/quit", NULL, quit, "or Ctrl-D"},
};
enum { COMMANDS = sizeof table / sizeof *table };

static outcome show_help(chat *c, bn_string rest) {
    (void)rest;
    for (int i = 0; i < COMMANDS; i++) {
        const char *takes = table[i].takes != NULL ? table[i].takes : "";
        printf("%s %-*s %s\n", table[i].name, 22 - (int)strlen(table[i].name), takes, table[i].help);
    }
    printf("%-23s begins and ends a prompt of several lines\n", "\"\"\"");
    if (c->interactive) printf("%-23s at a line's end: the prompt goes on in the next line\n", "\\");
    printf("Ctrl-C stops an answer. A line that begins with a space is never a command.\n%s", edit_help());
    return GO_ON;
}

const char *command_name(size_t index, bool *takes_text) {
    if (index >= COMMANDS) return NULL;
    *takes_text = table[index].takes != NULL;
    return table[index].name;
}

outcome command(chat *c, bn_string line) {
    while (line.length > 0 && line.data[line.length - 1] == ' ') line.length--;
    const char *space = memchr(line.data, ' ', line.length);
    size_t name = space != NULL ? (size_t)(space - line.data) : line.length;
    bn_string rest = {line.data + name, line.length - name};
    while (rest.length > 0 && *rest.data == ' ') rest.data++, rest.length--;
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strlen(table[i].name) != name || memcmp(table[i].name, line.data, name) != 0) continue;
        if (rest.length > 0 && table[i].takes == NULL) break;
        return table[i].run(c, rest);
    }
    complain("there is no command '%.*s'; /help lists them", (int)line.length, line.data);
    return FAILED;
}
