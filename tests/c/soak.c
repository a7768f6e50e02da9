// Threads that make random calls on an engine, first on one that is short of memory and then on one whose queue is
// full: every accepted request ends exactly once, with a reason and all of its tokens, and the process's resources do
// not grow.
//   soak [seconds] [model]       60 seconds and the embedded model, if not said otherwise
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 6, POLLERS = 2, OWN = 48, RECORDS = WORKERS * OWN, QUEUE = 48, LONGEST = 512, ROOM = 32 };
enum { PATIENCE = 60 };
// Maximum growth of the process in a round. Caches fill in the first rounds, more slowly on a slow machine; a
// leak grows in all of them.
enum { ROUNDS = 12, HEAP_KIB = 1024 };
#ifdef SANITIZED
enum { RESIDENT_KIB = 1 << 20 }; // most of it is the sanitizer's
#else
enum { RESIDENT_KIB = 8192 };
#endif

// Kinds of requests, by the threads that poll and release them.
enum kind {
    BY_ANY,      // any thread; the one that took its last token releases it
    BY_ID,       // its worker, by id, and sometimes others
    LEFT_EARLY,  // only its worker, which releases it at any time
};

typedef struct {
    pthread_mutex_t lock;
    atomic_bool taken;        // only its worker takes it; the thread that releases the request returns it
    atomic_uint_fast64_t id;  // for calls from anywhere; 0: none; may be out of date
    enum kind kind;
    uint32_t flags;
    bool ended;               // both under the lock
    uint64_t seen, total;     // tokens
} record;

typedef struct {
    uint64_t state;
    record *own;
} worker;

static bn_engine *engine;
static bn_model *model;
static uint64_t vocabulary;
static bool chats, embeds;
static record records[RECORDS];
static atomic_bool stopping;
static const char *const names[] = {"anna", "bert", "carl", "dora", "emil", "fred"}; // of sessions
enum { NAMES = sizeof names / sizeof *names };
static uint8_t *kept; // a saved session, under the lock
static size_t kept_size;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ulong saves, restores, calls, accepted, ended, early, refused_queue, refused_memory, reasons[BN_FINISH_EMBEDDING + 1];

