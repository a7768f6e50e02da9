// Typed questions about a prompt: answered by the sums of scored prompts, refused by their names, cancelled as a whole.
#include "harness.h"

#include <math.h>

enum { OPTIONS = 4 };
static const char *const STORY = "Once upon a time there was a small machine.";
static const bn_string options[OPTIONS] = {BN_STRING_INIT(" yes"), BN_STRING_INIT(" no"),
                                           BN_STRING_INIT(" yes, it was"), BN_STRING_INIT(" perhaps")};

// The sum of the log probabilities of an option's tokens after the prompt and the question.
static double plain(bn_engine *engine, const bn_model *model, bn_string text, bn_string option) {
    uint32_t ids[256];
    size_t length = 0, count = 0;
    CHECK_OK(bn_model_tokenize(model, BN_TEXT(STORY), BN_TOKENIZE_ADD_SPECIAL, ids, 256, &count, NULL));
    length += count;
    CHECK_OK(bn_model_tokenize(model, text, 0, ids + length, 256 - length, &count, NULL));
    length += count;
    const size_t from = length;
    CHECK_OK(bn_model_tokenize(model, option, 0, ids + length, 256 - length, &count, NULL));
    length += count;
    bn_request_params params = ask(NULL);
    params.prompt = (bn_string){0};
    params.prompt_tokens = ids;
    params.prompt_tokens_count = length;
    params.task = BN_TASK_SCORE;
    params.flags = BN_REQUEST_LOGPROBS;
    params.logprobs_from = (uint32_t)from;
    bn_event event;
    CHECK_OK(bn_generate(engine, &params, &event, sizeof event, NULL));
    double sum = 0;
    for (size_t i = 0; i < event.logprobs_count; i++) sum += (double)event.logprobs[i].logprob;
    bn_events_free(&event, sizeof event, 1);
    return sum;
}

TEST(answers_are_sums_of_scores) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_model *model = model_of(engine);
    const bn_question questions[] = {
        {.kind = BN_QUESTION_YES_NO, .text = BN_STRING(" Was it small?"), .options = options, .options_count = 2},
        {.kind = BN_QUESTION_CHOICE, .text = BN_STRING(" Was it?"), .options = options, .options_count = OPTIONS},
        {.kind = BN_QUESTION_SCORE, .name = BN_STRING("level"), .options = options, .options_count = 3},
        {.kind = BN_QUESTION_YES_NO, .text = BN_STRING(" Is it?")},
    };
    bn_request_params params = ask(STORY);
    params.task = BN_TASK_DECIDE;
    params.questions = questions;
    params.questions_count = 4;
    const bn_request id = submit(engine, &params);
    bn_event event = poll_one(engine, id);
    CHECK_EQ(event.kind, BN_EVENT_COMPLETED);
    CHECK_EQ(event.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(event.decisions_count, 4);
    CHECK_EQ(event.decision_options_count, 2 + OPTIONS + 3 + 2);
    CHECK(event.tokens_count == 0 && event.logprobs_count == 0 && event.generated_tokens == 0);
    for (size_t q = 0; q < 3; q++) {
        const bn_decision *answer = &event.decisions[q];
        const bn_decision_option *own = &event.decision_options[answer->first_option];
        double sums[OPTIONS], total = 0, expected = 0;
        CHECK_EQ(answer->options_count, questions[q].options_count);
        for (size_t i = 0; i < answer->options_count; i++) {
            sums[i] = plain(engine, model, questions[q].text.data ? questions[q].text : BN_STRING(""), options[i]);
            total += exp(sums[i]);
        }
        for (size_t i = 0; i < answer->options_count; i++) {
            CHECK(fabs(own[i].logprob - sums[i]) < 1e-6);
            CHECK(fabs(own[i].probability - exp(sums[i]) / total) < 1e-9);
            CHECK(own[i].probability <= own[answer->best].probability);
            expected += (double)i * own[i].probability;
        }
        const double value = q == 0 ? own[0].probability : q == 1 ? own[answer->best].probability : expected;
        CHECK(fabs(answer->value - value) < 1e-12);
        CHECK(answer->confidence >= 0 && answer->confidence <= 1);
    }
    give_back(&event);
    CHECK_OK(bn_request_free(engine, id, NULL));
    CHECK_OK(bn_model_free(model));
    stop(engine);
}

TEST(mistakes_name_the_question) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_question question = {.text = BN_STRING("x"), .name = BN_STRING("mood"), .options = options, .options_count = 2};
    bn_request_params params = ask(STORY);
    bn_request id;
    bn_error error = {0};
    params.questions = &question;
    params.questions_count = 1;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "questions is set and needs BN_TASK_DECIDE") != NULL);
    params.task = BN_TASK_DECIDE;
    question.kind = 3;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "questions[0].kind is 3") != NULL);
    question.kind = BN_QUESTION_CHOICE;
    question.flags = 1;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_UNSUPPORTED);
    CHECK(strstr(error.message, "questions[0].flags") != NULL);
    question.flags = 0;
    question.options_count = 0;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "question 0 (\"mood\"): 0 options") != NULL);
    question.options_count = BN_MAX_OPTIONS + 1;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "questions[0].options_count is 256") != NULL);
    params.questions_count = 0;
    CHECK_EQ(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(strstr(error.message, "0 questions") != NULL);
    stop(engine);
}
