// Properties of every call that can fail: handles, the error parameter, and outputs that an error leaves
// unchanged.
#include "harness.h"

static bn_engine *engine;
static bn_model *model;
static bn_request request;  // live, never finished
static bool bad;            // the next call gets one bad argument
static bn_request_params params;
static bn_model_config model_config;
static bn_engine_config config;
static bn_chat_message message;
static bn_chat chat;

// All outputs that a call may write to.
static struct {
    bn_model *model;
    bn_engine *engine;
    bn_event completion;
    bn_event event;
    bn_request request;
    size_t count;
    uint32_t tokens[64];
    char text[32768];
    float values[64];
    bn_model_info info;
    bn_stats stats;
    bn_request_info request_info;
} out, before;

#define ENGINE (bad ? NULL : engine)
#define MODEL (bad ? NULL : model)
#define CALL(name, ...) \
    static bn_status try_##name(bn_error *error) { return name(__VA_ARGS__, error); }

static const bn_request_params *batch[] = {&params, NULL};
static const uint32_t some[] = {70, 71};

CALL(bn_model_open, bad ? NULL : &model_config, &out.model)
CALL(bn_model_get_info, MODEL, &out.info)
CALL(bn_model_tokenize, MODEL, BN_STRING("some text"), 0, out.tokens, 64, &out.count)
CALL(bn_model_detokenize, MODEL, some, 2, out.text, 64, &out.count)
CALL(bn_model_token_bytes, MODEL, 70, out.text, 64, &out.count)
CALL(bn_model_chat_format, MODEL, &chat, out.text, 64, &out.count)
CALL(bn_model_chat_tokenize, MODEL, &chat, out.tokens, 64, &out.count)
CALL(bn_engine_create, bad ? NULL : &config, &out.engine)
CALL(bn_engine_model, ENGINE, &out.model)
CALL(call_for_a_wait, ENGINE)
CALL(bn_engine_stats, ENGINE, &out.stats)
CALL(bn_engine_metrics, ENGINE, out.text, sizeof out.text, &out.count)
CALL(bn_engine_report, ENGINE, out.text, sizeof out.text, &out.count)
CALL(bn_submit, ENGINE, &params, &out.request)
CALL(bn_submit_batch, ENGINE, batch, 1, &out.request)
CALL(bn_poll, ENGINE, BN_ANY, &out.event, sizeof out.event, 1, 0, &out.count)
CALL(bn_request_get_info, ENGINE, request, &out.request_info)
CALL(bn_generate, ENGINE, &params, &out.completion, sizeof out.completion)
CALL(bn_embed, ENGINE, &params, out.values, 64, &out.count)
CALL(bn_cancel, ENGINE, request)
CALL(bn_request_free, ENGINE, request)
CALL(bn_engine_shutdown, ENGINE, BN_SHUTDOWN_CANCEL)

// The calls, in an order in which each succeeds.
static const struct {
    const char *name;
    bn_status (*call)(bn_error *error);
} calls[] = {
#define ROW(name) {#name, try_##name}
    ROW(bn_model_open),      ROW(bn_model_get_info),      ROW(bn_model_tokenize),   ROW(bn_model_detokenize),
    ROW(bn_model_token_bytes), ROW(bn_model_chat_format), ROW(bn_model_chat_tokenize), ROW(bn_engine_create),
    ROW(bn_engine_model),    ROW(call_for_a_wait),        ROW(bn_engine_stats),     ROW(bn_engine_metrics),   ROW(bn_engine_report),
    ROW(bn_submit),          ROW(bn_submit_batch),        ROW(bn_poll),             ROW(bn_request_get_info),
    ROW(bn_generate),        ROW(bn_embed),               ROW(bn_cancel),           ROW(bn_request_free),
    ROW(bn_engine_shutdown),
#undef ROW
};
enum { CALLS = sizeof calls / sizeof *calls };

