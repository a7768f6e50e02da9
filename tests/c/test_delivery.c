// Delivery of events to the host: polling one or any, the wait descriptor, callbacks.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#ifdef __linux__
#include <sys/epoll.h>
#include <unistd.h>
#endif

static const char SLOW[] = "builtin:echo?us_per_token=2000";

TEST(an_empty_poll_times_out_with_nothing) {
    bn_engine *engine = start_echo();
    bn_event event;
    size_t count = 7;
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 0, &count, NULL));
    CHECK_EQ(count, 0);
    double begin = seconds();
    count = 7;
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 50, &count, NULL));
    CHECK_EQ(count, 0);
    CHECK(seconds() - begin >= 0.045); // a lower bound: no machine is too slow for it
    stop(engine);
}

TEST(ids_that_are_nobodys_are_not_found) {
    bn_engine *engine = start_echo(), *other = start_echo();
    bn_request_params params = ask("mine");
    bn_request request = submit(engine, &params), foreign = submit(other, &params);
    bn_event event;
    size_t count = 7;
    bn_request bad[] = {0, 1, foreign, request + 1, request ^ (UINT64_C(1) << 63), BN_ANY - 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(bn_poll(engine, bad[i], &event, sizeof(bn_event), 1, 0, &count, NULL), BN_ERR_NOT_FOUND);
        CHECK_STATUS(bn_cancel(engine, bad[i], NULL), BN_ERR_NOT_FOUND);
        CHECK_STATUS(bn_request_free(engine, bad[i], NULL), BN_ERR_NOT_FOUND);
    }
    CHECK_EQ(count, 7);
    CHECK(bn_request_free(engine, BN_ANY, NULL) != BN_OK);
    free(finish(engine, BN_ANY));
    free(finish(other, foreign));
    // Released: the id is invalid in every call, and stays so when its slot is reused.
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(bn_poll(engine, request, &event, sizeof(bn_event), 1, 0, &count, NULL), BN_ERR_NOT_FOUND);
        CHECK_STATUS(bn_cancel(engine, request, NULL), BN_ERR_NOT_FOUND);
        CHECK_STATUS(bn_request_free(engine, request, NULL), BN_ERR_NOT_FOUND);
        free(run(engine, &params));
    }
    stop(engine);
    stop(other);
}

TEST(release_frees_a_place_in_the_queue) {
    bn_engine_config config = echo_config();
    config.queue_capacity = 2;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("hi");
    bn_request one = submit(engine, &params), two = submit(engine, &params), three = 0;
    CHECK_STATUS(bn_submit(engine, &params, &three, NULL), BN_ERR_QUEUE_FULL);
    CHECK_EQ(stats(engine).rejected_queue_full, 1);
    const bn_request_params *list[] = {&params, &params};
    bn_request both[2];
    CHECK_OK(bn_request_free(engine, one, NULL)); // if live, its slot is free a step later
    while (stats(engine).unreleased > 1) sleep_ms(1);
    CHECK_STATUS(bn_submit_batch(engine, list, 2, both, NULL), BN_ERR_QUEUE_FULL);
    three = submit(engine, &params);
    free(finish(engine, two));
    free(finish(engine, three));
    CHECK_EQ(stats(engine).unreleased, 0);
    stop(engine);
}

TEST(a_completed_request_keeps_its_place_until_release) {
    bn_engine_config config = echo_config();
    config.queue_capacity = 1;
    bn_engine *engine = start(&config);
    bn_request_params params = ask("hi"), more = ask("more");
    bn_request request = submit(engine, &params), next = 0;
    bn_event event;
    size_t count = 0;
    do event = poll_one(engine, request);
    while (event.kind != BN_EVENT_COMPLETED);
    CHECK_STATUS(bn_submit(engine, &more, &next, NULL), BN_ERR_QUEUE_FULL);
    count = 7;
    CHECK_STATUS(bn_poll(engine, request, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &count, NULL), BN_ERR_FINISHED);
    CHECK_EQ(count, 7); // no second terminal event
    CHECK_OK(bn_cancel(engine, request, NULL)); // finished: no effect
    CHECK_OK(bn_request_free(engine, request, NULL));
    free(run(engine, &more));
    stop(engine);
}

