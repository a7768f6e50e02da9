// Runs requests: closed loops (a fixed number at a time) for the capacity and the idle times, open loops (each
// request when it is due, whatever the state of the others) for the load levels.
#include "loadgen.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 256, POOL = 32768, PATIENCE = 60 }; // PATIENCE: seconds without an event at the end

// Returns false if it was refused.
static bool submit(run *r, size_t i) {
    const load *l = r->load;
    request *q = &r->requests[i];
    bn_request_params params;
    fill_prompt(l, q, l->ids);
    check(bn_request_params_init(&params, sizeof params), "params", NULL);
    params.prompt_tokens = l->ids;
    params.prompt_tokens_count = q->prompt;
    params.max_new_tokens = q->output;
    params.timeout_ms = q->timeout_ms;
    params.queue_timeout_ms = q->queue_timeout_ms;
    params.priority = q->priority;
    params.flags = BN_REQUEST_IGNORE_EOS | (q->queue_timeout_ms > 0 ? BN_REQUEST_DROP_LATE : 0);
    params.user_data = i;
    q->status = bn_submit(l->engine, &params, &q->id, NULL);
    if (q->status == BN_OK) atomic_fetch_add(&r->accepted, 1);
    return q->status == BN_OK;
}

static void take(run *r, const bn_event *e, double time) {
    request *q = &r->requests[e->user_data];
    bool counts = time >= r->from && time < r->to;
    if (e->tokens_count > 0) {
        if (q->tokens > 0) record(&r->gaps, time - q->last);
        else q->first = time, r->started++;
        q->last = time;
        q->tokens += (uint32_t)e->tokens_count;
        if (counts) r->window_tokens += e->tokens_count;
    }
    if (e->kind != BN_EVENT_COMPLETED) return;
    bool whole = e->generated_tokens == q->tokens && (e->finish_reason != BN_FINISH_LENGTH || q->tokens == q->output);
    if (q->finish != BN_FINISH_NONE || !whole) r->torn++;
    q->finish = e->finish_reason;
    q->ended = time;
}

// Takes events for up to `wait_ms`. Returns their number.
static size_t collect(run *r, uint32_t wait_ms) {
    bn_engine *engine = r->load->engine;
    bn_error error = {0};
    bn_event events[ROOM];
    size_t count = 0, ended = 0;
    check(bn_poll(engine, BN_ANY, events, sizeof *events, ROOM, wait_ms, &count, &error), "poll", &error);
    double time = now() - r->start;
    for (size_t i = 0; i < count; i++) take(r, &events[i], time);
    check(bn_events_free(events, sizeof *events, count), "events", NULL);
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind != BN_EVENT_COMPLETED) continue;
        check(bn_request_free(engine, events[i].request, &error), "release", &error);
        ended++;
    }
    atomic_fetch_add(&r->finished, ended);
    return count;
}

// -- closed loops: one thread ------------------------------------------------------------------------

static void collect_some(run *r) {
    if (collect(r, PATIENCE * 1000) > 0) return;
    fprintf(stderr, "no event within %d s: of %zu requests %zu have ended\n", PATIENCE, r->accepted, r->finished);
    exit(1);
}

