// Refusals of wrong arguments: NULL, sizes, ranges, enums, text, pointers that are not engines.
#include "harness.h"

#include <math.h>

TEST(names_are_static_strings) {
    CHECK(strcmp(bn_status_name(BN_OK), "BN_OK") == 0);
    CHECK(strcmp(bn_status_name(BN_ERR_QUEUE_FULL), "BN_ERR_QUEUE_FULL") == 0);
    CHECK(strcmp(bn_status_name(12345), "BN_ERR_UNKNOWN") == 0);
    for (bn_status status = BN_ERR_FINISHED; status <= BN_OK; status++) {
        CHECK(strncmp(bn_status_name(status), "BN_", 3) == 0);
        CHECK(strcmp(bn_status_name(status), "BN_ERR_UNKNOWN") != 0);
        CHECK(strlen(bn_status_message(status)) > 0);
    }
    CHECK(strcmp(bn_finish_reason_name(BN_FINISH_STOP), "stop") == 0);
    CHECK(strcmp(bn_finish_reason_name(-7), "unknown") == 0);
    CHECK_EQ(bn_abi_version(), BN_ABI_VERSION);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", BN_VERSION_MAJOR, BN_VERSION_MINOR, BN_VERSION_PATCH);
    CHECK(strcmp(bn_version(), version) == 0);
}

TEST(init_checks_pointer_and_size) {
    unsigned char space[8192];
    CHECK_STATUS(bn_engine_config_init(NULL, sizeof(bn_engine_config)), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_request_params_init(NULL, sizeof(bn_request_params)), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_stats_init(NULL, sizeof(bn_stats)), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_model_config_init(NULL, sizeof(bn_model_config)), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_model_info_init(NULL, sizeof(bn_model_info)), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_request_info_init(NULL, sizeof(bn_request_info)), BN_ERR_INVALID_ARGUMENT);
    // A caller may have any number of whole fields from the first on.
    const uint32_t whole[] = {offsetof(bn_engine_config, threads), offsetof(bn_engine_config, model),
                              offsetof(bn_engine_config, model_path), offsetof(bn_engine_config, model_name)};
    for (uint32_t size = 0, n = 0; size <= whole[3]; size++) {
        memset(space, 0xaa, sizeof space);
        bn_status status = bn_engine_config_init((void *)space, size);
        CHECK_STATUS(status, size == whole[n] ? BN_OK : BN_ERR_INVALID_ARGUMENT);
        CHECK_EQ(space[size], 0xaa);
        n += size == whole[n];
    }
    CHECK_STATUS(bn_stats_init((void *)space, UINT32_MAX), BN_ERR_INVALID_ARGUMENT);
}

TEST(init_writes_struct_size_bytes) {
    // A newer header's larger struct: the tail is zeroed, and nothing after it is touched.
    unsigned char space[sizeof(bn_request_params) + 32];
    memset(space, 0xaa, sizeof space);
    uint32_t size = sizeof(bn_request_params) + 16;
    CHECK_OK(bn_request_params_init((void *)space, size));
    CHECK_EQ(((bn_request_params *)(void *)space)->struct_size, size);
    for (size_t i = sizeof(bn_request_params); i < size; i++) CHECK_EQ(space[i], 0);
    for (size_t i = size; i < sizeof space; i++) CHECK_EQ(space[i], 0xaa);
}

