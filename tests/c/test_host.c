// What hosts do to their threads and processes: cancel them, give them small stacks, fork under load.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    bn_engine *engine;
    _Atomic int entered, returned;
} victim;

static void *be_cancelled_in_poll(void *context) {
    victim *v = context;
    bn_event event;
    size_t count = 0;
    atomic_store(&v->entered, 1);
    bn_status status = bn_poll(v->engine, BN_ANY, &event, sizeof event, 1, BN_WAIT_FOREVER, &count, NULL);
    atomic_store(&v->returned, status == BN_OK && count == 1 ? 1 : -1);
    if (status == BN_OK) give_back(v->engine, &event);
    while (true) pthread_testcancel();
    return NULL;
}

static void *be_cancelled_in_generate(void *context) {
    victim *v = context;
    bn_request_params params = ask("cancelled?");
    bn_event *completion = NULL;
    atomic_store(&v->entered, 1);
    bn_status status = bn_generate(v->engine, &params, &completion, NULL);
    atomic_store(&v->returned, status == BN_OK && completion->finish_reason == BN_FINISH_STOP ? 1 : -1);
    bn_completion_free(completion);
    while (true) pthread_testcancel();
    return NULL;
}

static void cancel_one(bn_engine *engine, void *(*run)(void *), bool submits) {
    victim v = {.engine = engine};
    pthread_t thread;
    void *result = NULL;
    CHECK_EQ(pthread_create(&thread, NULL, run, &v), 0);
    while (!atomic_load(&v.entered)) sleep_ms(0);
    sleep_ms(1);
    CHECK_EQ(pthread_cancel(thread), 0);
    if (submits) {
        bn_request_params params = ask("x");
        params.flags = BN_REQUEST_NO_STREAM;
        submit(engine, &params);
    }
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    // Not before its entry is possible, and not within: where it went in, it came out.
    CHECK_EQ(v.returned, 1);
}

TEST(no_call_is_a_cancellation_point) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=200");
    bn_engine *engine = start(&config);
    for (int i = 0; i < 100; i++) {
        cancel_one(engine, be_cancelled_in_poll, true);
        cancel_one(engine, be_cancelled_in_generate, false);
    }
    bn_request_params params = ask("alive");
    params.flags = BN_REQUEST_POLL_BY_ID;
    answer *a = finish(engine, submit(engine, &params));
    CHECK_TEXT(a->text, a->text_length, "alive");
    free(a);
    stop(engine);
}

#if defined __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__
enum { STACK = 512 << 10 }; // instrumented frames are larger
#else
enum { STACK = 64 << 10 };
#endif

static void on_a_small_stack(void *(*run)(void *), void *context) {
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK_EQ(pthread_attr_init(&attributes), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attributes, STACK), 0);
    CHECK_EQ(pthread_create(&thread, &attributes, run, context), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

static void *open_and_free(void *path) {
    CHECK_OK(bn_model_free(open_model(path)));
    return NULL;
}

TEST(a_small_stack_will_do_to_open_a_model) {
    on_a_small_stack(open_and_free, "builtin:echo");
    on_a_small_stack(open_and_free, NULL);
    on_a_small_stack(open_and_free, BN_DEMO_MODEL);
}

#ifdef BN_GOLDEN_MODELS
TEST(a_small_stack_will_do_to_open_folders) {
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/llama-sharded");
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/gemma3");
    on_a_small_stack(open_and_free, BN_GOLDEN_MODELS "/bitnet-embedding-qwen3");
}
#endif

static void *create_and_destroy(void *config) {
    stop(start(config));
    return NULL;
}

TEST(a_small_stack_will_do_to_make_an_engine) {
    bn_engine_config config = demo_config();
    on_a_small_stack(create_and_destroy, &config);
    config = echo_config();
    on_a_small_stack(create_and_destroy, &config);
}

static void *use_an_engine(void *context) {
    bn_engine *engine = context;
    bn_chat_message message = {BN_STRING("user"), BN_STRING("hello, and a longer text, with 123 numbers")};
    bn_event *completion = NULL;
    bn_model *model = model_of(engine);
    bool chats = info_of(model).has_chat_template == 1;
    bn_request_params params = ask("Once upon a time");
    params.max_new_tokens = 8;
    params.temperature = 0.7f;
    params.top_p = 0.9f;
    params.flags = BN_REQUEST_LOGPROBS;
    params.top_logprobs = 5;
    free(run(engine, &params));
    CHECK_OK(bn_generate(engine, &params, &completion, NULL));
    bn_completion_free(completion);
    if (chats) {
        params.prompt = (bn_string){0};
        params.messages = &message;
        params.messages_count = 1;
        free(run(engine, &params));
    }
    size_t count = 0;
    uint32_t tokens[128];
    CHECK_OK(bn_model_tokenize(model, message.content, 0, tokens, 128, &count, NULL));
    static char text[16384];
    CHECK_OK(bn_model_detokenize(model, tokens, count, text, sizeof text, &count, NULL));
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text, &count, NULL));
    CHECK_OK(bn_model_free(model));
    return NULL;
}