static uint64_t below(worker *w, uint64_t n) { // SplitMix64
    uint64_t z = w->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % n;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

// -- what came ---------------------------------------------------------------------------------------

static void look_at(const bn_event *e) {
    static atomic_ulong sum;
    unsigned long bytes = 0;
    CHECK(e->kind == BN_EVENT_COMPLETED || (e->kind == BN_EVENT_TOKENS && e->tokens_count > 0));
    for (size_t i = 0; i < e->text.length; i++) bytes += (unsigned char)e->text.data[i];
    for (size_t i = 0; i < e->tokens_count; i++) CHECK(e->tokens[i] < vocabulary);
    for (size_t i = 0; i < e->message.length; i++) bytes += (unsigned char)e->message.data[i];
    CHECK(e->logprobs_count == e->tokens_count * e->logprobs_per_token);
    for (size_t i = 0; i < e->logprobs_count; i++) CHECK(e->logprobs[i].token < vocabulary);
    for (size_t i = 0; i < e->embedding_count; i++) CHECK(e->embedding[i] == e->embedding[i]);
    sum += bytes; // so that the bytes are read
}

static void check_end(const bn_event *e) {
    CHECK(e->finish_reason > BN_FINISH_NONE && e->finish_reason <= BN_FINISH_EMBEDDING);
    bool well = e->finish_reason <= BN_FINISH_LENGTH || e->finish_reason == BN_FINISH_EMBEDDING;
    CHECK(well == (e->status == BN_OK));
    reasons[e->finish_reason]++;
    ended++;
}

// Checks an event that the caller has read and given back.
static void account(const bn_event *e) {
    record *r = &records[e->user_data];
    CHECK(e->user_data < RECORDS && r->taken);
    pthread_mutex_lock(&r->lock);
    r->seen += e->tokens_count;
    if (e->kind == BN_EVENT_COMPLETED) {
        CHECK(!r->ended);
        check_end(e);
        r->ended = true;
        bool echoes = (r->flags & BN_REQUEST_ECHO_PROMPT) != 0;
        r->total = e->generated_tokens + (echoes ? e->prompt_tokens : 0);
    }
    bool over = r->ended && r->seen >= r->total;
    CHECK(!over || r->seen == r->total);
    pthread_mutex_unlock(&r->lock);
    if (!over || r->kind == LEFT_EARLY) return;
    CHECK_OK(bn_request_free(engine, e->request, NULL));
    r->id = 0;
    r->taken = false;
}

static void take(const bn_event *events, size_t count) {
    for (size_t i = 0; i < count; i++) look_at(&events[i]);
    CHECK_OK(bn_events_free(events, sizeof *events, count));
    for (size_t i = 0; i < count; i++) account(&events[i]);
}

static void *poll_any(void *context) {
    (void)context;
    for (;;) {
        bn_event events[ROOM];
        size_t count = 0;
        bn_status status = bn_poll(engine, BN_ANY, events, sizeof *events, ROOM, BN_NO_LIMIT, &count, NULL);
        if (status == BN_ERR_SHUTDOWN) return NULL;
        if (status == BN_ERR_MEMORY_LIMIT) nap(); // until others have given events back
        else CHECK_OK(status);
        if (status == BN_OK) take(events, count);
        calls += 2;
    }
}

// -- requests -----------------------------------------------------------------------------------------

// The objects that the parameters point to.
typedef struct {
    bn_request_params params;
    bn_chat_message message;
    bn_string stop;
    uint32_t tokens[LONGEST];
    char text[LONGEST];
} question;

static void set_prompt(worker *w, question *q) {
    size_t length = 1 + below(w, 1 + below(w, LONGEST / 2));
    size_t shared = below(w, 2) * below(w, length); // a prefix that many share
    for (size_t i = 0; i < length; i++) q->tokens[i] = (uint32_t)(i < shared ? i % vocabulary : below(w, vocabulary));
    for (size_t i = 0; i < length; i++) q->text[i] = (char)(' ' + (i < shared ? i % 95 : below(w, 95)));
    q->message = (bn_chat_message){BN_STRING("user"), {q->text, length / 2}};
    uint64_t way = below(w, 3);
    if (way == 0) {
        q->params.prompt_tokens = q->tokens;
        q->params.prompt_tokens_count = length;
    } else if (way == 1 && chats && q->params.task != BN_TASK_EMBED) {
        q->params.chat.messages = &q->message;
        q->params.chat.messages_count = 1;
    } else {
        q->params.prompt = (bn_string){q->text, length / 2 + 1};
    }
}

static void set_sampling(worker *w, question *q) {
    bn_request_params *p = &q->params;
    p->sampling.seed = below(w, 1000);
    p->sampling.temperature = (float)below(w, 3) / 2;
    p->sampling.top_k = (uint32_t)below(w, 2) * 40;
    p->sampling.top_p = 1 - (float)below(w, 2) / 10;
    p->sampling.min_p = (float)below(w, 2) / 20;
    p->sampling.repetition_penalty = 1 + (float)below(w, 2) / 10;
    p->sampling.presence_penalty = (float)below(w, 2);
    if (below(w, 4) == 0) p->flags |= BN_REQUEST_LOGPROBS, p->top_logprobs = (uint32_t)below(w, 5);
    if (below(w, 4) == 0) {
        q->stop = (bn_string){q->text, 1};
        p->stop_strings = &q->stop;
        p->stop_strings_count = 1;
    }
}

static bn_string session_name(worker *w) {
    return BN_TEXT(names[below(w, NAMES)]);
}

// Sets its service options, next to those of others.
static void set_service(worker *w, bn_request_params *p) {
    if (below(w, 2) == 0) p->priority = (uint32_t)below(w, BN_PRIORITY_MAX + 1);
    if (below(w, 8) == 0) p->timeout_ms = 1 + (uint32_t)below(w, 200);
    if (below(w, 8) == 0) p->queue_timeout_ms = 1 + (uint32_t)below(w, 100);
    if (p->queue_timeout_ms > 0 && below(w, 2) == 0) p->flags |= BN_REQUEST_DROP_LATE;
    if (below(w, 8) == 0 && p->session.data == NULL) p->flags |= BN_REQUEST_NO_CACHE;
    if (below(w, 4) == 0) p->cache_salt = below(w, 3);
}

static void fill(worker *w, question *q) {
    bn_request_params *p = &q->params;
    CHECK_OK(bn_request_params_init(p, sizeof *p));
    if (embeds && below(w, 16) == 0) {
        p->task = BN_TASK_EMBED;
    } else {
        static const uint32_t flags[] = {0, 0, BN_REQUEST_NO_STREAM, BN_REQUEST_ECHO_PROMPT, BN_REQUEST_IGNORE_EOS};
        p->flags = flags[below(w, 5)] | (below(w, 2) * BN_REQUEST_IGNORE_EOS);
        p->max_new_tokens = 1 + (uint32_t)below(w, 1 + below(w, 96));
        if (below(w, 50) == 0) p->max_new_tokens = 0;
        set_sampling(w, q);
        if (below(w, 8) == 0) p->session = session_name(w);
        if (below(w, 16) == 0) p->flags |= BN_REQUEST_END_UNREAD;
    }
    set_prompt(w, q);
    set_service(w, p);
}

// Returns true if a submit was accepted. It may be refused only for lack of room.
static bool was_accepted(bn_status status) {
    calls++;
    if (status == BN_ERR_QUEUE_FULL) refused_queue++;
    else if (status == BN_ERR_MEMORY_LIMIT) refused_memory++;
    else CHECK_OK(status);
    return status == BN_OK;
}

// A free record of the worker for another request, or NULL if all are taken.
static record *claim(worker *w, question *q, enum kind kind) {
    record *r = &w->own[below(w, OWN)];
    if (r->taken) return NULL;
    r->kind = kind;
    r->ended = false;
    r->seen = r->total = 0;
    fill(w, q);
    if (kind != BY_ANY) q->params.flags |= BN_REQUEST_POLL_BY_ID;
    q->params.user_data = (uint64_t)(r - records);
    r->flags = q->params.flags;
    r->taken = true; // from now on events may come
    return r;
}

static bn_request submit(worker *w, enum kind kind, record **out) {
    question q;
    bn_request id = 0;
    record *r = claim(w, &q, kind);
    if (r == NULL) return 0;
    if (!was_accepted(bn_submit(engine, &q.params, &id, NULL))) {
        r->taken = false;
        return 0;
    }
    accepted++;
    if (kind != LEFT_EARLY) r->id = id; // it may have ended by now
    if (out != NULL) *out = r;
    return id;
}

// -- what a worker does -------------------------------------------------------------------------------

static void submit_any(worker *w) {
    submit(w, BY_ANY, NULL);
}

static void submit_batch(worker *w) {
    enum { MOST = 6 };
    question questions[MOST];
    const bn_request_params *params[MOST];
    record *batch[MOST];
    bn_request ids[MOST];
    size_t count = 0, wanted = 1 + below(w, MOST);
    for (size_t tries = 0; tries < 2 * MOST && count < wanted; tries++) {
        batch[count] = claim(w, &questions[count], BY_ANY);
        params[count] = &questions[count].params;
        count += batch[count] != NULL;
    }
    if (count == 0) return;
    bool ok = was_accepted(bn_submit_batch(engine, params, count, ids, NULL));
    for (size_t i = 0; i < count; i++) {
        if (ok) batch[i]->id = ids[i];
        else batch[i]->taken = false;
    }
    if (ok) accepted += count;
}

static bn_status poll_one(bn_request id, uint32_t wait_ms) {
    bn_event event;
    size_t count = 0;
    bn_status status = bn_poll(engine, id, &event, sizeof event, 1, wait_ms, &count, NULL);
    calls++;
    if (status == BN_OK) take(&event, count);
    // Another thread polls it, has taken its last event, or has released it; or too many events are leased.
    else CHECK(status == BN_ERR_BUSY || status == BN_ERR_FINISHED || status == BN_ERR_NOT_FOUND ||
               status == BN_ERR_MEMORY_LIMIT);
    return status;
}

static void submit_and_poll(worker *w) {
    record *r = NULL;
    bn_request id = submit(w, BY_ID, &r);
    if (id == 0) return;
    double begin = now();
    while (r->taken) {
        if (poll_one(id, 20) != BN_OK) nap();
        if (below(w, 50) == 0) bn_cancel(engine, id, NULL);
        CHECK(now() - begin < PATIENCE);
    }
}

static void submit_and_leave(worker *w) {
    record *r = NULL;
    bn_request id = submit(w, LEFT_EARLY, &r);
    if (id == 0) return;
    for (uint64_t polls = below(w, 4); polls > 0 && !r->ended; polls--) poll_one(id, 1);
    if (!r->ended) early++;
    CHECK_OK(bn_request_free(engine, id, NULL));
    r->taken = false;
}

static void generate(worker *w) {
    question q;
    bn_event out = {0};
    fill(w, &q);
    if (!was_accepted(bn_generate(engine, &q.params, &out, sizeof out, NULL))) return;
    accepted++;
    look_at(&out);
    check_end(&out);
    bn_events_free(&out, sizeof out, 1);
}

static void embed(worker *w) {
    question q;
    float values[4096];
    size_t count = 0;
    if (!embeds) return;
    CHECK_OK(bn_request_params_init(&q.params, sizeof q.params));
    q.params.task = BN_TASK_EMBED;
    set_prompt(w, &q);
    bn_status status = bn_embed(engine, &q.params, values, 4096, &count, NULL);
    bool cancelled = status == BN_ERR_CANCELLED; // by `cancel_all`
    if (!cancelled && !was_accepted(status)) return;
    accepted++;
    ended++;
    reasons[cancelled ? BN_FINISH_CANCELLED : BN_FINISH_EMBEDDING]++;
}

static bn_request some_id(worker *w) {
    return records[below(w, RECORDS)].id;
}

static void cancel(worker *w) {
    bn_status status = bn_cancel(engine, some_id(w), NULL);
    CHECK(status == BN_OK || status == BN_ERR_NOT_FOUND);
}

static void cancel_all(worker *w) {
    if (below(w, 100) == 0) CHECK_OK(bn_cancel(engine, BN_ANY, NULL));
}

static void ask_where(worker *w) {
    bn_request_info info;
    CHECK_OK(bn_request_info_init(&info, sizeof info));
    bn_status status = bn_request_get_info(engine, some_id(w), &info, NULL);
    CHECK(status == BN_ERR_NOT_FOUND || (status == BN_OK && info.stage <= BN_STAGE_FINISHED));
    CHECK(status != BN_OK || info.queue_position < QUEUE);
}

static void poll_some(worker *w) {
    bn_request id = some_id(w);
    if (id != 0) poll_one(id, 0);
}

static void tokenize(worker *w) {
    question q;
    char text[16 * LONGEST];
    size_t count = 0, length = 0;
    set_prompt(w, &q);
    bn_string prompt = {q.text, LONGEST / 4};
    for (size_t i = 0; i < prompt.length; i++) q.text[i] = (char)(' ' + below(w, 95));
    CHECK_OK(bn_model_tokenize(model, prompt, 0, q.tokens, LONGEST, &count, NULL));
    CHECK_OK(bn_model_detokenize(model, q.tokens, count, text, sizeof text, &length, NULL));
    CHECK(length > 0);
}

static bn_stats stats(void) {
    bn_stats s;
    CHECK_OK(bn_stats_init(&s, sizeof s));
    CHECK_OK(bn_engine_stats(engine, &s, NULL));
    return s;
}

static uint64_t completed(const bn_stats *s) {
    return s->completed_stop + s->completed_stop_string + s->completed_length + s->completed_cancelled +
           s->completed_timed_out + s->completed_failed + s->completed_embedding;
}

static void read_stats(worker *w) {
    (void)w;
    char text[32768];
    size_t length = 0;
    uint32_t state = BN_STATE_DEAD;
    bn_stats s = stats();
    CHECK(s.unreleased <= QUEUE && s.kv_blocks_used <= s.kv_blocks_total);
    CHECK(s.memory_limit_bytes == 0 || s.memory_used_bytes <= s.memory_limit_bytes);
    CHECK_OK(bn_engine_metrics(engine, text, sizeof text, &length, NULL));
    CHECK(length > 0 && bn_engine_state(engine, &state) == BN_OK && state == BN_STATE_RUNNING);
    CHECK_OK(bn_engine_report(engine, text, sizeof text, &length, NULL));
    CHECK(s.kv_blocks_used + s.kv_blocks_cached <= s.kv_blocks_total && s.session_blocks <= s.kv_blocks_total);
    CHECK(s.paused <= s.running);
}

// Each of these may be returned if there is no such session, or no block is free.
static void save(worker *w) {
    size_t size = 0, room = 0;
    bn_string name = session_name(w);
    bn_status status = bn_session_save(engine, name, NULL, 0, &room, NULL);
    CHECK(status == BN_ERR_BUFFER_TOO_SMALL || status == BN_ERR_NOT_FOUND || status == BN_ERR_BUSY);
    if (status != BN_ERR_BUFFER_TOO_SMALL) return;
    uint8_t *data = malloc(room);
    CHECK(data != NULL);
    status = bn_session_save(engine, name, data, room, &size, NULL); // it may be another one by now
    CHECK(status == BN_OK || status == BN_ERR_BUFFER_TOO_SMALL || status == BN_ERR_NOT_FOUND || status == BN_ERR_BUSY);
    if (status == BN_OK) {
        pthread_mutex_lock(&kept_lock);
        free(kept);
        kept = data, kept_size = size;
        pthread_mutex_unlock(&kept_lock);
        saves++;
    } else {
        free(data);
    }
}

static void restore(worker *w) {
    pthread_mutex_lock(&kept_lock);
    bn_string name = session_name(w);
    bool damaged = kept_size > 0 && below(w, 8) == 0;
    size_t at = kept_size > 0 ? below(w, kept_size) : 0;
    if (damaged) kept[at] ^= 1;
    bn_status status = kept_size > 0 ? bn_session_restore(engine, name, kept, kept_size, NULL) : BN_ERR_BUSY;
    if (damaged) kept[at] ^= 1;
    pthread_mutex_unlock(&kept_lock);
    restores += status == BN_OK;
    CHECK(status == BN_ERR_BUSY || (damaged ? status == BN_ERR_INVALID_ARGUMENT
                                            : status == BN_OK || status == BN_ERR_MEMORY_LIMIT));
}

static void drop(worker *w) {
    bn_status status = bn_session_free(engine, session_name(w), NULL);
    CHECK(status == BN_OK || status == BN_ERR_NOT_FOUND);
}

static void clear(worker *w) {
    if (below(w, 10) == 0) CHECK_OK(bn_cache_clear(engine, NULL));
}

static void read_kv_events(worker *w) {
    bn_kv_event events[ROOM];
    size_t count = 0;
    CHECK_OK(bn_kv_events(engine, events, sizeof *events, below(w, ROOM), &count, NULL));
    for (size_t i = 0; i < count; i++) CHECK(events[i].kind >= BN_KV_EVENT_STORED && events[i].kind <= BN_KV_EVENT_CLEARED);
}

static void submit_wrong(worker *w) {
    question q;
    bn_request id = 0;
    fill(w, &q);
    q.params.prompt = (bn_string){0};
    q.params.chat.messages_count = 0;
    q.params.prompt_tokens = q.tokens;
    q.params.prompt_tokens_count = below(w, 2);
    q.tokens[0] = (uint32_t)vocabulary;
    CHECK(bn_submit(engine, &q.params, &id, NULL) == BN_ERR_INVALID_ARGUMENT && id == 0);
}

static void *work(void *context) {
    static void (*const acts[])(worker *) = {
        submit_any, submit_any, submit_any, submit_any, submit_any, submit_any, submit_batch, submit_and_poll,
        submit_and_leave, generate, embed, cancel, cancel_all, ask_where, poll_some, tokenize, read_stats, submit_wrong,
        save, restore, drop, clear, read_kv_events,
    };
    worker *w = context;
    for (uint64_t i = 0; !stopping; i++) {
        acts[below(w, sizeof acts / sizeof *acts)](w);
        calls++;
        if (i % 8 == 0) nap(); // leaves time to the engine
    }
    return NULL;
}

// -- the run ------------------------------------------------------------------------------------------

static void open_model(const char *path) {
    bn_model_config config;
    bn_model_info info;
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    if (path != NULL) config.path = BN_TEXT(path);
    CHECK_OK(bn_model_open(&config, &model, NULL));
    CHECK_OK(bn_model_info_init(&info, sizeof info));
    CHECK_OK(bn_model_get_info(model, &info, NULL));
    vocabulary = info.vocab_size;
    chats = info.has_chat_template != 0;
    embeds = info.embedding_size > 0 && info.embedding_size <= 4096;
}

// Short of memory: with KV for a quarter of the batch at its longest.
static void start(bool short_of_memory) {
    bn_engine_config config;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.model = model;
    config.threads = 2;
    config.max_batch_size = 16;
    config.context_length = LONGEST;
    config.queue_capacity = QUEUE;
    config.kv_block_size = 16;
    config.kv_events_capacity = 64;
    config.max_unread_bytes = 1024; // a few tokens
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
    if (!short_of_memory) return;
    bn_stats s = stats();
    CHECK_OK(bn_engine_free(engine));
    config.memory_limit_bytes = s.memory_used_bytes - s.kv_bytes * 3 / 4;
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
}

static void wait_for_ends(void) {
    double begin = now();
    for (int i = 0; i < RECORDS; i++) {
        while (records[i].taken && now() - begin < PATIENCE) nap();
        if (records[i].taken)
            fprintf(stderr, "request %llu: ended %d, %llu of %llu tokens\n", (unsigned long long)records[i].id,
                    records[i].ended, (unsigned long long)records[i].seen, (unsigned long long)records[i].total);
        CHECK(!records[i].taken);
    }
    while (stats().unreleased > 0 && now() - begin < PATIENCE) nap(); // requests that were left early
}

static void check_counts(void) {
    bn_stats s = stats();
    CHECK(s.accepted == accepted && completed(&s) == accepted);
    CHECK(ended + early == accepted);
    CHECK(s.queued == 0 && s.running == 0 && s.unreleased == 0);
    CHECK(s.completed_failed == 0);
    CHECK(s.paused == 0 && s.kv_blocks_used <= s.session_blocks); // sessions may share some
    for (size_t i = 0; i < NAMES; i++) bn_session_free(engine, BN_TEXT(names[i]), NULL); // those that exist
    s = stats();
    CHECK(s.sessions == 0 && s.session_blocks == 0 && s.kv_blocks_used == 0);
    CHECK(s.rejected_queue_full >= refused_queue && s.rejected_memory >= refused_memory);
}

static void forget(void) {
    atomic_ulong *counters[] = {&calls, &accepted, &ended, &early, &refused_queue, &refused_memory, &saves, &restores};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) *counters[i] = 0;
    for (uint32_t i = 0; i <= BN_FINISH_EMBEDDING; i++) reasons[i] = 0;
}

