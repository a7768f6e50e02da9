// The embedded model: right answers, and the same bytes in any batch.
#include "harness.h"

#include <pthread.h>

enum { MAX_PROMPTS = 256, MAX_TOKENS = 12, SUBMITTERS = 8, TIMES = 2, TOP = 2 };

typedef struct {
    char prompt[256];
    char answer[32];
} question;

static question questions[MAX_PROMPTS];
static int question_count;

// The value of a key on a line of the committed list, which has one question per line.
static bool value(const char *line, const char *key, char *out, size_t size) {
    const char *at = strstr(line, key);
    if (at == NULL) return false;
    at = strchr(at + strlen(key), '"');
    if (at == NULL) return false;
    const char *end = strchr(at + 1, '"');
    if (end == NULL || (size_t)(end - at) > size || memchr(at, '\\', (size_t)(end - at)) != NULL) return false;
    memcpy(out, at + 1, (size_t)(end - at - 1));
    out[end - at - 1] = 0;
    return true;
}

static void load_questions(void) {
    FILE *file = fopen(BN_DEMO_PROMPTS, "r");
    CHECK(file != NULL);
    static char line[65536];
    while (fgets(line, sizeof line, file) != NULL && question_count < MAX_PROMPTS) {
        question *q = &questions[question_count];
        if (strstr(line, "\"story\"") != NULL) continue;
        if (value(line, "\"prompt\":", q->prompt, sizeof q->prompt) &&
            value(line, "\"answer\":", q->answer, sizeof q->answer))
            question_count++;
    }
    fclose(file);
    CHECK(question_count >= 64);
}

// The answer to a question: text, and its log probabilities as bits.
typedef struct {
    char text[256];
    size_t text_length;
    uint32_t bits[MAX_TOKENS * (TOP + 1) * 2];
    size_t bits_count;
} result;

static bn_request_params question_params(int i) {
    bn_request_params params = ask(questions[i].prompt);
    params.max_new_tokens = MAX_TOKENS;
    params.flags = BN_REQUEST_LOGPROBS | BN_REQUEST_POLL_BY_ID;
    params.top_logprobs = TOP;
    return params;
}

static void take(bn_engine *engine, bn_request request, result *to) {
    for (bool done = false; !done;) {
        bn_event event = poll_one(engine, request);
        CHECK(to->text_length + event.text.length < sizeof to->text);
        memcpy(to->text + to->text_length, event.text.data, event.text.length);
        to->text_length += event.text.length;
        for (size_t i = 0; i < event.logprobs_count; i++) {
            CHECK(to->bits_count + 2 <= sizeof to->bits / sizeof *to->bits);
            to->bits[to->bits_count++] = event.logprobs[i].token;
            memcpy(&to->bits[to->bits_count++], &event.logprobs[i].logprob, sizeof(uint32_t));
        }
        done = event.kind == BN_EVENT_COMPLETED;
        if (done) CHECK(event.finish_reason >= BN_FINISH_STOP && event.finish_reason <= BN_FINISH_LENGTH);
        give_back(&event);
    }
    CHECK(to->bits_count >= 2 * (TOP + 1));
    CHECK_OK(bn_request_free(engine, request, NULL));
}

static bool answers(const result *r, const question *q) {
    char text[257];
    memcpy(text, r->text, r->text_length);
    text[r->text_length] = 0;
    size_t n = strlen(q->answer);
    return strncmp(text, q->answer, n) == 0 && !(text[n] >= '0' && text[n] <= '9');
}

static result alone[MAX_PROMPTS];

static void ask_one_by_one(void) {
    bn_engine_config config = demo_config();
    config.max_batch_size = 1;
    config.threads = 1;
    bn_engine *engine = start(&config);
    for (int i = 0; i < question_count; i++) {
        bn_request_params params = question_params(i);
        take(engine, submit(engine, &params), &alone[i]);
    }
    stop(engine);
}