TEST(a_small_stack_will_do_to_use_an_engine) {
    bn_engine *engine = start_echo();
    on_a_small_stack(use_an_engine, engine);
    stop(engine);
    bn_engine_config config = demo_config();
    engine = start(&config);
    on_a_small_stack(use_an_engine, engine);
    stop(engine);
}

#if !defined __SANITIZE_ADDRESS__ // whose allocator stays locked in a child if another thread was in it
// -- fork under load -----------------------------------------------------------------------------------

enum { FORKS = 20, FIRST_USES = 60 };

typedef struct {
    bn_engine *engine;
    bn_model *model;
    _Atomic int stop;
} load;

static void *poll_all_the_time(void *context) {
    load *l = context;
    while (!atomic_load(&l->stop)) {
        bn_event events[16];
        size_t count = 0;
        CHECK_OK(bn_poll(l->engine, BN_ANY, events, sizeof *events, 16, 20, &count, NULL));
        for (size_t i = 0; i < count; i++)
            if (events[i].kind == BN_EVENT_COMPLETED) CHECK_OK(bn_release(l->engine, events[i].request, NULL));
        CHECK_OK(bn_events_free(l->engine, events, sizeof *events, count));
    }
    return NULL;
}

static void *submit_all_the_time(void *context) {
    load *l = context;
    bn_request_params params = ask("submitted while others fork");
    while (!atomic_load(&l->stop)) {
        bn_request request = 0;
        bn_status status = bn_submit(l->engine, &params, &request, NULL);
        CHECK(status == BN_OK || status == BN_ERR_QUEUE_FULL);
        if (status != BN_OK) sleep_ms(1);
    }
    return NULL;
}

static void *make_engines_all_the_time(void *context) {
    load *l = context;
    bn_engine_config config = echo_config();
    while (!atomic_load(&l->stop)) stop(start(&config));
    return NULL;
}

static void *open_models_all_the_time(void *context) {
    load *l = context;
    while (!atomic_load(&l->stop)) CHECK_OK(bn_model_free(open_model(NULL)));
    return NULL;
}

