// Measures an engine under load: its capacity, its times when idle, and then percentages of the capacity with Poisson
// arrivals, log-normal lengths, shared prefixes, deadlines, priorities and cancels.
//   loadgen [--seconds N] [--levels 50,80,100,150] [--json FILE] [--plot FILE.svg] [options] [model]
// The model is a file, a folder, builtin:echo?us_per_token=N, or the one inside the library. `loadgen --help` lists the
// options. Goodput counts the requests whose first token came within 10 times, and whose tokens on average within
// twice, the idle time, or within --ttft-ms and --gap-ms. Exits with 1 if a request was lost.
#include "loadgen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error != NULL ? error->message : "");
    exit(1);
}

void *allocate(size_t count, size_t size) {
    void *bytes = calloc(count, size);
    if (bytes == NULL) abort();
    return bytes;
}

double now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0) abort();
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static options chosen = {
    .seed = 1, .seconds = 10, .burst = 1, .prompt = 64, .output = 32, .spread = 0.6,
    .prefixes = 4, .prefix_tokens = 64, .prefix_share = 30,
    .deadline_share = 5, .priority_share = 20, .cancel_share = 2,
    .levels = {50, 80, 100, 150}, .level_count = 4,
};

static const struct {
    const char *name;
    double *value, least, most;
    const char *meaning;
} numbers[] = {
    {"--seconds", &chosen.seconds, 0.1, 86400, "of arrivals at each level"},
    {"--capacity", &chosen.capacity, 0.001, 1e9, "requests/s that are 100%; otherwise it is measured"},
    {"--threads", &chosen.threads, 1, 256, "of the engine"},
    {"--max-batch", &chosen.max_batch, 1, 4096, "requests in a forward pass"},
    {"--memory-limit", &chosen.memory_mib, 1, 1e9, "of the engine, in MiB"},
    {"--queue", &chosen.queue, 1, 1048576, "most unreleased requests"},
    {"--target-itl", &chosen.target_itl_ms, 1, 60000, "ms between tokens that the engine aims at"},
    {"--max-wait-us", &chosen.max_wait_us, 1, 1e6, "that an idle engine waits for company"},
    {"--burst", &chosen.burst, 1, 1e4, "requests that arrive together"},
    {"--seed", &chosen.seed, 0, 1e15, "of everything drawn"},
    {"--prompt", &chosen.prompt, 1, 1e6, "median length in tokens"},
    {"--output", &chosen.output, 1, 1e6, "median length in tokens"},
    {"--spread", &chosen.spread, 0, 3, "sigma of the lengths' logarithms"},
    {"--prefixes", &chosen.prefixes, 0, 1e4, "different shared prefixes"},
    {"--prefix-tokens", &chosen.prefix_tokens, 1, 1e6, "length of each"},
    {"--prefix-share", &chosen.prefix_share, 0, 100, "% of the requests that begin with one"},
    {"--deadline-share", &chosen.deadline_share, 0, 100, "% of the requests with a timeout"},
    {"--deadline-ms", &chosen.deadline_ms, 1, 4e9, "the timeout; otherwise from the idle times"},
    {"--priority-share", &chosen.priority_share, 0, 100, "% of the requests with a random priority"},
    {"--cancel-share", &chosen.cancel_share, 0, 100, "% of the requests that are cancelled"},
    {"--ttft-ms", &chosen.ttft_ms, 0.001, 1e9, "a good request's first token; otherwise 10 times the idle time"},
    {"--gap-ms", &chosen.gap_ms, 0.001, 1e9, "between its tokens on average; otherwise twice the idle time"},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static void usage(const char *wrong) {
    fprintf(stderr, "%s%sloadgen [options] [model]\n", wrong != NULL ? wrong : "", wrong != NULL ? "?\n" : "");
    for (int i = 0; i < NUMBERS; i++) {
        fprintf(stderr, "  %-16s N  %s", numbers[i].name, numbers[i].meaning);
        fprintf(stderr, *numbers[i].value > 0 ? " (%g)\n" : "\n", *numbers[i].value);
    }
    fprintf(stderr, "  --levels N,N,...     percent of the capacity, up to %d of them (50,80,100,150)\n"
                    "  --drop-late          the engine gives up requests whose first token will not be good\n"
                    "  --json FILE, --plot FILE.svg\n", LEVELS);
    exit(wrong != NULL ? 2 : 0);
}

static void parse_levels(const char *text) {
    chosen.level_count = 0;
    for (const char *at = text; at != NULL;) {
        char *end = NULL;
        long percent = strtol(at, &end, 10);
        bool ends = *end == 0;
        if (end == at || percent < 1 || percent > 10000 || chosen.level_count == LEVELS || (!ends && *end != ','))
            usage(text);
        chosen.levels[chosen.level_count++] = (int)percent;
        at = ends ? NULL : end + 1;
    }
}

static bool parse_number(const char *name, const char *text) {
    for (int i = 0; i < NUMBERS; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        char *end = NULL;
        double value = strtod(text, &end);
        if (end == text || *end != 0 || !(value >= numbers[i].least && value <= numbers[i].most)) usage(text);
        *numbers[i].value = value;
        return true;
    }
    return false;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--help") == 0) usage(NULL);
        if (name[0] != '-') {
            chosen.model = name;
            continue;
        }
        if (strcmp(name, "--drop-late") == 0) {
            chosen.drop_late = true;
            continue;
        }
        if (strcmp(name, "--levels") == 0) parse_levels(value);
        else if (strcmp(name, "--json") == 0) chosen.json = value;
        else if (strcmp(name, "--plot") == 0) chosen.plot = value;
        else if (!parse_number(name, value)) usage(name);
        i++;
    }
}

