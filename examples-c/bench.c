// How fast: prefill and decode by batch size, one after another against side by side against batched, and
// (--echo) what the engine itself costs per token, without a model.
//   bench [--json] [--echo | --load] [--threads N] [--prompt N] [--new N] [--repeat N] [--batches N,N,...]
//         [--ids] [--together] [--step-tokens N] [--instructions NAME] [--device NAME] [--kv NAME]
//         [--weights NAME] [--embed] [model.gguf]
// --load: how long loading takes, and until the first token, and the memory at its peak, after it and after a request.
// --repeat: medians of this number of runs. --batches: only these sizes. --ids: prompts are ids from all over
// the vocabulary, which needs no tokenizer. --together: all prompts of a batch go into its first step, as far as they
// fit, instead of the first alone and the others after it; then prefill and decode come after one another.
// --step-tokens: a step's tokens at most, instead of the engine's default.
// --instructions: scalar, avx2, avx-vnni, avx512-vnni, avx512-vbmi, amx, neon or neon-i8mm, instead of the best one.
// --device: cuda:0 and so on instead of the CPU.
// --kv: f16, f32, int8 or int4: what keys and values are stored in.
// --embed: prompts are embedded instead, by batch size: prompt tokens a second until the last embedding.
// --weights: keep, q8_0, q4_0, ternary or int8: what attention and feed-forward weights become while loading.
#include "bn_engine.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST = 256, COMPARED = 16, CALLS = 1000000, BATCHES = 16, REPEATS = 99 };
static uint32_t batches[BATCHES] = {1, 2, 4, 8, 16, 32, 64};
static int batch_count = 7;
#define STORY                                                                                          \
    "Once upon a time there was a little girl. She had a red ball and a kind dog. One day they went "  \
    "to the park to play in the sun. 12+30=42. Ada 42, Tom 17, Mia 88. Tom? 17. "

static const char *model; // NULL: the one inside the library
static const char *device = "cpu";
static int32_t instructions = BN_INSTRUCTIONS_AUTO, kv_type = BN_KV_TYPE_F16, weight_type = BN_WEIGHTS_KEEP;
static uint32_t threads, prompt_tokens = 64, new_tokens = 64, repeats = 1, step_tokens;
static bool json, spread_ids, together, embed, skip_zeros;

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error != NULL ? error->message : "");
    exit(1);
}

static double now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0) exit(1);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double cpu_seconds(void) {
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0) exit(1);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static bn_model *requantized(void) {
    bn_error error = {0};
    bn_model_config config;
    bn_model *made = NULL;
    check(bn_model_config_init(&config, sizeof config), "config", NULL);
    if (model != NULL) config.path = BN_TEXT(model);
    config.weight_type = weight_type;
    if (skip_zeros) config.flags = BN_MODEL_SKIP_ZEROS;
    check(bn_model_open(&config, &made, &error), "open", &error);
    return made;
}

static bn_engine *start(uint32_t batch, uint32_t engine_threads) {
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", NULL);
    if (weight_type != BN_WEIGHTS_KEEP || skip_zeros) config.model = requantized();
    else if (model != NULL) config.model_path = BN_TEXT(model);
    config.threads = engine_threads;
    config.instructions = instructions;
    config.device = BN_TEXT(device);
    config.kv_type = kv_type;
    config.max_batch_size = batch;
    if (step_tokens > 0) config.max_batch_tokens = step_tokens > batch ? step_tokens : batch;
    config.context_length = embed ? prompt_tokens : prompt_tokens + new_tokens + 1;
    if (together) {
        config.max_wait_us = 1000000; // it starts as soon as `batch` requests are there
        config.max_step_ms = 60000;
    }
    check(bn_engine_create(&config, &engine, &error), "create", &error);
    check(bn_model_free(config.model), "free", NULL);
    return engine;
}

static bn_model_info info_of(const bn_model *model) {
    bn_model_info info;
    check(bn_model_info_init(&info, sizeof info), "info", NULL);
    check(bn_model_get_info(model, &info, NULL), "info", NULL);
    return info;
}

