// Engines made and destroyed many times, each with a request: no thread, descriptor or memory is left.
#include "program.h"

#include <stdbool.h>

// MOST_KIB: the C library may keep one engine's KV cache, 33 MiB, for the next one, in any of its arenas.
enum { ALONE = 2000, SHARING = 200, MOST_BYTES = 262144, MOST_KIB = 65536 };

// Every second engine answers before it is destroyed; the others are destroyed with a running request.
static void once(bn_model *model, const char *path, bool wait) {
    bn_engine_config config;
    bn_request_params params;
    bn_engine *engine = NULL;
    bn_request request;
    CHECK_OK(bn_engine_config_init(&config, sizeof config));
    config.model = model;
    if (path != NULL) config.model_path = BN_TEXT(path);
    config.threads = 2;
    CHECK_OK(bn_engine_create(&config, &engine, NULL));
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.prompt = BN_STRING("17+25=");
    params.max_new_tokens = 4;
    if (wait) {
        bn_event answer = {0};
        CHECK_OK(bn_generate(engine, &params, &answer, sizeof answer, NULL));
        CHECK(answer.tokens_count > 0);
        bn_events_free(&answer, sizeof answer, 1);
    } else {
        CHECK_OK(bn_submit(engine, &params, &request, NULL));
    }
    CHECK_OK(bn_engine_free(engine));
}

static void cycles(const char *what, bn_model *model, const char *path, int count) {
    for (int i = 0; i < count / 10; i++) once(model, path, i % 2 == 0); // memory that is kept for reuse is allocated
    int threads = count_threads(), handles = count_handles();
    long kib = resident_kib(), heap = heap_bytes();
    double begin = now();
    for (int i = 0; i < count; i++) once(model, path, i % 2 == 0);
    double each = (now() - begin) * 1e3 / count;
    heap = heap_bytes() - heap;
    kib = resident_kib() - kib;
    printf("%d %s made and destroyed, %.2f ms each; heap %+ld bytes, resident %+ld KiB\n", count, what, each, heap,
           kib);
    CHECK(count_threads() == threads);
    CHECK(count_handles() == handles);
    CHECK(heap <= MOST_BYTES);
    CHECK(kib <= MOST_KIB);
}

int main(void) {
    bn_model_config config;
    bn_model *model = NULL;
    cycles("engines with a model of their own", NULL, "builtin:echo", ALONE);
    CHECK_OK(bn_model_config_init(&config, sizeof config));
    CHECK_OK(bn_model_open(&config, &model, NULL));
    cycles("engines of one model", model, NULL, SHARING);
    CHECK_OK(bn_model_free(model));
    return 0;
}