TEST(long_prompts_fill_the_queue_too) {
    bn_engine_config config = echo_config();
    config.model_path = BN_STRING("builtin:echo?us_per_token=1000");
    config.max_batch_size = 1;
    config.queue_token_capacity = 10;
    bn_engine *engine = start(&config);
    bn_request_params first = ask("runs"), longest = ask("longer than the queue may be"), more = ask("m");
    first.max_new_tokens = 0; // a minute
    first.flags |= BN_REQUEST_IGNORE_EOS;
    bn_request running = submit(engine, &first), queued, refused = 0;
    while (stats(engine).running == 0) sleep_ms(1);
    queued = submit(engine, &longest);
    bn_stats now = stats(engine);
    CHECK_EQ(now.queue_token_capacity, 10);
    CHECK_EQ(now.queued_tokens, 1 + strlen("longer than the queue may be")); // bytes, and one that begins
    CHECK_EQ(now.queue_capacity, config.queue_capacity);
    bn_error error = {0};
    CHECK_STATUS(bn_submit(engine, &more, &refused, &error), BN_ERR_QUEUE_FULL);
    CHECK(strstr(error.message, "29 of 10 prompt tokens (queue_token_capacity)"));
    CHECK_OK(bn_request_free(engine, running, NULL));
    free(finish(engine, queued));
    free(run(engine, &more));
    CHECK_EQ(stats(engine).queued_tokens, 0);
    stop(engine);
}

TEST(many_events_in_one_poll_keep_each_requests_order) {
    bn_engine *engine = start_echo();
    enum { N = 16 };
    static answer answers[N];
    char prompts[N][32];
    bn_request requests[N];
    for (uint64_t i = 0; i < N; i++) {
        snprintf(prompts[i], sizeof prompts[i], "request number %d", (int)i);
        bn_request_params params = ask(prompts[i]);
        params.user_data = i;
        requests[i] = submit(engine, &params);
    }
    for (int done = 0; done < N;) {
        bn_event events[64];
        size_t count = 0;
        CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof(bn_event), 64, 10000, &count, NULL));
        CHECK(count > 0 && count <= 64);
        for (size_t i = 0; i < count; i++) {
            CHECK(events[i].user_data < N && events[i].request == requests[events[i].user_data]);
            collect(&answers[events[i].user_data], &events[i]);
            done += events[i].kind == BN_EVENT_COMPLETED;
        }
    }
    for (int i = 0; i < N; i++) {
        CHECK_TEXT(answers[i].text, answers[i].text_length, prompts[i]);
        CHECK_OK(bn_request_free(engine, requests[i], NULL));
    }
    stop(engine);
}

TEST(an_event_lives_until_it_is_given_back) {
    bn_engine *engine = start_echo();
    bn_request_params first = ask("the first one's text"), second = ask("another");
    first.flags = second.flags = BN_REQUEST_NO_STREAM | BN_REQUEST_LOGPROBS;
    bn_request request = submit(engine, &first);
    bn_event kept;
    size_t count = 0;
    CHECK_OK(bn_poll(engine, request, &kept, sizeof(bn_event), 1, 10000, &count, NULL));
    CHECK_EQ(count, 1);
    for (int i = 0; i < 50; i++) free(run(engine, &second));
    CHECK_TEXT(kept.text.data, kept.text.length, "the first one's text");
    for (size_t i = 0; i < kept.tokens_count; i++) CHECK_EQ(kept.logprobs[i].token, kept.tokens[i]);
    CHECK_EQ(kept.generated_tokens, kept.tokens_count);
    give_back(&kept);
    CHECK_OK(bn_request_free(engine, request, NULL));
    stop(engine);
}

TEST(poll_by_id_keeps_a_request_out_of_any) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("by id"), open = ask("open");
    params.flags = BN_REQUEST_POLL_BY_ID;
    bn_request hidden = submit(engine, &params);
    submit(engine, &open);
    answer *a = finish(engine, BN_ANY);
    CHECK_TEXT(a->text, a->text_length, "open");
    free(a);
    bn_event event;
    size_t count = 7;
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 100, &count, NULL));
    CHECK_EQ(count, 0);
    CHECK(!is_awake(engine, 0));
    a = finish(engine, hidden);
    CHECK_TEXT(a->text, a->text_length, "by id");
    free(a);
    stop(engine);
}

