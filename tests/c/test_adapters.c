// LoRA adapters: opened and freed at run time, mixed in a batch, counted, kept apart in the prefix cache.
#include "harness.h"
#include "xxh64.h"

#include <stdatomic.h>

#ifdef BN_GOLDEN_MODELS

static const char *golden(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", BN_GOLDEN_MODELS, name);
    return path;
}

static bn_engine_config tiny_config(uint64_t memory_limit) {
    bn_engine_config config;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.model_path = BN_TEXT(golden("llama-llama3"));
    config.threads = 2;
    config.context_length = 128;
    config.memory_limit_bytes = memory_limit;
    config.adapter_bytes = memory_limit == 0 ? 0 : 1 << 20;
    return config;
}

static bn_engine *tiny(uint64_t memory_limit) {
    bn_engine_config config = tiny_config(memory_limit);
    return start(&config);
}

static bn_adapter *open_adapter(bn_engine *engine, const char *name) {
    bn_adapter *adapter = NULL;
    CHECK_OK(bn_adapter_open(engine, BN_TEXT(golden(name)), &adapter, NULL));
    CHECK(adapter != NULL);
    return adapter;
}

// A prompt of more than two blocks; different for each `n`.
static bn_request_params with(const bn_adapter *adapter, float scale, uint32_t n) {
    static uint32_t prompts[8][70];
    uint32_t *prompt = prompts[n];
    for (uint32_t i = 0; i < 70; i++) prompt[i] = 3 + (i * 7 + n * i * i) % 60;
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt_tokens = prompt;
    params.prompt_tokens_count = 70;
    params.max_new_tokens = 12;
    params.sampling.temperature = 1.0f;
    params.sampling.seed = n;
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.adapter = adapter;
    params.adapter_scale = scale;
    return params;
}

static bool same(const answer *a, const answer *b) {
    return a->tokens_count == b->tokens_count && memcmp(a->tokens, b->tokens, 4 * a->tokens_count) == 0;
}

TEST(adapters_run_mixed_as_they_run_alone) {
    bn_engine *engine = tiny(0);
    bn_adapter *folder = open_adapter(engine, "../adapters/llama"), *file = open_adapter(engine, "../adapters/llama.gguf");
    const struct {
        bn_adapter *adapter;
        float scale;
    } kinds[] = {{NULL, 1}, {folder, 1}, {file, 1}, {folder, 0.5f}, {file, -1}};
    enum { KINDS = sizeof kinds / sizeof *kinds, PROMPTS = 6 };
    static answer *alone[KINDS][PROMPTS];
    int other = 0;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t n = 0; n < PROMPTS; n++) {
            bn_request_params params = with(kinds[k].adapter, kinds[k].scale, n);
            alone[k][n] = run(engine, &params);
            CHECK_EQ(alone[k][n]->last.generated_tokens, 12);
            other += k > 0 && !same(alone[k][n], alone[0][n]);
        }
    CHECK(other > (KINDS - 1) * PROMPTS / 2);
    // The same updates, from two kinds of files.
    for (int n = 0; n < PROMPTS; n++) CHECK(same(alone[1][n], alone[2][n]));
    bn_request ids[KINDS][PROMPTS];
    for (uint32_t n = 0; n < PROMPTS; n++)
        for (int k = 0; k < KINDS; k++) {
            bn_request_params params = with(kinds[k].adapter, kinds[k].scale, n);
            params.flags |= BN_REQUEST_POLL_BY_ID;
            ids[k][n] = submit(engine, &params);
        }
    // Requests keep their adapter.
    CHECK_OK(bn_adapter_free(folder));
    CHECK_OK(bn_adapter_free(file));
    for (int n = 0; n < PROMPTS; n++)
        for (int k = 0; k < KINDS; k++) {
            answer *together = finish(engine, ids[k][n]);
            CHECK(same(together, alone[k][n]));
            free(together);
            free(alone[k][n]);
        }
    stop(engine);
}

TEST(prefixes_of_different_adapters_are_apart) {
    bn_engine *engine = tiny(0);
    bn_adapter *one = open_adapter(engine, "../adapters/llama"), *two = open_adapter(engine, "../adapters/llama");
    const struct {
        bn_adapter *adapter;
        float scale;
        bool cached;
    } turns[] = {{NULL, 1, false}, {one, 1, false}, {NULL, 1, true}, {one, 1, true}, {one, 2, false}, {two, 2, true}};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        bn_request_params params = with(turns[i].adapter, turns[i].scale, 1), fresh = params;
        answer *a = run(engine, &params);
        // An adapter that is opened again shares its prefixes.
        CHECK_EQ(a->last.cached_tokens > 0, turns[i].cached);
        fresh.flags |= BN_REQUEST_NO_CACHE;
        answer *b = run(engine, &fresh);
        CHECK(same(a, b));
        free(a), free(b);
    }
    CHECK_OK(bn_adapter_free(one));
    CHECK_OK(bn_adapter_free(two));
    stop(engine);
}

