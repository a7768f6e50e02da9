// Log probabilities of a prompt's own tokens, with and without an output after them.
#include "harness.h"

#include <math.h>

static bn_request_params scored(const char *prompt, int32_t task, uint32_t flags, uint32_t from) {
    bn_request_params params = ask(prompt);
    params.task = task;
    params.flags = BN_REQUEST_LOGPROBS | flags;
    params.logprobs_from = from;
    params.top_logprobs = 1;
    params.max_new_tokens = 4;
    return params;
}

// Sums the scores of continuations of one prompt, alone and in a batch; the likely one wins.
TEST(continuations_of_a_prompt_are_ranked) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    const char *const texts[] = {"17+25=42", "17+25=99", "17+25=the"};
    enum { TEXTS = sizeof texts / sizeof *texts, ROUNDS = 12 };
    uint32_t ids[16];
    size_t from = 0;
    bn_model *model = model_of(engine);
    bn_status status = bn_model_tokenize(model, BN_STRING("17+25="), BN_TOKENIZE_ADD_SPECIAL, ids, 16, &from, NULL);
    CHECK_OK(status);
    CHECK_OK(bn_model_free(model));
    double sums[TEXTS] = {0};
    bn_event alone[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        bn_request_params params = scored(texts[i], BN_TASK_SCORE, 0, (uint32_t)from);
        bn_error error = {0};
        CHECK_OK(bn_generate(engine, &params, &alone[i], sizeof alone[i], &error));
        CHECK_EQ(alone[i].finish_reason, BN_FINISH_LENGTH);
        CHECK_EQ(alone[i].generated_tokens, 0);
        CHECK_EQ(alone[i].logprobs_count, 2 * alone[i].tokens_count);
        CHECK(alone[i].tokens_count > 0 && alone[i].text.length == 0);
        for (size_t t = 0; t < alone[i].tokens_count; t++) {
            CHECK_EQ(alone[i].logprobs[2 * t].token, alone[i].tokens[t]);
            sums[i] += (double)alone[i].logprobs[2 * t].logprob;
        }
    }
    CHECK(sums[0] > sums[1] && sums[0] > sums[2] && sums[0] > -0.5);
    bn_request all[ROUNDS][TEXTS];
    for (int n = 0; n < ROUNDS; n++)
        for (int i = 0; i < TEXTS; i++) {
            bn_request_params params = scored(texts[i], BN_TASK_SCORE, BN_REQUEST_POLL_BY_ID, (uint32_t)from);
            all[n][i] = submit(engine, &params);
        }
    for (int n = 0; n < ROUNDS; n++)
        for (int i = 0; i < TEXTS; i++) {
            bn_event event = poll_one(engine, all[n][i]);
            CHECK_EQ(event.kind, BN_EVENT_COMPLETED);
            CHECK_EQ(event.logprobs_count, alone[i].logprobs_count);
            CHECK(memcmp(event.logprobs, alone[i].logprobs, event.logprobs_count * sizeof *event.logprobs) == 0);
            give_back(&event);
            CHECK_OK(bn_request_free(engine, all[n][i], NULL));
        }
    for (int i = 0; i < TEXTS; i++) bn_events_free(&alone[i], sizeof alone[i], 1);
    stop(engine);
}

TEST(an_echoed_prompt_has_its_log_probabilities) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_error error = {0};
    bn_event known, unknown, scores;
    bn_request_params params = scored("17+25=", BN_TASK_GENERATE, BN_REQUEST_ECHO_PROMPT | BN_REQUEST_PROMPT_LOGPROBS, 0);
    CHECK_OK(bn_generate(engine, &params, &known, sizeof known, &error));
    params.flags &= ~BN_REQUEST_PROMPT_LOGPROBS;
    CHECK_OK(bn_generate(engine, &params, &unknown, sizeof unknown, &error));
    params = scored("17+25=", BN_TASK_SCORE, 0, 0);
    CHECK_OK(bn_generate(engine, &params, &scores, sizeof scores, &error));
    CHECK_EQ(known.tokens_count, unknown.tokens_count);
    CHECK(memcmp(known.tokens, unknown.tokens, 4 * known.tokens_count) == 0);
    for (size_t t = 0; t < known.prompt_tokens; t++) {
        CHECK(isnan(unknown.logprobs[2 * t].logprob));
        CHECK((t == 0) == isnan(known.logprobs[2 * t].logprob));
        CHECK_EQ(known.logprobs[2 * t].token, known.tokens[t]);
        CHECK(t == 0 || known.logprobs[2 * t].logprob <= known.logprobs[2 * t + 1].logprob);
    }
    // The bits that scoring gives them; those of the output are the same with and without them.
    const size_t each = sizeof *known.logprobs, prompt = 2 * known.prompt_tokens;
    CHECK_EQ(scores.logprobs_count, prompt);
    CHECK(memcmp(known.logprobs + 2, scores.logprobs + 2, (prompt - 2) * each) == 0);
    CHECK(known.logprobs_count > prompt && known.logprobs_count == unknown.logprobs_count);
    CHECK(memcmp(known.logprobs + prompt, unknown.logprobs + prompt, (known.logprobs_count - prompt) * each) == 0);
    CHECK_TEXT(known.text.data, known.text.length, "17+25=42");
    bn_events_free(&known, sizeof known, 1), bn_events_free(&unknown, sizeof unknown, 1), bn_events_free(&scores, sizeof scores, 1);
    stop(engine);
}

TEST(mistakes_with_scores_are_refused) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_error error = {0};
    bn_request id;
    const struct {
        int32_t task;
        uint32_t flags, from;
        const char *word;
    } wrong[] = {
        {BN_TASK_SCORE, 0, 500, "logprobs_from"},
        {BN_TASK_GENERATE, 0, 1, "logprobs_from"},
        {BN_TASK_GENERATE, BN_REQUEST_PROMPT_LOGPROBS, 0, "BN_REQUEST_ECHO_PROMPT"},
        {BN_TASK_SCORE, BN_REQUEST_PROMPT_LOGPROBS, 0, "both"},
        {BN_TASK_SCORE, BN_REQUEST_ECHO_PROMPT, 0, "BN_REQUEST_ECHO_PROMPT"},
        {BN_TASK_SCORE, BN_REQUEST_CHAIN_LOGPROBS, 0, "BN_REQUEST_CHAIN_LOGPROBS"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bn_request_params params = scored("17+25=", wrong[i].task, wrong[i].flags, wrong[i].from);
        CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(error.message, wrong[i].word);
    }
    bn_request_params params = scored("17+25=", BN_TASK_SCORE, 0, 0);
    params.flags = 0; // implied by the task
    bn_event scores;
    CHECK_OK(bn_generate(engine, &params, &scores, sizeof scores, &error));
    CHECK(scores.logprobs_count > 0);
    bn_events_free(&scores, sizeof scores, 1);
    params.constraint.kind = BN_CONSTRAINT_JSON_OBJECT;
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "constraint");
    stop(engine);
}
