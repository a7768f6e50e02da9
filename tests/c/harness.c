// clock_gettime: compiled with -D_GNU_SOURCE.
#include "harness.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TESTS = 512 };

static struct {
    const char *name;
    test_function run;
} tests[MAX_TESTS];
static int test_count;

void test_register(const char *name, test_function run) {
    if (test_count < MAX_TESTS) {
        tests[test_count].name = name;
        tests[test_count].run = run;
    }
    test_count++;
}

void test_fail(const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    // Not exit: engines are alive, and their leak reports would hide the fault.
    _exit(1);
}

// Runs the test `name` in this process.
static int run_here(const char *name) {
    for (int i = 0; i < test_count; i++) {
        if (strcmp(tests[i].name, name) != 0) continue;
        tests[i].run();
        return 0;
    }
    fprintf(stderr, "there is no test %s\n", name);
    return 1;
}

int main(int argc, char **argv) {
    if (test_count > MAX_TESTS) {
        fprintf(stderr, "%d tests: raise MAX_TESTS\n", test_count);
        return 1;
    }
    if (argc == 3 && strcmp(argv[1], "--alone") == 0) return run_here(argv[2]);
    int passed = 0, failed = 0;
    for (int i = 0; i < test_count; i++) {
        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL) continue;
        const char *why = "";
        double begin = seconds();
        bool ok = run_alone(tests[i].name, tests[i].run, &why);
        printf("test %s ... %s%s", tests[i].name, ok ? "ok" : "FAILED: ", ok ? "" : why);
        if (seconds() - begin > 5) printf(" (%.0f s)", seconds() - begin);
        printf("\n");
        ok ? passed++ : failed++;
    }
    printf("\nC test result: %s. %d passed; %d failed\n\n", failed ? "FAILED" : "ok", passed, failed);
    return failed > 0 || passed == 0;
}

bn_engine_config demo_config(void) {
    bn_engine_config config;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.threads = 2;
    return config;
}

bn_engine_config slow_config(const char *path) {
    bn_engine_config config = demo_config();
    config.model_path = BN_TEXT(path);
    return config;
}

bn_engine_config echo_config(void) {
    return slow_config("builtin:echo");
}

bn_engine *start(const bn_engine_config *config) {
    bn_engine *engine = NULL;
    bn_error error = {0};
    bn_status status = bn_engine_create(config, &engine, &error);
    if (status != BN_OK) test_fail(__FILE__, __LINE__, "create: %s: %s", bn_status_name(status), error.message);
    CHECK(engine != NULL);
    return engine;
}

bn_engine *start_echo(void) {
    bn_engine_config config = echo_config();
    return start(&config);
}

void stop(bn_engine *engine) {
    CHECK_OK(bn_engine_free(engine));
}

bn_model *open_model(const char *path) {
    bn_model_config config;
    bn_model *model = NULL;
    bn_error error = {0};
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    config.path = BN_TEXT(path);
    if (path == NULL) config.path = (bn_string){0};
    bn_status status = bn_model_open(&config, &model, &error);
    if (status != BN_OK) test_fail(__FILE__, __LINE__, "open: %s: %s", bn_status_name(status), error.message);
    CHECK(model != NULL);
    return model;
}

bn_model *model_of(bn_engine *engine) {
    bn_model *model = NULL;
    CHECK_OK(bn_engine_model(engine, &model, NULL));
    CHECK(model != NULL);
    return model;
}

bn_model_info info_of(const bn_model *model) {
    bn_model_info info;
    CHECK_OK(bn_model_info_init(&info, sizeof info));
    CHECK_OK(bn_model_get_info(model, &info, NULL));
    return info;
}

bn_request_params ask(const char *prompt) {
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt = BN_TEXT(prompt);
    return params;
}

bn_request submit(bn_engine *engine, const bn_request_params *params) {
    bn_error error = {0};
    bn_request request = 0;
    bn_status status = bn_submit(engine, params, &request, &error);
    if (status != BN_OK) test_fail(__FILE__, __LINE__, "submit: %s: %s", bn_status_name(status), error.message);
    CHECK(request != 0 && request != BN_ANY);
    return request;
}

