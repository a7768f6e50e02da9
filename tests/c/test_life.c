// Create to destroy: cancel, shutdown, several engines, logs, progress, leaks.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>

static const char SLOW[] = "builtin:echo?us_per_token=2000";

static bn_request_params endless(void) {
    bn_request_params params = ask("on and on");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 2000;
    return params;
}

TEST(cancel_ends_one_request) {
    bn_engine_config config = slow_config(SLOW);
    bn_engine *engine = start(&config);
    bn_request_params params = endless();
    bn_request request = submit(engine, &params);
    bn_event event;
    size_t count = 0;
    CHECK_OK(bn_poll(engine, request, &event, sizeof(bn_event), 1, 10000, &count, NULL)); // it runs
    CHECK_OK(bn_cancel(engine, request, NULL));
    CHECK_OK(bn_cancel(engine, request, NULL));
    answer *a = finish(engine, request);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_CANCELLED);
    CHECK_EQ(a->last.status, BN_ERR_CANCELLED);
    CHECK_EQ(stats(engine).completed_cancelled, 1);
    free(a);
    stop(engine);
}

TEST(cancel_any_ends_all_queued_and_running) {
    bn_engine_config config = slow_config(SLOW);
    config.max_batch_size = 2;
    bn_engine *engine = start(&config);
    bn_request_params params = endless();
    for (int i = 0; i < 20; i++) submit(engine, &params);
    CHECK_OK(bn_cancel(engine, BN_ANY, NULL));
    for (int done = 0; done < 20;) {
        bn_event events[32];
        size_t count = 0;
        CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof(bn_event), 32, 60000, &count, NULL));
        CHECK(count > 0);
        for (size_t i = 0; i < count; i++) {
            if (events[i].kind != BN_EVENT_COMPLETED) continue;
            CHECK_EQ(events[i].finish_reason, BN_FINISH_CANCELLED);
            done++;
        }
    }
    CHECK_EQ(stats(engine).kv_blocks_used, 0);
    bn_request_params after = ask("after");
    answer *a = run(engine, &after); // unreleased requests block no others
    CHECK_TEXT(a->text, a->text_length, "after");
    free(a);
    stop(engine);
}

TEST(a_drain_finishes_what_was_accepted) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=1000");
    config.max_batch_size = 2;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("finish me");
    for (int i = 0; i < 6; i++) submit(engine, &params);
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    bn_request late = 0;
    CHECK_STATUS(bn_submit(engine, &params, &late, NULL), BN_ERR_SHUTDOWN);
    bn_event completion = {0};
    CHECK_STATUS(bn_generate(engine, &params, &completion, sizeof completion, NULL), BN_ERR_SHUTDOWN);
    for (int done = 0; done < 6;) {
        bn_event one = poll_one(engine, BN_ANY);
        done += one.kind == BN_EVENT_COMPLETED;
        CHECK(one.kind != BN_EVENT_COMPLETED || one.finish_reason == BN_FINISH_STOP);
    }
    bn_event event;
    size_t count = 0;
    CHECK_STATUS(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &count, NULL), BN_ERR_SHUTDOWN);
    CHECK(stats(engine).rejected_shutdown >= 1);
    stop(engine);
}

TEST(a_cancelling_shutdown_may_follow_a_drain) {
    bn_engine_config config = slow_config(SLOW);
    bn_engine *engine = start(&config);
    bn_request_params params = endless();
    bn_request request = submit(engine, &params);
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_CANCEL, NULL));
    answer *a = finish(engine, request);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_CANCELLED);
    free(a);
    stop(engine);
}

TEST(destroy_leaves_no_thread_and_no_descriptor) {
    int threads = count_threads(), fds = count_fds();
    for (int i = 0; i < 5; i++) {
        bn_engine_config config = slow_config(SLOW);
        bn_engine *engine = start(&config);
        bn_request_params params = endless();
        for (int k = 0; k < 5; k++) submit(engine, &params);
        sleep_ms(10);
        stop(engine);
        CHECK_STATUS(bn_engine_free(engine), BN_ERR_INVALID_ARGUMENT);
    }
    CHECK_EQ(count_threads(), threads);
    CHECK_EQ(count_fds(), fds);
}

TEST(handles_are_never_used_again) {
    bn_engine *seen[20];
    for (int i = 0; i < 20; i++) {
        seen[i] = start_echo();
        for (int k = 0; k < i; k++) CHECK(seen[k] != seen[i]);
        stop(seen[i]);
    }
}

