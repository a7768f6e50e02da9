// Drafts: the same bytes with and without, and counts that add up.
#include "harness.h"

#include <string.h>

static const char *const TEXT = "one two three one two three one two three one two";

static bn_engine *start_with(int32_t speculation) {
    bn_engine_config config = demo_config();
    config.speculation = speculation;
    return start(&config);
}

static bn_request_params ask_for(int32_t speculation, float temperature, uint64_t seed) {
    bn_request_params params = ask(TEXT);
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 40;
    params.sampling.temperature = temperature;
    params.sampling.seed = seed;
    params.speculation = speculation;
    return params;
}

static void same(const answer *a, const answer *b) {
    CHECK_EQ(a->tokens_count, b->tokens_count);
    CHECK(memcmp(a->tokens, b->tokens, a->tokens_count * sizeof *a->tokens) == 0);
    CHECK_EQ(a->text_length, b->text_length);
    CHECK(memcmp(a->text, b->text, a->text_length) == 0);
}

TEST(drafts_change_no_byte_and_counts_add_up) {
    bn_engine *engine = start_with(BN_SPECULATION_DEFAULT);
    uint64_t drafted = 0, accepted = 0;
    for (int n = 0; n < 6; n++) {
        float temperature = (float)(n % 3) * 0.5f;
        bn_request_params with = ask_for(BN_SPECULATION_LOOKUP, temperature, (uint64_t)n);
        bn_request_params without = ask_for(BN_SPECULATION_OFF, temperature, (uint64_t)n);
        answer *a = run(engine, &with), *b = run(engine, &without);
        same(a, b);
        CHECK(a->last.accepted_tokens <= a->last.drafted_tokens);
        CHECK(a->last.accepted_tokens < a->last.generated_tokens);
        CHECK_EQ(b->last.drafted_tokens + b->last.accepted_tokens, 0);
        drafted += a->last.drafted_tokens;
        accepted += a->last.accepted_tokens;
        free(a);
        free(b);
    }
    bn_stats s = stats(engine);
    CHECK_EQ(s.drafted_tokens, drafted);
    CHECK_EQ(s.accepted_tokens, accepted);
    CHECK_EQ(s.generated_tokens, 12 * 40);
    // Each forward pass gives a request a token, and one more for each accepted draft.
    CHECK_EQ(s.inter_token.count, 12 * 39);
    CHECK_EQ(s.steps, 12 * 40 - accepted);
    stop(engine);
}

TEST(drafts_of_a_batch_are_each_requests_own) {
    enum { N = 8 };
    answer *alone[N];
    bn_request_params params[N];
    bn_request ids[N];
    bn_engine *engine = start_with(BN_SPECULATION_OFF);
    for (int n = 0; n < N; n++) {
        params[n] = ask_for(BN_SPECULATION_DEFAULT, 0.7f, (uint64_t)n);
        params[n].max_new_tokens = (uint32_t)(10 + 7 * n);
        alone[n] = run(engine, &params[n]);
    }
    CHECK_EQ(stats(engine).drafted_tokens, 0);
    stop(engine);
    engine = start_with(BN_SPECULATION_LOOKUP);
    for (int n = 0; n < N; n++) params[n].flags |= BN_REQUEST_POLL_BY_ID;
    for (int n = 0; n < N; n++) ids[n] = submit(engine, &params[n]);
    for (int n = 0; n < N; n++) {
        answer *a = finish(engine, ids[n]);
        same(a, alone[n]);
        free(a);
        free(alone[n]);
    }
    stop(engine);
}

TEST(a_draft_model_changes_no_byte) {
    bn_model_config of;
    bn_model *model = NULL;
    bn_model_config_init(&of, sizeof of);
    CHECK_OK(bn_model_open(&of, &model, NULL));
    bn_engine_config config = demo_config();
    config.model = config.draft_model = model;
    bn_engine *engine = start(&config);
    bn_model_free(model);
    uint64_t accepted = 0;
    for (int n = 0; n < 4; n++) {
        bn_request_params with = ask_for(BN_SPECULATION_DEFAULT, (float)n * 0.4f, (uint64_t)n);
        bn_request_params without = ask_for(BN_SPECULATION_OFF, (float)n * 0.4f, (uint64_t)n);
        answer *a = run(engine, &with), *b = run(engine, &without);
        same(a, b);
        // The model drafts for itself.
        CHECK_EQ(a->last.accepted_tokens, a->last.drafted_tokens);
        accepted += a->last.accepted_tokens;
        free(a);
        free(b);
    }
    bn_stats s = stats(engine);
    CHECK_EQ(s.accepted_tokens, accepted);
    CHECK((accepted > 0) == (s.drafting_ns > 0));
    stop(engine);
}

TEST(a_model_without_a_block_of_multi_token_prediction_is_refused) {
    bn_model_config config;
    bn_model *model = NULL;
    bn_error error;
    bn_model_config_init(&config, sizeof config);
    config.flags = BN_MODEL_MTP;
    CHECK_STATUS(bn_model_open(&config, &model, &error), BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "mtp is set, and the files have no block of multi-token prediction");
    CHECK(model == NULL);
}

TEST(a_file_that_is_no_drafter_is_refused) {
    bn_model_config config;
    bn_model *model = NULL;
    bn_error error;
    bn_model_config_init(&config, sizeof config);
    config.drafter_path = BN_STRING("/nonexistent/mtp.gguf");
    CHECK_STATUS(bn_model_open(&config, &model, &error), BN_ERR_IO);
    CHECK_CONTAINS(error.message, "drafter_path: cannot open '/nonexistent/mtp.gguf'");
    config.flags = BN_MODEL_MTP;
    CHECK_STATUS(bn_model_open(&config, &model, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "mtp and drafter_path are set");
    CHECK(model == NULL);
}

TEST(what_is_no_speculation_is_refused) {
    bn_engine_config config = echo_config();
    bn_engine *engine = NULL;
    bn_error error;
    config.speculation = 9;
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "speculation is 9; it is a BN_SPECULATION_*, 0 to 3");
    config.speculation = BN_SPECULATION_DEFAULT;
    config.speculation = BN_SPECULATION_DRAFT;
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "the engine has no draft_model");
    config.speculation = BN_SPECULATION_DEFAULT;
    config.draft_tokens = BN_MAX_DRAFT_TOKENS + 1;
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "draft_tokens = 16 is out of range: 0 to 15");
}