static void start(load *l) {
    const options *o = &l->options;
    bn_error error = {0};
    bn_engine_config config;
    bn_model *model = NULL;
    bn_model_info info;
    check(bn_engine_config_init(&config, sizeof config), "config", NULL);
    if (o->model != NULL) config.model_path = BN_TEXT(o->model);
    if (o->threads > 0) config.threads = (uint32_t)o->threads;
    if (o->max_batch > 0) config.max_batch_size = (uint32_t)o->max_batch;
    if (o->queue > 0) config.queue_capacity = (uint32_t)o->queue;
    if (o->memory_mib > 0) config.memory_limit_bytes = (uint64_t)(o->memory_mib * (1 << 20));
    if (o->target_itl_ms > 0) config.target_itl_ms = (uint32_t)o->target_itl_ms;
    if (o->max_wait_us > 0) config.max_wait_us = (uint32_t)o->max_wait_us;
    check(bn_engine_create(&config, &l->engine, &error), "create", &error);
    check(bn_engine_model(l->engine, &model, &error), "model", &error);
    check(bn_model_info_init(&info, sizeof info), "info", NULL);
    check(bn_model_get_info(model, &info, &error), "info", &error);
    check(bn_model_free(model), "free", NULL);
    bn_stats stats;
    check(bn_stats_init(&stats, sizeof stats), "stats", NULL);
    check(bn_engine_stats(l->engine, &stats, NULL), "stats", NULL);
    l->vocabulary = (uint32_t)info.vocab_size;
    l->longest = (uint32_t)stats.context_length;
    l->max_batch = config.max_batch_size;
    l->typical = (uint32_t)fmin(o->prompt, l->longest / 2);
    l->ids = allocate(l->longest, sizeof *l->ids);
    l->seed = UINT64_C(1) << 63; // other prompts than the load's
    size_t shared = (size_t)o->prefixes * (size_t)o->prefix_tokens;
    l->prefixes = allocate(shared + 1, sizeof *l->prefixes);
    uint64_t state = (uint64_t)o->seed;
    for (size_t i = 0; i < shared; i++) l->prefixes[i] = (uint32_t)ceil(uniform(&state) * l->vocabulary) - 1;
}

static void write_file(const char *path, void (*write)(FILE *, const load *, const level *, int), const load *l,
                       const level *levels, int count) {
    if (path == NULL) return;
    FILE *f = fopen(path, "w");
    if (f != NULL) write(f, l, levels, count);
    if (f != NULL && fclose(f) == 0) return;
    perror(path);
    exit(1);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    load l = {.options = chosen};
    level levels[LEVELS];
    bool sound = true;
    int count = 0;
    start(&l);
    measure_idle(&l);
    measure_capacity(&l);
    print_head(&l);
    for (; count < chosen.level_count && sound; count++) { // after a loss, figures would mean nothing
        levels[count] = run_level(&l, chosen.levels[count]);
        print_level(&levels[count]);
        sound = levels[count].lost + levels[count].unfinished + levels[count].torn == 0;
    }
    write_file(chosen.json, write_json, &l, levels, count);
    write_file(chosen.plot, write_plot, &l, levels, count);
    check(bn_engine_free(l.engine), "destroy", NULL);
    free(l.prefixes);
    free(l.ids);
    if (!sound) fprintf(stderr, "requests were lost or torn, or never ended\n");
    return !sound;
}