typedef struct {
    bn_engine *engine;
    bn_status status;
    uint32_t finish_reason;
} generator;

static void *generate(void *context) {
    generator *g = context;
    bn_request_params params = endless();
    bn_event completion = {0};
    g->status = bn_generate(g->engine, &params, &completion, sizeof completion, NULL);
    g->finish_reason = completion.finish_reason;
    bn_events_free(&completion, sizeof completion, 1);
    return NULL;
}

TEST(destroy_ends_a_blocking_generate) {
    bn_engine_config config = slow_config(SLOW);
    generator g = {.engine = start(&config)};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, generate, &g), 0);
    while (stats(g.engine).running == 0) sleep_ms(1);
    stop(g.engine);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK((g.status == BN_OK && g.finish_reason == BN_FINISH_CANCELLED) || g.status == BN_ERR_SHUTDOWN);
}

static void *destroy(void *engine) {
    return (void *)(intptr_t)bn_engine_free(engine);
}

TEST(one_of_two_destroys_goes_through) {
    for (int i = 0; i < 20; i++) {
        bn_engine *engine = start_echo();
        pthread_t threads[2];
        void *status[2];
        for (int k = 0; k < 2; k++) CHECK_EQ(pthread_create(&threads[k], NULL, destroy, engine), 0);
        for (int k = 0; k < 2; k++) CHECK_EQ(pthread_join(threads[k], &status[k]), 0);
        bn_status a = (bn_status)(intptr_t)status[0], b = (bn_status)(intptr_t)status[1];
        CHECK((a == BN_OK && b == BN_ERR_INVALID_ARGUMENT) || (b == BN_OK && a == BN_ERR_INVALID_ARGUMENT));
    }
}

typedef struct {
    bn_engine *engine;
    _Atomic int stop;
    _Atomic int unexpected;
} caller;

static void *call_everything(void *context) {
    caller *c = context;
    while (!atomic_load(&c->stop)) {
        bn_request_params params;
        bn_request_params_init(&params, sizeof params);
        params.prompt = BN_STRING("race");
        bn_request request = 0;
        bn_event event;
        size_t count = 0;
        bn_stats stats = {.struct_size = sizeof stats};
        bn_status status[] = {
            bn_submit(c->engine, &params, &request, NULL),
            bn_poll(c->engine, BN_ANY, &event, sizeof(bn_event), 1, 1, &count, NULL),
            bn_engine_stats(c->engine, &stats, NULL),
            request != 0 ? bn_request_free(c->engine, request, NULL) : BN_OK,
        };
        for (size_t i = 0; i < sizeof status / sizeof *status; i++)
            if (status[i] != BN_OK && status[i] != BN_ERR_SHUTDOWN && status[i] != BN_ERR_INVALID_ARGUMENT &&
                status[i] != BN_ERR_QUEUE_FULL && status[i] != BN_ERR_NOT_FOUND)
                atomic_store(&c->unexpected, status[i]);
    }
    return NULL;
}

TEST(destroy_under_calls_from_other_threads) {
    for (int i = 0; i < 10; i++) {
        caller c = {.engine = start_echo()};
        pthread_t threads[4];
        for (int k = 0; k < 4; k++) CHECK_EQ(pthread_create(&threads[k], NULL, call_everything, &c), 0);
        sleep_ms(20);
        stop(c.engine);
        sleep_ms(5);
        atomic_store(&c.stop, 1);
        for (int k = 0; k < 4; k++) pthread_join(threads[k], NULL);
        CHECK_EQ(c.unexpected, 0);
    }
}

typedef struct {
    _Atomic int lines, bad, progress, calls_back;
    bn_engine *engine;
    float last;
    int32_t give_up;
} log_sink;

static void log_line(uint32_t level, bn_string message, void *context) {
    log_sink *sink = context;
    if (level < BN_LOG_ERROR || level > BN_LOG_DEBUG || message.data == NULL || message.length == 0) atomic_fetch_add(&sink->bad, 1);
    atomic_fetch_add(&sink->lines, 1);
}

static int32_t progress(float fraction, bn_string what, void *context) {
    log_sink *sink = context;
    if (fraction < sink->last || fraction > 1.0f || what.data == NULL || what.length == 0) atomic_fetch_add(&sink->bad, 1);
    sink->last = fraction;
    atomic_fetch_add(&sink->progress, 1);
    return sink->give_up;
}

