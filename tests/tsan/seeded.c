// A race that ThreadSanitizer must find, to prove that it works: the library, on two threads, writes to one struct of
// the host.
#include "bn_engine.h"

#include <pthread.h>

static bn_engine *engine;
static bn_stats shared;

static void *read_stats(void *context) {
    for (int i = 0; i < 1000; i++) bn_engine_stats(engine, &shared, NULL);
    return context;
}

int main(void) {
    pthread_t other;
    bn_engine_config config;
    bn_stats_init(&shared, sizeof shared);
    bn_engine_config_init(&config, sizeof config);
    config.model_path = BN_STRING("builtin:echo");
    if (bn_engine_create(&config, &engine, NULL) != BN_OK || pthread_create(&other, NULL, read_stats, NULL) != 0) return 1;
    read_stats(NULL);
    pthread_join(other, NULL);
    return bn_engine_free(engine) == BN_OK ? 0 : 1;
}
