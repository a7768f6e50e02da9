// Requests for embeddings: on builtin:echo, whose vectors are histograms of bytes modulo 16, and on the embedded model.
#include "harness.h"

#include <math.h>
#include <pthread.h>

enum { ECHO_SIZE = 16, MOST = 4096 };

static bn_request_params embed(const char *prompt) {
    bn_request_params params = ask(prompt);
    params.task = BN_TASK_EMBED;
    return params;
}

// Polls the only event; its pointers live until the release.
static bn_event completion(bn_engine *engine, bn_request which) {
    bn_event event = poll_one(engine, which);
    answer *a = calloc(1, sizeof *a);
    CHECK(a != NULL);
    collect(a, &event);
    CHECK(a->completed);
    free(a);
    return event;
}

TEST(a_model_says_how_long_a_vector_is) {
    bn_model *model = open_model("builtin:echo");
    CHECK_EQ(info_of(model).embedding_size, ECHO_SIZE);
    CHECK_EQ(info_of(model).pooling, BN_POOLING_MEAN);
    CHECK_OK(bn_model_free(model));
    model = open_model(NULL);
    CHECK_EQ(info_of(model).embedding_size, info_of(model).hidden_size);
    CHECK_EQ(info_of(model).pooling, BN_POOLING_LAST);
    CHECK_OK(bn_model_free(model));
}

TEST(an_embedding_is_one_event_with_its_vector) {
    bn_engine *engine = start_echo();
    bn_request_params params = embed("aab"); // 'a' is 97, 1 modulo 16; a text ends with 257, 1 as well
    params.embedding.normalization = BN_NORMALIZATION_NONE;
    params.user_data = 77;
    params.max_new_tokens = 0; // not looked at
    bn_request request = submit(engine, &params);
    bn_event event = completion(engine, BN_ANY);
    CHECK_EQ(event.request, request);
    CHECK_EQ(event.user_data, 77);
    CHECK_EQ(event.finish_reason, BN_FINISH_EMBEDDING);
    CHECK_EQ(event.status, BN_OK);
    CHECK(event.tokens == NULL && event.text.length == 0 && event.logprobs == NULL);
    CHECK_EQ(event.prompt_tokens, 4);
    CHECK_EQ(event.generated_tokens, 0);
    CHECK_EQ(event.pooling, BN_POOLING_MEAN);
    CHECK_EQ(event.embedding_count, ECHO_SIZE);
    for (size_t i = 0; i < ECHO_SIZE; i++)
        CHECK(event.embedding[i] == (i == 1 ? 0.75f : i == 2 ? 0.25f : 0.0f));
    CHECK_OK(bn_request_free(engine, request, NULL));
    CHECK_EQ(stats(engine).completed_embedding, 1);
    CHECK_EQ(stats(engine).prompt_tokens, 4);
    CHECK_EQ(stats(engine).generated_tokens, 0);
    CHECK(strcmp(bn_finish_reason_name(BN_FINISH_EMBEDDING), "embedding") == 0);
    stop(engine);
}

TEST(a_completion_carries_the_vector) {
    bn_engine *engine = start_echo();
    bn_request_params params = embed("ab");
    params.embedding.pooling = BN_POOLING_FIRST;
    bn_event completion = {0};
    CHECK_OK(bn_generate(engine, &params, &completion, sizeof completion, NULL));
    stop(engine); // it does not need its engine any more
    CHECK_EQ(completion.finish_reason, BN_FINISH_EMBEDDING);
    CHECK_EQ(completion.pooling, BN_POOLING_FIRST);
    for (size_t i = 0; i < ECHO_SIZE; i++) CHECK(completion.embedding[i] == (i == 1 ? 1.0f : 0.0f));
    bn_events_free(&completion, sizeof completion, 1);
}