typedef struct {
    bn_engine *engine;
    bn_request which;
    _Atomic int thread; // its number, once it has begun
    bn_status status;
    size_t count;
} poller;

static void *poll_forever(void *context) {
    poller *p = context;
    bn_event event;
    atomic_store(&p->thread, thread_number());
    p->count = 0;
    p->status = bn_poll(p->engine, p->which, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &p->count, NULL);
    return NULL;
}

// An engine that takes half a minute to the first event of a request, for which the poller waits.
static bn_engine *start_slowest(poller *p) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=1000000");
    bn_request_params params = ask("a prompt of some thirty characters");
    params.flags = BN_REQUEST_POLL_BY_ID;
    p->engine = start(&config);
    p->which = submit(p->engine, &params);
    return p->engine;
}

static void begin_poll(pthread_t *thread, poller *p) {
    CHECK_EQ(pthread_create(thread, NULL, poll_forever, p), 0);
    while (!atomic_load(&p->thread) || !sleeps(p->thread)) sleep_ms(1);
}

TEST(a_second_poller_of_one_id_is_told_busy) {
    poller p = {0};
    bn_engine *engine = start_slowest(&p);
    pthread_t thread;
    begin_poll(&thread, &p);
    bn_event event;
    size_t count = 0;
    CHECK_STATUS(bn_poll(engine, p.which, &event, sizeof(bn_event), 1, 0, &count, NULL), BN_ERR_BUSY);
    CHECK_OK(bn_cancel(engine, p.which, NULL));
    pthread_join(thread, NULL);
    CHECK_STATUS(p.status, BN_OK);
    CHECK_EQ(p.count, 1);
    stop(engine);
}

TEST(a_release_wakes_who_polls_the_id) {
    poller p = {0};
    bn_engine *engine = start_slowest(&p);
    pthread_t thread;
    begin_poll(&thread, &p);
    CHECK_OK(bn_request_free(engine, p.which, NULL));
    pthread_join(thread, NULL);
    CHECK_STATUS(p.status, BN_ERR_NOT_FOUND);
    stop(engine);
}

// This includes running requests, whose last events would be freed while pollers hold them.
TEST(destroy_wakes_blocked_pollers) {
    poller pollers[4] = {{0}};
    pthread_t threads[4];
    bn_engine *engine = start_slowest(&pollers[0]);
    bn_request_params params = ask("x");
    submit(engine, &params);
    for (int i = 0; i < 4; i++) {
        if (i > 0) pollers[i] = (poller){.engine = engine, .which = BN_ANY};
        begin_poll(&threads[i], &pollers[i]);
    }
    stop(engine);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK_STATUS(pollers[i].status, BN_ERR_SHUTDOWN);
    }
}

TEST(an_event_loop_is_awake_exactly_while_events_wait) {
    bn_engine *engine = start_echo();
    CHECK(has_one_wait(engine));
    CHECK(!is_awake(engine, 20));
    bn_request_params params = ask("wake me");
    bn_request request = submit(engine, &params);
    bool done = false;
    while (!done) {
        CHECK(is_awake(engine, 60000));
        CHECK(is_awake(engine, 0)); // still, until the events are taken
        bn_event events[8];
        size_t count = 0;
        CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof(bn_event), 8, 0, &count, NULL));
        for (size_t i = 0; i < count; i++) done |= events[i].kind == BN_EVENT_COMPLETED;
    }
    bn_event event;
    size_t count = 0;
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 0, &count, NULL));
    CHECK(count == 0 && !is_awake(engine, 20));
    CHECK_OK(bn_request_free(engine, request, NULL));
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    CHECK(is_awake(engine, 60000)); // drained
    CHECK_STATUS(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &count, NULL), BN_ERR_SHUTDOWN);
    stop(engine);
}

#ifdef __linux__
static int watch_edges(int fd) {
    int epoll = epoll_create1(0);
    struct epoll_event interest = {.events = EPOLLIN | EPOLLET};
    CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &interest), 0);
    return epoll;
}

static void wait_for_an_edge(int epoll) {
    struct epoll_event ready;
    CHECK_EQ(epoll_wait(epoll, &ready, 1, 60000), 1);
}

