#include "load.h"

#include "adapters.h"
#include "pairs.h"
#include "trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { NO_MODEL = 3, BAD_TEMPLATE = 2 };

char load_tag;

static struct {
    pthread_t thread;
    atomic_bool cancelled;
    bool joined;
    int done;
    // Owned by the thread until it is joined.
    bn_status status;
    bn_error error;
    bn_model *model, *draft;
    bn_model_info info;
    char *name;
    bn_engine *engine;
    struct adapter *adapters;
} load;

static int32_t on_progress(float fraction, bn_string what, void *context) {
    (void)fraction, (void)what, (void)context;
    return atomic_load(&load.cancelled);
}

static void on_log(int32_t level, bn_string message, void *context) {
    (void)context, (void)level;
    fprintf(stderr, "bn-server: %.*s\n", (int)message.length, message.data);
}

static bn_status open_model(const struct options *o, const char *path, uint64_t mtp, bn_model **out) {
    bn_model_config config;
    bn_model_config_init(&config, sizeof config);
    if (*path != 0) config.path = BN_TEXT(path);
    config.memory_limit_bytes = o->memory_limit;
    config.threads = (uint32_t)o->threads;
    config.mtp = (uint32_t)mtp;
    config.progress = on_progress;
    config.log = on_log;
    return bn_model_open(&config, out, &load.error);
}

// Sets the model's name for clients and metrics.
static void name_model(const struct options *o) {
    bn_model_info_init(&load.info, sizeof load.info);
    bn_model_get_info(load.model, &load.info, NULL);
    bn_string own = load.info.name;
    if (*o->model_name != 0) own = (bn_string){o->model_name, strlen(o->model_name)};
    else if (own.length == 0) own = BN_TEXT(*o->model != 0 ? o->model : "bn-demo"), own.length = strlen(own.data);
    load.name = must(strndup(own.data, own.length));
}

static bn_status make_engine(const struct options *o) {
    bn_engine_config config;
    bn_engine_config_init(&config, sizeof config);
    config.model = load.model;
    config.draft_model = load.draft;
    config.speculation = speculation_of(o->speculation);
    config.model_name = BN_TEXT(load.name);
    config.device = BN_TEXT(o->device);
    config.threads = (uint32_t)o->threads;
    config.max_batch_size = (uint32_t)o->max_batch;
    if (config.max_batch_tokens < config.max_batch_size) config.max_batch_tokens = config.max_batch_size;
    config.max_sequence_length = (uint32_t)o->max_sequence;
    config.queue_capacity = (uint32_t)o->queue;
    config.queue_token_capacity = o->queue_tokens;
    config.memory_limit_bytes = o->memory_limit;
    config.kv_cache_bytes = o->kv_cache;
    config.snapshots = (uint32_t)o->snapshots;
    config.snapshot_interval = (uint32_t)o->snapshot_interval;
    config.adapter_bytes = o->adapter_bytes;
    config.target_itl_ms = (uint32_t)o->target_itl_ms;
    config.default_timeout_ms = (uint32_t)o->request_timeout_ms;
    config.log = on_log;
    if (*o->otlp_endpoint != 0) config.on_span = trace_phase;
    return bn_engine_create(&config, &load.engine, &load.error);
}

static void *run(void *context) { // the options
    const struct options *o = context;
    load.status = open_model(o, o->model, o->mtp, &load.model);
    if (load.status == BN_OK && *o->draft_model != 0) load.status = open_model(o, o->draft_model, 0, &load.draft);
    if (load.status == BN_OK) {
        name_model(o);
        load.status = make_engine(o);
    }
    bn_model_free(load.draft); // the engine has its own reference
    if (load.status == BN_OK) load.status = adapters_open(load.engine, o->adapters, &load.adapters, &load.error);
    uint64_t one = 1;
    if (write(load.done, &one, sizeof one) != sizeof one) perror("bn-server: eventfd");
    return NULL;
}

int load_start(struct server *server) {
    load.done = eventfd(0, EFD_CLOEXEC);
    if (load.done < 0 || pthread_create(&load.thread, NULL, run, &server->options) != 0) return -1;
    return load.done;
}

void load_cancel(void) {
    atomic_store(&load.cancelled, true);
}

bool load_over(void) {
    return load.joined;
}

int load_finish(struct server *server) {
    pthread_join(load.thread, NULL);
    load.joined = true;
    server->model = load.model;
    server->engine = load.engine;
    if (load.status != BN_OK) {
        if (load.status != BN_ERR_CANCELLED) fprintf(stderr, "bn-server: %s\n", load.error.message);
        return NO_MODEL;
    }
    server->info = load.info;
    server->name = load.name;
    server->adapters = load.adapters;
    return pairs_loaded(server) ? 0 : BAD_TEMPLATE;
}