// Begins with an empty cache, so that no run reuses another's blocks.
static run begin(load *l, request *requests) {
    check(bn_cache_clear(l->engine, NULL), "clear", NULL);
    return (run){.load = l, .requests = requests, .start = now(), .from = INFINITY, .to = INFINITY};
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

// The time to first token of a single request.
static double first_once(load *l, uint32_t prompt) {
    request q = {.seed = ++l->seed, .prompt = prompt, .output = 1};
    run r = begin(l, &q);
    submit(&r, 0);
    check(q.status, "submit", NULL);
    while (r.finished == 0) collect_some(&r);
    return q.first;
}

// The time between tokens with `batch` requests, over a few tokens of each while all run. 0: they never all run
// together.
static double gap_once(load *l, uint32_t batch) {
    enum { TOKENS = 128 };
    uint32_t output = (uint32_t)fmin(l->longest - l->typical, 1024); // it is cancelled before
    request *requests = allocate(batch, sizeof *requests);
    run r = begin(l, requests);
    for (uint32_t i = 0; i < batch; i++) {
        requests[i] = (request){.seed = ++l->seed, .prompt = l->typical, .output = output};
        submit(&r, i);
    }
    while (r.finished < r.accepted) {
        collect_some(&r);
        double time = now() - r.start;
        if (r.from == INFINITY && r.started == batch && r.finished == 0) r.from = time, r.gaps = (histogram){0};
        bool stuck = r.from == INFINITY && r.gaps.total > TOKENS * batch;
        if (r.to == INFINITY && (r.window_tokens >= TOKENS * batch || r.finished > 0 || r.accepted < batch || stuck)) {
            r.to = time;
            merge(&l->idle, &r.gaps);
            check(bn_cancel(l->engine, BN_ANY, NULL), "cancel", NULL);
        }
    }
    free(requests);
    return r.window_tokens > 0 ? (r.to - r.from) * batch / (double)r.window_tokens : 0;
}

// Adds the median of a few runs, in about a second. Returns false if it cannot be measured.
static bool add_point(load *l, curve *c, uint32_t x, double (*once)(load *, uint32_t)) {
    enum { TIMES = 7 };
    double times[TIMES], begun = now();
    size_t count = 0;
    while (count < TIMES && (count == 0 || now() - begun < 1)) times[count++] = once(l, x);
    c->x[c->count] = x;
    c->y[c->count] = median(times, count);
    return c->y[c->count] > 0 && ++c->count < POINTS;
}

double at(const curve *c, double x) {
    int i = 0;
    if (c->count < 2 || x <= c->x[0]) return c->y[0];
    while (i + 2 < c->count && x > c->x[i + 1]) i++;
    return c->y[i] + (c->y[i + 1] - c->y[i]) * (x - c->x[i]) / (c->x[i + 1] - c->x[i]);
}

void measure_idle(load *l) {
    first_once(l, 1); // warm
    for (uint32_t prompt = 1; prompt <= 8 * l->typical && prompt < l->longest; prompt *= 4)
        if (!add_point(l, &l->first, prompt, first_once)) break;
    for (uint32_t batch = 1; batch <= l->max_batch; batch *= 2) {
        l->idle = (histogram){0};
        if (!add_point(l, &l->gap, batch, gap_once)) break;
        l->gap_p99.x[l->gap_p99.count] = batch;
        l->gap_p99.y[l->gap_p99.count++] = percentile(&l->idle, 99);
    }
    if (l->gap.count == 0) check(BN_ERR_MEMORY_LIMIT, "no request of the median lengths fits", NULL);
}

// Tokens per second with `at_once` requests at a time, after the first ones have ended. Refused requests do not
// count.
static double closed_loop(load *l, uint32_t at_once, double seconds, uint64_t seed) {
    run r = begin(l, draw_closed(l, POOL, seed));
    double end = INFINITY;
    for (size_t next = 0; now() - r.start < end && next < POOL; collect(&r, 100)) {
        while (r.accepted < r.finished + at_once && next < POOL)
            if (!submit(&r, next++)) break;
        if (r.from != INFINITY || (r.finished < at_once && now() - r.start < seconds)) continue;
        r.from = now() - r.start;
        end = r.from + seconds;
    }
    double rate = (double)r.window_tokens / (now() - r.start - r.from);
    check(bn_cancel(l->engine, BN_ANY, NULL), "cancel", NULL);
    while (r.finished < r.accepted) collect_some(&r);
    free(r.requests);
    return rate;
}

// The length of a run: a minimum, and a multiple of a request's time, since a shorter run sees too few
// prompts.
static double long_enough(const load *l, uint32_t at_once, double seconds, double requests) {
    double batch = fmin(at_once, l->max_batch);
    double each = batch * at(&l->first, l->typical) + l->options.output * at(&l->gap, batch);
    return fmax(seconds, requests * each);
}

// Finds the best number of concurrent requests. Each is tried twice, in turns, if that takes less than a minute, since
// machines drift. The result is the median of longer runs with the best one, since the best of many runs is too
// optimistic.
void measure_capacity(load *l) {
    enum { ROUNDS = 2, TIMES = 3 };
    double best = 0, outputs = 0, rates[TIMES], seconds = fmax(l->options.seconds / 16, 0.15), begun = now();
    uint64_t seed = (uint64_t)l->options.seed + 1;
    request *requests = draw_closed(l, POOL, seed);
    for (size_t i = 0; i < POOL; i++) outputs += requests[i].output;
    free(requests);
    l->capacity = l->options.capacity;
    l->capacity_tokens = l->capacity * outputs / POOL;
    if (l->capacity > 0) return;
    for (int round = 0; round < ROUNDS && now() - begun < 30; round++) {
        for (uint32_t at_once = 1; at_once <= 2 * l->max_batch; at_once *= 2) {
            double rate = closed_loop(l, at_once, long_enough(l, at_once, seconds, 1), seed);
            if (rate > best) best = rate, l->capacity_at = at_once;
        }
    }
    seconds = long_enough(l, l->capacity_at, 3 * seconds, 2);
    for (uint64_t i = 0; i < TIMES; i++) rates[i] = closed_loop(l, l->capacity_at, seconds, seed + i);
    l->capacity_tokens = median(rates, TIMES);
    l->capacity = l->capacity_tokens * POOL / outputs;
    if (!(l->capacity > 0)) check(BN_ERR_MEMORY_LIMIT, "no request ran", NULL);
}

// -- open loops: this thread submits and cancels, another polls -----------------------------------------

static void *poll_all(void *context) {
    run *r = context;
    double last = now();
    while (!r->closed || r->finished < r->accepted) {
        if (collect(r, 20) > 0 || !r->closed) last = now();
        if (now() - last > PATIENCE) break; // what is left is lost, or stuck
    }
    return NULL;
}

static bool wait_until(run *r, double time) {
    while (!r->closed || r->finished < r->accepted) {
        double left = r->start + time - now();
        if (left <= 0) return true;
        left = r->closed ? fmin(left, 0.05) : left;
        struct timespec nap = {.tv_sec = (time_t)left, .tv_nsec = (long)(fmod(left, 1) * 1e9)};
        nanosleep(&nap, NULL);
    }
    return false; // all have ended
}

static int by_cancel(const void *a, const void *b) {
    double x = (*(request *const *)a)->cancel_at, y = (*(request *const *)b)->cancel_at;
    return (x > y) - (x < y);
}

// Submits and cancels requests when they are due. Records the delay of each submit in `late`.
static void submit_all(run *r, size_t count, histogram *late) {
    request **cancels = allocate(count + 1, sizeof *cancels);
    size_t cancel_count = 0, next = 0, cancel = 0;
    for (size_t i = 0; i < count; i++)
        if (r->requests[i].cancel_at > 0) cancels[cancel_count++] = &r->requests[i];
    qsort(cancels, cancel_count, sizeof *cancels, by_cancel);
    while (next < count || cancel < cancel_count) {
        if (next == count) r->closed = true;
        if (cancel < cancel_count && (next == count || cancels[cancel]->cancel_at < r->requests[next].due)) {
            request *q = cancels[cancel++];
            if (!wait_until(r, q->cancel_at)) break;
            if (q->status == BN_OK) bn_cancel(r->load->engine, q->id, NULL); // BN_ERR_NOT_FOUND: it has ended
        } else {
            wait_until(r, r->requests[next].due);
            submit(r, next);
            record(late, now() - r->start - r->requests[next++].due);
        }
    }
    r->closed = true;
    free(cancels);
}

static bn_stats stats_of(bn_engine *engine) {
    bn_stats stats;
    check(bn_stats_init(&stats, sizeof stats), "stats", NULL);
    check(bn_engine_stats(engine, &stats, NULL), "stats", NULL);
    return stats;
}

static void times(double out[3], const histogram *h) {
    out[0] = percentile(h, 50), out[1] = percentile(h, 90), out[2] = percentile(h, 99);
}

double first_bound(const load *l, const request *q) {
    return l->options.ttft_ms > 0 ? l->options.ttft_ms * 1e-3 : 10 * at(&l->first, q->prompt);
}

static bool is_good(const load *l, const request *q, double batch) {
    const options *o = &l->options;
    double gap = o->gap_ms > 0 ? o->gap_ms * 1e-3 : 2 * at(&l->gap, batch);
    double mean = q->tokens > 1 ? (q->last - q->first) / (q->tokens - 1) : 0;
    return q->finish == BN_FINISH_LENGTH && q->first - q->due <= first_bound(l, q) && mean <= gap;
}

static void sum_up(level *v, const run *r, size_t count) {
    const load *l = r->load;
    histogram *first = allocate(1, sizeof *first);
    double seconds = r->to - r->from, good[CLASSES] = {0}, wanted[CLASSES] = {0}, last = r->to;
    for (size_t i = 0; i < count; i++) {
        const request *q = &r->requests[i];
        bool ok = is_good(l, q, v->batch), counts = q->ended >= r->from && q->ended < r->to;
        if (q->status != BN_OK) v->refused[-q->status < STATUSES ? -q->status : 0]++;
        else v->finish[q->finish < REASONS ? q->finish : 0]++;
        if (q->tokens > 0) record(first, q->first - q->due);
        if (q->due >= r->from) v->offered += 1 / seconds;
        if (counts && q->finish == BN_FINISH_LENGTH) v->completed += 1 / seconds;
        if (counts && ok) v->good += 1 / seconds, v->good_tokens += q->output / seconds;
        good[q->priority > BN_PRIORITY_DEFAULT] += ok;
        wanted[q->priority > BN_PRIORITY_DEFAULT] += q->finish != BN_FINISH_CANCELLED;
        last = fmax(last, q->ended);
    }
    v->good_share = 100 * (good[0] + good[1]) / fmax(wanted[0] + wanted[1], 1);
    for (int i = 0; i < CLASSES; i++) v->good_of[i] = 100 * good[i] / fmax(wanted[i], 1);
    v->tokens = (double)r->window_tokens / seconds;
    v->drain = last - r->to;
    times(v->first, first);
    times(v->gap, &r->gaps);
    free(first);
}

level run_level(load *l, int percent) {
    level v = {.percent = percent, .rate = l->capacity * percent / 100};
    size_t count = 0;
    histogram *late = allocate(1, sizeof *late);
    run *r = allocate(1, sizeof *r);
    request *requests = draw_open(l, v.rate, (uint64_t)l->options.seed + (uint64_t)percent, &count);
    *r = begin(l, requests);
    r->from = l->options.seconds / 10; // by then it is under way
    r->to = l->options.seconds;
    bn_stats before = stats_of(l->engine);
    pthread_t poller;
    if (pthread_create(&poller, NULL, poll_all, r) != 0) abort();
    submit_all(r, count, late);
    pthread_join(poller, NULL);
    bn_stats after = stats_of(l->engine);
    double steps = (double)(after.steps - before.steps);
    double rows = (double)(after.batched_requests - before.batched_requests);
    v.batch = steps > 0 ? rows / steps : 0;
    v.idle_p99 = at(&l->gap_p99, v.batch);
    double cached = (double)(after.cached_tokens - before.cached_tokens);
    v.cached = 100 * cached / fmax(cached + (double)(after.prompt_tokens - before.prompt_tokens), 1);
    v.preemptions = after.preemptions - before.preemptions;
    v.recomputed = after.recomputed_tokens - before.recomputed_tokens;
    v.late = percentile(late, 99);
    v.accepted = r->accepted;
    v.torn = r->torn;
    v.unfinished = (size_t)(after.queued + after.running);
    v.lost = v.accepted - r->finished - v.unfinished;
    sum_up(&v, r, count);
    free(requests);
    free(late);
    free(r);
    return v;
}
