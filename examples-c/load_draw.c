// The requests of a load: lengths, arrivals, deadlines, cancels and prompts, all from one seed.
#include "loadgen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next(uint64_t *state) { // SplitMix64
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double uniform(uint64_t *state) {
    return ((double)(next(state) >> 11) + 1) * 0x1p-53;
}

static double normal(uint64_t *state) { // Box and Muller
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

static uint32_t length(double median, double spread, double most, uint64_t *state) {
    double tokens = round(median * exp(spread * normal(state)));
    return (uint32_t)fmin(fmax(tokens, 1), fmin(most, 8 * median));
}

static bool chance(double percent, uint64_t *state) {
    return uniform(state) * 100 <= percent;
}

void record(histogram *h, double seconds) {
    enum { LAST = sizeof h->counts / sizeof *h->counts - 1 };
    double bucket = 64 * log2(fmax(seconds * 1e6, 1));
    h->counts[(size_t)fmin(bucket, LAST)]++;
    h->total++;
}

void merge(histogram *into, const histogram *from) {
    for (size_t i = 0; i < sizeof from->counts / sizeof *from->counts; i++) into->counts[i] += from->counts[i];
    into->total += from->total;
}

double percentile(const histogram *h, double p) {
    uint64_t below = 0;
    double wanted = p / 100 * (double)h->total;
    for (size_t i = 0; i < sizeof h->counts / sizeof *h->counts; i++) {
        below += h->counts[i];
        if (below > 0 && (double)below >= wanted) return exp2(((double)i + 0.5) / 64) * 1e-6;
    }
    return 0;
}

void draw(const load *l, request *q, uint64_t *state) {
    const options *o = &l->options;
    *q = (request){.seed = next(state)};
    q->output = length(o->output, o->spread, l->longest / 2, state);
    q->prompt = length(o->prompt, o->spread, l->longest / 2, state);
    if (o->prefixes > 0 && chance(o->prefix_share, state)) {
        q->prefix = 1 + (uint32_t)(next(state) % (uint64_t)o->prefixes);
        q->prompt = (uint32_t)fmin(q->prompt + o->prefix_tokens, l->longest - q->output);
    }
    q->priority = BN_PRIORITY_DEFAULT;
    if (chance(o->priority_share, state)) q->priority = next(state) % (BN_PRIORITY_MAX + 1);
}

request *draw_closed(const load *l, size_t count, uint64_t seed) {
    request *requests = allocate(count, sizeof *requests);
    for (size_t i = 0; i < count; i++) draw(l, &requests[i], &seed);
    return requests;
}

request *draw_open(const load *l, double rate, uint64_t seed, size_t *count) {
    const options *o = &l->options;
    size_t room = 1024;
    request *requests = allocate(room, sizeof *requests);
    double typical = at(&l->first, l->typical) + o->output * at(&l->gap, l->max_batch);
    double deadline = o->deadline_ms > 0 ? o->deadline_ms : fmax(1e4 * typical, 1);
    double due = 0;
    for (*count = 0;; ++*count) {
        if (*count % (size_t)o->burst == 0) due -= log(uniform(&seed)) * o->burst / rate;
        if (due >= o->seconds) return requests;
        if (*count == room) {
            requests = realloc(requests, 2 * room * sizeof *requests);
            if (requests == NULL) abort();
            room *= 2;
        }
        request *q = &requests[*count];
        draw(l, q, &seed);
        q->due = due;
        if (chance(o->deadline_share, &seed)) q->timeout_ms = (uint32_t)fmin(deadline, 4e9);
        if (o->drop_late) q->queue_timeout_ms = (uint32_t)fmin(fmax(first_bound(l, q) * 1e3, 1), 4e9);
        if (chance(o->cancel_share, &seed)) q->cancel_at = due + uniform(&seed) * 2 * typical;
    }
}

void fill_prompt(const load *l, const request *q, uint32_t *ids) {
    uint64_t state = q->seed;
    uint32_t shared = 0;
    if (q->prefix > 0) {
        uint32_t tokens = (uint32_t)l->options.prefix_tokens;
        shared = q->prompt < tokens ? q->prompt : tokens;
        memcpy(ids, l->prefixes + (size_t)(q->prefix - 1) * tokens, shared * sizeof *ids);
    }
    for (uint32_t i = shared; i < q->prompt; i++) ids[i] = (uint32_t)(next(&state) % l->vocabulary);
}