// Makes `prompt_tokens` ids, different for each `i`.
static void fill_prompt(bn_engine *engine, uint32_t i, uint32_t *ids) {
    bn_model *model = NULL;
    check(bn_engine_model(engine, &model, NULL), "model", NULL);
    if (spread_ids) {
        uint64_t vocabulary = info_of(model).vocab_size;
        for (uint32_t k = 0; k < prompt_tokens; k++)
            ids[k] = (uint32_t)((1 + i * UINT64_C(104729) + k * UINT64_C(7919)) % vocabulary);
    } else {
        uint32_t all[sizeof STORY];
        size_t count = 0;
        check(bn_model_tokenize(model, BN_STRING(STORY), 0, all, sizeof all / sizeof *all, &count, NULL), "tokenize", NULL);
        for (uint32_t k = 0; k < prompt_tokens; k++) ids[k] = all[(k + i) % count];
    }
    check(bn_model_free(model), "free", NULL);
}

static void submit(bn_engine *engine, uint32_t i, uint64_t user_data) {
    bn_error error = {0};
    uint32_t *ids = calloc(prompt_tokens, sizeof *ids);
    bn_request_params params;
    bn_request request;
    if (ids == NULL) exit(1);
    fill_prompt(engine, i, ids);
    check(bn_request_params_init(&params, sizeof params), "params", NULL);
    params.prompt_tokens = ids;
    params.prompt_tokens_count = prompt_tokens;
    if (embed) {
        params.task = BN_TASK_EMBED;
    } else {
        params.max_new_tokens = new_tokens;
        params.flags = BN_REQUEST_IGNORE_EOS | BN_REQUEST_NO_CACHE;
    }
    params.user_data = user_data;
    check(bn_submit(engine, &params, &request, &error), "submit", &error);
    free(ids);
}

// The times of a set of requests, as the host sees them.
typedef struct {
    double seconds, first_seconds; // until the last token; until the last request's first token
    double ttft_ms, tbt_ms;        // per request: to the first token, mean; between tokens, mean
    uint64_t tokens, tokens_first, events; // `tokens_first`: those that had come by `first_seconds`
    double cpu; // of the whole process, in seconds
} measured;

static void take(const bn_event *e, double begin, bool *started, measured *m) {
    m->events++;
    m->tokens += e->tokens_count;
    if (e->tokens_count > 0 && !started[e->user_data]) {
        started[e->user_data] = true;
        m->first_seconds = now() - begin; // the latest stays
        m->tokens_first = m->tokens;
    }
    if (e->kind != BN_EVENT_COMPLETED) return;
    if (e->finish_reason != (embed ? BN_FINISH_EMBEDDING : BN_FINISH_LENGTH)) {
        fprintf(stderr, "a request ended as %s %.*s\n", bn_finish_reason_name(e->finish_reason),
                (int)e->message.length, e->message.data);
        exit(1);
    }
    m->ttft_ms += (double)e->first_token_ns * 1e-6;
    if (e->generated_tokens > 1)
        m->tbt_ms += (double)e->decode_ns * 1e-6 / (double)(e->generated_tokens - 1);
}

// Runs `n` requests over `engines` engines until all have ended.
static measured run(bn_engine **engines, uint32_t engine_count, uint32_t n) {
    measured m = {0};
    bool started[MOST] = {false};
    double begin = now(), cpu = cpu_seconds();
    for (uint32_t i = 0; i < n; i++) submit(engines[i % engine_count], i, i);
    for (uint32_t left = n; left > 0;) {
        for (uint32_t k = 0; k < engine_count; k++) {
            bn_event events[MOST];
            size_t count = 0;
            uint32_t wait = engine_count > 1 ? 1 : BN_NO_LIMIT;
            check(bn_poll(engines[k], BN_ANY, events, sizeof *events, MOST, wait, &count, NULL), "poll", NULL);
            for (size_t i = 0; i < count; i++) {
                take(&events[i], begin, started, &m);
                if (events[i].kind != BN_EVENT_COMPLETED) continue;
                check(bn_request_free(engines[k], events[i].request, NULL), "release", NULL);
                left--;
            }
            check(bn_events_free(events, sizeof *events, count), "events", NULL);
        }
    }
    m.seconds = now() - begin;
    m.cpu = cpu_seconds() - cpu;
    m.ttft_ms /= n;
    m.tbt_ms /= n;
    return m;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, repeats, sizeof *values, ascending);
    return values[repeats / 2];
}

