// The spans of traced requests.
#include "harness.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

typedef struct {
    bn_engine *engine;
    bn_span spans[16];
    _Atomic int count;
} trace;

// Checks [any thread]: the function may be called here, and blocking calls are refused.
static void on_span(const bn_span *span, void *context) {
    trace *t = context;
    bn_event event;
    size_t count = 0;
    int at = atomic_load(&t->count);
    CHECK(at < 16);
    CHECK_EQ(span->struct_size, sizeof *span);
    CHECK_EQ(state_of(t->engine), BN_STATE_RUNNING);
    CHECK(stats(t->engine).accepted > 0);
    CHECK_STATUS(bn_poll(t->engine, BN_ANY, &event, sizeof event, 1, 0, &count, NULL), BN_ERR_REENTRANT);
    t->spans[at] = *span;
    atomic_store(&t->count, at + 1);
}

static bn_engine *start_traced(trace *t, const char *model) {
    bn_engine_config config = slow_config(model);
    config.max_batch_size = config.max_batch_tokens = 2;
    config.on_span = on_span;
    config.on_span_context = t;
    return t->engine = start(&config);
}

static bn_request_params traced(const char *prompt) {
    bn_request_params params = ask(prompt);
    memset(params.trace.trace_id, 7, sizeof params.trace.trace_id);
    memset(params.trace.parent_id, 8, sizeof params.trace.parent_id);
    params.user_data = 9;
    return params;
}

static uint64_t unix_ns(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_REALTIME, &t) == 0);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

TEST(a_traced_request_has_a_span_for_each_phase) {
    trace t = {0};
    bn_engine *engine = start_traced(&t, "builtin:echo?us_per_token=100");
    uint64_t before = unix_ns();
    bn_request_params params = traced("count me");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 6;
    answer *a = run(engine, &params);
    stop(engine); // no callback comes after it
    CHECK_EQ(t.count, 3);
    const uint32_t tokens[] = {a->last.prompt_tokens, a->last.prompt_tokens, 6};
    uint64_t last = before;
    for (int i = 0; i < 3; i++) {
        const bn_span *span = &t.spans[i];
        CHECK_EQ(span->kind, BN_SPAN_QUEUED + i);
        CHECK(span->start_ns >= last && span->end_ns >= span->start_ns);
        CHECK_EQ(span->tokens, tokens[i]);
        CHECK_EQ(span->finish_reason, BN_FINISH_LENGTH);
        CHECK_EQ(span->user_data, 9);
        CHECK(memcmp(&span->trace, &params.trace, sizeof span->trace) == 0);
        last = span->end_ns;
    }
    CHECK(t.spans[2].end_ns <= unix_ns());
    CHECK_EQ(t.spans[2].end_ns - t.spans[2].start_ns, a->last.decode_ns);
    free(a);
}

TEST(a_request_that_was_cancelled_has_the_spans_that_it_reached) {
    trace t = {0};
    bn_engine *engine = start_traced(&t, "builtin:echo?us_per_token=200000");
    bn_request_params params = traced("a prompt of many steps");
    bn_request request = submit(engine, &params);
    while (stats(engine).running == 0) sleep_ms(1);
    CHECK_OK(bn_cancel(engine, request, NULL));
    free(finish(engine, BN_ANY));
    stop(engine);
    CHECK_EQ(t.count, 2);
    CHECK_EQ(t.spans[1].kind, BN_SPAN_PREFILL);
    CHECK_EQ(t.spans[1].finish_reason, BN_FINISH_CANCELLED);
    CHECK(t.spans[1].end_ns > t.spans[1].start_ns);
}

TEST(only_traced_requests_have_spans) {
    trace t = {0};
    bn_engine *engine = start_traced(&t, "builtin:echo");
    bn_request_params params = ask("untraced");
    free(run(engine, &params));
    CHECK_EQ(t.count, 0);
    params.trace.parent_id[7] = 1;
    bn_request request;
    bn_error error = {0};
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "trace_id");
    stop(engine);
    engine = start_echo(); // they are not requested
    params = traced("to nobody");
    free(run(engine, &params));
    stop(engine);
}