// Makes random calls for `seconds`, until all requests have ended.
static void run_workers(double seconds) {
    pthread_t threads[WORKERS];
    static worker workers[WORKERS];
    stopping = false;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.state = workers[i].state + (uint64_t)i, .own = &records[i * OWN]};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (double begin = now(); now() - begin < seconds;) nap();
    stopping = true;
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    wait_for_ends();
    check_counts();
}

static void soak(double seconds, bool short_of_memory) {
    pthread_t pollers[POLLERS];
    int before_fds = count_fds(), before_threads = count_threads();
    forget();
    start(short_of_memory);
    for (int i = 0; i < POLLERS; i++) CHECK(pthread_create(&pollers[i], NULL, poll_any, NULL) == 0);
    run_workers(seconds / 3);
    int fds = count_fds(), threads = count_threads(), rounds = 0;
    long kib, more, heap_more;
    do {
        kib = resident_kib();
        long heap = heap_bytes();
        run_workers(seconds / 3);
        CHECK(count_fds() == fds && count_threads() == threads);
        more = resident_kib() - kib, heap_more = (heap_bytes() - heap) / 1024;
        rounds++;
    } while (rounds < 2 || (rounds < ROUNDS && (heap_more > HEAP_KIB || more > RESIDENT_KIB)));
    bn_stats s = stats();
    CHECK_OK(bn_engine_shutdown(engine, BN_SHUTDOWN_DRAIN, NULL));
    for (int i = 0; i < POLLERS; i++) pthread_join(pollers[i], NULL);
    CHECK_OK(bn_engine_free(engine));
    CHECK(count_fds() == before_fds && count_threads() == before_threads);
    printf("soak, %s, 1 + %d rounds of %g s: %lu calls, %lu accepted:", short_of_memory ? "short of memory" : "queue full",
           rounds, seconds / 3, calls, accepted);
    for (uint32_t i = 1; i <= BN_FINISH_EMBEDDING; i++) printf(" %s %lu,", bn_finish_reason_name(i), reasons[i]);
    printf(" preemptions %llu, pauses %llu, cached tokens %llu, saved %lu, restored %lu,", (unsigned long long)s.preemptions,
           (unsigned long long)s.pauses, (unsigned long long)s.cached_tokens, saves, restores);
    printf(" released early %lu; refused: queue %lu, memory %lu; last round: heap %+ld KiB, resident %ld %+ld KiB\n", early,
           refused_queue, refused_memory, heap_more, kib, more);
    free(kept);
    kept = NULL, kept_size = 0;
    CHECK(heap_more <= HEAP_KIB && more <= RESIDENT_KIB);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 60;
    CHECK(seconds > 0);
    for (int i = 0; i < RECORDS; i++) CHECK(pthread_mutex_init(&records[i].lock, NULL) == 0);
    open_model(argc > 2 ? argv[2] : NULL);
    soak(seconds / 2, true);
    soak(seconds / 2, false);
    CHECK_OK(bn_model_free(model));
    return 0;
}