// Medians of `repeats` runs of `b` requests: prefill and decode in tokens a second, ms to the first token and between.
typedef struct {
    double prefill, decode, first_ms, between_ms;
} speed;

static speed measure(uint32_t b) {
    double prefill[REPEATS], decode[REPEATS], first[REPEATS], between[REPEATS];
    bn_engine *engine = start(b, threads);
    run(&engine, 1, together ? b : b > 4 ? 4 : b); // warm
    for (uint32_t i = 0; i < repeats; i++) {
        measured m = run(&engine, 1, b);
        if (embed) m.first_seconds = m.seconds;
        prefill[i] = b * (double)prompt_tokens / m.first_seconds;
        decode[i] = embed ? 0 : (double)(m.tokens - m.tokens_first) / (m.seconds - m.first_seconds);
        first[i] = m.ttft_ms;
        between[i] = m.tbt_ms;
    }
    check(bn_engine_free(engine), "destroy", NULL);
    return (speed){median(prefill), median(decode), median(first), median(between)};
}

static void embeddings(void) {
    if (json) printf("  \"embed\": [\n");
    else printf("texts of %u tokens\n\n%5s %12s\n", prompt_tokens, "batch", "tokens/s");
    for (int i = 0; i < batch_count; i++) {
        double rate = measure(batches[i]).prefill;
        if (json)
            printf("    {\"batch\": %u, \"tokens_per_s\": %.1f}%s\n", batches[i], rate, i + 1 < batch_count ? "," : "");
        else printf("%5u %12.0f\n", batches[i], rate);
    }
    if (json) printf("  ]\n");
}

static void by_batch_size(bool last) {
    double alone = 0;
    if (json) printf("  \"batches\": [\n");
    else
        printf("%u prompt tokens, %u new ones each\n\n%5s %12s %12s %10s %10s %9s %11s\n", prompt_tokens, new_tokens,
               "batch", "prefill t/s", "decode t/s", "first ms", "between ms", "speed-up", "efficiency");
    for (int i = 0; i < batch_count; i++) {
        uint32_t b = batches[i];
        speed s = measure(b);
        // The rate of one request alone; if none was measured, the smallest batch's rate per request.
        if (i == 0) alone = s.decode / b;
        if (json)
            printf("    {\"batch\": %u, \"prefill_tokens_per_s\": %.1f, \"decode_tokens_per_s\": %.1f, "
                   "\"first_token_ms\": %.3f, \"between_tokens_ms\": %.3f, \"speed_up\": %.3f, \"efficiency\": %.3f}%s\n",
                   b, s.prefill, s.decode, s.first_ms, s.between_ms, s.decode / alone, s.decode / alone / b,
                   i + 1 < batch_count ? "," : "");
        else
            printf("%5u %12.0f %12.0f %10.1f %10.2f %8.2fx %10.0f%%\n", b, s.prefill, s.decode, s.first_ms, s.between_ms,
                   s.decode / alone, 100 * s.decode / alone / b);
    }
    if (json) printf("  ]%s\n", last ? "" : ",");
}

static void print_way(const char *name, const measured *m, double base, bool last) {
    if (json)
        printf("    {\"way\": \"%s\", \"seconds\": %.3f, \"tokens_per_s\": %.1f, \"first_token_ms\": %.3f, "
               "\"speed_up\": %.3f}%s\n", name, m->seconds, (double)m->tokens / m->seconds, m->ttft_ms,
               base / m->seconds, last ? "" : ",");
    else
        printf("%-24s %9.2f %12.0f %10.1f %8.2fx\n", name, m->seconds, (double)m->tokens / m->seconds, m->ttft_ms,
               base / m->seconds);
}

