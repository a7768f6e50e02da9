// Hosts that cancel their threads, or give them small stacks.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>

// A cancelled thread uses nothing on its stack, because AddressSanitizer does not unmark the frames that it leaves.
typedef struct {
    bn_engine *engine;
    bn_request_params params;
    bn_event event;
    size_t count;
    _Atomic int entered, returned;
} victim;

static void *be_cancelled_in_poll(void *context) {
    victim *v = context;
    atomic_store(&v->entered, 1);
    bn_status status = bn_poll(v->engine, BN_ANY, &v->event, sizeof v->event, 1, BN_NO_LIMIT, &v->count, NULL);
    atomic_store(&v->returned, status == BN_OK && v->count == 1 ? 1 : -1);
    if (status == BN_OK) give_back(&v->event);
    while (true) pthread_testcancel();
    return NULL;
}

static void *be_cancelled_in_generate(void *context) {
    victim *v = context;
    atomic_store(&v->entered, 1);
    bn_status status = bn_generate(v->engine, &v->params, &v->event, sizeof v->event, NULL);
    atomic_store(&v->returned, status == BN_OK && v->event.finish_reason == BN_FINISH_STOP ? 1 : -1);
    bn_events_free(&v->event, sizeof v->event, 1);
    while (true) pthread_testcancel();
    return NULL;
}

static void cancel_one(bn_engine *engine, void *(*run)(void *), bool submits) {
    victim v = {.engine = engine, .params = ask("cancelled?")};
    pthread_t thread;
    void *result = NULL;
    CHECK_EQ(pthread_create(&thread, NULL, run, &v), 0);
    while (!atomic_load(&v.entered)) sleep_ms(0);
    sleep_ms(1);
    CHECK_EQ(pthread_cancel(thread), 0);
    if (submits) {
        bn_request_params params = ask("x");
        params.flags = BN_REQUEST_NO_STREAM;
        submit(engine, &params);
    }
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    // The thread cannot be cancelled before the call or within it, so the call has returned.
    CHECK_EQ(v.returned, 1);
}

TEST(no_call_is_a_cancellation_point) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=200");
    bn_engine *engine = start(&config);
    for (int i = 0; i < 100; i++) {
        cancel_one(engine, be_cancelled_in_poll, true);
        cancel_one(engine, be_cancelled_in_generate, false);
    }
    bn_request_params params = ask("alive");
    params.flags = BN_REQUEST_POLL_BY_ID;
    answer *a = finish(engine, submit(engine, &params));
    CHECK_TEXT(a->text, a->text_length, "alive");
    free(a);
    stop(engine);
}

#if defined SANITIZED
enum { STACK = 512 << 10 }; // instrumented frames are larger
#else
enum { STACK = 64 << 10 };
#endif

static void on_a_small_stack(void *(*run)(void *), void *context) {
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK_EQ(pthread_attr_init(&attributes), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attributes, STACK), 0);
    CHECK_EQ(pthread_create(&thread, &attributes, run, context), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

static void *open_and_free(void *path) {
    CHECK_OK(bn_model_free(open_model(path)));
    return NULL;
}

TEST(a_small_stack_will_do_to_open_a_model) {
    on_a_small_stack(open_and_free, "builtin:echo");
    on_a_small_stack(open_and_free, NULL);
    on_a_small_stack(open_and_free, BN_DEMO_MODEL);
}

#ifdef BN_GOLDEN_MODELS
TEST(a_small_stack_will_do_to_open_folders) {
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/llama-sharded");
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/gemma3");
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/bitnet-embedding-qwen3");
}
#endif

static void *create_and_destroy(void *config) {
    stop(start(config));
    return NULL;
}

TEST(a_small_stack_will_do_to_make_an_engine) {
    bn_engine_config config = demo_config();
    on_a_small_stack(create_and_destroy, &config);
    config = echo_config();
    on_a_small_stack(create_and_destroy, &config);
}

static void *use_an_engine(void *context) {
    bn_engine *engine = context;
    bn_chat_message message = {BN_STRING("user"), BN_STRING("hello, and a longer text, with 123 numbers")};
    bn_event completion = {0};
    bn_model *model = model_of(engine);
    bool chats = info_of(model).has_chat_template == 1;
    bn_request_params params = ask("Once upon a time");
    params.max_new_tokens = 8;
    params.sampling.temperature = 0.7f;
    params.sampling.top_p = 0.9f;
    params.flags = BN_REQUEST_LOGPROBS;
    params.top_logprobs = 5;
    free(run(engine, &params));
    CHECK_OK(bn_generate(engine, &params, &completion, sizeof completion, NULL));
    bn_events_free(&completion, sizeof completion, 1);
    if (chats) {
        params.prompt = (bn_string){0};
        params.chat.messages = &message;
        params.chat.messages_count = 1;
        free(run(engine, &params));
    }
    size_t count = 0;
    uint32_t tokens[128];
    CHECK_OK(bn_model_tokenize(model, message.content, 0, tokens, 128, &count, NULL));
    static char text[32768];
    CHECK_OK(bn_model_detokenize(model, tokens, count, text, sizeof text, &count, NULL));
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text, &count, NULL));
    CHECK_OK(bn_model_free(model));
    return NULL;
}

TEST(a_small_stack_will_do_to_use_an_engine) {
    bn_engine *engine = start_echo();
    on_a_small_stack(use_an_engine, engine);
    stop(engine);
    bn_engine_config config = demo_config();
    engine = start(&config);
    on_a_small_stack(use_an_engine, engine);
    stop(engine);
}
