// Lines that begin with '/'.
#include "chat.h"

#include <stdio.h>
#include <string.h>

static outcome show_help(chat *c, bn_string rest) {
    (void)c, (void)rest;
    puts("/stats         this turn's timing, and the engine's report\n"
         "/system TEXT   another system prompt, none without TEXT; the conversation goes on\n"
         "/reset         forget the conversation, but not the system prompt\n"
         "/quit          or Ctrl-D\n"
         "\"\"\"           begins and ends a prompt of several lines\n"
         "Ctrl-C stops an answer. A line that begins with a space is never a command.");
    return GO_ON;
}

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

static outcome set_system(chat *c, bn_string rest) {
    if (!c->info.has_chat_template) return complain("this model has no chat template, so no system prompt"), FAILED;
    history_set_system(&c->history, rest);
    if (c->interactive) note(rest.length > 0 ? "(the system prompt is set)" : "(there is no system prompt now)");
    return GO_ON;
}

static outcome reset(chat *c, bn_string rest) {
    (void)rest;
    size_t first = history_has_system(&c->history) ? 1 : 0;
    history_drop(&c->history, first, c->history.count - first);
    bn_session_drop(c->engine, SESSION, NULL); // there is none before the first turn
    if (c->interactive) note("(the conversation is forgotten)");
    return GO_ON;
}

static outcome quit(chat *c, bn_string rest) {
    (void)c, (void)rest;
    return QUIT;
}

static const struct {
    const char *name;
    bool takes_text;
    outcome (*run)(chat *c, bn_string rest);
} table[] = {
    {"/help", false, show_help}, {"/stats", false, show_stats}, {"/system", true, set_system},
    {"/reset", false, reset},    {"/quit", false, quit},
};

outcome command(chat *c, bn_string line) {
    const char *space = memchr(line.data, ' ', line.length);
    size_t name = space != NULL ? (size_t)(space - line.data) : line.length;
    bn_string rest = {line.data + name, line.length - name};
    while (rest.length > 0 && *rest.data == ' ') rest.data++, rest.length--;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strlen(table[i].name) != name || memcmp(table[i].name, line.data, name) != 0) continue;
        if (rest.length > 0 && !table[i].takes_text) break;
        return table[i].run(c, rest);
    }
    complain("there is no command '%.*s'; /help lists them", (int)line.length, line.data);
    return FAILED;
}
