// Polled events are leases: their owner, their lifetime, and the effect of giving them back.
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static uint64_t checksum(const bn_event *event) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < event->text.length; i++) sum = (sum ^ (unsigned char)event->text.data[i]) * 1099511628211u;
    for (size_t i = 0; i < event->tokens_count; i++) sum = (sum ^ event->tokens[i]) * 1099511628211u;
    for (size_t i = 0; i < event->logprobs_count; i++) sum = (sum ^ event->logprobs[i].token) * 1099511628211u;
    return sum;
}

enum { READERS = 4, GIVERS = 2, REQUESTS = 120, STASH = 4096, BATCH = 40 };
static const char PROMPT[] = "a text that many threads read, each its own part of it, while others poll for more";

// Events on their way from reading threads to those that give them back.
typedef struct {
    bn_engine *engine;
    pthread_mutex_t lock;
    bn_event events[STASH];
    size_t count;
    _Atomic int completed, readers;
    _Atomic size_t length[REQUESTS];
} stash;

static void *read_events(void *context) {
    stash *s = context;
    for (unsigned seen = 0;;) {
        bn_event events[8];
        uint64_t sums[8];
        size_t count = 0;
        bn_status status = bn_poll(s->engine, BN_ANY, events, sizeof *events, 8, BN_NO_LIMIT, &count, NULL);
        if (status == BN_ERR_SHUTDOWN) break;
        CHECK_OK(status);
        for (size_t i = 0; i < count; i++) sums[i] = checksum(&events[i]);
        sched_yield();
        for (size_t i = 0; i < count; i++) {
            CHECK_EQ(checksum(&events[i]), sums[i]);
            CHECK(events[i].user_data < REQUESTS && events[i].lease != 0);
            atomic_fetch_add(&s->length[events[i].user_data], events[i].text.length);
            atomic_fetch_add(&s->completed, events[i].kind == BN_EVENT_COMPLETED);
        }
        pthread_mutex_lock(&s->lock);
        for (size_t i = 0; i < count; i++)
            if (++seen % 7 != 0 && s->count < STASH) s->events[s->count++] = events[i]; // some are forgotten
        pthread_mutex_unlock(&s->lock);
    }
    atomic_fetch_sub(&s->readers, 1);
    return NULL;
}

static void *give_batches_back(void *context) {
    stash *s = context;
    for (bool more = true; more;) {
        bn_event batch[BATCH];
        size_t count = 0;
        more = atomic_load(&s->readers) > 0; // looked at first: after the last reader nothing is added
        pthread_mutex_lock(&s->lock);
        while (count < BATCH && s->count > 0) batch[count++] = s->events[--s->count];
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; i < count; i++) checksum(&batch[i]); // for a memory checker: they live until now
        CHECK_OK(bn_events_free(batch, sizeof *batch, count));
        more |= count > 0;
        if (count == 0) sched_yield();
    }
    return NULL;
}

TEST(many_threads_poll_any_read_and_give_back) {
    static stash s = {.lock = PTHREAD_MUTEX_INITIALIZER, .readers = READERS};
    bn_engine_config config = slow_config("builtin:echo?us_per_token=50");
    s.engine = start(&config);
    pthread_t threads[READERS + GIVERS];
    bn_request requests[REQUESTS];
    for (int i = 0; i < READERS + GIVERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, i < READERS ? read_events : give_batches_back, &s), 0);
    for (uint64_t i = 0; i < REQUESTS; i++) {
        bn_request_params params = ask(PROMPT);
        params.flags = BN_REQUEST_LOGPROBS;
        params.user_data = i;
        requests[i] = submit(s.engine, &params);
    }
    CHECK_OK(bn_engine_shutdown(s.engine, BN_SHUTDOWN_DRAIN, NULL));
    for (int i = 0; i < READERS + GIVERS; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(s.completed, REQUESTS);
    for (int i = 0; i < REQUESTS; i++) CHECK_EQ(s.length[i], strlen(PROMPT));
    // Forgotten leases end with their request, or with the engine.
    for (int i = 0; i < REQUESTS; i += 2) CHECK_OK(bn_request_free(s.engine, requests[i], NULL));
    stop(s.engine);
}

