// A small harness: each TEST runs in a process of its own, so that a crash, a hang or a leak fails only that
// test.
#ifndef HARNESS_H
#define HARNESS_H

#include "bn_engine.h"
#include "process.h"
#include "system.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*test_function)(void);
void test_register(const char *name, test_function run);
// Reports the place and ends the test.
_Noreturn void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TEST(name)                                                                                  \
    static void name(void);                                                                         \
    __attribute__((constructor)) static void register_##name(void) { test_register(#name, name); } \
    static void name(void)

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) test_fail(__FILE__, __LINE__, "%s does not hold", #condition);    \
    } while (0)

#define CHECK_EQ(actual, expected)                                                                     \
    do {                                                                                               \
        long long a_ = (long long)(actual), e_ = (long long)(expected);                                \
        if (a_ != e_) test_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #actual, a_, e_);          \
    } while (0)

#define CHECK_STATUS(call, expected)                                                                   \
    do {                                                                                               \
        bn_status a_ = (call), e_ = (expected);                                                        \
        if (a_ != e_)                                                                                  \
            test_fail(__FILE__, __LINE__, "%s gave %s, not %s", #call, bn_status_name(a_),             \
                      bn_status_name(e_));                                                             \
    } while (0)

#define CHECK_OK(call) CHECK_STATUS(call, BN_OK)

#define CHECK_CONTAINS(text, part)                                                                     \
    do {                                                                                               \
        const char *t_ = (text), *p_ = (part);                                                         \
        if (strstr(t_, p_) == NULL) test_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", t_, p_);      \
    } while (0)

#define CHECK_TEXT(text, length, expected)                                                             \
    do {                                                                                               \
        const char *t_ = (text), *e_ = (expected);                                                     \
        int l_ = (int)(length);                                                                        \
        if ((size_t)l_ != strlen(e_) || memcmp(t_, e_, strlen(e_)) != 0)                               \
            test_fail(__FILE__, __LINE__, "text is \"%.*s\", not \"%s\"", l_, t_, e_);                 \
    } while (0)

// The model at a path, or the embedded one for NULL.
bn_model *open_model(const char *path);
// The model of an engine and its properties: valid until `bn_model_free`.
bn_model *model_of(bn_engine *engine);
bn_model_info info_of(const bn_model *model);

// Defaults, for builtin:echo (quick, answers with its prompt) or the embedded model.
bn_engine_config echo_config(void);
bn_engine_config demo_config(void);
// As above, with a cost per token: for requests that must be caught while they run.
bn_engine_config slow_config(const char *path);
bn_engine *start(const bn_engine_config *config);
bn_engine *start_echo(void);
void stop(bn_engine *engine);

// Default parameters and a text prompt, which must outlive the submit.
bn_request_params ask(const char *prompt);
bn_request submit(bn_engine *engine, const bn_request_params *params);

// The answer to a request, collected from its events.
typedef struct {
    char text[65536];
    size_t text_length;
    uint32_t tokens[16384];
    size_t tokens_count;
    size_t events;
    bool completed;
    bn_event last; // its numbers; its pointers were freed
} answer;

// Adds an event; fails the test if the event breaks the contract.
void collect(answer *to, const bn_event *event);
// Polls one event, and frees one.
bn_event poll_one(bn_engine *engine, bn_request which);
void give_back(const bn_event *event);
// Polls `which` until one request completes, and frees it. Caller frees.
answer *finish(bn_engine *engine, bn_request which);
// Polls by any until `n` requests have completed, and frees them.
void finish_all(bn_engine *engine, int n);
// Submit, poll by any, free.
answer *run(bn_engine *engine, const bn_request_params *params);

bn_stats stats(bn_engine *engine);
// `BN_STATE_*`.
uint32_t state_of(const bn_engine *engine);
// `on_logits`: holds its engine until the context, an atomic_bool, is true.
int32_t hold(const bn_logits *row, void *may_go_on);
double seconds(void);
void sleep_ms(int ms);

#endif
