// Engines made and destroyed many times, each with a request: no thread, descriptor or memory stays behind, but the
// handles, which are never used again.
#include "bn_engine.h"
#include "process.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { ALONE = 2000, SHARING = 200, HANDLES = 128, MOST_KIB = 65536 }; // HANDLES: bytes, of an engine and a model

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (condition) break;                                             \
        fprintf(stderr, "cycles.c:%d: %s does not hold\n", __LINE__, #condition); \
        exit(1);                                                          \
    } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Every other engine answers before it is destroyed; the rest are destroyed with a request under way.
static void once(bn_model *model, const char *path, bool wait) {
    bn_engine_config config;
    bn_request_params params;
    bn_engine *engine = NULL;
    bn_request request;
    CHECK(bn_engine_config_init(&config, sizeof config) == BN_OK);
    config.model = model;
    if (path != NULL) config.model_path = BN_TEXT(path);
    config.threads = 2;
    CHECK(bn_engine_create(&config, &engine, NULL) == BN_OK);
    CHECK(bn_request_params_init(&params, sizeof params) == BN_OK);
    params.prompt = BN_STRING("17+25=");
    params.max_new_tokens = 4;
    if (wait) {
        bn_event *answer = NULL;
        CHECK(bn_generate(engine, &params, &answer, NULL) == BN_OK);
        CHECK(answer->tokens_count > 0);
        bn_completion_free(answer);
    } else {
        CHECK(bn_submit(engine, &params, &request, NULL) == BN_OK);
    }
    CHECK(bn_engine_destroy(engine) == BN_OK);
}

static void cycles(const char *what, bn_model *model, const char *path, int count) {
    for (int i = 0; i < count / 10; i++) once(model, path, i % 2 == 0); // what is kept for later is there
    int threads = count_threads(), fds = count_fds();
    long kib = resident_kib(), heap = heap_bytes();
    double begin = now();
    for (int i = 0; i < count; i++) once(model, path, i % 2 == 0);
    double each = (now() - begin) * 1e3 / count;
    heap = heap_bytes() - heap;
    kib = resident_kib() - kib;
    printf("%d %s made and destroyed, %.2f ms each; heap %+ld bytes, resident %+ld KiB\n", count, what, each, heap, kib);
    CHECK(count_threads() == threads);
    CHECK(count_fds() == fds);
    CHECK(heap <= HANDLES * count);
    CHECK(kib <= MOST_KIB);
}

int main(void) {
    bn_model_config config;
    bn_model *model = NULL;
    cycles("engines with a model of their own", NULL, "builtin:echo", ALONE);
    CHECK(bn_model_config_init(&config, sizeof config) == BN_OK);
    CHECK(bn_model_open(&config, &model, NULL) == BN_OK);
    cycles("engines of one model", model, NULL, SHARING);
    CHECK(bn_model_free(model) == BN_OK);
    return 0;
}
