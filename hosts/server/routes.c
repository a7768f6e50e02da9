// The routes. A route with fields reads its body before its function runs.
#include "fields.h"
#include "info.h"
#include "json.h"
#include "openai.h"
#include "tokens.h"

#include <string.h>

const struct route routes[] = {
    {"POST", "/v1/completions", jobs_submit, &openai_style, FIELDS_COMPLETION},
    {"POST", "/v1/chat/completions", jobs_submit, &openai_style, FIELDS_CHAT},
    {"POST", "/v1/responses", jobs_submit, &responses_style, FIELDS_RESPONSE},
    {"POST", "/v1/messages", jobs_submit, &messages_style, FIELDS_MESSAGE},
    {"POST", "/v1/messages/count_tokens", tokenize, &messages_style, FIELDS_COUNT},
    {"POST", "/v1/embeddings", jobs_submit, &embeddings_style, FIELDS_EMBEDDING},
    {"POST", "/v1/rerank", jobs_submit, &rerank_style, FIELDS_RERANK},
    {"POST", "/v2/rerank", jobs_submit, &rerank_style, FIELDS_RERANK},
    {"POST", "/rerank", jobs_submit, &rerank_style, FIELDS_RERANK},
    {"POST", "/v1/score", jobs_submit, &score_style, FIELDS_SCORE},
    {"POST", "/score", jobs_submit, &score_style, FIELDS_SCORE},
    {"POST", "/generate/batch", jobs_submit, &batch_style, FIELDS_BATCH},
    {"POST", "/tokenize", tokenize, NULL, FIELDS_TOKENIZE},
    {"GET", "/v1/models", models},
    {"GET", "/v1/models/", model, .begins = true},
    {"GET", "/metrics", metrics, .always = true},
    {"GET", "/stats", stats},
    {"GET", "/health", health, .open = true, .always = true},
    {"GET", "/", page, .open = true, .always = true},
    {NULL},
};

const struct route *route_find(const char *method, const char *path, bool *known_path) {
    for (const struct route *r = routes; r->method != NULL; r++) {
        if (r->begins ? strncmp(r->path, path, strlen(r->path)) != 0 : strcmp(r->path, path) != 0) continue;
        *known_path = true;
        if (strcmp(r->method, strcmp(method, "HEAD") == 0 ? "GET" : method) == 0) return r;
    }
    return NULL;
}

void route_run(struct exchange *ex) {
    const struct options *o = &ex->server->options;
    const struct json_limits limits = {(uint32_t)o->max_depth, (uint32_t)o->max_items};
    const char *error = NULL;
    if (ex->route->fields == 0) {
        ex->route->handle(ex);
        return;
    }
    buffer_add(&ex->body, "", 1); // the NUL that cJSON wants
    ex->root = json_object(ex->body.data, ex->body.end - 1, &limits, &error);
    if (ex->root == NULL) fail(ex, 400, "invalid_json", "%s", error);
    else if (fields_read(ex, ex->root)) ex->route->handle(ex);
    if (!ex->working) route_over(ex);
}

void route_over(struct exchange *ex) {
    ask_free(&ex->ask); // `n` and the like stay
    cJSON_Delete(ex->root);
    ex->root = NULL;
    buffer_free(&ex->body);
}