TEST(the_committed_questions_are_answered_right) {
    load_questions();
    ask_one_by_one();
    for (int i = 0; i < question_count; i++)
        if (!answers(&alone[i], &questions[i]))
            test_fail(__FILE__, __LINE__, "%s %.*s, not %s", questions[i].prompt, (int)alone[i].text_length,
                      alone[i].text, questions[i].answer);
}

typedef struct {
    bn_engine *engine;
    int first;
} asker;

static void *ask_some_at_once(void *context) {
    asker *a = context;
    static _Thread_local bn_request requests[TIMES * MAX_PROMPTS];
    for (int r = a->first; r < TIMES * question_count; r += SUBMITTERS) {
        bn_request_params params = question_params(r % question_count);
        requests[r] = submit(a->engine, &params);
    }
    for (int r = a->first; r < TIMES * question_count; r += SUBMITTERS) {
        int i = r % question_count;
        result *now = calloc(1, sizeof *now);
        take(a->engine, requests[r], now);
        if (now->text_length != alone[i].text_length || memcmp(now->text, alone[i].text, now->text_length) != 0)
            test_fail(__FILE__, __LINE__, "%s got \"%.*s\" in company, \"%.*s\" alone", questions[i].prompt,
                      (int)now->text_length, now->text, (int)alone[i].text_length, alone[i].text);
        CHECK_EQ(now->bits_count, alone[i].bits_count);
        if (memcmp(now->bits, alone[i].bits, now->bits_count * sizeof *now->bits) != 0)
            test_fail(__FILE__, __LINE__, "%s: log probabilities differ in company", questions[i].prompt);
        free(now);
    }
    return NULL;
}

static void ask_together(uint32_t threads, uint32_t batch, uint32_t tokens) {
    bn_engine_config config = demo_config();
    config.threads = threads;
    config.max_batch_size = batch;
    config.max_batch_tokens = tokens;
    bn_engine *engine = start(&config);
    pthread_t workers[SUBMITTERS];
    asker askers[SUBMITTERS];
    for (int i = 0; i < SUBMITTERS; i++) {
        askers[i] = (asker){engine, i};
        CHECK_EQ(pthread_create(&workers[i], NULL, ask_some_at_once, &askers[i]), 0);
    }
    for (int i = 0; i < SUBMITTERS; i++) pthread_join(workers[i], NULL);
    bn_stats after = stats(engine);
    CHECK_EQ(after.accepted, TIMES * question_count);
    CHECK(batch == 1 || 2 * after.batched_requests > 3 * after.steps);
    CHECK_EQ(after.kv_blocks_used, 0);
    stop(engine);
}

TEST(company_changes_no_bit) {
    load_questions();
    ask_one_by_one();
    for (uint32_t threads = 1; threads <= 2; threads++) {
        ask_together(threads, 64, 512);
        ask_together(threads, 7, 7);
        ask_together(threads, 1, 1);
    }
}

TEST(a_seed_gives_the_same_story_in_any_company) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_request_params params = ask("Once upon a time");
    params.sampling.temperature = 0.9f;
    params.sampling.top_p = 0.95f;
    params.sampling.top_k = 50;
    params.max_new_tokens = 60;
    params.sampling.seed = 7;
    answer *first = run(engine, &params);
    bn_request_params others = ask("One day");
    others.sampling.temperature = 1.0f;
    others.flags = BN_REQUEST_POLL_BY_ID;
    bn_request company[10];
    for (uint64_t i = 0; i < 10; i++) {
        others.sampling.seed = i;
        company[i] = submit(engine, &others);
    }
    answer *second = run(engine, &params);
    CHECK(first->text_length > 20 && first->text_length == second->text_length);
    CHECK(memcmp(first->text, second->text, first->text_length) == 0);
    for (int i = 0; i < 10; i++) free(finish(engine, company[i]));
    params.sampling.seed = 8;
    answer *third = run(engine, &params);
    CHECK(third->text_length != first->text_length || memcmp(first->text, third->text, first->text_length) != 0);
    free(first);
    free(second);
    free(third);
    stop(engine);
}

