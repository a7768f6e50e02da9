// Hosts that fork while engines run, and hosts that exit without destroying them.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static void ended_with(pid_t child, int code) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) test_fail(__FILE__, __LINE__, "a child ended by: %s", strsignal(WTERMSIG(status)));
    CHECK_EQ(WEXITSTATUS(status), code);
}

// -- exit with live engines ----------------------------------------------------------------------------

typedef struct {
    bn_engine *engine, *calling;
    _Atomic int stop, completed, exits; // `exits`: the next callback does
} host;

static host busy;
enum { CODE = 7, IN_FLIGHT = 8 };

// Checks a result until the engines are told to end; from then on any result is valid.
static void went_well(bn_status status) {
    if (!atomic_load(&busy.stop)) CHECK_OK(status);
}

static void submit_another(void) {
    bn_request_params params = ask("again and again");
    bn_request request = 0;
    went_well(bn_submit(busy.calling, &params, &request, NULL));
}

static void on_event(const bn_event *event, void *context) {
    (void)context;
    if (atomic_exchange(&busy.exits, 0)) exit(CODE);
    if (event->kind != BN_EVENT_COMPLETED) return;
    atomic_fetch_add(&busy.completed, 1);
    submit_another();
}

static void *poll_for_good(void *context) {
    (void)context;
    while (!atomic_load(&busy.stop)) {
        bn_event event;
        size_t count = 0;
        bn_status status = bn_poll(busy.engine, BN_ANY, &event, sizeof event, 1, BN_NO_LIMIT, &count, NULL);
        went_well(status);
        if (status != BN_OK) break;
        went_well(event.kind == BN_EVENT_COMPLETED ? bn_request_free(busy.engine, event.request, NULL)
                                                   : bn_events_free(&event, sizeof event, 1));
    }
    return NULL;
}

static void *submit_for_good(void *context) {
    (void)context;
    bn_request_params params = ask("for whoever polls");
    while (!atomic_load(&busy.stop)) {
        bn_request request = 0;
        bn_status status = bn_submit(busy.engine, &params, &request, NULL);
        if (status != BN_ERR_QUEUE_FULL) went_well(status);
        sleep_ms(1);
    }
    return NULL;
}

// Two engines under load: one with callbacks that submit, one with threads that wait in a poll.
enum { BUSY_THREADS = 3 };
static pthread_t busy_threads[BUSY_THREADS];

static void be_busy(void) {
    bn_engine_config config = echo_config();
    busy.engine = start(&config);
    config.on_event = on_event;
    busy.calling = start(&config);
    for (int i = 0; i < IN_FLIGHT; i++) submit_another();
    for (int i = 0; i < BUSY_THREADS; i++)
        CHECK_EQ(pthread_create(&busy_threads[i], NULL, i == 0 ? submit_for_good : poll_for_good, NULL), 0);
    while (atomic_load(&busy.completed) < IN_FLIGHT) sleep_ms(1);
}

// Acts like a destructor of a C++ host.
static void destroy_at_exit(void) {
    atomic_store(&busy.stop, 1);
    bn_status calling = bn_engine_free(busy.calling), polled = bn_engine_free(busy.engine);
    if ((calling != BN_OK && calling != BN_ERR_REENTRANT) || polled != calling) _exit(1);
}

static void *exit_here(void *context) {
    (void)context;
    exit(CODE);
}

static void exit_in_some_way(int way) {
    pthread_t thread;
    alarm(60);
    if (way / 3 % 2 == 1) CHECK_EQ(atexit(destroy_at_exit), 0);
    be_busy();
    if (way % 3 == 0) exit(CODE);
    if (way % 3 == 1) CHECK_EQ(pthread_create(&thread, NULL, exit_here, NULL), 0);
    else atomic_store(&busy.exits, 1);
    while (true) pause();
}

TEST(a_host_may_exit_with_live_engines) {
    enum { EXITS = 60 };
    for (int i = 0; i < EXITS; i++) {
        pid_t fresh = fork(); // this process itself never calls the library
        CHECK(fresh >= 0);
        if (fresh == 0) exit_in_some_way(i);
        ended_with(fresh, CODE);
    }
}

#if !defined SANITIZED // whose allocator stays locked in a child if another thread was in it
_Noreturn static void leave_at(int line) {
    if (line != 0) dprintf(STDERR_FILENO, "%s:%d: in a child\n", __FILE__, line);
    _exit(line == 0 ? 0 : 1);
}

// -- children of a busy host -----------------------------------------------------------------------------

