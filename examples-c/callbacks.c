// Events by callback: a thread of the engine's calls `on_event`; the program waits for the last answer.
#include "bn_engine.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 4 };
static const char *const prompts[PROMPTS] = {"12+30=", "45+45=", "Once upon a time", "One day"};

// State that the callback shares with main. Only the delivery thread touches `text` until `left` is 0.
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int left;
    char text[PROMPTS][2048];
    size_t length[PROMPTS];
} shared;

static void on_event(const bn_event *event, void *context) {
    shared *s = context;
    uint64_t i = event->user_data;
    size_t room = sizeof s->text[i] - s->length[i];
    size_t n = event->text.length < room ? event->text.length : room;
    memcpy(s->text[i] + s->length[i], event->text.data, n); // the event's pointers live until we return
    s->length[i] += n;
    if (event->kind != BN_EVENT_COMPLETED) return;
    // The request is released by itself when this returns.
    pthread_mutex_lock(&s->lock);
    s->left--;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_log(uint32_t level, bn_string message, void *context) {
    (void)context;
    fprintf(stderr, "log %u: %.*s\n", level, (int)message.length, message.data);
}

static void check(bn_status status, const char *what, const bn_error *error) {
    if (status == BN_OK) return;
    fprintf(stderr, "%s: %s %s\n", what, bn_status_name(status), error->message);
    exit(1);
}

int main(void) {
    static shared s = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .left = PROMPTS};
    bn_error error = {0};
    bn_engine_config config;
    bn_engine *engine = NULL;
    check(bn_engine_config_init(&config, sizeof config), "config", &error);
    config.on_event = on_event;
    config.on_event_context = &s;
    config.log = on_log;
    config.log_level = BN_LOG_WARN;
    check(bn_engine_create(&config, &engine, &error), "create", &error);

    for (uint64_t i = 0; i < PROMPTS; i++) {
        bn_request_params params;
        bn_request request;
        check(bn_request_params_init(&params, sizeof params), "params", &error);
        params.prompt = BN_TEXT(prompts[i]);
        params.max_new_tokens = i < 2 ? 8 : 60;
        params.user_data = i;
        check(bn_submit(engine, &params, &request, &error), "submit", &error);
    }

    pthread_mutex_lock(&s.lock);
    while (s.left > 0) pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);

    for (int i = 0; i < PROMPTS; i++) printf("%s%.*s\n", prompts[i], (int)s.length[i], s.text[i]);
    check(bn_engine_free(engine), "destroy", &error); // no callback after this
    return 0;
}
