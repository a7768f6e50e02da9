// Models as objects of their own: shared by engines, used without one; and an engine's description of its
// model.
#include "harness.h"

TEST(two_engines_share_a_model) {
    bn_model *model = open_model(NULL), *one_model, *two_model;
    bn_model_info info = info_of(model);
    bn_engine_config config = demo_config();
    config.model = model;
    bn_engine *one = start(&config), *two = start(&config);
    // Each engine names the same model, by a handle of the caller's own.
    one_model = model_of(one), two_model = model_of(two);
    CHECK(one_model != model && two_model != model && one_model != two_model);
    bn_model_info first = info_of(one_model), second = info_of(two_model);
    CHECK(first.architecture.data == info.architecture.data && second.architecture.data == info.architecture.data);
    CHECK(first.end_tokens_count == 1 && first.end_tokens[0] == info.end_tokens[0]);
    // Each engine counts all the weights.
    CHECK(stats(one).memory_used_bytes >= info.weight_bytes && stats(two).memory_used_bytes >= info.weight_bytes);
    CHECK_OK(bn_model_free(model));
    CHECK_STATUS(bn_model_free(model), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_model_free(one_model));
    bn_request_params params = ask("17+25=");
    answer *a = run(one, &params), *b = run(two, &params);
    CHECK_TEXT(a->text, a->text_length, "42");
    CHECK_TEXT(b->text, b->text_length, "42");
    free(a);
    stop(one);
    free(b);
    b = run(two, &params);
    CHECK_TEXT(b->text, b->text_length, "42");
    free(b);
    stop(two);
    // The model outlives its engines, and serves new ones.
    config.model = two_model;
    CHECK(info_of(two_model).architecture.data == second.architecture.data);
    one = start(&config);
    CHECK_OK(bn_model_free(two_model));
    a = run(one, &params);
    CHECK_TEXT(a->text, a->text_length, "42");
    free(a);
    stop(one);
}

TEST(an_engine_takes_a_model_or_a_path) {
    bn_model *model = open_model("builtin:echo");
    bn_engine_config config = echo_config();
    bn_engine *engine = NULL;
    bn_error error = {0};
    config.model = model; // beside a path
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "model_path");
    config.model_path = (bn_string){0};
    CHECK_OK(bn_model_free(model));
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "model");
    CHECK(engine == NULL);
}

TEST(a_model_needs_no_engine) {
    bn_model *model = open_model(NULL);
    int threads = count_threads(), fds = count_fds();
    uint32_t tokens[64];
    char text[256];
    size_t count = 0, length = 0;
    CHECK_OK(bn_model_tokenize(model, BN_STRING("Once upon a time"), BN_TOKENIZE_ADD_SPECIAL, tokens, 64, &count, NULL));
    CHECK_EQ(tokens[0], info_of(model).bos_token);
    CHECK_OK(bn_model_detokenize(model, tokens, count, text, sizeof text, &length, NULL));
    CHECK_TEXT(text, length, "Once upon a time");
    CHECK_EQ(count_threads(), threads);
    CHECK_EQ(count_fds(), fds);
    CHECK_OK(bn_model_free(model));
    CHECK_STATUS(bn_model_tokenize(model, BN_STRING("a"), 0, tokens, 64, &count, NULL), BN_ERR_INVALID_ARGUMENT);
}

TEST(opening_and_freeing_leaves_nothing) {
    CHECK_OK(bn_model_free(open_model(BN_DEMO_MODEL)));
    int threads = count_threads(), fds = count_fds();
    bn_model *seen[10];
    for (int i = 0; i < 10; i++) {
        seen[i] = open_model(i % 2 == 0 ? BN_DEMO_MODEL : NULL);
        for (int k = 0; k < i; k++) CHECK(seen[k] != seen[i]); // handles are never used again
        CHECK_OK(bn_model_free(seen[i]));
    }
    CHECK_EQ(count_threads(), threads);
    CHECK_EQ(count_fds(), fds);
}

static void wait_for_state(bn_engine *engine, uint32_t state) {
    while (state_of(engine) != state) sleep_ms(1);
}