static bool is_utf8(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : 9;
        if (i + more >= length) return false;
        for (size_t k = 1; k <= more; k++)
            if (((unsigned char)text[i + k] & 0xc0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

static void check_event(const bn_event *event) {
    CHECK_EQ(event->struct_size, sizeof *event);
    CHECK(event->kind == BN_EVENT_TOKENS || event->kind == BN_EVENT_COMPLETED);
    CHECK(event->text.data != NULL && event->message.data != NULL);
    CHECK(is_utf8(event->text.data, event->text.length));
    CHECK(is_utf8(event->message.data, event->message.length));
    CHECK((event->tokens == NULL) == (event->tokens_count == 0));
    CHECK_EQ(event->logprobs_count, event->tokens_count * event->logprobs_per_token);
    CHECK(event->cached_tokens <= event->prompt_tokens);
    CHECK((event->embedding != NULL) == (event->finish_reason == BN_FINISH_EMBEDDING));
    CHECK((event->embedding_count > 0) == (event->embedding != NULL) && (event->pooling > 0) == (event->embedding != NULL));
    if (event->kind == BN_EVENT_COMPLETED) {
        CHECK(event->finish_reason != BN_FINISH_NONE);
        CHECK((event->status == BN_OK) ==
              (event->finish_reason <= BN_FINISH_LENGTH || event->finish_reason == BN_FINISH_EMBEDDING));
        CHECK((event->message.length == 0) == (event->status == BN_OK));
        CHECK(event->total_ns >= event->queued_ns);
    } else {
        CHECK(event->finish_reason == BN_FINISH_NONE && event->status == BN_OK && event->stop_index == -1);
        CHECK(event->prompt_tokens == 0 && event->generated_tokens == 0 && event->total_ns == 0);
    }
}

void collect(answer *to, const bn_event *event) {
    CHECK(!to->completed); // the terminal event is the last
    check_event(event);
    CHECK(to->text_length + event->text.length < sizeof to->text);
    memcpy(to->text + to->text_length, event->text.data, event->text.length);
    to->text_length += event->text.length;
    CHECK(to->tokens_count + event->tokens_count <= sizeof to->tokens / sizeof *to->tokens);
    if (event->tokens_count > 0)
        memcpy(to->tokens + to->tokens_count, event->tokens, event->tokens_count * sizeof *event->tokens);
    to->tokens_count += event->tokens_count;
    to->events++;
    to->completed = event->kind == BN_EVENT_COMPLETED;
    to->last = *event;
}

bn_event poll_one(bn_engine *engine, bn_request which) {
    bn_event event;
    size_t count = 0;
    CHECK_OK(bn_poll(engine, which, &event, sizeof event, 1, 60000, &count, NULL));
    CHECK_EQ(count, 1);
    return event;
}

void give_back(const bn_event *event) {
    CHECK_OK(bn_events_free(event, sizeof *event, 1));
}

answer *finish(bn_engine *engine, bn_request which) {
    answer *to = calloc(1, sizeof *to);
    CHECK(to != NULL);
    bn_request request = 0;
    while (!to->completed) {
        bn_event event = poll_one(engine, which);
        CHECK(request == 0 || request == event.request);
        request = event.request;
        collect(to, &event);
        give_back(&event);
    }
    CHECK_OK(bn_request_free(engine, request, NULL));
    return to;
}

void finish_all(bn_engine *engine, int n) {
    while (n > 0) {
        bn_event event = poll_one(engine, BN_ANY);
        if (event.kind == BN_EVENT_COMPLETED) {
            CHECK_OK(bn_request_free(engine, event.request, NULL));
            n--;
        } else {
            give_back(&event);
        }
    }
}

answer *run(bn_engine *engine, const bn_request_params *params) {
    submit(engine, params);
    return finish(engine, BN_ANY);
}

uint32_t state_of(const bn_engine *engine) {
    uint32_t state = 0;
    CHECK_OK(bn_engine_state(engine, &state));
    return state;
}

bn_stats stats(bn_engine *engine) {
    bn_stats out;
    CHECK_OK(bn_stats_init(&out, sizeof out));
    CHECK_OK(bn_engine_stats(engine, &out, NULL));
    return out;
}

int32_t hold(const bn_logits *row, void *may_go_on) {
    (void)row;
    while (!atomic_load((atomic_bool *)may_go_on)) sleep_ms(1);
    return 0;
}

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void sleep_ms(int ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}
