// Constraints and the logits hook: outputs match, in any batch; mistakes are refused by name, on small stacks
// too.
#include "harness.h"

#include <math.h>
#include <pthread.h>

enum { BATCH = 32 };

static const char SCHEMA[] =
    "{\"type\":\"object\",\"properties\":{\"on\":{\"type\":\"boolean\"},\"size\":{\"enum\":[\"small\",\"large\"]}},"
    "\"required\":[\"on\",\"size\"],\"additionalProperties\":false}";

static bn_request_params constrained(uint32_t kind, const char *text, uint64_t seed) {
    bn_request_params params = ask("Once upon a time");
    params.flags = BN_REQUEST_NO_STREAM;
    params.max_new_tokens = 120;
    params.sampling.temperature = 1.0f;
    params.sampling.seed = seed;
    params.constraint.kind = kind;
    if (text != NULL) params.constraint.text = BN_TEXT(text);
    return params;
}

static bn_request_params of_kind(int i) {
    switch (i % 5) {
    case 0: return constrained(BN_CONSTRAINT_JSON_SCHEMA, SCHEMA, (uint64_t)i);
    case 1: return constrained(BN_CONSTRAINT_JSON_OBJECT, NULL, (uint64_t)i);
    case 2: return constrained(BN_CONSTRAINT_REGEX, "[a-f]{4}|[0-9]{3}", (uint64_t)i);
    case 3: return constrained(BN_CONSTRAINT_LARK, "start: \"<\" start \">\" | \"x\"", (uint64_t)i);
    default: return constrained(BN_CONSTRAINT_GBNF, "root ::= [a-c]{2,5} (\"!\" | \"?\")", (uint64_t)i);
    }
}

TEST(outputs_match_their_constraint_in_any_batch) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    answer *alone[BATCH];
    bn_request ids[BATCH];
    for (int i = 0; i < BATCH; i++) {
        bn_request_params params = of_kind(i);
        alone[i] = run(engine, &params);
    }
    for (int i = 0; i < BATCH; i++) {
        bn_request_params params = of_kind(i);
        params.flags |= BN_REQUEST_POLL_BY_ID;
        ids[i] = submit(engine, &params);
    }
    for (int i = 0; i < BATCH; i++) {
        answer *together = finish(engine, ids[i]);
        CHECK_TEXT(together->text, together->text_length, alone[i]->text);
        CHECK_EQ(together->tokens_count, alone[i]->tokens_count);
        CHECK(memcmp(together->tokens, alone[i]->tokens, 4 * together->tokens_count) == 0);
        if (i % 5 == 0 && together->last.finish_reason == BN_FINISH_STOP) {
            CHECK_CONTAINS(together->text, "\"on\"");
            CHECK(strstr(together->text, "\"small\"") != NULL || strstr(together->text, "\"large\"") != NULL);
        }
        if (i % 5 == 2) {
            CHECK_EQ(together->last.finish_reason, BN_FINISH_STOP);
            CHECK(strspn(together->text, "abcdef") == 4 || strspn(together->text, "0123456789") == 3);
        }
        if (i % 5 == 4) CHECK(strspn(together->text, "abc") >= 2 && strpbrk(together->text, "!?") != NULL);
        free(together), free(alone[i]);
    }
    bn_stats s = stats(engine);
    CHECK_EQ(s.grammars_compiled, 5);
    CHECK_EQ(s.grammars_reused, 2 * BATCH - 5);
    CHECK(s.masks > 2 * BATCH && s.mask_ns > 0 && s.grammar_compile_ns > 0);
    stop(engine);
}

static void refused(bn_engine *engine, uint32_t kind, const char *text, const char *why) {
    bn_request_params params = constrained(kind, text, 0);
    bn_request id;
    bn_error error = {0};
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, why);
    CHECK_STATUS(bn_engine_check_constraint(engine, &params.constraint, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, why);
}

