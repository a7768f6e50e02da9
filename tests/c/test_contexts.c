// A model of a long context whose KV cache cannot hold its batch at full length, with the defaults of a chat: open
// lengths. No request may count for more than its actual length.
#include "harness.h"

#include <unistd.h>

enum { REQUESTS = 16, HIDDEN = 32, HEADS = 64, HEAD_DIM = 128, FFN = 64, VOCAB = 64, TOKEN = 2 * HEADS * HEAD_DIM * 2 };

static char folder[96];

static FILE *create_file(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    return file;
}

static void write_config(unsigned context) {
    FILE *file = create_file("config.json");
    fprintf(file,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d,"
            " \"intermediate_size\": %d, \"num_hidden_layers\": 1, \"num_attention_heads\": %d,"
            " \"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d, \"max_position_embeddings\": %u,"
            " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"torch_dtype\": \"float16\"}",
            HIDDEN, FFN, HEADS, HEADS, HEAD_DIM, VOCAB, context);
    CHECK_EQ(fclose(file), 0);
}

// All weights are 0, so the file is a hole after its header, and each answer is an endless repetition of
// token 0.
static void write_weights(void) {
    static const struct {
        const char *name;
        int rows, columns;
    } tensors[] = {{"embed_tokens", VOCAB, HIDDEN},
                   {"layers.0.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN},
                   {"layers.0.self_attn.k_proj", HEADS * HEAD_DIM, HIDDEN},
                   {"layers.0.self_attn.v_proj", HEADS * HEAD_DIM, HIDDEN},
                   {"layers.0.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM},
                   {"layers.0.mlp.gate_proj", FFN, HIDDEN},
                   {"layers.0.mlp.up_proj", FFN, HIDDEN},
                   {"layers.0.mlp.down_proj", HIDDEN, FFN},
                   {"layers.0.input_layernorm", HIDDEN, 0},
                   {"layers.0.post_attention_layernorm", HIDDEN, 0},
                   {"norm", HIDDEN, 0}};
    char header[4096];
    long end = 0, length = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        int rows = tensors[i].rows, columns = tensors[i].columns;
        char shape[32];
        snprintf(shape, sizeof shape, columns > 0 ? "%d, %d" : "%d", rows, columns);
        long begin = end;
        end += 2L * rows * (columns > 0 ? columns : 1);
        length += snprintf(header + length, sizeof header - (size_t)length,
                           "%s\"model.%s.weight\": {\"dtype\": \"F16\", \"shape\": [%s], \"data_offsets\": [%ld, %ld]}",
                           i == 0 ? "{" : ", ", tensors[i].name, shape, begin, end);
        CHECK(length < (long)sizeof header - 1);
    }
    header[length++] = '}';
    FILE *file = create_file("model.safetensors");
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)length >> (8 * i) & 255), file);
    CHECK_EQ(fwrite(header, 1, (size_t)length, file), length);
    CHECK_EQ(fflush(file), 0);
    CHECK_EQ(ftruncate(fileno(file), 8 + length + end), 0);
    CHECK_EQ(fclose(file), 0);
}

static bn_engine *start_long(unsigned context) {
    CHECK(make_temporary(folder, sizeof folder));
    write_config(context);
    write_weights();
    bn_engine_config config;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.model_path = BN_TEXT(folder);
    return start(&config);
}

static void remove_files(void) {
    char path[160];
    snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_EQ(unlink(path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(folder), 0);
}

static void all_run(bn_engine *engine) {
    static const uint32_t prompt[] = {1, 5, 9, 12};
    bn_request_params params;
    const bn_request_params *list[REQUESTS];
    bn_request requests[REQUESTS];
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt_tokens = prompt;
    params.prompt_tokens_count = sizeof prompt / sizeof *prompt;
    params.max_new_tokens = 0;
    params.flags |= BN_REQUEST_IGNORE_EOS;
    for (int i = 0; i < REQUESTS; i++) list[i] = &params;
    CHECK_OK(bn_submit_batch(engine, list, REQUESTS, requests, NULL));
    bn_stats s;
    while ((s = stats(engine)).steps < 100) sleep_ms(1);
    CHECK_EQ(s.last_batch_size, REQUESTS);
    CHECK_EQ(s.running, REQUESTS);
    CHECK(s.queued == 0 && s.paused == 0 && s.preemptions == 0);
    CHECK_OK(bn_cancel(engine, BN_ANY, NULL));
    finish_all(engine, REQUESTS);
}

TEST(sixteen_open_lengths_run_at_once_in_any_context) {
    static const unsigned contexts[] = {128 << 10, 512 << 10};
    for (int i = 0; i < 2; i++) {
        bn_engine *engine = start_long(contexts[i]);
        bn_stats s = stats(engine);
        CHECK(s.kv_bytes <= machine_bytes() / 2 && s.context_length <= contexts[i]);
        // One request may use its full length.
        CHECK(s.context_length == contexts[i] || s.kv_bytes / TOKEN < contexts[i]);
        CHECK(s.kv_bytes / TOKEN >= s.context_length);
        all_run(engine);
        stop(engine);
        remove_files();
    }
}