TEST(demo_info) {
    bn_model *model = open_model(NULL);
    bn_model_info info = info_of(model);
    CHECK(info.layers > 0 && info.hidden_size % 128 == 0 && info.parameters > 100000);
    CHECK(info.weight_bytes > 0 && info.weight_bytes < (16u << 20));
    CHECK(info.has_tokenizer == 1 && info.end_tokens_count >= 1);
    CHECK_TEXT(info.architecture.data, info.architecture.length, "bitnet-b1.58");
    CHECK_OK(bn_model_free(model));
}

TEST(special_tokens_are_text_unless_asked_for) {
    bn_model *model = open_model(NULL);
    bn_string bos = BN_STRING("<|bos|>");
    uint32_t tokens[32];
    size_t count = 0;
    CHECK_OK(bn_model_tokenize(model, bos, 0, tokens, 32, &count, NULL));
    CHECK(count > 1);
    CHECK_OK(bn_model_tokenize(model, bos, BN_TOKENIZE_PARSE_SPECIAL, tokens, 32, &count, NULL));
    CHECK_EQ(count, 1);
    CHECK_EQ(info_of(model).bos_token, tokens[0]);
    CHECK_OK(bn_model_tokenize(model, BN_STRING(""), BN_TOKENIZE_ADD_SPECIAL, tokens, 32, &count, NULL));
    CHECK(count == 1 && info_of(model).bos_token == tokens[0]);
    CHECK_OK(bn_model_free(model));
}

// Texts in pieces, the pieces of characters too: the bytes of their tokens are the text.
TEST(token_bytes_put_texts_together) {
    bn_model *model = open_model(NULL);
    const char *const texts[] = {"Once upon a time", " two  spaces ", "Gr\xc3\xbc\xc3\x9f" "e \xf0\x9f\xa6\x80 \xe4\xb8\x96", "a\tb\r\nc", ""};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        uint32_t tokens[64];
        char whole[256];
        size_t count = 0, length = 0;
        CHECK_OK(bn_model_tokenize(model, BN_TEXT(texts[t]), 0, tokens, 64, &count, NULL));
        for (size_t i = 0; i < count; i++) {
            size_t bytes = 0;
            CHECK_OK(bn_model_token_bytes(model, tokens[i], whole + length, sizeof whole - length, &bytes, NULL));
            length += bytes;
        }
        CHECK_TEXT(whole, length, texts[t]);
    }
    // Each byte is some token's, for text that no longer token covers.
    bool seen[256] = {false};
    uint64_t vocabulary = info_of(model).vocab_size;
    for (uint32_t token = 0; token < vocabulary; token++) {
        char bytes[256];
        size_t length = 0;
        CHECK_OK(bn_model_token_bytes(model, token, bytes, sizeof bytes, &length, NULL));
        if (length == 1) seen[(unsigned char)bytes[0]] = true;
    }
    for (int byte = 0; byte < 256; byte++) CHECK(seen[byte]);
    char name[16];
    size_t length = 0;
    CHECK_OK(bn_model_token_bytes(model, (uint32_t)info_of(model).bos_token, name, sizeof name, &length, NULL));
    CHECK_TEXT(name, length, "<|bos|>");
    CHECK_STATUS(bn_model_token_bytes(model, (uint32_t)info_of(model).bos_token, name, 6, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(length, 7);
    CHECK_STATUS(bn_model_token_bytes(model, (uint32_t)vocabulary, name, 16, &length, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_model_free(model));
}

TEST(the_demo_model_reads_from_its_file_too) {
    bn_engine_config config = slow_config(BN_DEMO_MODEL);
    bn_engine *engine = start(&config);
    bn_request_params params = ask("17+25=");
    params.max_new_tokens = 8;
    answer *a = run(engine, &params);
    CHECK(strncmp(a->text, "42", 2) == 0);
    free(a);
    stop(engine);
}
