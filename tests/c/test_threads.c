// Many threads and many requests on one engine.
#include "harness.h"

#include <pthread.h>

enum { THREADS = 8, PER_THREAD = 125 };

typedef struct {
    bn_engine *engine;
    int number;
} submitter;

static void *submit_and_poll_own(void *context) {
    submitter *s = context;
    for (int i = 0; i < PER_THREAD; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "thread %d, request %d", s->number, i);
        bn_request_params params = ask(prompt);
        params.flags = BN_REQUEST_POLL_BY_ID;
        answer *a = finish(s->engine, submit(s->engine, &params));
        CHECK_TEXT(a->text, a->text_length, prompt);
        free(a);
    }
    return NULL;
}

TEST(eight_threads_poll_their_own) {
    bn_engine *engine = start_echo();
    pthread_t threads[THREADS];
    submitter submitters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        submitters[i] = (submitter){engine, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, submit_and_poll_own, &submitters[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    bn_stats after = stats(engine);
    CHECK_EQ(after.accepted, THREADS * PER_THREAD);
    CHECK_EQ(after.completed_stop, THREADS * PER_THREAD);
    CHECK_EQ(after.unreleased, 0);
    CHECK_EQ(after.kv_blocks_used, 0);
    stop(engine);
}

static void *submit_only(void *context) {
    submitter *s = context;
    for (int i = 0; i < PER_THREAD; i++) {
        bn_request_params params = ask("a thousand of these");
        params.user_data = (uint64_t)(s->number * PER_THREAD + i);
        submit(s->engine, &params);
    }
    return NULL;
}

TEST(a_thousand_requests_for_any_poller) {
    bn_engine *engine = start_echo();
    pthread_t threads[THREADS];
    submitter submitters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        submitters[i] = (submitter){engine, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, submit_only, &submitters[i]), 0);
    }
    static unsigned char completed[THREADS * PER_THREAD];
    static size_t lengths[THREADS * PER_THREAD];
    for (int done = 0; done < THREADS * PER_THREAD;) {
        bn_event events[100];
        size_t count = 0;
        CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof(bn_event), 100, 30000, &count, NULL));
        CHECK(count > 0);
        for (size_t i = 0; i < count; i++) {
            uint64_t who = events[i].user_data;
            CHECK(who < THREADS * PER_THREAD && !completed[who]);
            lengths[who] += events[i].text.length;
            if (events[i].kind != BN_EVENT_COMPLETED) continue;
            CHECK_EQ(events[i].finish_reason, BN_FINISH_STOP);
            CHECK_EQ(lengths[who], strlen("a thousand of these"));
            completed[who] = 1;
            done++;
            CHECK_OK(bn_request_free(engine, events[i].request, NULL));
        }
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    stop(engine);
}

typedef struct {
    bn_engine *engine;
    size_t events;
    int completed;
} shared_poller;

static void *poll_any(void *context) {
    shared_poller *p = context;
    for (;;) {
        bn_event event;
        size_t count = 0;
        bn_status status = bn_poll(p->engine, BN_ANY, &event, sizeof(bn_event), 1, BN_NO_LIMIT, &count, NULL);
        if (status == BN_ERR_SHUTDOWN) return NULL;
        CHECK_OK(status);
        p->events += count;
        p->completed += count == 1 && event.kind == BN_EVENT_COMPLETED;
    }
}

TEST(each_event_goes_to_one_of_several_pollers) {
    bn_engine *engine = start_echo();
    pthread_t threads[4];
    shared_poller pollers[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        pollers[i].engine = engine;
        CHECK_EQ(pthread_create(&threads[i], NULL, poll_any, &pollers[i]), 0);
    }
    bn_request_params params = ask("shared among pollers");
    for (int i = 0; i < 200; i++) submit(engine, &params);
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    int completed = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        completed += pollers[i].completed;
    }
    CHECK_EQ(completed, 200);
    stop(engine);
}