TEST(loading_reports_to_log_and_progress) {
    static log_sink sink;
    bn_model_config config;
    bn_model *model = NULL;
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    config.log = log_line;
    config.log_context = &sink;
    config.log_level = BN_LOG_DEBUG;
    config.progress = progress;
    config.progress_context = &sink;
    CHECK_OK(bn_model_open(&config, &model, NULL));
    CHECK(sink.lines > 0 && sink.progress > 1 && sink.bad == 0);
    CHECK(sink.last == 1.0f);
    CHECK_OK(bn_model_free(model));
}

TEST(progress_may_give_the_load_up) {
    static log_sink sink = {.give_up = 1};
    int threads = count_threads(), fds = count_fds();
    bn_model_config config;
    bn_model *model = NULL;
    bn_error error = {0};
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    config.progress = progress;
    config.progress_context = &sink;
    CHECK_STATUS(bn_model_open(&config, &model, &error), BN_ERR_CANCELLED);
    CHECK(model == NULL && sink.progress == 1 && error.message[0] != 0);
    CHECK_EQ(count_threads(), threads);
    CHECK_EQ(count_fds(), fds);
}

static int32_t give_up_third(float fraction, bn_string what, void *context) {
    int *calls = context;
    (void)fraction, (void)what;
    return ++*calls == 3;
}

TEST(a_slow_load_may_be_given_up_on_its_way) {
    int calls = 0;
    bn_model_config config;
    bn_model *model = NULL;
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    config.path = BN_STRING("builtin:echo?load_ms=1000000"); // the test would take a quarter of an hour
    config.progress = give_up_third;
    config.progress_context = &calls;
    CHECK_STATUS(bn_model_open(&config, &model, NULL), BN_ERR_CANCELLED);
    CHECK(model == NULL);
    CHECK_EQ(calls, 3);
}

TEST(log_level_off_is_silent) {
    static log_sink sink;
    bn_engine_config config = echo_config();
    config.log = log_line;
    config.log_context = &sink;
    config.log_level = BN_LOG_OFF;
    bn_engine *engine = start(&config);
    stop(engine);
    CHECK_EQ(sink.lines, 0);
}

TEST(two_engines_live_side_by_side) {
    bn_engine *one = start_echo(), *two = start_echo();
    bn_request_params first = ask("first"), second = ask("second");
    submit(one, &first);
    submit(two, &second);
    answer *a = finish(one, BN_ANY), *b = finish(two, BN_ANY);
    CHECK_TEXT(a->text, a->text_length, "first");
    CHECK_TEXT(b->text, b->text_length, "second");
    free(a);
    free(b);
    stop(one);
    first = ask("still here");
    bn_request request = submit(two, &first);
    (void)request;
    a = finish(two, BN_ANY);
    CHECK_TEXT(a->text, a->text_length, "still here");
    free(a);
    stop(two);
}

TEST(a_memory_limit_too_small_is_refused) {
    bn_engine_config config = demo_config();
    config.memory_limit_bytes = 100000;
    bn_engine *engine = NULL;
    bn_error error = {0};
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_MEMORY_LIMIT);
    CHECK_CONTAINS(error.message, "memory_limit_bytes");
}

TEST(memory_in_use_stays_under_its_limit) {
    bn_engine_config config = demo_config();
    config.memory_limit_bytes = UINT64_C(64) << 20;
    config.queue_capacity = 4096;
    bn_engine *engine = start(&config);
    bn_stats before = stats(engine);
    CHECK(before.memory_used_bytes > 0 && before.memory_used_bytes <= config.memory_limit_bytes);
    CHECK_EQ(before.memory_limit_bytes, config.memory_limit_bytes);
    char prompt[301];
    memset(prompt, 'a', 300);
    prompt[300] = 0;
    bn_request_params params = ask(prompt);
    params.max_new_tokens = 8;
    int accepted = 0;
    for (int i = 0; i < 300; i++) {
        bn_request request = 0;
        bn_status status = bn_submit(engine, &params, &request, NULL);
        CHECK(status == BN_OK || status == BN_ERR_MEMORY_LIMIT);
        accepted += status == BN_OK;
    }
    CHECK(accepted > 0);
    CHECK_OK(bn_cancel(engine, BN_ANY, NULL));
    finish_all(engine, accepted);
    bn_stats after = stats(engine);
    CHECK(after.memory_peak_bytes <= config.memory_limit_bytes);
    stop(engine);
}