// A binding may declare no more of a struct than it uses.
TEST(a_prefix_of_whole_fields_is_taken) {
    struct {
        uint32_t struct_size, task, flags, priority;
        uint64_t user_data;
        bn_string prompt;
    } params;
    struct {
        uint32_t struct_size, kind;
        bn_request request;
        uint64_t user_data;
        bn_engine *engine;
        uint64_t lease;
    } event = {0};
    struct {
        uint32_t struct_size;
    } config;
    bn_engine *engine = NULL;
    CHECK_OK(bn_engine_config_init((bn_engine_config *)&config, sizeof config));
    CHECK_OK(bn_engine_create((bn_engine_config *)&config, &engine, NULL)); // the embedded model
    CHECK_OK(bn_request_params_init((bn_request_params *)&params, sizeof params));
    CHECK_EQ(params.priority, BN_PRIORITY_DEFAULT);
    params.prompt = BN_STRING("17+25=");
    params.user_data = 7;
    params.flags = BN_REQUEST_NO_STREAM;
    bn_request request = 0;
    size_t count = 0;
    CHECK_OK(bn_submit(engine, (bn_request_params *)&params, &request, NULL));
    CHECK_STATUS(bn_poll(engine, request, (bn_event *)&event, sizeof event - 8, 1, BN_NO_LIMIT, &count, NULL),
                 BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_poll(engine, request, (bn_event *)&event, sizeof event, 1, BN_NO_LIMIT, &count, NULL));
    CHECK(count == 1 && event.kind == BN_EVENT_COMPLETED && event.user_data == 7 && event.engine == engine);
    CHECK_EQ(event.struct_size, sizeof event);
    CHECK_OK(bn_events_free((bn_event *)&event, sizeof event, 1));
    CHECK_OK(bn_request_free(engine, request, NULL));
    params.struct_size = sizeof params - 8; // within `prompt`
    bn_error error = {0};
    CHECK_STATUS(bn_submit(engine, (bn_request_params *)&params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "struct_size is 32");
    stop(engine);
}

TEST(create_wants_a_sound_struct) {
    bn_engine *engine = (bn_engine *)&engine; // must stay as it is
    bn_engine *before = engine;
    bn_engine_config config = echo_config();
    bn_error error = {0};
    CHECK_STATUS(bn_engine_create(NULL, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "bn_engine_config");
    CHECK_EQ(error.status, BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_engine_create(&config, NULL, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "out");
    config.struct_size = 12;
    CHECK_STATUS(bn_engine_create(&config, &engine, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "struct_size");
    CHECK_STATUS(bn_engine_create(&config, &engine, NULL), BN_ERR_INVALID_ARGUMENT);
    config = echo_config();
    CHECK(engine == before);
}

TEST(unknown_fields_are_refused_and_zero_ones_are_not) {
    struct {
        bn_engine_config config;
        uint64_t later;
    } newer;
    memset(&newer, 0, sizeof newer);
    CHECK_OK(bn_engine_config_init(&newer.config, sizeof newer));
    newer.config.model_path = BN_STRING("builtin:echo");
    bn_engine *engine = start(&newer.config);
    stop(engine);
    newer.later = 1;
    bn_error error = {0};
    CHECK_STATUS(bn_engine_create(&newer.config, &engine, &error), BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "bn_engine_config");
}

TEST(a_request_of_a_newer_header_is_told_why) {
    struct {
        bn_request_params params;
        uint64_t later;
    } newer;
    bn_engine *engine = start_echo();
    bn_error error = {0};
    bn_request request;
    memset(&newer, 0, sizeof newer);
    CHECK_OK(bn_request_params_init(&newer.params, sizeof newer));
    newer.params.prompt = BN_STRING("x");
    newer.later = 1;
    CHECK_STATUS(bn_submit(engine, &newer.params, &request, &error), BN_ERR_UNSUPPORTED);
    CHECK(error.status == BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "bn_request_params");
    stop(engine);
}

// Creation fails as `expected` and the message names `field`.
static void refuse(const bn_engine_config *config, bn_status expected, const char *field) {
    bn_engine *engine = NULL;
    bn_error error = {0};
    bn_status status = bn_engine_create(config, &engine, &error);
    if (status != expected)
        test_fail(__FILE__, __LINE__, "%s: %s instead of %s: %s", field, bn_status_name(status),
                  bn_status_name(expected), error.message);
    CHECK(engine == NULL);
    CHECK_CONTAINS(error.message, field);
}

// So does opening a model.
static void refuse_model(const bn_model_config *config, bn_status expected, const char *field) {
    bn_model *model = NULL;
    bn_error error = {0};
    bn_status status = bn_model_open(config, &model, &error);
    if (status != expected)
        test_fail(__FILE__, __LINE__, "%s: %s instead of %s: %s", field, bn_status_name(status),
                  bn_status_name(expected), error.message);
    CHECK(model == NULL);
    CHECK_CONTAINS(error.message, field);
}

TEST(model_config_ranges_are_refused_by_name) {
    bn_model_config good, c;
    CHECK_OK(bn_model_config_init(&good, sizeof good));
    CHECK_EQ(good.fd, -1);
    good.path = BN_STRING("builtin:echo");
#define BAD(field, value)                              \
    c = good;                                          \
    c.field = (value);                                 \
    refuse_model(&c, BN_ERR_INVALID_ARGUMENT, #field)
    BAD(threads, 257);
    BAD(log_level, -1);
    BAD(log_level, 5);
    BAD(weight_type, -1);
    BAD(weight_type, BN_WEIGHTS_INT8 + 1);
    BAD(embedding_type, BN_WEIGHTS_INT8 + 1);
    BAD(embedding_type, BN_WEIGHTS_TERNARY);
    BAD(head_type, -1);
    BAD(head_type, BN_WEIGHTS_TERNARY);
    BAD(drafter_path, BN_STRING(""));
    BAD(kernel_config_path, BN_STRING("kernel_config.ini"));
    BAD(path, BN_STRING(""));
    BAD(path, BN_STRING("builtin:\xff"));
    BAD(fd, -2);
    BAD(fd, 0); // beside a path
    BAD(data, &good);
#undef BAD
    c = good;
    c.embedding_type = BN_WEIGHTS_TERNARY;
    refuse_model(&c, BN_ERR_INVALID_ARGUMENT, "embedding_type is ternary");
    c = good;
    c.weight_type = BN_WEIGHTS_Q8_0;
    refuse_model(&c, BN_ERR_INVALID_ARGUMENT, "builtin:echo has no weights");
    c = good;
    c.path.data = NULL;
    refuse_model(&c, BN_ERR_INVALID_ARGUMENT, "path is NULL");
    c = good;
    c.path = (bn_string){0};
    c.data_size = 1; // with NULL
    refuse_model(&c, BN_ERR_INVALID_ARGUMENT, "data");
}

TEST(config_ranges_are_refused_by_name) {
    bn_engine_config good = echo_config(), c;
#define BAD(field, value)                              \
    c = good;                                          \
    c.field = (value);                                 \
    refuse(&c, BN_ERR_INVALID_ARGUMENT, #field)
    BAD(threads, 257);
    BAD(max_batch_size, 0);
    BAD(max_batch_size, 4097);
    BAD(max_batch_tokens, good.max_batch_size - 1);
    BAD(max_batch_tokens, 65537);
    BAD(kv_block_size, 0);
    BAD(kv_block_size, 33);
    BAD(kv_block_size, 256);
    BAD(queue_capacity, 0);
    BAD(queue_capacity, 1048577);
    BAD(max_wait_us, 1000001);
    BAD(max_step_ms, 0);
    BAD(max_step_ms, 60001);
    BAD(log_level, -1);
    BAD(log_level, 5);
    BAD(instructions, -1);
    BAD(instructions, BN_INSTRUCTIONS_NEON_I8MM + 1);
    BAD(kv_type, -1);
    BAD(kv_type, BN_KV_TYPE_INT4 + 1);
    BAD(kv_type, BN_KV_TYPE_INT8); // builtin:echo
#undef BAD
    c = good;
    c.instructions = BN_INSTRUCTIONS_SCALAR;
    refuse(&c, BN_ERR_INVALID_ARGUMENT, "builtin:echo computes nothing");
#if defined __x86_64__
    c.instructions = BN_INSTRUCTIONS_NEON;
    refuse(&c, BN_ERR_UNSUPPORTED, "instructions is neon, which this machine lacks: it has scalar");
#else
    c.instructions = BN_INSTRUCTIONS_AVX2;
    refuse(&c, BN_ERR_UNSUPPORTED, "instructions is avx2, which this machine lacks: it has scalar");
#endif
    c = good;
    c.model_path = BN_STRING("");
    refuse(&c, BN_ERR_INVALID_ARGUMENT, "model_path is empty");
}

TEST(devices_that_are_not_there_are_refused) {
    bn_engine_config config = echo_config();
    config.device = BN_STRING("cpu");
    bn_engine *engine = NULL;
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
    bn_engine_free(engine);
    config.device = BN_STRING("gpu");
    refuse(&config, BN_ERR_INVALID_ARGUMENT, "device = gpu is neither cpu, nor cuda:0");
    config.device = BN_STRING("cuda:0,cuda:0");
    refuse(&config, BN_ERR_INVALID_ARGUMENT, "names cuda:0 twice");
    // No driver, no kernels in this library, or fewer devices.
    config.device = BN_STRING("cuda:9999,cuda:0");
    refuse(&config, BN_ERR_UNSUPPORTED, "");
}

TEST(model_path_must_be_utf8) {
    bn_engine_config config = slow_config("builtin:\xff");
    refuse(&config, BN_ERR_INVALID_ARGUMENT, "model_path");
    config = echo_config();
    config.model_path.data = NULL;
    config.model_path.length = 1;
    refuse(&config, BN_ERR_INVALID_ARGUMENT, "model_path");
}

static bn_engine *engine;

// Submission fails as `expected`, and the request's own error names `field`.
static void refuse_request(bn_request_params params, bn_status expected, const char *field) {
    bn_error error = {0};
    bn_request request = 0;
    bn_status status = bn_submit(engine, &params, &request, &error);
    if (status != expected)
        test_fail(__FILE__, __LINE__, "%s: %s instead of %s: %s", field, bn_status_name(status),
                  bn_status_name(expected), error.message);
    CHECK_EQ(error.status, expected);
    CHECK_CONTAINS(error.message, field);
    CHECK_EQ(request, 0);
}

TEST(request_ranges_are_refused_by_name) {
    engine = start_echo();
    bn_request_params good = ask("hello"), p;
#define BAD_IN(field, name, value)                             \
    p = good;                                                  \
    p.field = (value);                                         \
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, name)
#define BAD(field, value) BAD_IN(field, #field, value)
#define BAD_SAMPLING(field, value) BAD_IN(sampling.field, #field, value)
    BAD(priority, BN_PRIORITY_MAX + 1);
    BAD_SAMPLING(temperature, -0.5f);
    BAD_SAMPLING(temperature, (float)NAN);
    BAD_SAMPLING(temperature, (float)INFINITY);
    BAD_SAMPLING(top_p, 0.0f);
    BAD_SAMPLING(top_p, 1.5f);
    BAD_SAMPLING(top_p, (float)NAN);
    BAD_SAMPLING(min_p, -0.1f);
    BAD_SAMPLING(min_p, 1.1f);
    BAD_SAMPLING(repetition_penalty, 0.0f);
    BAD_SAMPLING(repetition_penalty, (float)NAN);
    BAD_SAMPLING(frequency_penalty, (float)INFINITY);
    BAD_SAMPLING(presence_penalty, (float)NAN);
    BAD(top_logprobs, 5); // without BN_REQUEST_LOGPROBS
    BAD(stop_tokens_count, BN_MAX_STOPS + 1);
    BAD(stop_strings_count, (size_t)-1);
#undef BAD_SAMPLING
#undef BAD
#undef BAD_IN
    p = good;
    p.prompt.data = NULL;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "prompt is NULL");
    p = good;
    p.stop_tokens_count = 1; // with NULL
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "stop_tokens is NULL");
    p = good;
    p.stop_strings_count = 1;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "stop_strings is NULL");
    p = good;
    p.flags = 1u << 31;
    refuse_request(p, BN_ERR_UNSUPPORTED, "flags");
    p = good;
    p.top_logprobs = 1u << 30;
    p.flags = BN_REQUEST_LOGPROBS;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "top_logprobs");
    stop(engine);
}

TEST(prompts_are_one_of_three_and_sound) {
    engine = start_echo();
    uint32_t tokens[] = {70, 71};
    bn_request_params p = ask("hello");
    p.prompt_tokens = tokens;
    p.prompt_tokens_count = 2;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "prompt");
    p = ask("");
    p.prompt = (bn_string){0};
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "prompt");
    p = ask("ab\xc3");
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "UTF-8");
    p = ask("\xed\xa0\x80"); // a surrogate
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "UTF-8");
    uint32_t wild[] = {70, 0xffffffffu};
    p = ask("");
    p.prompt = (bn_string){0};
    p.prompt_tokens = wild;
    p.prompt_tokens_count = 2;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "token");
    p.prompt_tokens_count = 0;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "prompt");
    stop(engine);
}