TEST(bn_embed_is_all_of_it_in_one_call) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("aab"); // the flag is implied
    float values[ECHO_SIZE + 1], squares = 0;
    size_t count = 99;
    for (size_t i = 0; i <= ECHO_SIZE; i++) values[i] = 5;
    CHECK_STATUS(bn_embed(engine, &params, NULL, 0, &count, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(count, ECHO_SIZE);
    bn_error error = {0};
    count = 0;
    CHECK_STATUS(bn_embed(engine, &params, values, ECHO_SIZE - 1, &count, &error), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_CONTAINS(error.message, "room for 16, has 15");
    CHECK_EQ(count, ECHO_SIZE);
    CHECK(values[0] == 5 && stats(engine).accepted == 0);
    count = 0;
    CHECK_OK(bn_embed(engine, &params, values, ECHO_SIZE + 1, &count, &error));
    CHECK_EQ(count, ECHO_SIZE);
    CHECK(values[ECHO_SIZE] == 5);
    for (size_t i = 0; i < ECHO_SIZE; i++) squares += values[i] * values[i];
    CHECK(fabsf(squares - 1) < 1e-5f && fabsf(values[1] - 3 * values[2]) < 1e-5f);
    CHECK_EQ(stats(engine).unreleased, 0);
    stop(engine);
}

TEST(bn_embed_refuses_by_name) {
    bn_engine *engine = start_echo();
    float values[ECHO_SIZE];
    size_t count = 99;
    bn_error error = {0};
    bn_request_params params = ask("x");
    CHECK_STATUS(bn_embed(NULL, &params, values, ECHO_SIZE, &count, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_embed(engine, NULL, values, ECHO_SIZE, &count, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_embed(engine, &params, NULL, ECHO_SIZE, &count, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "values is NULL");
    CHECK_STATUS(bn_embed(engine, &params, values, ECHO_SIZE, NULL, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "count is NULL");
    params.sampling.temperature = 0.5f;
    CHECK_STATUS(bn_embed(engine, &params, values, ECHO_SIZE, &count, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "temperature is set");
    CHECK_EQ(count, 99);
    stop(engine);
}

TEST(what_an_embedding_may_not_ask_is_refused_by_name) {
    bn_engine *engine = start_echo();
    struct {
        uint32_t task, flags, pooling, normalization;
        const char *says;
    } cases[] = {
        {BN_TASK_EMBED, 0, UINT32_MAX, 0, "pooling is 4294967295"},
        {BN_TASK_EMBED, 0, 4, 0, "pooling is 4"},
        {BN_TASK_EMBED, 0, 0, 3, "normalization is 3"},
        {BN_TASK_GENERATE, 0, BN_POOLING_MEAN, 0, "embedding is set and needs BN_TASK_EMBED"},
        {BN_TASK_GENERATE, 0, 0, BN_NORMALIZATION_UNIT, "embedding is set and needs BN_TASK_EMBED"},
        {BN_TASK_RERANK, 0, 0, BN_NORMALIZATION_UNIT, "embedding is set and needs BN_TASK_EMBED"},
        {BN_TASK_EMBED, BN_REQUEST_ECHO_PROMPT, 0, 0, "BN_REQUEST_ECHO_PROMPT is set"},
        {BN_TASK_EMBED, BN_REQUEST_IGNORE_EOS, 0, 0, "BN_REQUEST_IGNORE_EOS is set"},
        {BN_TASK_EMBED, BN_REQUEST_LOGPROBS, 0, 0, "BN_REQUEST_LOGPROBS is set"},
        {BN_TASK_DECIDE + 1, 0, 0, 0, "task is 5"},
        {UINT32_MAX, 0, 0, 0, "task is 4294967295"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bn_error error = {0};
        bn_request_params params = ask("x");
        params.task = cases[i].task;
        params.flags = cases[i].flags;
        params.embedding.pooling = cases[i].pooling;
        params.embedding.normalization = cases[i].normalization;
        bn_request request = 0;
        CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(error.message, cases[i].says);
    }
    stop(engine);
}

TEST(a_cancelled_embedding_has_no_vector) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=200000");
    config.max_batch_size = 1; // a token a step: there is always another step to be cancelled before
    config.max_batch_tokens = 1;
    bn_engine *engine = start(&config);
    bn_request_params params = embed("a prompt of some length, one that takes its time");
    bn_request request = submit(engine, &params);
    CHECK_OK(bn_cancel(engine, request, NULL));
    bn_event event = completion(engine, request); // checks that there is none
    CHECK_EQ(event.finish_reason, BN_FINISH_CANCELLED);
    CHECK_OK(bn_request_free(engine, request, NULL));
    float values[ECHO_SIZE];
    size_t count = 0;
    params.timeout_ms = 1;
    bn_request_params blocker = embed("something that runs before it, so that it waits for its turn");
    request = submit(engine, &blocker);
    CHECK_STATUS(bn_embed(engine, &params, values, ECHO_SIZE, &count, NULL), BN_ERR_TIMED_OUT);
    CHECK_EQ(count, 0);
    CHECK_OK(bn_request_free(engine, request, NULL));
    stop(engine);
}

// For the leak checker: vectors that are never polled.
TEST(destroy_frees_vectors_that_nobody_read) {
    bn_engine *engine = start_echo();
    bn_request_params params = embed("unread");
    for (int i = 0; i < 5; i++) submit(engine, &params);
    while (stats(engine).completed_embedding < 5) sleep_ms(1);
    stop(engine);
}

static void *cancel_soon(void *engine) {
    while (stats(engine).accepted == 0) sleep_ms(1);
    CHECK_OK(bn_cancel(engine, BN_ANY, NULL));
    return NULL;
}

TEST(a_cancelled_bn_embed_is_an_error) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=200000");
    config.max_batch_size = 1;
    config.max_batch_tokens = 1;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("a prompt of some length, one that takes ten seconds");
    float values[ECHO_SIZE];
    size_t count = 7;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, cancel_soon, engine), 0);
    CHECK_STATUS(bn_embed(engine, &params, values, ECHO_SIZE, &count, NULL), BN_ERR_CANCELLED);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(count, 7);
    stop(engine);
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int left;
    bn_engine *engine;
} shared;

static void on_event(const bn_event *event, void *context) {
    shared *s = context;
    float values[ECHO_SIZE];
    size_t count;
    bn_request_params params = ask("x");
    CHECK_EQ(event->finish_reason, BN_FINISH_EMBEDDING);
    CHECK(event->embedding_count == ECHO_SIZE && event->embedding[event->user_data] == 1.0f);
    CHECK_STATUS(bn_embed(s->engine, &params, values, ECHO_SIZE, &count, NULL), BN_ERR_REENTRANT);
    pthread_mutex_lock(&s->lock);
    s->left--;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

TEST(callbacks_bring_vectors_and_bn_embed_works_beside_them) {
    static shared s = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .left = 10};
    bn_engine_config config = echo_config();
    config.on_event = on_event;
    config.on_event_context = &s;
    s.engine = start(&config);
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t id = i;
        bn_request_params params = embed("");
        params.prompt = (bn_string){0};
        params.prompt_tokens = &id;
        params.prompt_tokens_count = 1;
        params.user_data = i;
        submit(s.engine, &params);
    }
    float values[ECHO_SIZE];
    size_t count = 0;
    bn_request_params params = ask("x");
    CHECK_OK(bn_embed(s.engine, &params, values, ECHO_SIZE, &count, NULL));
    CHECK_EQ(count, ECHO_SIZE);
    pthread_mutex_lock(&s.lock);
    while (s.left > 0) pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);
    stop(s.engine);
}

// Vectors of the embedded model: the same bytes alone, and in a batch with requests that generate.
TEST(the_embedded_models_vectors_are_the_same_in_company) {
    static const char *const texts[] = {"Once upon a time", "17+25=", "One day, Ben went fishing with his father"};
    enum { TEXTS = sizeof texts / sizeof *texts };
    static float alone[TEXTS][MOST];
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_model *model = model_of(engine);
    size_t size = (size_t)info_of(model).embedding_size, count;
    CHECK_OK(bn_model_free(model));
    CHECK(size > 0 && size <= MOST);
    for (uint32_t pooling = BN_POOLING_LAST; pooling <= BN_POOLING_FIRST; pooling++) {
        for (uint64_t i = 0; i < TEXTS; i++) {
            bn_request_params params = embed(texts[i]);
            params.embedding.pooling = pooling;
            CHECK_OK(bn_embed(engine, &params, alone[i], MOST, &count, NULL));
            CHECK_EQ(count, size);
        }
        for (uint64_t i = 0; i < 4 * TEXTS; i++) {
            bn_request_params params = i < TEXTS ? embed(texts[i]) : ask(texts[i % TEXTS]);
            if (i < TEXTS) params.embedding.pooling = pooling;
            params.user_data = i;
            submit(engine, &params);
        }
        for (int left = 4 * TEXTS; left > 0;) {
            bn_event event = poll_one(engine, BN_ANY);
            if (event.kind != BN_EVENT_COMPLETED) continue;
            CHECK_EQ(event.embedding != NULL, event.user_data < TEXTS);
            if (event.embedding != NULL) {
                CHECK_EQ(event.pooling, pooling);
                CHECK(memcmp(event.embedding, alone[event.user_data], size * sizeof(float)) == 0);
            }
            CHECK_OK(bn_request_free(engine, event.request, NULL));
            left--;
        }
    }
    stop(engine);
}
