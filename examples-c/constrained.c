// An answer that fits a JSON schema, and which of some answers the model finds likeliest.
#include "bn_engine.h"

#include <stdio.h>
#include <stdlib.h>

static const char question[] = "Ages: Ada 42, Tom 17, Mia 88. Tom? ";
// Without white space, which a small model would repeat. The embedded model has not learnt JSON: the form is right, the
// values are random.
static const char schema[] =
    "{\"x-guidance\": {\"whitespace_flexible\": false},"
    " \"type\": \"object\", \"additionalProperties\": false, \"required\": [\"name\", \"age\"],"
    " \"properties\": {\"name\": {\"enum\": [\"Ada\", \"Tom\", \"Mia\"]},"
    "                \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120}}}";
static const char *const answers[] = {"42", "17", "88"};
enum { ANSWERS = sizeof answers / sizeof *answers };

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

// The schema decides which tokens can come next. Where only one can, no sampling is needed.
static void fill_in(bn_engine *engine) {
    bn_error error = {0};
    bn_request_params params;
    bn_event answer;
    check(bn_request_params_init(&params, sizeof params), "params", &error);
    params.prompt = BN_TEXT(question);
    params.constraint.kind = BN_CONSTRAINT_JSON_SCHEMA;
    params.constraint.text = BN_TEXT(schema);
    params.speculation = BN_SPECULATION_LOOKUP; // drafts what the prompt says already
    check(bn_generate(engine, &params, &answer, sizeof answer, &error), "generate", &error);
    printf("%.*s\n", (int)answer.text.length, answer.text.data);
    bn_events_free(&answer, sizeof answer, 1);
}

// The natural logarithm of the probability that `text` follows the prompt's first `from` tokens.
static double score(bn_engine *engine, const char *text, size_t from) {
    bn_error error = {0};
    bn_request_params params;
    bn_event scored;
    double sum = 0;
    check(bn_request_params_init(&params, sizeof params), "params", &error);
    params.prompt = BN_TEXT(text);
    params.task = BN_TASK_SCORE;
    params.logprobs_from = (uint32_t)from;
    check(bn_generate(engine, &params, &scored, sizeof scored, &error), "score", &error);
    for (size_t i = 0; i < scored.logprobs_count; i += scored.logprobs_per_token) sum += scored.logprobs[i].logprob;
    bn_events_free(&scored, sizeof scored, 1);
    return sum;
}

int main(void) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    bn_model *model = NULL;
    size_t from;
    check(bn_engine_config_init(&config, sizeof config), "config", &error); // the model inside the library
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    check(bn_engine_model(engine, &model, &error), "model", &error);
    fill_in(engine);

    // Called without room, it returns the number of tokens. The prefix cache keeps the question, so each answer
    // costs only its own tokens.
    bn_status status = bn_model_tokenize(model, BN_TEXT(question), BN_TOKENIZE_ADD_SPECIAL, NULL, 0, &from, &error);
    if (status != BN_ERR_BUFFER_TOO_SMALL) check(status, "tokenize", &error);
    for (int i = 0; i < ANSWERS; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s%s", question, answers[i]);
        printf("%s: %.2f\n", answers[i], score(engine, text, from));
    }
    check(bn_model_free(model), "free", &error);
    check(bn_engine_free(engine), "destroy", &error);
    return 0;
}
