#include "load.h"

#include "adapters.h"
#include "pairs.h"
#include "trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

char load_tag;

static struct {
    pthread_t thread;
    atomic_bool cancelled;
    bool busy;
    int done;
    struct model *model; // its options are read
    // Owned by the thread until it is joined.
    bn_status status;
    bn_error error;
    bn_model *handle, *draft;
    bn_model_info info;
    char *name; // that the model says itself; NULL: it has one
    bn_engine *engine;
    struct adapter *adapters;
} load;

static int32_t on_progress(float fraction, bn_string what, void *context) {
    (void)fraction, (void)what, (void)context;
    return atomic_load(&load.cancelled);
}

static void on_log(uint32_t level, bn_string message, void *context) {
    (void)context, (void)level;
    fprintf(stderr, "bn-server: %.*s\n", (int)message.length, message.data);
}

static bn_status open_model(const struct options *o, const char *path, bool draft, bn_model **out) {
    bn_model_config config;
    bn_model_config_init(&config, sizeof config);
    if (*path != 0) config.path = BN_TEXT(path);
    config.memory_limit_bytes = o->memory_limit;
    config.threads = (uint32_t)o->threads;
    if (!draft) config.flags = (o->mtp ? BN_MODEL_MTP : 0) | (o->skip_zeros ? BN_MODEL_SKIP_ZEROS : 0);
    config.progress = on_progress;
    config.log = on_log;
    return bn_model_open(&config, out, &load.error);
}

// The name for clients and metrics.
static const char *name_model(const struct model *model) {
    const struct options *o = &model->options;
    bn_model_info_init(&load.info, sizeof load.info);
    bn_model_get_info(load.handle, &load.info, NULL);
    if (*model->name != 0) return model->name;
    bn_string own = load.info.name;
    if (own.length == 0) own = BN_TEXT(*o->model != 0 ? o->model : "bn-demo"), own.length = strlen(own.data);
    return load.name = must(strndup(own.data, own.length));
}

static bn_status make_engine(const struct options *o, const char *name) {
    bn_engine_config config;
    bn_engine_config_init(&config, sizeof config);
    config.model = load.handle;
    config.draft_model = load.draft;
    config.speculation = speculation_of(o->speculation);
    config.model_name = BN_TEXT(name);
    config.device = BN_TEXT(o->device);
    config.threads = (uint32_t)o->threads;
    config.max_batch_size = (uint32_t)o->max_batch;
    config.context_length = (uint32_t)o->context;
    config.queue_capacity = (uint32_t)o->queue;
    config.queue_token_capacity = o->queue_tokens;
    config.memory_limit_bytes = o->memory_limit;
    config.kv_cache_bytes = o->kv_cache;
    config.kv_type = kv_type_of(o->kv_type);
    config.snapshots = (uint32_t)o->snapshots;
    config.snapshot_interval = (uint32_t)o->snapshot_interval;
    config.adapter_bytes = o->adapter_bytes;
    config.target_itl_ms = (uint32_t)o->target_itl_ms;
    config.default_timeout_ms = (uint32_t)o->request_timeout_ms;
    config.idle_release_ms = o->idle_release_s * 1000;
    config.log = on_log;
    if (*o->otlp_endpoint != 0) config.on_span = trace_phase;
    return bn_engine_create(&config, &load.engine, &load.error);
}

static void tell(void) {
    uint64_t one = 1;
    if (write(load.done, &one, sizeof one) != sizeof one) perror("bn-server: eventfd");
}

static void let_go(void) {
    adapters_close(load.adapters);
    bn_engine_free(load.engine);
    bn_model_free(load.handle);
    load.adapters = NULL;
    load.engine = NULL;
    load.handle = NULL;
}

static void *bring(void *context) {
    const struct model *model = context;
    const struct options *o = &model->options;
    load.status = open_model(o, o->model, false, &load.handle);
    if (load.status == BN_OK && *o->draft_model != 0) load.status = open_model(o, o->draft_model, true, &load.draft);
    if (load.status == BN_OK) load.status = make_engine(o, name_model(model));
    bn_model_free(load.draft); // the engine has its own reference
    if (load.status == BN_OK) load.status = adapters_open(load.engine, o->adapters, &load.adapters, &load.error);
    if (load.status == BN_OK) load.status = pairs_loaded(load.handle, &load.error);
    if (load.status != BN_OK) let_go();
    tell();
    return NULL;
}

static void *send_away(void *context) {
    (void)context;
    let_go();
    tell();
    return NULL;
}

int load_start(void) {
    return load.done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

bool load_begin(struct model *model) {
    bool comes = model->stage == AWAY;
    load.model = model;
    load.status = BN_OK;
    load.error = (bn_error){0};
    load.draft = NULL;
    load.name = NULL;
    load.handle = model->handle;
    load.engine = model->engine;
    load.adapters = model->adapters;
    if (pthread_create(&load.thread, NULL, comes ? bring : send_away, model) != 0) return false;
    model->handle = NULL;
    model->engine = NULL;
    model->adapters = NULL;
    model->stage = comes ? COMING : GOING;
    return load.busy = true;
}

bool load_busy(void) {
    return load.busy;
}

void load_cancel(void) {
    atomic_store(&load.cancelled, true);
}

struct model *load_end(bn_error *error) {
    uint64_t count;
    struct model *model = load.model;
    if (read(load.done, &count, sizeof count) < 0) count = 0; // it is there
    pthread_join(load.thread, NULL);
    load.busy = false;
    *error = load.error;
    error->status = load.status;
    model->handle = load.handle;
    model->engine = load.engine;
    model->adapters = load.adapters;
    if (load.engine != NULL) model->info = load.info;
    if (load.name != NULL) free((char *)model->name), model->name = load.name;
    model->stage = load.engine != NULL ? HERE : AWAY;
    return model;
}