// A child's life: 0 if all went well, else the line that did not.
static int live(const load *l, int number) {
#define EXPECT(condition) \
    if (!(condition)) return __LINE__
    bn_request_params params;
    bn_request request = 0;
    bn_event event, *completion = NULL;
    size_t count = 0;
    bn_model *model = l->model, *own = NULL;
    bn_engine *engine = NULL;
    bn_engine_config config;
    EXPECT(bn_request_params_init(&params, sizeof params) == BN_OK);
    params.prompt = BN_STRING("17+25=");
    EXPECT(bn_submit(l->engine, &params, &request, NULL) == BN_ERR_FORKED);
    EXPECT(bn_poll(l->engine, BN_ANY, &event, sizeof event, 1, BN_WAIT_FOREVER, &count, NULL) == BN_ERR_FORKED);
    EXPECT(bn_engine_state(l->engine) == BN_ERR_FORKED);
    EXPECT(bn_engine_destroy(l->engine) == BN_ERR_FORKED);
    if (number % 2 == 0) {
        bn_model_config model_config;
        EXPECT(bn_model_config_init(&model_config, sizeof model_config) == BN_OK);
        EXPECT(bn_model_open(&model_config, &own, NULL) == BN_OK);
        model = own;
    }
    EXPECT(bn_engine_config_init(&config, sizeof config) == BN_OK);
    config.model = model;
    config.threads = 2;
    EXPECT(bn_engine_create(&config, &engine, NULL) == BN_OK);
    EXPECT(bn_generate(engine, &params, &completion, NULL) == BN_OK);
    EXPECT(completion->text.length == 2 && memcmp(completion->text.data, "42", 2) == 0);
    bn_completion_free(completion);
    EXPECT(bn_engine_destroy(engine) == BN_OK);
    EXPECT(bn_model_free(model) == BN_OK);
#undef EXPECT
    return 0;
}

static void *fork_again_and_again(void *context) {
    const load *l = context;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            int line = live(l, i);
            if (line != 0) dprintf(STDERR_FILENO, "%s:%d: in a child\n", __FILE__, line);
            _exit(line == 0 ? 0 : 1);
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            test_fail(__FILE__, __LINE__, "child %d: %s", i, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "failed");
    }
    return NULL;
}

TEST(children_of_a_busy_process_make_engines_of_their_own) {
    bn_engine_config config = echo_config();
    static load l;
    l.engine = start(&config);
    l.model = open_model(NULL);
    void *(*const runs[])(void *) = {poll_all_the_time, poll_all_the_time, submit_all_the_time, make_engines_all_the_time,
                                     open_models_all_the_time, fork_again_and_again};
    enum { THREADS = sizeof runs / sizeof *runs };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, runs[i], &l), 0);
    pthread_join(threads[THREADS - 1], NULL);
    atomic_store(&l.stop, 1);
    for (int i = 0; i < THREADS - 1; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(bn_engine_state(l.engine), BN_STATE_RUNNING);
    CHECK_OK(bn_model_free(l.model));
    stop(l.engine);
}

static void *chat_once(void *path) {
    bn_engine_config config = slow_config(path);
    bn_chat_message message = {BN_STRING("user"), BN_STRING("hello")};
    bn_request_params params;
    if (strncmp(path, "builtin:", 8) == 0) {
        CHECK_OK(bn_request_params_init(&params, sizeof params));
        params.messages = &message;
        params.messages_count = 1;
    } else {
        params = ask("17+25=");
    }
    bn_engine *engine = start(&config);
    free(run(engine, &params));
    stop(engine);
    return NULL;
}

// A fork while another thread uses the library for the first time: what is made once is whole or not begun in the child.
static void fork_amid_first_use(const char *path, int delay_us) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, chat_once, (void *)path), 0);
    usleep((useconds_t)delay_us);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        chat_once((void *)path);
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (status != 0) test_fail(__FILE__, __LINE__, "%s after %d us: status %x", path, delay_us, (unsigned)status);
    pthread_join(thread, NULL);
}

TEST(a_fork_amid_first_use_leaves_no_lock) {
    const char *const paths[] = {"builtin:echo", BN_DEMO_MODEL};
    for (int i = 0; i < FIRST_USES; i++) {
        pid_t fresh = fork(); // this process itself never calls the library
        CHECK(fresh >= 0);
        if (fresh == 0) {
            fork_amid_first_use(paths[i % 2], i / 2 * 97 % 6000);
            _exit(0);
        }
        int status = 0;
        CHECK_EQ(waitpid(fresh, &status, 0), fresh);
        CHECK_EQ(status, 0);
    }
}
#endif