TEST(edge_triggered_epoll_misses_nothing) {
    bn_engine *engine = start_echo();
    int fd = dup(bn_engine_wait_fd(engine, NULL)), epoll = watch_edges(fd);
    bn_request_params params = ask("edge after edge after edge");
    enum { N = 200 };
    int submitted = 0, done = 0;
    while (done < N) {
        // A few at a time, so that events keep coming while the queue is being emptied.
        for (; submitted < N && submitted - done < 5; submitted++) submit(engine, &params);
        wait_for_an_edge(epoll);
        for (size_t count = 1; count > 0;) {
            bn_event events[4];
            CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof(bn_event), 4, 0, &count, NULL));
            for (size_t i = 0; i < count; i++) {
                if (events[i].kind != BN_EVENT_COMPLETED) continue;
                done++;
                CHECK_OK(bn_request_free(engine, events[i].request, NULL));
            }
        }
    }
    close(epoll);
    close(fd);
    stop(engine);
}

// An edge-triggered loop that stops at a short count: returns false once no more events will come.
static bool take_all(bn_engine *engine, int *completed) {
    enum { ROOM = 4 };
    bn_event events[ROOM];
    size_t count = ROOM;
    while (count == ROOM) {
        bn_status status = bn_poll(engine, BN_ANY, events, sizeof *events, ROOM, 0, &count, NULL);
        if (status == BN_ERR_SHUTDOWN) return false;
        CHECK_OK(status);
        for (size_t i = 0; i < count; i++) *completed += events[i].kind == BN_EVENT_COMPLETED;
        CHECK_OK(bn_events_free(events, sizeof *events, count));
    }
    return true;
}

TEST(a_drain_wakes_an_edge_triggered_loop) {
    for (int i = 0; i < 20; i++) {
        bn_engine *engine = start_echo();
        int epoll = watch_edges(bn_engine_wait_fd(engine, NULL)), completed = 0;
        bn_request_params params = ask("to the last");
        int n = i % 7; // from none to more than one poll takes
        for (int k = 0; k < n; k++) submit(engine, &params);
        if (i % 2 == 0) { // the loop sleeps when the drain comes
            while (completed < n) {
                wait_for_an_edge(epoll);
                CHECK(take_all(engine, &completed));
            }
        }
        CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
        if (i % 3 == 0) // the end comes before the first look
            while (state_of(engine) != BN_STATE_DRAINED) sleep_ms(1);
        do wait_for_an_edge(epoll);
        while (take_all(engine, &completed));
        CHECK_EQ(completed, n);
        close(epoll);
        stop(engine);
    }
}
#endif

typedef struct {
    bn_engine *engine; // set after create; callbacks wait for it
    _Atomic int ready, completed, cancelled, entered, reentered, chained, nested_failures;
    pthread_t thread;
    char text[256];
    size_t text_length;
} listener;

static void listen(const bn_event *event, void *context) {
    listener *l = context;
    while (!atomic_load(&l->ready)) sleep_ms(1);
    if (atomic_fetch_add(&l->entered, 1) > 0) atomic_fetch_add(&l->nested_failures, 1); // one at a time
    l->thread = pthread_self();
    if (event->user_data == 1 && l->text_length + event->text.length < sizeof l->text) {
        memcpy(l->text + l->text_length, event->text.data, event->text.length);
        l->text_length += event->text.length;
    }
    if (event->kind == BN_EVENT_COMPLETED && event->user_data == 1) {
        // Allowed and forbidden calls from a callback.
        bn_event other;
        size_t count = 0;
        bn_stats stats = {.struct_size = sizeof stats};
        bn_request next = 0;
        bn_event completion = {0};
        bn_request_params params;
        bn_request_params_init(&params, sizeof params);
        params.prompt = BN_STRING("chained");
        params.user_data = 2;
        bool fine = bn_engine_stats(l->engine, &stats, NULL) == BN_OK && bn_cancel(l->engine, event->request, NULL) == BN_OK &&
                    bn_poll(l->engine, BN_ANY, &other, sizeof(bn_event), 1, 0, &count, NULL) == BN_ERR_REENTRANT &&
                    bn_generate(l->engine, &params, &completion, sizeof completion, NULL) == BN_ERR_REENTRANT &&
                    bn_engine_free(l->engine) == BN_ERR_REENTRANT &&
                    bn_submit(l->engine, &params, &next, NULL) == BN_OK && next != 0;
        if (!fine) atomic_fetch_add(&l->nested_failures, 1);
        atomic_fetch_add(&l->reentered, 1);
    }
    if (event->kind == BN_EVENT_COMPLETED) {
        if (event->user_data == 2) atomic_fetch_add(&l->chained, 1);
        if (event->finish_reason == BN_FINISH_CANCELLED) atomic_fetch_add(&l->cancelled, 1);
        atomic_fetch_add(&l->completed, 1);
    }
    atomic_fetch_sub(&l->entered, 1);
}