TEST(a_router_finds_the_blocks_of_an_adapter) {
    enum { BLOCK = 32, SALT = 5 };
    bn_engine_config config = tiny_config(0);
    config.kv_events_capacity = 100;
    config.kv_block_size = BLOCK;
    bn_engine *engine = start(&config);
    bn_adapter *adapter = open_adapter(engine, "../adapters/llama"), *again = open_adapter(engine, "../adapters/llama.gguf");
    uint64_t fingerprint = 0, other = 0;
    CHECK_OK(bn_adapter_fingerprint(adapter, &fingerprint));
    CHECK_OK(bn_adapter_fingerprint(again, &other));
    CHECK(fingerprint != 0);
    CHECK_STATUS(bn_adapter_fingerprint(adapter, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_adapter_fingerprint(NULL, &other), BN_ERR_INVALID_ARGUMENT);
    bn_request_params params = with(adapter, 0.5f, 2);
    params.cache_salt = SALT;
    free(run(engine, &params));

    uint8_t bytes[12];
    uint32_t scale;
    memcpy(&scale, &params.adapter_scale, 4);
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(scale >> (8 * i));
    for (int i = 0; i < 8; i++) bytes[4 + i] = (uint8_t)(fingerprint >> (8 * i));
    uint64_t parent = xxh64(bytes, sizeof bytes, SALT);
    bn_kv_event events[2];
    size_t count = 0;
    CHECK_OK(bn_kv_events(engine, events, sizeof *events, 2, &count, NULL));
    CHECK_EQ(count, 2);
    for (int block = 0; block < 2; block++) {
        CHECK_EQ(events[block].kind, BN_KV_EVENT_STORED);
        CHECK_EQ(events[block].hash_type, BN_HASH_XXH64);
        CHECK(events[block].parent_hash == parent);
        parent = xxh64_of_tokens(params.prompt_tokens + block * BLOCK, BLOCK, parent);
        CHECK(events[block].hash == parent);
    }
    CHECK_OK(bn_adapter_free(adapter));
    CHECK_OK(bn_adapter_free(again));
    stop(engine);
}

TEST(adapters_count_against_the_limit) {
    bn_engine *engine = tiny(64 << 20);
    uint64_t before = stats(engine).memory_used_bytes;
    bn_adapter *adapter = open_adapter(engine, "../adapters/llama");
    uint64_t first = stats(engine).memory_used_bytes - before;
    bn_adapter *second = open_adapter(engine, "../adapters/llama");
    uint64_t more = stats(engine).memory_used_bytes - before - first;
    // F32 of rank 4: A of q, k, v, output, gate, up, down and head, then B. A pass has more, once for all adapters.
    int columns = 3 * 32 + 64 + 2 * 32 + 64 + 32, rows = 64 + 2 * 32 + 32 + 2 * 64 + 32 + 64;
    CHECK_EQ(more, 4 * 4 * (columns + rows));
    CHECK(first > more);
    bn_request_params params = with(second, 1, 0);
    params.max_new_tokens = 40;
    params.flags |= BN_REQUEST_POLL_BY_ID;
    static atomic_bool may_go_on;
    params.sampling.on_logits = hold;
    params.sampling.on_logits_context = &may_go_on;
    bn_request id = submit(engine, &params);
    CHECK_OK(bn_adapter_free(second));
    CHECK(stats(engine).memory_used_bytes >= before + first + more);
    atomic_store(&may_go_on, true);
    free(finish(engine, id));
    while (stats(engine).memory_used_bytes != before + first) sleep_ms(1);
    CHECK_OK(bn_adapter_free(adapter));
    CHECK_EQ(stats(engine).memory_used_bytes, before + first - more);
    // Open as many adapters as fit.
    static bn_adapter *all[8192];
    int count = 0;
    bn_status status;
    bn_error error = {0};
    while ((status = bn_adapter_open(engine, BN_TEXT(golden("../adapters/llama")), &all[count], &error)) == BN_OK && count < 8191) count++;
    CHECK_STATUS(status, BN_ERR_MEMORY_LIMIT);
    CHECK_CONTAINS(error.message, "adapters/llama");
    CHECK(count >= 20 && count < 8192 && stats(engine).memory_used_bytes <= 64 << 20);
    while (count > 0) CHECK_OK(bn_adapter_free(all[--count]));
    CHECK_EQ(stats(engine).memory_used_bytes, before + first - more);
    stop(engine);
}

TEST(mistakes_with_adapters_are_refused) {
    bn_engine *engine = tiny(0), *other = tiny(0), *echo = start_echo();
    bn_adapter *adapter = open_adapter(engine, "../adapters/llama"), *none = NULL;
    bn_error error = {0};
    bn_request id;
    bn_request_params params = with(adapter, 1, 0);
    CHECK_STATUS(bn_submit(other, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "another engine");
    params.adapter_scale = 101;
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "adapter_scale = 101");
    params = with(NULL, 2, 0);
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "needs adapter");
    CHECK_STATUS(bn_adapter_open(engine, BN_TEXT("/nonexistent"), &none, &error), BN_ERR_IO);
    CHECK_STATUS(bn_adapter_open(engine, (bn_string){NULL, 0}, &none, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_adapter_open(engine, BN_TEXT(golden("../adapters/qwen3")), &none, &error), BN_ERR_BAD_MODEL);
    CHECK_CONTAINS(error.message, "blk.0.attn_q");
    CHECK_STATUS(bn_adapter_open(engine, BN_TEXT(golden("llama-llama3.gguf")), &none, &error), BN_ERR_UNSUPPORTED);
    CHECK_STATUS(bn_adapter_open(echo, BN_TEXT(golden("../adapters/llama")), &none, &error), BN_ERR_UNSUPPORTED);
    CHECK_STATUS(bn_adapter_open(engine, BN_TEXT(golden("../adapters/llama")), NULL, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_adapter_open(NULL, BN_TEXT(golden("../adapters/llama")), &none, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK(none == NULL);
    CHECK_OK(bn_adapter_free(NULL));
    CHECK_OK(bn_adapter_free(adapter));
    CHECK_STATUS(bn_adapter_free(adapter), BN_ERR_INVALID_ARGUMENT);
    params = with(adapter, 1, 0);
    CHECK_STATUS(bn_submit(engine, &params, &id, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "adapter is not a live one");
    // An adapter may outlive its engine.
    adapter = open_adapter(other, "../adapters/llama");
    stop(engine), stop(other), stop(echo);
    CHECK_OK(bn_adapter_free(adapter));
}

#endif