static void refuse_all(bn_engine *engine) {
    refused(engine, BN_CONSTRAINT_NONE, "x", "constraint.text is set and needs constraint.kind");
    refused(engine, BN_CONSTRAINT_REGEX, NULL, "constraint.kind is set and needs constraint.text");
    refused(engine, 6, "x", "constraint.kind");
    refused(engine, BN_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"thing\"}", "thing");
    refused(engine, BN_CONSTRAINT_JSON_SCHEMA, "{\"$ref\":\"https://example.com\"}", "https://example.com");
    refused(engine, BN_CONSTRAINT_REGEX, "a(", "constraint: ");
    refused(engine, BN_CONSTRAINT_GBNF, "root ::= x", "line 1: there is no rule named x");
    static char deep[20001];
    memset(deep, '[', 20000);
    for (uint32_t kind = BN_CONSTRAINT_JSON_SCHEMA; kind <= BN_CONSTRAINT_GBNF; kind++)
        refused(engine, kind, deep, "constraint: ");
}

static void *on_a_small_stack(void *engine) {
    refuse_all(engine);
    bn_error error = {0};
    bn_constraint schema = {.kind = BN_CONSTRAINT_JSON_SCHEMA, .text = BN_TEXT(SCHEMA)};
    CHECK_OK(bn_engine_check_constraint(engine, &schema, &error));
    return NULL;
}

TEST(mistakes_are_refused_by_name_on_a_small_stack) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 64 << 10) == 0);
    CHECK(pthread_create(&thread, &attributes, on_a_small_stack, engine) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQ(stats(engine).grammars_compiled, 1);
    bn_request_params params = constrained(BN_CONSTRAINT_JSON_OBJECT, NULL, 0);
    bn_request id;
    bn_error error = {0};
    params.task = BN_TASK_EMBED;
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    params = ask("x");
    params.constraint.json_flags = BN_JSON_COMPACT; // nothing has JSON
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    params = constrained(BN_CONSTRAINT_JSON_OBJECT, NULL, 0);
    params.constraint.json_flags = BN_JSON_COMPACT | BN_JSON_FLEXIBLE;
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    params.constraint.json_flags = 1u << 31;
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_UNSUPPORTED);
    stop(engine);
}

// Forbids a token.
static int32_t without(const bn_logits *row, void *context) {
    uint32_t token = *(uint32_t *)context;
    for (size_t i = 0; i < row->output_tokens_count; i++)
        if (row->output_tokens[i] == token) return 2;
    row->logits[token] = -INFINITY;
    return row->struct_size == sizeof *row && token < row->vocab_size && row->prompt_tokens_count > 0 ? 0 : 3;
}

// Ends the request at its fourth token.
static int32_t refuse(const bn_logits *row, void *context) {
    (void)context;
    return row->output_tokens_count < 3 || row->user_data != 7 ? 0 : 5;
}

static bn_request_params story(int i, uint32_t *token) {
    bn_request_params params = ask("Once upon a time");
    params.flags = BN_REQUEST_NO_STREAM | BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 16;
    params.sampling.temperature = 1.0f;
    params.sampling.seed = (uint64_t)i;
    params.sampling.on_logits = i % 8 == 3 ? refuse : without;
    params.sampling.on_logits_context = token;
    params.user_data = 7;
    return params;
}

TEST(a_hook_changes_logits_and_ends_its_own_request_alone) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_request_params plain = story(0, NULL);
    plain.sampling.on_logits = NULL;
    answer *before = run(engine, &plain);
    uint32_t token = before->tokens[0];
    answer *alone[BATCH];
    bn_request ids[BATCH];
    for (int i = 0; i < BATCH; i++) {
        bn_request_params params = story(i, &token);
        alone[i] = run(engine, &params);
    }
    for (int i = 0; i < BATCH; i++) {
        bn_request_params params = story(i, &token);
        params.flags |= BN_REQUEST_POLL_BY_ID;
        ids[i] = submit(engine, &params);
    }
    for (int i = 0; i < BATCH; i++) {
        answer *together = finish(engine, ids[i]);
        CHECK_EQ(together->tokens_count, i % 8 == 3 ? 3 : 16);
        CHECK_EQ(together->last.finish_reason, i % 8 == 3 ? BN_FINISH_FAILED : BN_FINISH_LENGTH);
        CHECK_EQ(together->last.status, i % 8 == 3 ? BN_ERR_CANCELLED : BN_OK);
        CHECK(memcmp(together->tokens, alone[i]->tokens, 4 * together->tokens_count) == 0);
        for (size_t t = 0; t < together->tokens_count; t++) CHECK(i % 8 == 3 || together->tokens[t] != token);
        free(together), free(alone[i]);
    }
    free(before);
    stop(engine);
}
