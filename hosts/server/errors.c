// OpenAI's error objects, and the HTTP status codes of the engine's refusals.
#include "models.h"
#include "connection.h"
#include "options.h"
#include "server.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct meaning {
    bn_status status;
    unsigned http;
    const char *code;
};

static const struct meaning meanings[] = {
    {BN_ERR_INVALID_ARGUMENT, 400, "invalid_request_error"},
    {BN_ERR_UNSUPPORTED, 400, "unsupported"},
    {BN_ERR_TOO_LONG, 400, "context_length_exceeded"},
    {BN_ERR_QUEUE_FULL, 429, "rate_limit_exceeded"},
    {BN_ERR_MEMORY_LIMIT, 429, "rate_limit_exceeded"},
    {BN_ERR_OUT_OF_MEMORY, 503, "out_of_memory"},
    {BN_ERR_SHUTDOWN, 503, "shutting_down"},
    {BN_ERR_CANCELLED, 503, "shutting_down"},
    {BN_ERR_TIMED_OUT, 504, "timed_out"},
};

static const struct meaning *meaning(bn_status status) {
    static const struct meaning other = {BN_ERR_INTERNAL, 500, "internal_error"};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].status == status) return &meanings[i];
    return &other;
}

static void openai_error(struct buffer *out, unsigned status, const char *code, const char *message, size_t length) {
    const char *type = status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error";
    buffer_text(out, "{\"error\":{\"message\":");
    buffer_json(out, message, length);
    buffer_format(out, ",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}", type, code);
}

void write_error(struct exchange *ex, unsigned status, const char *code, const char *message, size_t length) {
    const struct style *style = ex->route != NULL ? ex->route->style : style_of(ex->client->http.path);
    (style != NULL && style->error != NULL ? style->error : openai_error)(&ex->out, status, code, message, length);
}

void fail(struct exchange *ex, unsigned status, const char *code, const char *format, ...) {
    char message[640];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    ex->status = status;
    ex->type = "application/json";
    ex->finished = true;
    buffer_clear(&ex->out);
    write_error(ex, status, code, message, strlen(message));
}

// If the engine is otherwise empty, a request that lacks memory does not fit at all.
static bool never_fits(const struct exchange *ex, const bn_error *error) {
    bn_stats stats;
    bn_stats_init(&stats, sizeof stats);
    return error->status == BN_ERR_MEMORY_LIMIT && ex->model != NULL && bn_engine_stats(ex->model->engine, &stats, NULL) == BN_OK &&
           stats.unreleased == 0;
}

void fail_with(struct exchange *ex, const bn_error *error) {
    const struct meaning *m = meaning(never_fits(ex, error) ? BN_ERR_TOO_LONG : error->status);
    // The engine's own message is for administrators who can raise its limits.
    static const char full[] = "the server has as many requests as it takes: try again later";
    char message[sizeof error->message + 64];
    options_name(message, sizeof message, error->message);
    fail(ex, m->http, m->code, "%s", error->status == BN_ERR_QUEUE_FULL ? full : message);
    if (m->http == 429 || m->http == 503) ex->retry_after_s = 1;
}

unsigned event_status(const bn_event *event, const char **code) {
    bool ended = event->finish_reason == BN_FINISH_FAILED ||
                 ((event->finish_reason == BN_FINISH_CANCELLED || event->finish_reason == BN_FINISH_TIMED_OUT) &&
                  event->generated_tokens == 0);
    if (event->kind != BN_EVENT_COMPLETED || !ended) return 0;
    *code = meaning(event->status)->code;
    return meaning(event->status)->http;
}