static bn_engine *start_listening(listener *l, const char *path) {
    bn_engine_config config = slow_config(path);
    config.on_event = listen;
    config.on_event_context = l;
    l->engine = start(&config);
    atomic_store(&l->ready, 1);
    return l->engine;
}

static void wait_for(_Atomic int *counter, int value) {
    while (atomic_load(counter) < value) sleep_ms(1);
}

TEST(callbacks_come_and_may_call_back) {
    static listener l;
    bn_engine *engine = start_listening(&l, "builtin:echo");
    void *handle = NULL;
    CHECK_EQ(bn_engine_wait_fd(engine, NULL), BN_ERR_WRONG_MODE);
    CHECK_STATUS(bn_engine_wait_handle(engine, &handle, NULL), BN_ERR_WRONG_MODE);
    CHECK(handle == NULL);
    bn_request_params params = ask("call me");
    params.user_data = 1;
    bn_request request = submit(engine, &params);
    wait_for(&l.completed, 2);
    CHECK_EQ(l.reentered, 1);
    CHECK_EQ(l.chained, 1);
    CHECK_EQ(l.nested_failures, 0);
    CHECK_TEXT(l.text, l.text_length, "call me");
    CHECK(!pthread_equal(l.thread, pthread_self()));
    bn_event event;
    size_t count = 0;
    CHECK_STATUS(bn_poll(engine, BN_ANY, &event, sizeof(bn_event), 1, 0, &count, NULL), BN_ERR_WRONG_MODE);
    CHECK_STATUS(bn_poll(engine, request, &event, sizeof(bn_event), 1, 0, &count, NULL), BN_ERR_WRONG_MODE);
    while (stats(engine).unreleased > 0) sleep_ms(1);
    CHECK_STATUS(bn_request_free(engine, request, NULL), BN_ERR_NOT_FOUND); // released by itself
    params.flags = BN_REQUEST_POLL_BY_ID;
    CHECK_STATUS(bn_submit(engine, &params, &request, NULL), BN_ERR_INVALID_ARGUMENT);
    bn_event completion = {0};
    params = ask("beside");
    CHECK_OK(bn_generate(engine, &params, &completion, sizeof completion, NULL));
    CHECK_TEXT(completion.text.data, completion.text.length, "beside");
    bn_events_free(&completion, sizeof completion, 1);
    stop(engine);
}

TEST(destroy_completes_every_request_by_callback) {
    static listener l;
    bn_engine *engine = start_listening(&l, SLOW);
    bn_request_params params = ask("never to be finished");
    params.flags = BN_REQUEST_IGNORE_EOS;
    params.max_new_tokens = 1000;
    for (int i = 0; i < 40; i++) submit(engine, &params);
    sleep_ms(50);
    stop(engine);
    CHECK_EQ(l.completed, 40);
    CHECK_EQ(l.cancelled, 40);
}

TEST(a_slow_callback_does_not_hold_the_engine_up) {
    static listener l;
    bn_engine_config config = echo_config();
    config.on_event = listen; // waits for `ready`
    config.on_event_context = &l;
    bn_engine *engine = start(&config);
    l.engine = engine;
    bn_request_params params = ask("go on without it");
    for (int i = 0; i < 10; i++) submit(engine, &params);
    while (stats(engine).running + stats(engine).queued > 0) sleep_ms(1);
    CHECK_EQ(l.completed, 0);
    atomic_store(&l.ready, 1);
    wait_for(&l.completed, 10);
    stop(engine);
}
