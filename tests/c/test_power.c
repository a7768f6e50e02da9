// Pauses, the number of threads, and the release of an idle engine's weights.
#include "harness.h"

#include <stdatomic.h>

static bn_request_params endless(void) {
    bn_request_params params = ask("on and on");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 2000;
    return params;
}

TEST(a_paused_engine_takes_requests_and_runs_none) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=1000");
    bn_engine *engine = start(&config);
    bn_request_params params = endless(), late = ask("late"), next = ask("next");
    bn_request running = submit(engine, &params);
    bn_event event = poll_one(engine, running);
    give_back(&event);
    CHECK_OK(bn_engine_pause(engine, NULL));
    CHECK_OK(bn_engine_pause(engine, NULL));
    uint64_t steps = stats(engine).steps;
    late.timeout_ms = 1;
    bn_request expires = submit(engine, &late), waits = submit(engine, &next);
    answer *a = finish(engine, expires);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_TIMED_OUT);
    free(a);
    CHECK_OK(bn_cancel(engine, running, NULL));
    a = finish(engine, running);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_CANCELLED);
    free(a);
    CHECK_EQ(stats(engine).steps, steps);
    CHECK_EQ(stats(engine).engine_paused, 1);
    CHECK_EQ(stats(engine).queued, 1);
    size_t count = 1;
    CHECK_OK(bn_poll(engine, waits, &event, sizeof event, 1, 20, &count, NULL));
    CHECK_EQ(count, 0);
    CHECK_EQ(state_of(engine), BN_STATE_RUNNING);
    CHECK_OK(bn_engine_resume(engine, NULL));
    CHECK_OK(bn_engine_resume(engine, NULL));
    a = finish(engine, waits);
    CHECK_TEXT(a->text, a->text_length, "next");
    free(a);
    CHECK_EQ(stats(engine).engine_paused, 0);
    stop(engine);
}

TEST(a_paused_engine_is_destroyed_with_its_requests) {
    bn_engine *engine = start_echo();
    bn_request_params params = endless();
    CHECK_OK(bn_engine_pause(engine, NULL));
    for (int i = 0; i < 4; i++) submit(engine, &params);
    stop(engine);
    CHECK_STATUS(bn_engine_pause(engine, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_engine_resume(NULL, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_engine_set_threads(NULL, 1, NULL), BN_ERR_INVALID_ARGUMENT);
}

TEST(a_drain_ends_a_pause) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("drained");
    CHECK_OK(bn_engine_pause(engine, NULL));
    bn_request request = submit(engine, &params);
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    answer *a = finish(engine, request);
    CHECK_TEXT(a->text, a->text_length, "drained");
    free(a);
    CHECK_STATUS(bn_engine_pause(engine, NULL), BN_ERR_SHUTDOWN);
    CHECK_STATUS(bn_engine_set_threads(engine, 1, NULL), BN_ERR_SHUTDOWN);
    CHECK_OK(bn_engine_resume(engine, NULL));
    stop(engine);
}

typedef struct {
    bn_engine *_Atomic engine;
    atomic_int pause, threads, resume;
    atomic_bool done;
} calls;

static void on_event(const bn_event *event, void *context) {
    calls *made = context;
    bn_engine *engine = atomic_load(&made->engine);
    while (engine == NULL) engine = atomic_load(&made->engine);
    atomic_store(&made->pause, bn_engine_pause(engine, NULL));
    atomic_store(&made->threads, bn_engine_set_threads(engine, 1, NULL));
    atomic_store(&made->resume, bn_engine_resume(engine, NULL));
    if (event->kind == BN_EVENT_COMPLETED) atomic_store(&made->done, true);
}

TEST(a_callback_may_resume_but_not_wait_for_a_step) {
    calls made = {0};
    bn_engine_config config = echo_config();
    config.on_event = on_event;
    config.on_event_context = &made;
    bn_engine *engine = start(&config);
    atomic_store(&made.engine, engine);
    bn_request_params params = ask("from a callback");
    bn_request request = 0;
    CHECK_OK(bn_submit(engine, &params, &request, NULL));
    while (!atomic_load(&made.done)) sleep_ms(1);
    CHECK_EQ(atomic_load(&made.pause), BN_ERR_REENTRANT);
    CHECK_EQ(atomic_load(&made.threads), BN_ERR_REENTRANT);
    CHECK_EQ(atomic_load(&made.resume), BN_OK);
    stop(engine);
}

TEST(threads_change_between_steps_and_outputs_do_not) {
    bn_engine_config config = demo_config();
    config.threads = 3;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("17+25=");
    CHECK_EQ(stats(engine).threads, 3);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t threads = i % 4;
        CHECK_OK(bn_engine_set_threads(engine, threads, NULL));
        CHECK_EQ(stats(engine).threads, threads == 0 ? 3 : threads);
        answer *a = run(engine, &params);
        CHECK_TEXT(a->text, a->text_length, "42");
        free(a);
    }
    bn_error error;
    CHECK_STATUS(bn_engine_set_threads(engine, 4, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "threads = 4 is out of range: 0 to 3");
    stop(engine);
}

TEST(an_idle_engine_releases_mapped_weights) {
    bn_engine_config config = demo_config();
    config.model_path = BN_STRING(BN_GOLDEN_MODELS "/gemma2.gguf");
    config.idle_release_ms = 1;
    bn_engine *engine = start(&config);
    bn_request_params params = endless();
    static const uint32_t prompt[] = {3, 1, 4, 1, 5};
    uint32_t first[4];
    params.prompt = (bn_string){0};
    params.prompt_tokens = prompt;
    params.prompt_tokens_count = 5;
    params.max_new_tokens = 4;
    for (uint64_t round = 1; round < 4; round++) {
        for (int tries = 0; stats(engine).weight_releases < round; tries++) {
            CHECK(tries < 30000);
            sleep_ms(1);
        }
        answer *a = run(engine, &params);
        CHECK_EQ(a->tokens_count, 4);
        if (round == 1) memcpy(first, a->tokens, sizeof first);
        CHECK(memcmp(first, a->tokens, sizeof first) == 0);
        free(a);
    }
    stop(engine);
    config.idle_release_ms = 604800001;
    bn_error error;
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "idle_release_ms");
}