TEST(stop_strings_are_checked) {
    engine = start_echo();
    bn_string empty = {.data = "", .length = 0}, broken = {.data = "\xff", .length = 1}, null = {.data = NULL, .length = 3};
    bn_request_params p = ask("hello");
    p.stop_strings_count = 1;
    p.stop_strings = &empty;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "stop_strings[0]");
    p.stop_strings = &broken;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "stop_strings[0]");
    p.stop_strings = &null;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "stop_strings[0]");
    stop(engine);
}

TEST(refusals_are_counted) {
    engine = start_echo();
    bn_request_params p = ask("hello");
    p.priority = BN_PRIORITY_MAX + 1;
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "priority");
    p = ask("\xff");
    refuse_request(p, BN_ERR_INVALID_ARGUMENT, "UTF-8");
    bn_stats after = stats(engine);
    CHECK_EQ(after.accepted, 0);
    CHECK_EQ(after.rejected_invalid, 2);
    stop(engine);
}

TEST(a_batch_is_all_or_nothing) {
    engine = start_echo();
    bn_request_params good = ask("hello"), bad = ask("hello");
    bad.sampling.temperature = -1;
    bn_error error = {0};
    const bn_request_params *list[] = {&good, &good, &bad};
    bn_request requests[3] = {5, 5, 5};
    CHECK_STATUS(bn_submit_batch(engine, list, 3, requests, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "temperature");
    CHECK_CONTAINS(error.message, "2");
    CHECK(requests[0] == 5 && requests[1] == 5 && requests[2] == 5);
    CHECK_EQ(stats(engine).accepted, 0);
    CHECK_OK(bn_submit_batch(engine, list, 2, requests, NULL));
    CHECK(requests[0] != requests[1] && requests[0] != 5);
    finish_all(engine, 2);
    CHECK_EQ(stats(engine).accepted, 2);
    stop(engine);
}

TEST(outputs_check_struct_size) {
    engine = start_echo();
    bn_model *model = model_of(engine);
    bn_stats s = {.struct_size = 5};
    CHECK_STATUS(bn_engine_stats(engine, &s, NULL), BN_ERR_INVALID_ARGUMENT);
    bn_model_info info = {.struct_size = 0};
    CHECK_STATUS(bn_model_get_info(model, &info, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_model_free(model));
    stop(engine);
}