TEST(an_event_ends_once) {
    bn_engine *engine = start_echo(), *other = start_echo();
    bn_request_params params = ask("to be given back");
    params.flags = BN_REQUEST_NO_STREAM;
    bn_request first = submit(engine, &params), second = submit(engine, &params);
    submit(other, &params);
    uint64_t idle = stats(engine).memory_used_bytes;
    bn_event one = poll_one(engine, first), two = poll_one(engine, second), foreign = poll_one(other, BN_ANY);
    bn_event invented = two, none = {0}, mixed = one;
    invented.lease ^= UINT64_C(1) << 33;
    mixed.request = second; // a lease of another request's
    const bn_event wrong[] = {invented, none, mixed, foreign, {.request = BN_ANY, .lease = UINT64_MAX}, {.request = first}};
    CHECK_OK(bn_events_free(wrong, sizeof *wrong, sizeof wrong / sizeof *wrong));
    CHECK_TEXT(one.text.data, one.text.length, "to be given back");
    CHECK_TEXT(two.text.data, two.text.length, "to be given back");
    // Twice in one batch and once more, when the slot already serves another request.
    const bn_event twice[] = {one, one};
    CHECK_OK(bn_events_free(twice, sizeof *twice, 2));
    bn_request third = submit(engine, &params);
    bn_event three = poll_one(engine, third);
    give_back(&one);
    CHECK_TEXT(three.text.data, three.text.length, "to be given back");
    // After its release, and also when the slot serves another request.
    CHECK_OK(bn_request_free(engine, second, NULL));
    give_back(&two);
    bn_request fourth = submit(engine, &params);
    bn_event four = poll_one(engine, fourth);
    give_back(&two);
    CHECK_TEXT(four.text.data, four.text.length, "to be given back");
    CHECK_OK(bn_request_free(engine, first, NULL));
    CHECK_OK(bn_request_free(engine, third, NULL));
    CHECK_OK(bn_request_free(engine, fourth, NULL));
    bn_stats after = stats(engine);
    CHECK_EQ(after.unreleased, 0);
    CHECK(after.memory_used_bytes < idle); // all bytes were returned
    stop(engine);
    CHECK_TEXT(foreign.text.data, foreign.text.length, "to be given back");
    stop(other);
}

TEST(events_of_other_headers) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("size");
    params.flags = BN_REQUEST_NO_STREAM;
    struct {
        bn_event event;
        uint64_t later[2];
    } newer[3];
    const size_t wrong[] = {0, 8, offsetof(bn_event, lease), offsetof(bn_event, text) + 8, sizeof(bn_event) - 1, sizeof(bn_event) + 1, 8192, SIZE_MAX};
    bn_request requests[2] = {submit(engine, &params), submit(engine, &params)};
    size_t count = 77;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bn_error error = {0};
        CHECK_STATUS(bn_poll(engine, BN_ANY, &newer[0].event, wrong[i], 3, 1000, &count, &error), BN_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(error.message, "bn_event");
        CHECK_STATUS(bn_events_free(&newer[0].event, wrong[i], 1), BN_ERR_INVALID_ARGUMENT);
    }
    CHECK_EQ(count, 77);
    while (stats(engine).running + stats(engine).queued > 0) sleep_ms(1);
    memset(newer, 0xaa, sizeof newer);
    CHECK_OK(bn_poll(engine, BN_ANY, &newer[0].event, sizeof newer[0], 3, 10000, &count, NULL));
    CHECK_EQ(count, 2);
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(newer[i].event.struct_size, sizeof(bn_event)); // written by the library
        CHECK_EQ(newer[i].event.request, requests[i]);
        CHECK_TEXT(newer[i].event.text.data, newer[i].event.text.length, "size");
        CHECK(newer[i].later[0] == 0 && newer[i].later[1] == 0);
    }
    CHECK_EQ(newer[2].event.request, UINT64_C(0xaaaaaaaaaaaaaaaa));
    CHECK_OK(bn_events_free(&newer[0].event, sizeof newer[0], 2));
    stop(engine);
}

TEST(finished_is_not_nothing_yet) {
    bn_engine *engine = start_echo();
    bn_request_params params = ask("ab");
    atomic_bool may_go_on = false;
    params.flags = BN_REQUEST_NO_STREAM;
    params.sampling.on_logits = hold;
    params.sampling.on_logits_context = &may_go_on;
    bn_request request = submit(engine, &params);
    bn_event event;
    size_t count = 7;
    CHECK_OK(bn_poll(engine, request, &event, sizeof event, 1, 0, &count, NULL));
    CHECK_EQ(count, 0);
    atomic_store(&may_go_on, true);
    event = poll_one(engine, request);
    CHECK_EQ(event.kind, BN_EVENT_COMPLETED);
    const uint32_t timeouts[] = {BN_NO_LIMIT, 0, 1};
    for (int i = 0; i < 3; i++) {
        bn_error error = {0};
        CHECK_STATUS(bn_poll(engine, request, &event, sizeof event, 1, timeouts[i], &count, &error), BN_ERR_FINISHED);
        CHECK(error.message[0] != 0);
    }
    give_back(&event);
    CHECK_STATUS(bn_poll(engine, request, &event, sizeof event, 1, 0, &count, NULL), BN_ERR_FINISHED);
    CHECK_OK(bn_request_free(engine, request, NULL));
    CHECK_STATUS(bn_poll(engine, request, &event, sizeof event, 1, 0, &count, NULL), BN_ERR_NOT_FOUND);
    // BN_ANY continues, as there may be more events.
    CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof event, 1, 0, &count, NULL));
    stop(engine);
}