TEST(an_engine_tells_its_state) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    bn_engine *engine = start(&config);
    CHECK_EQ(state_of(engine), BN_STATE_RUNNING);
    bn_request_params params = ask("on and on");
    params.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_NO_STREAM;
    params.max_new_tokens = 2000;
    bn_request request = submit(engine, &params);
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    CHECK_EQ(state_of(engine), BN_STATE_DRAINING);
    CHECK_OK(bn_cancel(engine, request, NULL));
    wait_for_state(engine, BN_STATE_DRAINED);
    // Its last event still waits; queries allowed before the end are allowed after it.
    bn_event event = poll_one(engine, BN_ANY);
    CHECK_EQ(event.finish_reason, BN_FINISH_CANCELLED);
    bn_model *model = model_of(engine);
    CHECK_OK(bn_model_free(model));
    CHECK_OK(bn_request_free(engine, request, NULL));
    CHECK_EQ(state_of(engine), BN_STATE_DRAINED);
    stop(engine);
    uint32_t state = 77;
    CHECK_STATUS(bn_engine_state(engine, &state), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_engine_state(NULL, &state), BN_ERR_INVALID_ARGUMENT);
    CHECK_EQ(state, 77);
}

static bn_request_info where(bn_engine *engine, bn_request request) {
    bn_request_info info;
    CHECK_OK(bn_request_info_init(&info, sizeof info));
    CHECK_OK(bn_request_get_info(engine, request, &info, NULL));
    CHECK(info.stage == BN_STAGE_QUEUED || info.queue_position == 0);
    return info;
}

TEST(a_request_knows_its_place_in_the_queue) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    config.max_batch_size = 1;
    bn_engine *engine = start(&config);
    enum { N = 6 };
    bn_request requests[N];
    bn_request_params params = ask("in the queue");
    params.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_NO_STREAM;
    params.max_new_tokens = 5000;
    for (int i = 0; i < N; i++) requests[i] = submit(engine, &params);
    while (where(engine, requests[0]).stage == BN_STAGE_QUEUED) sleep_ms(1);
    CHECK_EQ(where(engine, requests[0]).stage, BN_STAGE_RUNNING);
    for (uint64_t i = 1; i < N; i++) {
        CHECK_EQ(where(engine, requests[i]).stage, BN_STAGE_QUEUED);
        CHECK_EQ(where(engine, requests[i]).queue_position, i - 1);
    }
    // A request in the middle ends; later ones move up.
    CHECK_OK(bn_cancel(engine, requests[2], NULL));
    while (where(engine, requests[2]).stage != BN_STAGE_FINISHED) sleep_ms(1);
    CHECK_EQ(where(engine, requests[1]).queue_position, 0);
    CHECK_EQ(where(engine, requests[3]).queue_position, 1);
    CHECK_EQ(where(engine, requests[5]).queue_position, 3);
    // The running one ends: the next one runs.
    CHECK_OK(bn_cancel(engine, requests[0], NULL));
    while (where(engine, requests[1]).stage != BN_STAGE_RUNNING) sleep_ms(1);
    CHECK_EQ(where(engine, requests[3]).queue_position, 0);
    CHECK_OK(bn_request_free(engine, requests[0], NULL));
    bn_request_info info = {.struct_size = sizeof info};
    CHECK_STATUS(bn_request_get_info(engine, requests[0], &info, NULL), BN_ERR_NOT_FOUND);
    info.struct_size = 6; // within `stage`
    CHECK_STATUS(bn_request_get_info(engine, requests[1], &info, NULL), BN_ERR_INVALID_ARGUMENT);
    info.struct_size = 8;
    CHECK_OK(bn_request_get_info(engine, requests[1], &info, NULL));
    CHECK_EQ(info.stage, BN_STAGE_RUNNING);
    stop(engine);
}

TEST(a_handle_that_is_freed_leaves_nothing) {
    bn_engine *engine = start_echo();
    CHECK_OK(bn_model_free(model_of(engine)));
    long heap = heap_bytes();
    for (int i = 0; i < 10000; i++) CHECK_OK(bn_model_free(model_of(engine)));
    CHECK(heap_bytes() - heap <= 4096);
    stop(engine);
}