// Runs the same prompts in three ways: one after another; each in its own engine, so that passes interleave;
// in one batch.
static void three_ways(void) {
    if (json) printf("  \"ways\": [\n");
    else
        printf("\n%d prompts %28s %12s %10s %9s\n", COMPARED, "seconds", "tokens/s", "first ms", "speed-up");
    bn_engine *engines[COMPARED];
    engines[0] = start(1, threads);
    measured m = run(engines, 1, COMPARED);
    double base = m.seconds;
    print_way("one after another", &m, base, false);
    check(bn_engine_free(engines[0]), "destroy", NULL);
    for (int i = 0; i < COMPARED; i++) engines[i] = start(1, 1);
    m = run(engines, COMPARED, COMPARED);
    print_way("interleaved", &m, base, false);
    for (int i = 0; i < COMPARED; i++) check(bn_engine_free(engines[i]), "destroy", NULL);
    engines[0] = start(COMPARED, threads);
    m = run(engines, 1, COMPARED);
    print_way("batched", &m, base, true);
    check(bn_engine_free(engines[0]), "destroy", NULL);
    if (json) printf("  ]\n");
}

// builtin:echo spends no time on a model, so this measures submit, schedule, sample, deliver and poll.
static void engine_cost(void) {
    model = "builtin:echo";
    prompt_tokens = 16;
    new_tokens = 256;
    bn_engine *engine = start(MOST, 1);
    run(&engine, 1, MOST); // warm
    measured m = run(&engine, 1, MOST);
    double begin = now();
    int fds = 0;
    for (int i = 0; i < CALLS; i++) fds += bn_engine_wait_fd(engine, NULL) >= 0;
    double call = (now() - begin) * 1e9 / CALLS;
    if (fds != CALLS) exit(1);
    check(bn_engine_free(engine), "destroy", NULL);
    double wall = m.seconds * 1e6 / (double)m.tokens, cpu = m.cpu * 1e6 / (double)m.tokens;
    if (json)
        printf("  \"echo\": {\"requests\": %d, \"tokens\": %llu, \"events\": %llu, \"wall_us_per_token\": %.3f, "
               "\"cpu_us_per_token\": %.3f, \"ns_per_call\": %.1f}\n", MOST, (unsigned long long)m.tokens,
               (unsigned long long)m.events, wall, cpu, call);
    else
        printf("\nthe engine's own cost, submit to poll, %d requests on builtin:echo: %.2f us a token "
               "(%.2f us of processor time; %llu tokens in %llu events); the smallest call: %.0f ns\n", MOST, wall, cpu,
               (unsigned long long)m.tokens, (unsigned long long)m.events, call);
}

static double peak_mib(void) {
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0) exit(1);
    return (double)used.ru_maxrss / 1024;
}

static void load(void) {
    bn_stats stats;
    bn_model *loaded_model = NULL;
    double begin = now();
    bn_engine *engine = start(1, threads);
    double seconds = now() - begin, loaded = peak_mib();
    check(bn_engine_model(engine, &loaded_model, NULL), "model", NULL);
    check(bn_stats_init(&stats, sizeof stats), "stats", NULL);
    check(bn_engine_stats(engine, &stats, NULL), "stats", NULL);
    double first = seconds + run(&engine, 1, 1).first_seconds;
    double mib = 1 << 20, weights = (double)info_of(loaded_model).weight_bytes / mib, counted = (double)stats.memory_used_bytes / mib;
    check(bn_model_free(loaded_model), "free", NULL);
    check(bn_engine_free(engine), "destroy", NULL);
    if (json)
        printf("  \"load\": {\"seconds\": %.3f, \"first_token_seconds\": %.3f, \"weights_mib\": %.1f, \"counted_mib\": %.1f, "
               "\"peak_mib\": %.1f, \"peak_after_request_mib\": %.1f}\n", seconds, first, weights, counted, loaded, peak_mib());
    else
        printf("loaded in %.3f s, first token after %.3f s; weights %.1f MiB, counted in all %.1f MiB; resident at most "
               "%.1f MiB, after a request %.1f MiB\n", seconds, first, weights, counted, loaded, peak_mib());
}

static uint32_t number(const char *text) {
    char *end = NULL;
    unsigned long value = text != NULL ? strtoul(text, &end, 10) : 0;
    if (end == NULL || *end != 0 || value > 65536) {
        fprintf(stderr, "expected a number up to 65536\n");
        exit(2);
    }
    return (uint32_t)value;
}

static void batch_list(const char *text) {
    batch_count = 0;
    while (text != NULL) {
        char *end = NULL;
        unsigned long value = strtoul(text, &end, 10);
        if (end == text || value < 1 || value > MOST || batch_count == BATCHES || (*end != 0 && *end != ',')) {
            batch_count = 0;
            break;
        }
        batches[batch_count++] = (uint32_t)value;
        text = *end == ',' ? end + 1 : NULL;
    }
    if (batch_count > 0) return;
    fprintf(stderr, "expected up to %d batch sizes from 1 to %d, as in 1,8,16\n", BATCHES, MOST);
    exit(2);
}