typedef struct {
    bn_engine *engine;
    bn_request request;
    bn_status status;
} waiter;

static void *wait_for_its_end(void *context) {
    waiter *w = context;
    do {
        bn_event event;
        size_t count = 0;
        w->status = bn_poll(w->engine, w->request, &event, sizeof event, 1, BN_NO_LIMIT, &count, NULL);
        if (w->status == BN_OK) give_back(&event);
    } while (w->status == BN_OK);
    return NULL;
}

// A caller that waits for a request learns of its end, even if another thread polls the last event.
TEST(whoever_waits_for_an_id_hears_that_another_took_its_end) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=300");
    bn_engine *engine = start(&config);
    bn_request_params params = ask("x");
    for (int i = 0; i < 50; i++) {
        waiter w = {.engine = engine, .request = submit(engine, &params)};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_its_end, &w), 0);
        for (bool done = false; !done;) {
            bn_request_info info = {.struct_size = sizeof info};
            bn_event event;
            size_t count = 0;
            CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof event, 1, 1, &count, NULL));
            CHECK_OK(bn_request_get_info(engine, w.request, &info, NULL));
            done = info.stage == BN_STAGE_FINISHED;
            if (count > 0) give_back(&event);
        }
        bn_event event;
        size_t count = 0;
        CHECK_OK(bn_poll(engine, BN_ANY, &event, sizeof event, 1, 0, &count, NULL));
        pthread_join(thread, NULL);
        CHECK_STATUS(w.status, BN_ERR_FINISHED);
        CHECK_OK(bn_request_free(engine, w.request, NULL));
    }
    stop(engine);
}

// Submits until memory_limit_bytes refuses; returns the number of requests.
static size_t fill(bn_engine *engine) {
    bn_request_params params = ask("a");
    params.flags = BN_REQUEST_NO_STREAM;
    params.max_new_tokens = 1;
    for (size_t n = 0;; n++) {
        bn_request request = 0;
        bn_status status = bn_submit(engine, &params, &request, NULL);
        if (status == BN_ERR_MEMORY_LIMIT) return n;
        CHECK_OK(status);
    }
}

static bn_engine_config small_config(void) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=1000");
    config.context_length = 2048;
    config.max_batch_size = 4;
    config.max_batch_tokens = 64;
    bn_engine *engine = start(&config);
    config.memory_limit_bytes = stats(engine).memory_used_bytes * 17 / 16 + 20000;
    stop(engine);
    return config;
}

// Requests that fill the limit completely can still be polled, or it would never be free again.
TEST(a_full_limit_leaves_room_to_poll) {
    bn_engine_config config = small_config();
    bn_engine *engine = start(&config);
    size_t n = fill(engine);
    CHECK(n > 8);
    while (stats(engine).running + stats(engine).queued > 0) sleep_ms(1);
    bn_event *events = calloc(n, sizeof *events);
    CHECK(events != NULL);
    size_t count = 0;
    CHECK_OK(bn_poll(engine, BN_ANY, events, sizeof *events, n, 0, &count, NULL));
    CHECK_EQ(count, n);
    for (size_t i = 0; i < n; i++) CHECK_OK(bn_request_free(engine, events[i].request, NULL));
    free(events);
    // As many fit as before, or a few more or less: requests that end meanwhile make room.
    CHECK(fill(engine) >= n / 2);
    CHECK(stats(engine).memory_peak_bytes <= config.memory_limit_bytes);
    stop(engine);
}

TEST(memory_for_polled_events_is_counted) {
    enum { MOST = 200 };
    bn_engine_config config = small_config();
    bn_engine *engine = start(&config);
    bn_request_params params = ask("a");
    params.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_POLL_BY_ID;
    params.max_new_tokens = 1000;
    bn_request request = submit(engine, &params);
    fill(engine);
    static bn_event kept[MOST];
    bn_error error = {0};
    bn_status status = BN_OK;
    size_t held = 0;
    // Either the poll is refused, or the request is paused before there is another event.
    while (held < MOST && status == BN_OK && stats(engine).paused == 0) {
        size_t count = 0;
        status = bn_poll(engine, request, &kept[held], sizeof *kept, 1, 100, &count, &error);
        held += count;
    }
    CHECK(held > 0 && held < MOST);
    if (status != BN_OK) {
        CHECK_STATUS(status, BN_ERR_MEMORY_LIMIT);
        CHECK_CONTAINS(error.message, "bn_events_free");
    }
    CHECK(stats(engine).memory_used_bytes <= config.memory_limit_bytes);
    CHECK_OK(bn_events_free(kept, sizeof *kept, held));
    bn_event next = poll_one(engine, request); // nothing is lost
    CHECK(next.tokens_count > 0);
    stop(engine);
}