static void prepare(void) {
    CHECK_OK(bn_model_config_init(&model_config, sizeof model_config));
    model_config.path = BN_STRING("builtin:echo");
    config = echo_config();
    model = open_model("builtin:echo");
    config.model_path = (bn_string){0};
    config.model = model;
    config.max_batch_size = 2;
    engine = start(&config);
    params = ask("a prompt");
    bn_request_params endless = ask("a prompt");
    endless.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_POLL_BY_ID | BN_REQUEST_NO_STREAM;
    endless.max_new_tokens = 60000;
    request = submit(engine, &endless);
    message = (bn_chat_message){BN_STRING("user"), BN_STRING("hello")};
    chat = (bn_chat){.messages = &message, .messages_count = 1};
    memset(&out, 0x77, sizeof out);
    out.info.struct_size = sizeof out.info;
    out.stats.struct_size = sizeof out.stats;
    out.request_info.struct_size = sizeof out.request_info;
    memcpy(&before, &out, sizeof out);
}

static void clean_up(void) {
    stop(engine);
    CHECK_OK(bn_model_free(model));
}

TEST(an_error_says_why_a_call_failed) {
    prepare();
    bad = true;
    for (size_t i = 0; i < CALLS; i++) {
        bn_error error = {0};
        bn_status status = calls[i].call(&error);
        if (status != BN_ERR_INVALID_ARGUMENT || error.status != status || strstr(error.message, "NULL") == NULL)
            test_fail(__FILE__, __LINE__, "%s gave %s, its error %d %s", calls[i].name, bn_status_name(status),
                      error.status, error.message);
        if (calls[i].call(NULL) != status) test_fail(__FILE__, __LINE__, "%s differs without error", calls[i].name);
        if (memcmp(&out, &before, sizeof out) != 0) test_fail(__FILE__, __LINE__, "%s failed and wrote", calls[i].name);
    }
    clean_up();
}

TEST(success_empties_the_error) {
    prepare();
    bad = false;
    for (size_t i = 0; i < CALLS; i++) {
        bn_error error;
        memset(&error, 0x5a, sizeof error);
        bn_status status = calls[i].call(&error);
        if (status < 0 || error.status != BN_OK || error.message[0] != 0)
            test_fail(__FILE__, __LINE__, "%s gave %s, its error %d %s", calls[i].name, bn_status_name(status),
                      error.status, error.message);
        if (out.model != before.model) CHECK_OK(bn_model_free(out.model));
        if (out.engine != before.engine) CHECK_OK(bn_engine_free(out.engine));
        if (out.completion.lease != before.completion.lease) bn_events_free(&out.completion, sizeof out.completion, 1);
        memcpy(&out, &before, sizeof out);
    }
    clean_up();
}

TEST(every_call_wants_a_live_handle) {
    prepare();
    bad = false;
    bn_engine *live_engine = engine;
    bn_model *live_model = model;
    clean_up();
    uint64_t never = 0;
    const uintptr_t invented[] = {(uintptr_t)&never, 0x10};
    for (size_t k = 0; k < 3; k++) {
        engine = k < 2 ? (bn_engine *)invented[k] : live_engine;
        model = k < 2 ? (bn_model *)invented[k] : live_model;
        config.model = model;
        for (size_t i = 0; i < CALLS; i++) {
            if (strcmp(calls[i].name, "bn_model_open") == 0) continue;
            bn_error error = {0};
            bn_status status = calls[i].call(&error);
            if (status != BN_ERR_INVALID_ARGUMENT || strstr(error.message, "live") == NULL)
                test_fail(__FILE__, __LINE__, "%s gave %s: %s", calls[i].name, bn_status_name(status), error.message);
            CHECK(memcmp(&out, &before, sizeof out) == 0);
        }
        CHECK_STATUS(bn_engine_free(engine), BN_ERR_INVALID_ARGUMENT);
        CHECK_STATUS(bn_engine_state(engine, &out.tokens[0]), BN_ERR_INVALID_ARGUMENT);
        out.event.engine = engine;
        CHECK_OK(bn_events_free(&out.event, sizeof out.event, 1)); // it went with its engine
        out.event = before.event;
        CHECK_STATUS(bn_model_free(model), BN_ERR_INVALID_ARGUMENT);
    }
    CHECK_OK(bn_engine_free(NULL));
    CHECK_OK(bn_model_free(NULL));
}