// The index of `name` among `count` names. Ends the process for an unknown name.
static int32_t named(const char *name, const char *const *names, size_t count, const char *expected) {
    for (size_t i = 0; name != NULL && i < count; i++) {
        if (strcmp(name, names[i]) == 0) return (int32_t)i;
    }
    fprintf(stderr, "expected %s\n", expected);
    exit(2);
}

static void instruction_set(const char *name) {
    static const char *const names[] = {"auto", "scalar", "avx2", "avx-vnni",
                                        "avx512-vnni", "neon", "amx", "avx512-vbmi", "neon-i8mm"};
    // BN_INSTRUCTIONS_*, in their order
    instructions = named(name, names, sizeof names / sizeof *names,
                         "instructions auto, scalar, avx2, avx-vnni, avx512-vnni, avx512-vbmi, amx, neon or neon-i8mm");
}

static void weights_named(const char *name) {
    static const char *const names[] = {"keep", "q8_0", "q4_0", "ternary", "int8"};
    // BN_WEIGHTS_*, in their order
    weight_type = named(name, names, sizeof names / sizeof *names,
                        "a type of weights: keep, q8_0, q4_0, ternary or int8");
}

static void kv_named(const char *name) {
    static const char *const names[] = {"f16", "f32", "int8", "int4"};
    // BN_KV_*, in their order
    kv_type = named(name, names, sizeof names / sizeof *names, "a KV type: f16, f32, int8 or int4");
}

static int usage(void) {
    fprintf(stderr, "bench [--json] [--echo | --load] [--threads N] [--prompt N] [--new N] [--repeat N] "
                    "[--batches N,N,...] [--ids] [--together] [--instructions NAME] [--kv NAME] "
                    "[--weights NAME] [--skip-zeros] [--embed] [model]\n");
    return 2;
}

int main(int argc, char **argv) {
    bool echo = false, loads = false, only_batches = false;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0) json = true;
        else if (strcmp(argv[i], "--echo") == 0) echo = true;
        else if (strcmp(argv[i], "--load") == 0) loads = true;
        else if (strcmp(argv[i], "--ids") == 0) spread_ids = true;
        else if (strcmp(argv[i], "--together") == 0) together = true;
        else if (strcmp(argv[i], "--embed") == 0) embed = true;
        else if (strcmp(argv[i], "--skip-zeros") == 0) skip_zeros = true;
        else if (strcmp(argv[i], "--threads") == 0) threads = number(next), i++;
        else if (strcmp(argv[i], "--prompt") == 0) prompt_tokens = number(next), i++;
        else if (strcmp(argv[i], "--new") == 0) new_tokens = number(next), i++;
        else if (strcmp(argv[i], "--repeat") == 0) repeats = number(next), i++;
        else if (strcmp(argv[i], "--batches") == 0) batch_list(next), only_batches = true, i++;
        else if (strcmp(argv[i], "--step-tokens") == 0) step_tokens = number(next), i++;
        else if (strcmp(argv[i], "--instructions") == 0) instruction_set(next), i++;
        else if (strcmp(argv[i], "--device") == 0) device = next, i++;
        else if (strcmp(argv[i], "--kv") == 0) kv_named(next), i++;
        else if (strcmp(argv[i], "--weights") == 0) weights_named(next), i++;
        else if (argv[i][0] == '-') return usage();
        else model = argv[i];
    }
    if (prompt_tokens < 1 || new_tokens < 2) return fprintf(stderr, "--prompt at least 1, --new at least 2\n"), 2;
    if (repeats < 1 || repeats > REPEATS) return fprintf(stderr, "--repeat from 1 to %d\n", REPEATS), 2;
    if (json) printf("{\n");
    if (echo) {
        engine_cost();
    } else if (loads) {
        load();
    } else if (embed) {
        embeddings();
    } else {
        by_batch_size(only_batches);
        if (!only_batches) three_ways();
    }
    if (json) printf("}\n");
    return 0;
}