// Every call on an engine of the parent: 0, or the line that was not refused.
static int refused_everywhere(bn_engine *engine) {
#define REFUSED(call) \
    if ((call) != BN_ERR_FORKED) return __LINE__
    static char bytes[64];
    const bn_string name = BN_STRING("anna");
    bn_request_params params;
    const bn_request_params *list[] = {&params};
    bn_request request = 1;
    bn_request_info info;
    bn_event event = {0}, completion = {0};
    uint32_t state = 0;
    bn_kv_event kv;
    bn_model *model = NULL;
    bn_stats s;
    float value = 0;
    size_t count = 0;
    bn_request_params_init(&params, sizeof params);
    bn_request_info_init(&info, sizeof info);
    bn_stats_init(&s, sizeof s);
    params.prompt = BN_STRING("x");
    REFUSED(bn_engine_state(engine, &state));
    event.engine = engine;
    REFUSED(bn_engine_wait_fd(engine, NULL));
    REFUSED(bn_engine_model(engine, &model, NULL));
    REFUSED(bn_engine_stats(engine, &s, NULL));
    REFUSED(bn_engine_metrics(engine, bytes, sizeof bytes, &count, NULL));
    REFUSED(bn_engine_report(engine, bytes, sizeof bytes, &count, NULL));
    REFUSED(bn_submit(engine, &params, &request, NULL));
    REFUSED(bn_submit_batch(engine, list, 1, &request, NULL));
    REFUSED(bn_poll(engine, BN_ANY, &event, sizeof event, 1, BN_NO_LIMIT, &count, NULL));
    REFUSED(bn_poll(engine, request, &event, sizeof event, 1, BN_NO_LIMIT, &count, NULL));
    REFUSED(bn_events_free(&event, sizeof event, 1));
    REFUSED(bn_cancel(engine, BN_ANY, NULL));
    REFUSED(bn_request_free(engine, request, NULL));
    REFUSED(bn_request_get_info(engine, request, &info, NULL));
    REFUSED(bn_generate(engine, &params, &completion, sizeof completion, NULL));
    REFUSED(bn_embed(engine, &params, &value, 1, &count, NULL));
    REFUSED(bn_session_free(engine, name, NULL));
    REFUSED(bn_session_save(engine, name, (uint8_t *)bytes, sizeof bytes, &count, NULL));
    REFUSED(bn_session_restore(engine, name, (const uint8_t *)bytes, sizeof bytes, NULL));
    REFUSED(bn_cache_clear(engine, NULL));
    REFUSED(bn_kv_events(engine, &kv, sizeof kv, 1, &count, NULL));
    REFUSED(bn_engine_shutdown(engine, BN_SHUTDOWN_CANCEL, NULL));
    REFUSED(bn_engine_free(engine));
#undef REFUSED
    return 0;
}

_Noreturn static void be_a_child(int way, bn_event of_parent) {
    int line = 0;
    alarm(60);
    if (way % 4 == 1) execl("/bin/sh", "sh", "-c", ":", (char *)NULL);
    if (way % 4 == 2) exit(0);
    if (way % 4 == 3) {
        line = refused_everywhere(busy.engine);
        if (line == 0) line = refused_everywhere(busy.calling);
        bn_events_free(&of_parent, sizeof of_parent, 1);
    }
    leave_at(way % 4 == 1 ? __LINE__ : line);
}

static void stop_being_busy(void) {
    atomic_store(&busy.stop, 1);
    stop(busy.calling);
    stop(busy.engine);
    for (int i = 0; i < BUSY_THREADS; i++) pthread_join(busy_threads[i], NULL);
}

TEST(hundreds_of_children_leave_a_busy_host_undisturbed) {
    enum { CHILDREN = 400 };
    int threads = count_threads(), fds = count_fds();
    bn_request_params params = ask("kept over forks");
    bn_event completion = {0};
    be_busy();
    CHECK_OK(bn_generate(busy.calling, &params, &completion, sizeof completion, NULL));
    int inside = count_threads(), open = count_fds();
    for (int i = 0; i < CHILDREN; i++) {
        int before = atomic_load(&busy.completed);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) be_a_child(i, completion);
        ended_with(child, 0);
        while (atomic_load(&busy.completed) <= before) sleep_ms(0); // callbacks go on
    }
    CHECK_TEXT(completion.text.data, completion.text.length, "kept over forks");
    bn_events_free(&completion, sizeof completion, 1);
    CHECK(count_threads() == inside && count_fds() == open);
    CHECK_EQ(state_of(busy.engine), BN_STATE_RUNNING);
    CHECK_EQ(stats(busy.engine).completed_failed + stats(busy.calling).completed_failed, 0);
    stop_being_busy();
    CHECK(count_threads() == threads && count_fds() == fds);
}