TEST(null_arguments_are_refused) {
    prepare();
    const bn_request_params *holes[] = {&params, NULL};
    bn_request requests[2] = {0, 0};
    bn_event event;
    size_t count = 77, length = 77;
#define REFUSED(call) CHECK_STATUS(call, BN_ERR_INVALID_ARGUMENT)
    REFUSED(bn_submit(engine, NULL, requests, NULL));
    REFUSED(bn_submit(engine, &params, NULL, NULL));
    REFUSED(bn_submit_batch(engine, NULL, 1, requests, NULL));
    REFUSED(bn_submit_batch(engine, holes, 2, requests, NULL));
    REFUSED(bn_submit_batch(engine, holes, 1, NULL, NULL));
    REFUSED(bn_submit_batch(engine, holes, 0, requests, NULL));
    REFUSED(bn_poll(engine, BN_ANY, NULL, sizeof event, 1, 0, &count, NULL));
    REFUSED(bn_poll(engine, BN_ANY, &event, sizeof event, 0, 0, &count, NULL));
    REFUSED(bn_poll(engine, BN_ANY, &event, sizeof event, 1, 0, NULL, NULL));
    REFUSED(bn_events_free(NULL, sizeof event, 1));
    REFUSED(bn_engine_stats(engine, NULL, NULL));
    REFUSED(bn_engine_model(engine, NULL, NULL));
    REFUSED(bn_request_get_info(engine, request, NULL, NULL));
    REFUSED(bn_engine_metrics(engine, NULL, 0, NULL, NULL));
    REFUSED(bn_engine_metrics(engine, NULL, 65536, &length, NULL));
    REFUSED(bn_engine_report(engine, NULL, 0, NULL, NULL));
    REFUSED(bn_engine_report(engine, NULL, 65536, &length, NULL));
    REFUSED(bn_generate(engine, NULL, &out.completion, sizeof out.completion, NULL));
    REFUSED(bn_generate(engine, &params, NULL, sizeof(bn_event), NULL));
    REFUSED(bn_generate(engine, &params, &out.completion, 0, NULL));
    REFUSED(bn_engine_state(engine, NULL));
    REFUSED(bn_embed(engine, NULL, out.values, 64, &count, NULL));
    REFUSED(bn_embed(engine, &params, NULL, 64, &count, NULL));
    REFUSED(bn_embed(engine, &params, out.values, 64, NULL, NULL));
    REFUSED(bn_engine_shutdown(engine, 2, NULL));
    REFUSED(bn_model_get_info(model, NULL, NULL));
    REFUSED(bn_model_tokenize(model, (bn_string){NULL, 1}, 0, NULL, 0, &count, NULL));
    REFUSED(bn_model_tokenize(model, BN_STRING("a"), 0, NULL, 0, NULL, NULL));
    REFUSED(bn_model_detokenize(model, NULL, 1, NULL, 0, &count, NULL));
    REFUSED(bn_model_detokenize(model, some, 2, NULL, 0, NULL, NULL));
    REFUSED(bn_model_token_bytes(model, 70, NULL, 0, NULL, NULL));
    REFUSED(bn_model_chat_tokenize(model, NULL, NULL, 0, &count, NULL));
    REFUSED(bn_model_chat_tokenize(model, &chat, NULL, 0, NULL, NULL));
#undef REFUSED
    CHECK_OK(bn_events_free(NULL, sizeof event, 0));
    CHECK_STATUS(bn_model_tokenize(model, BN_STRING("a"), 4, NULL, 0, &count, NULL), BN_ERR_UNSUPPORTED);
    CHECK(requests[0] == 0 && requests[1] == 0 && memcmp(&out, &before, sizeof out) == 0 && count == 77);
    CHECK_EQ(stats(engine).accepted, 1);
    clean_up();
}
