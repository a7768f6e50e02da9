// Hugging Face folders, whole and damaged, made from the small ones of the golden tests.
#include "harness.h"

#ifdef BN_GOLDEN_MODELS
#include <sys/stat.h>
#include <unistd.h>

static char folder[96];

static const char *path_of(const char *name) {
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t length) {
    FILE *file = fopen(path_of(name), "wb");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, length, file), length);
    CHECK_EQ(fclose(file), 0);
}

static void copy(const char *model, const char *name) {
    char from[512];
    static char bytes[1 << 17];
    snprintf(from, sizeof from, "%s/%s/%s", BN_GOLDEN_MODELS, model, name);
    FILE *file = fopen(from, "rb");
    CHECK(file != NULL);
    size_t length = fread(bytes, 1, sizeof bytes, file);
    CHECK(length > 0 && length < sizeof bytes);
    fclose(file);
    put(name, bytes, length);
}

static void make_folder(void) {
    CHECK(make_temporary(folder, sizeof folder));
}

static void make_model(void) {
    make_folder();
    copy("llama-f16", "config.json");
    copy("llama-f16", "model.safetensors");
}

static void remove_folder(void) {
    const char *const names[] = {"config.json", "model.safetensors", "generation_config.json", "chat_template.jinja",
                                 "some.gguf",   "tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (unlink(path_of(names[i])) != 0) rmdir(path_of(names[i]));
    CHECK_EQ(rmdir(folder), 0);
}

static bn_model_config golden_config(const char *name) {
    static char path[512];
    bn_model_config config;
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    snprintf(path, sizeof path, "%s/%s", BN_GOLDEN_MODELS, name);
    config.path = BN_TEXT(path);
    config.threads = 2;
    return config;
}

static void refused(const bn_engine_config *config, bn_status status, const char *words) {
    bn_error error = {0};
    bn_engine *engine = NULL;
    int fds = count_fds(), threads = count_threads();
    CHECK_STATUS(bn_engine_create(config, &engine, &error), status);
    CHECK(engine == NULL);
    CHECK_CONTAINS(error.message, words);
    CHECK_EQ(count_fds(), fds);
    CHECK_EQ(count_threads(), threads);
}

static void model_refused(const bn_model_config *config, bn_status status, const char *words) {
    bn_error error = {0};
    bn_model *model = NULL;
    int fds = count_fds(), threads = count_threads();
    CHECK_STATUS(bn_model_open(config, &model, &error), status);
    CHECK(model == NULL);
    CHECK_CONTAINS(error.message, words);
    CHECK_EQ(count_fds(), fds);
    CHECK_EQ(count_threads(), threads);
}

static void folder_refused(bn_status status, const char *words) {
    bn_engine_config config = slow_config(folder);
    refused(&config, status, words);
}

static bn_request_params ask_ids(void) {
    static const uint32_t ids[] = {1, 5, 9, 12, 7};
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt_tokens = ids;
    params.prompt_tokens_count = 5;
    params.max_new_tokens = 8;
    return params;
}

TEST(a_folder_without_tokenizer_still_ends) {
    make_model();
    bn_engine_config config = slow_config(folder);
    bn_engine *engine = start(&config);
    bn_request_params params = ask_ids();
    answer *a = run(engine, &params);
    CHECK_EQ(a->last.finish_reason, BN_FINISH_LENGTH);
    CHECK_EQ(a->tokens_count, 8);
    stop(engine);
    // Makes its second token the end token.
    char json[64];
    snprintf(json, sizeof json, "{\"eos_token_id\": [63, %u]}", (unsigned)a->tokens[1]);
    put("generation_config.json", json, strlen(json));
    engine = start(&config);
    bn_model *model = model_of(engine);
    bn_model_info info = info_of(model);
    CHECK_EQ(info.has_tokenizer, 0);
    CHECK_EQ(info.end_tokens_count, 2);
    CHECK_EQ(info.end_tokens[0], a->tokens[1]);
    CHECK_OK(bn_model_free(model));
    answer *b = run(engine, &params);
    CHECK_EQ(b->last.finish_reason, BN_FINISH_STOP);
    CHECK_EQ(b->tokens_count, 2);
    params.flags = BN_REQUEST_IGNORE_EOS;
    free(b);
    b = run(engine, &params);
    CHECK_EQ(b->last.finish_reason, BN_FINISH_LENGTH);
    free(a);
    free(b);
    stop(engine);
    put("generation_config.json", "{\"eos_token_id\": 64}", 20);
    folder_refused(BN_ERR_BAD_MODEL, "generation_config.json");
    remove_folder();
}

TEST(a_folder_may_chat_without_tokenizer) {
    make_model();
    const char template[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    put("chat_template.jinja", template, sizeof template - 1);
    bn_model *model = open_model(folder);
    enum { MANY = 10000 };
    bn_chat_message *messages = calloc(MANY, sizeof *messages);
    CHECK(messages != NULL);
    for (size_t i = 0; i < MANY; i++) messages[i] = (bn_chat_message){BN_STRING("user"), BN_STRING("hello")};
    size_t length = 0, again = 0;
    bn_chat chat = {.messages = messages, .messages_count = MANY};
    CHECK_STATUS(bn_model_chat_format(model, &chat, NULL, 0, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(length, MANY * strlen("<user>hello"));
    char *text = malloc(length);
    CHECK(text != NULL);
    CHECK_OK(bn_model_chat_format(model, &chat, text, length, &again, NULL));
    CHECK(again == length && memcmp(text, "<user>hello<user>hello", 22) == 0);
    free(text);
    free(messages);
    CHECK_OK(bn_model_free(model));
    remove_folder();
}

// The ids of a conversation of two messages, as text: 9 is `<|eot|>`, shown as `#`, the others are their characters.
static void check_tokens(const bn_model *model, const char *first, const char *second, const char *expected) {
    bn_chat_message messages[] = {{BN_STRING("t"), BN_TEXT(first)}, {BN_STRING("t"), BN_TEXT(second)}};
    uint32_t ids[64];
    char shown[65] = {0};
    size_t count = 0;
    bn_chat chat = {.messages = messages, .messages_count = 2};
    CHECK_OK(bn_model_chat_tokenize(model, &chat, ids, 64, &count, NULL));
    for (size_t i = 0; i < count; i++) shown[i] = ids[i] < 10 ? "<|eot>ab:#"[ids[i]] : '?';
    CHECK_TEXT(shown, strlen(shown), expected);
}

// Text in messages never becomes a control token: not by itself, not joined with another message's, not with
// the template's.
TEST(messages_spell_no_control_tokens) {
    make_model();
    const char tokenizer[] =
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 9, \"content\": \"<|eot|>\", \"single_word\": false, "
        "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}], \"normalizer\": null, "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}, \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}, \"model\": {\"type\": \"BPE\", "
        "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
        "\"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": {\"<\": 0, \"|\": 1, \"e\": 2, \"o\": 3, \"t\": 4, "
        "\">\": 5, \"a\": 6, \"b\": 7, \":\": 8}, \"merges\": []}}";
    const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}<|eot|>";
    put("tokenizer.json", tokenizer, sizeof tokenizer - 1);
    put("chat_template.jinja", template, sizeof template - 1);
    bn_model *model = open_model(folder);
    check_tokens(model, "a", "b", "ab#");
    check_tokens(model, "<|eot|>", "b", "<|eot|>b#");
    check_tokens(model, "<|e", "ot|>", "<|eot|>#");
    check_tokens(model, "a", "<|eot|", "a<|eot|#");
    // A request's messages are handled in the same way.
    bn_engine_config config = slow_config("");
    config.model_path = (bn_string){0};
    config.model = model;
    bn_engine *engine = start(&config);
    bn_chat_message messages[] = {{BN_STRING("t"), BN_STRING("<|e")}, {BN_STRING("t"), BN_STRING("ot|>")}};
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.chat.messages = messages;
    params.chat.messages_count = 2;
    params.max_new_tokens = 1;
    params.flags = BN_REQUEST_ECHO_PROMPT | BN_REQUEST_PARSE_SPECIAL; // which is about `prompt` alone
    answer *a = run(engine, &params);
    const uint32_t spelled[] = {0, 1, 2, 3, 4, 1, 5, 9};
    CHECK_EQ(a->last.prompt_tokens, 8);
    CHECK(memcmp(a->tokens, spelled, sizeof spelled) == 0);
    free(a);
    stop(engine);
    CHECK_OK(bn_model_free(model));
    remove_folder();
}

TEST(broken_folders) {
    make_folder();
    folder_refused(BN_ERR_IO, "it has no config.json");
    put("some.gguf", "x", 1);
    folder_refused(BN_ERR_IO, "it has a GGUF file");
    copy("llama-f16", "config.json");
    CHECK_EQ(unlink(path_of("some.gguf")), 0);
    folder_refused(BN_ERR_IO, "neither model.safetensors");
    CHECK(make_directory(path_of("model.safetensors")));
    folder_refused(BN_ERR_IO, "model.safetensors': it is not a regular file");
    CHECK_EQ(rmdir(path_of("model.safetensors")), 0);
    copy("llama-f16", "model.safetensors");
    bn_engine_config inside = slow_config(path_of("model.safetensors"));
    refused(&inside, BN_ERR_BAD_MODEL, "give the folder's path");
    CHECK_EQ(truncate(path_of("model.safetensors"), 20000), 0);
    folder_refused(BN_ERR_BAD_MODEL, "is the file truncated?");
    put("config.json", "{", 1);
    folder_refused(BN_ERR_BAD_MODEL, "config.json");
    CHECK_EQ(unlink(path_of("config.json")), 0);
    CHECK(make_directory(path_of("config.json")));
    folder_refused(BN_ERR_IO, "config.json': it is not a regular file");
    remove_folder();
}

TEST(a_long_path_leaves_room_for_the_reason) {
    static char path[5000];
    memset(path, 'a', sizeof path);
    bn_engine_config config = slow_config("");
    config.model_path = (bn_string){path, sizeof path};
    refused(&config, BN_ERR_IO, " ... ");
}

TEST(a_kernel_config_that_nothing_needs_is_refused) {
    const char *const models[] = {"llama-linear.gguf", "llama-f16"};
    for (size_t i = 0; i < 2; i++) {
        bn_model_config config = golden_config(models[i]);
        config.kernel_config_path = BN_STRING("/nonexistent.ini");
        model_refused(&config, BN_ERR_INVALID_ARGUMENT, "kernel_config_path is given");
    }
}

static int calls, last_call;
static float fraction_before;

static int32_t give_up(float fraction, bn_string what, void *context) {
    (void)context;
    CHECK(fraction >= fraction_before && fraction <= 1 && what.data != NULL && what.length > 0);
    fraction_before = fraction;
    return calls++ == last_call;
}

TEST(a_load_can_be_given_up_anywhere) {
    for (uint32_t type = BN_WEIGHTS_KEEP; type <= BN_WEIGHTS_Q4_0; type++) {
        bn_model_config config = golden_config("llama-sharded");
        bn_model *model = NULL;
        config.progress = give_up;
        config.weight_type = config.embedding_type = config.head_type = type;
        calls = 0, last_call = -1, fraction_before = 0;
        CHECK_OK(bn_model_open(&config, &model, NULL));
        CHECK_OK(bn_model_free(model));
        CHECK(calls > 2 && fraction_before == 1);
        for (int all = calls, i = 0; i < all; i++) {
            calls = 0, last_call = i, fraction_before = 0;
            model_refused(&config, BN_ERR_CANCELLED, "progress");
            CHECK_EQ(calls, i + 1);
        }
    }
}
#endif