// -- children that use the library ---------------------------------------------------------------------

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
            if (events[i].kind == BN_EVENT_COMPLETED) CHECK_OK(bn_request_free(l->engine, events[i].request, NULL));
        CHECK_OK(bn_events_free(events, sizeof *events, count));
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

// Runs a child: 0 if all went well, else the line that failed.
static int live(const load *l, int number) {
#define EXPECT(condition) \
    if (!(condition)) return __LINE__
    bn_request_params params;
    bn_request request = 0;
    bn_event event, completion = {0};
    uint32_t state = 0;
    size_t count = 0;
    bn_model *model = l->model, *own = NULL;
    bn_engine *engine = NULL;
    bn_engine_config config;
    EXPECT(bn_request_params_init(&params, sizeof params) == BN_OK);
    params.prompt = BN_STRING("17+25=");
    EXPECT(bn_submit(l->engine, &params, &request, NULL) == BN_ERR_FORKED);
    EXPECT(bn_poll(l->engine, BN_ANY, &event, sizeof event, 1, BN_NO_LIMIT, &count, NULL) == BN_ERR_FORKED);
    EXPECT(bn_engine_state(l->engine, &state) == BN_ERR_FORKED);
    EXPECT(bn_engine_free(l->engine) == BN_ERR_FORKED);
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
    EXPECT(bn_generate(engine, &params, &completion, sizeof completion, NULL) == BN_OK);
    EXPECT(completion.text.length == 2 && memcmp(completion.text.data, "42", 2) == 0);
    bn_events_free(&completion, sizeof completion, 1);
    EXPECT(bn_engine_free(engine) == BN_OK);
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
            alarm(60);
            leave_at(live(l, i));
        }
        ended_with(child, 0);
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
    CHECK_EQ(state_of(l.engine), BN_STATE_RUNNING);
    CHECK_OK(bn_model_free(l.model));
    stop(l.engine);
}

static void *chat_once(void *path) {
    bn_engine_config config = slow_config(path);
    bn_chat_message message = {BN_STRING("user"), BN_STRING("hello")};
    bn_request_params params;
    if (strncmp(path, "builtin:", 8) == 0) {
        CHECK_OK(bn_request_params_init(&params, sizeof params));
        params.chat.messages = &message;
        params.chat.messages_count = 1;
    } else {
        params = ask("17+25=");
    }
    bn_engine *engine = start(&config);
    free(run(engine, &params));
    stop(engine);
    return NULL;
}

// A fork while another thread uses the library for the first time: in the child, objects made once are
// complete or not begun.
static void fork_amid_first_use(const char *path, int delay_us) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, chat_once, (void *)path), 0);
    usleep((useconds_t)delay_us);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        chat_once((void *)path);
        _exit(0);
    }
    ended_with(child, 0);
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
        ended_with(fresh, 0);
    }
}
#endif

TEST(a_forked_child_gets_errors_and_may_exit) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=2000");
    bn_engine *engine = start(&config);
    bn_request_params params = ask("on and on");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 2000;
    bn_request request = submit(engine, &params);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bn_request other = 0;
        bn_event event;
        size_t count = 0;
        void *handle = NULL;
        bn_stats stats = {.struct_size = sizeof stats};
        bn_event completion = {0};
        alarm(60);
        bool right = bn_submit(engine, &params, &other, NULL) == BN_ERR_FORKED &&
                     bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &count, NULL) == BN_ERR_FORKED &&
                     bn_cancel(engine, request, NULL) == BN_ERR_FORKED && bn_request_free(engine, request, NULL) == BN_ERR_FORKED &&
                     bn_engine_stats(engine, &stats, NULL) == BN_ERR_FORKED &&
                     bn_generate(engine, &params, &completion, sizeof completion, NULL) == BN_ERR_FORKED &&
                     bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL) == BN_ERR_FORKED &&
                     bn_engine_wait_fd(engine, NULL) == BN_ERR_FORKED &&
                     bn_engine_wait_handle(engine, &handle, NULL) == BN_ERR_FORKED && bn_engine_free(engine) == BN_ERR_FORKED;
        _exit(right ? 0 : 1);
    }
    ended_with(child, 0);
    CHECK_OK(bn_cancel(engine, request, NULL)); // the parent's engine is as it was
    free(finish(engine, request));
    stop(engine);
}
