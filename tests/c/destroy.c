// Threads that make random calls on engines in callback mode, which are cancelled and destroyed meanwhile: each request
// that was accepted and not released has had its last callback when bn_engine_free returns, and none follows.
//   destroy [seconds] [model]       10 seconds and the embedded model, if not said otherwise
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 8, RECORDS = 20000, BATCH = 5, LONGEST = 160, RECENT = 48 };

// The state of a request; its index is the request's user_data.
typedef struct {
    atomic_uint_fast64_t id; // 0 until its submit has returned
    atomic_uint accepted, released, last;
    atomic_bool over; // nothing may follow
} record;

static bn_model *model;
static bn_engine *engine;
static uint64_t vocabulary;
static bool embeds;
static record records[RECORDS];
static atomic_uint taken;
static atomic_bool destroyed;
static atomic_ulong accepted, released, last, calls, blocking;
static const char *const names[] = {"anna", "bert", "carl"}; // of sessions
static const char *const patterns[] = {"[a-z]+", "([0-9]{1,3},)+[a-f]{2}", "(yes|no) [A-Z][a-z]{2,40}\\.", "x{3,200}"};

static uint64_t below(uint64_t *state, uint64_t n) { // SplitMix64
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % n;
}

static void nap(uint64_t us) {
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static void release(record *r, bn_request id) {
    bn_status status = bn_request_free(engine, id, NULL);
    // Its last callback came before, or the engine is gone.
    CHECK(status == BN_OK || status == BN_ERR_NOT_FOUND || status == BN_ERR_INVALID_ARGUMENT);
    r->released += status == BN_OK;
    released += status == BN_OK;
}

static void on_event(const bn_event *event, void *context) {
    (void)context;
    CHECK(!destroyed && event->user_data < RECORDS);
    record *r = &records[event->user_data];
    CHECK(!r->over);
    if (event->kind == BN_EVENT_COMPLETED) {
        CHECK(event->finish_reason != BN_FINISH_NONE && event->finish_reason != BN_FINISH_FAILED);
        r->over = true;
        r->last++;
        last++;
    }
    uint64_t state = event->user_data ^ (event->tokens_count << 20);
    if (below(&state, 16) == 0) release(r, event->request);
    if (below(&state, 32) == 0) nap(100); // other events wait, and may be released
}

// -- requests -----------------------------------------------------------------------------------------

typedef struct {
    bn_request_params params;
    uint32_t tokens[LONGEST];
    char text[LONGEST], constraint[128];
    bn_string stop;
} question;

static void constrain(uint64_t *state, question *q) {
    bn_request_params *p = &q->params;
    int length = 0;
    switch (below(state, 4)) {
    case 0:
        p->constraint.kind = BN_CONSTRAINT_JSON_OBJECT;
        return;
    case 1: // most are new, and have to be compiled
        p->constraint.kind = BN_CONSTRAINT_JSON_SCHEMA;
        length = snprintf(q->constraint, sizeof q->constraint,
                          "{\"type\":\"object\",\"properties\":{\"p%u\":{\"type\":\"integer\"}},\"required\":[\"p%u\"]}",
                          (unsigned)below(state, 500), (unsigned)below(state, 2));
        break;
    default:
        p->constraint.kind = BN_CONSTRAINT_REGEX;
        length = snprintf(q->constraint, sizeof q->constraint, "%s",
                          patterns[below(state, sizeof patterns / sizeof *patterns)]);
    }
    p->constraint.text = (bn_string){q->constraint, (size_t)length};
}

static void set_output(uint64_t *state, question *q) {
    bn_request_params *p = &q->params;
    static const uint32_t flags[] = {0, BN_REQUEST_NO_STREAM, BN_REQUEST_ECHO_PROMPT, BN_REQUEST_END_UNREAD};
    p->flags = flags[below(state, 4)] | (uint32_t)below(state, 2) * BN_REQUEST_IGNORE_EOS;
    p->max_new_tokens = 1 + (uint32_t)below(state, 64);
    p->sampling.temperature = (float)below(state, 2);
    p->sampling.seed = below(state, 1000);
    if (below(state, 4) == 0) p->flags |= BN_REQUEST_LOGPROBS, p->top_logprobs = (uint32_t)below(state, 5);
    if (below(state, 4) == 0) p->speculation = BN_SPECULATION_LOOKUP;
    if (below(state, 8) == 0) p->session = BN_TEXT(names[below(state, 3)]);
    if (below(state, 6) == 0) {
        q->stop = (bn_string){q->text, 1};
        p->stop_strings = &q->stop;
        p->stop_strings_count = 1;
    }
}

static void fill(uint64_t *state, question *q) {
    bn_request_params *p = &q->params;
    CHECK_OK(bn_request_params_init(p, sizeof *p));
    size_t length = 1 + below(state, LONGEST - 1), shared = below(state, 2) * below(state, length);
    for (size_t i = 0; i < length; i++) {
        q->tokens[i] = (uint32_t)(i < shared ? i % vocabulary : below(state, vocabulary));
        q->text[i] = (char)(' ' + (i < shared ? i % 95 : below(state, 95)));
    }
    if (below(state, 2) == 0) p->prompt = (bn_string){q->text, length};
    else p->prompt_tokens = q->tokens, p->prompt_tokens_count = length;
    uint64_t kind = below(state, 10);
    if (kind == 0 && embeds) p->task = BN_TASK_EMBED;
    else if (kind == 1) p->task = BN_TASK_SCORE;
    else set_output(state, q);
    if (kind > 6) constrain(state, q);
    p->priority = (uint32_t)below(state, BN_PRIORITY_MAX + 1);
    if (below(state, 8) == 0) p->timeout_ms = 1 + (uint32_t)below(state, 40);
    if (below(state, 8) == 0) p->queue_timeout_ms = 1 + (uint32_t)below(state, 40);
    if (p->queue_timeout_ms > 0 && below(state, 2) == 0) p->flags |= BN_REQUEST_DROP_LATE;
}

// Returns false once the engine is shut down or gone. Checks that it refuses only for lack of room, or
// because a constraint was not compiled within the request's timeout.
static bool goes_on(bn_status status, bn_error *error) {
    calls++;
    bool gone = status == BN_ERR_SHUTDOWN || (status == BN_ERR_INVALID_ARGUMENT && strstr(error->message, "engine"));
    bool fine = status == BN_OK || status == BN_ERR_QUEUE_FULL || status == BN_ERR_MEMORY_LIMIT ||
                status == BN_ERR_TIMED_OUT || gone;
    if (!fine) fprintf(stderr, "%s: %s\n", bn_status_name(status), error->message);
    CHECK(fine);
    return !gone;
}

static bool submit(uint64_t *state) {
    question questions[BATCH];
    const bn_request_params *params[BATCH];
    bn_request ids[BATCH];
    bn_error error = {0};
    size_t count = below(state, 3) > 0 ? 1 : 1 + below(state, BATCH);
    uint64_t seed = *state;
    bool samples = below(state, 2) == 0; // all of one prompt
    unsigned first = atomic_fetch_add(&taken, (unsigned)count);
    CHECK(first + count <= RECORDS);
    for (size_t i = 0; i < count; i++) {
        uint64_t same = seed;
        fill(samples ? &same : state, &questions[i]);
        questions[i].params.user_data = first + i;
        params[i] = &questions[i].params;
    }
    bn_status status = count == 1 ? bn_submit(engine, params[0], ids, &error)
                                  : bn_submit_batch(engine, params, count, ids, &error);
    for (size_t i = 0; status == BN_OK && i < count; i++) {
        records[first + i].accepted++;
        records[first + i].id = ids[i];
        accepted++;
    }
    return goes_on(status, &error);
}

// A blocking call without a callback: an accepted request returns its answer.
static bool generate(uint64_t *state) {
    question q;
    bn_event out = {0};
    bn_error error = {0};
    fill(state, &q);
    q.params.user_data = RECORDS; // there must be no callback for it
    bn_status status = bn_generate(engine, &q.params, &out, sizeof out, &error);
    blocking += status == BN_OK;
    bn_events_free(&out, sizeof out, 1);
    return goes_on(status, &error);
}

static bool call(uint64_t *state) {
    bn_error error = {0};
    bn_status status = BN_OK;
    char text[32768];
    size_t size = 0;
    switch (below(state, 6)) {
    case 0:
        status = bn_engine_metrics(engine, text, sizeof text, &size, &error);
        break;
    case 1:
        status = bn_session_free(engine, BN_TEXT(names[below(state, 3)]), &error);
        break;
    case 2:
        status = bn_session_save(engine, BN_TEXT(names[below(state, 3)]), NULL, 0, &size, &error);
        break;
    case 3:
        status = bn_cache_clear(engine, &error);
        break;
    case 4: {
        bn_kv_event events[8];
        status = bn_kv_events(engine, events, sizeof *events, 8, &size, &error);
        break;
    }
    default:
        if (below(state, 20) == 0) status = bn_cancel(engine, BN_ANY, &error);
    }
    // Either there is no such session, or it exists but no block is free.
    bool none = status == BN_ERR_NOT_FOUND || status == BN_ERR_BUFFER_TOO_SMALL || status == BN_ERR_BUSY;
    return none || goes_on(status, &error);
}

static void disturb(uint64_t *state) {
    unsigned most = taken;
    record *r = &records[most > 0 ? (most - 1) - below(state, most < RECENT ? most : RECENT) : 0];
    bn_request id = r->id;
    if (id == 0) return;
    if (below(state, 2) == 0) release(r, id);
    else bn_cancel(engine, id, NULL);
}

static void *work(void *context) {
    uint64_t *state = context;
    for (bool open = true; open;) {
        uint64_t act = below(state, 12);
        bool room = taken <= RECORDS - WORKERS * BATCH; // otherwise other calls go on
        if (act < 6 && room) open = submit(state);
        else if (act < 8) open = generate(state);
        else if (act < 9) open = call(state);
        else if (act < 11) disturb(state);
        else nap(below(state, 1000));
    }
    return NULL;
}

// -- engines ------------------------------------------------------------------------------------------

static void start(uint64_t round) {
    bn_engine_config config;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.model = model;
    config.threads = 1 + (uint32_t)(round % 2);
    config.max_batch_size = 8;
    config.context_length = 256;
    config.kv_block_size = 16;
    config.queue_capacity = 48;
    config.kv_events_capacity = 64;
    config.max_unread_bytes = round % 3 == 0 ? 256 : 0; // a few tokens
    config.on_event = on_event;
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
    if (round % 2 == 0) return;
    bn_stats stats; // short of memory
    CHECK_OK(bn_stats_init(&stats, sizeof stats));
    CHECK_OK(bn_engine_stats(engine, &stats, NULL));
    CHECK_OK(bn_engine_free(engine));
    config.memory_limit_bytes = stats.memory_used_bytes - stats.kv_bytes / 2;
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
}

static void run(uint64_t round) {
    pthread_t threads[WORKERS];
    static uint64_t states[WORKERS];
    memset(records, 0, sizeof records);
    taken = 0;
    destroyed = false;
    start(round);
    for (uint64_t i = 0; i < WORKERS; i++) {
        states[i] = round * WORKERS + i;
        CHECK(pthread_create(&threads[i], NULL, work, &states[i]) == 0);
    }
    uint64_t state = round;
    nap(5000 + below(&state, 60000));
    if (round % 4 > 0) CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_CANCEL, NULL));
    uint32_t phase = BN_STATE_RUNNING;
    while (round % 4 == 3 && bn_engine_state(engine, &phase) == BN_OK && phase != BN_STATE_DRAINED) nap(100);
    CHECK_OK(bn_engine_free(engine));
    destroyed = true;
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (unsigned i = 0; i < taken; i++) {
        record *r = &records[i];
        bool right = r->last <= r->accepted && r->last + r->released >= r->accepted;
        if (!right)
            fprintf(stderr, "round %llu, request %u: accepted %u, released %u, last callbacks %u\n",
                    (unsigned long long)round, i, r->accepted, r->released, r->last);
        CHECK(right);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
    bn_model_config config;
    bn_model_info info;
    CHECK(seconds > 0);
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    if (argc > 2) config.path = BN_TEXT(argv[2]);
    CHECK_OK(bn_model_open(&config, &model, NULL));
    CHECK_OK(bn_model_info_init(&info, sizeof info));
    CHECK_OK(bn_model_get_info(model, &info, NULL));
    vocabulary = info.vocab_size;
    embeds = info.embedding_size > 0;
    uint64_t rounds = 0;
    for (double begin = now(); now() - begin < seconds; rounds++) run(rounds);
    CHECK_OK(bn_model_free(model));
    printf("destroy, %g s: %llu engines, %lu calls, %lu accepted, %lu last callbacks, %lu released, %lu blocking\n", seconds,
           (unsigned long long)rounds, calls, accepted, last, released, blocking);
    return 0;
}
