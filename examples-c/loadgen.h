// Shared by the parts of the load generator: load_draw.c draws requests, load_run.c runs them, load_report.c writes
// the results, loadgen.c has the options. Times are in seconds where no unit is named.
#ifndef LOADGEN_H
#define LOADGEN_H

#include "bn_engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

enum { LEVELS = 16, POINTS = 16, STATUSES = 32, REASONS = 16, CLASSES = 2 };

typedef struct {
    const char *model, *json, *plot; // NULL: the embedded model; none; none
    double threads, max_batch, memory_mib, queue, target_itl_ms, max_wait_us; // 0: the engine's default
    double seed, seconds, capacity; // requests a second; 0: to be measured
    double burst;           // requests that arrive together
    double prompt, output, spread; // medians of the lengths in tokens, sigma of their logarithms
    double prefixes, prefix_tokens;
    double prefix_share, deadline_share, priority_share, cancel_share; // percent of the requests
    double deadline_ms;     // 0: ten times what a request of the median lengths takes in a full batch
    double ttft_ms, gap_ms; // 0: 10 times and twice the idle figures
    bool drop_late;         // BN_REQUEST_DROP_LATE with the bound of a good first token
    int levels[LEVELS], level_count; // percent of the capacity
} options;

// A request: the drawn fields, then the results. The submitter writes `id` and `status`, the poller the fields
// after them.
typedef struct {
    double due, cancel_at; // from the start of the run; never cancelled: 0
    uint64_t seed;         // of the prompt's tokens
    uint32_t prompt, output, timeout_ms, queue_timeout_ms;
    uint32_t prefix, priority; // `prefix`: 1 and up; 0: none
    bn_request id;
    bn_status status;
    int32_t finish;            // BN_FINISH_*
    uint32_t tokens;           // those that came
    double first, last, ended; // when its first and last token came, and its end
} request;

// Times from 1 us on, 64 buckets for each doubling: percentiles are exact to 1%.
typedef struct {
    uint64_t counts[2048], total;
} histogram;

typedef struct {
    double x[POINTS], y[POINTS];
    int count;
} curve;

// The engine and its measured times.
typedef struct {
    options options;
    bn_engine *engine;
    uint32_t vocabulary, longest, max_batch, typical; // `typical`: the median prompt
    uint32_t *prefixes; // `options.prefixes` of `options.prefix_tokens` ids
    uint32_t *ids;      // room for a prompt
    uint64_t seed;      // of the last idle request
    curve first, gap, gap_p99; // idle: to the first token by the prompt's length, between tokens by batch size
    histogram idle;     // between tokens, of the batch that is measured
    double capacity, capacity_tokens; // requests and tokens a second
    uint32_t capacity_at;             // requests at a time; 0: the capacity was given
} load;

// A run that began at `start`. Rates count tokens that came from `from` to `to`.
typedef struct {
    load *load;
    request *requests;
    double start, from, to;
    atomic_size_t accepted, finished;
    atomic_bool closed; // nothing more will be submitted
    size_t started, torn; // `torn`: ended twice, or the tokens are not those that the end says
    uint64_t window_tokens;
    histogram gaps;
} run;

typedef struct {
    int percent;
    double rate, offered, completed, tokens, good, good_tokens; // a second
    double good_share;                          // of what was offered and not cancelled, percent
    double good_of[CLASSES];                    // the same by priority: up to the default, and above
    double cached;                              // of the prompts' tokens, those that the cache had, percent
    double first[3], gap[3], late, drain, batch; // p50, p90, p99; p99; from the last arrival to the last end; mean
    double idle_p99;                            // between tokens of an idle engine with `batch` requests
    size_t finish[REASONS], refused[STATUSES], accepted, lost, unfinished, torn;
    uint64_t preemptions, recomputed; // times; tokens
} level;

void check(bn_status status, const char *what, const bn_error *error);
void *allocate(size_t count, size_t size);
double now(void);

// load_draw.c
double uniform(uint64_t *state); // above 0, up to 1
void record(histogram *h, double seconds);
void merge(histogram *into, const histogram *from);
double percentile(const histogram *h, double p);
void draw(const load *l, request *q, uint64_t *state);
request *draw_closed(const load *l, size_t count, uint64_t seed);
// Draws `rate` requests per second for `options.seconds`, with deadlines and cancels.
request *draw_open(const load *l, double rate, uint64_t seed, size_t *count);
void fill_prompt(const load *l, const request *q, uint32_t *ids);

// load_run.c
void measure_idle(load *l);
void measure_capacity(load *l);
double at(const curve *c, double x); // between and beyond the points on straight lines
double first_bound(const load *l, const request *q); // of a good first token, from when it is due
level run_level(load *l, int percent);

// load_report.c
void print_head(const load *l);
void print_level(const level *v);
void write_json(FILE *f, const load *l, const level *levels, int count);
void write_plot(FILE *f, const load *l, const level *levels, int count);

#endif
