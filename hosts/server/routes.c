// The routes. A route with fields reads its body before its function runs.
#include "models.h"
#include "fields.h"
#include "info.h"
#include "json.h"
#include "ollama.h"
#include "openai.h"
#include "tokens.h"
#include "work.h"

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
    {"POST", "/detokenize", detokenize, NULL, FIELDS_DETOKENIZE},
    {"GET", "/v1/responses/", response_get, .begins = true},
    {"DELETE", "/v1/responses/", response_delete, .begins = true},
    {"POST", "/api/chat", jobs_submit, &ollama_chat_style, FIELDS_OLLAMA_CHAT},
    {"POST", "/api/generate", jobs_submit, &ollama_generate_style, FIELDS_OLLAMA_GENERATE},
    {"POST", "/api/embed", jobs_submit, &ollama_embed_style, FIELDS_OLLAMA_EMBED},
    {"POST", "/api/embeddings", jobs_submit, &ollama_embeddings_style, FIELDS_OLLAMA_VECTOR},
    {"POST", "/api/show", ollama_show, &ollama_info_style, FIELDS_OLLAMA_SHOW, .away = true},
    {"GET", "/api/tags", ollama_tags, &ollama_info_style},
    {"GET", "/api/ps", ollama_ps, &ollama_info_style},
    {"GET", "/api/version", version, &ollama_info_style, .open = true, .always = true},
    {"GET", "/v1/models", models},
    {"GET", "/v1/models/", model, .begins = true},
    {"GET", "/metrics", metrics, .always = true},
    {"GET", "/stats", stats},
    {"GET", "/version", version, .open = true, .always = true},
    {"GET", "/props", props},
    {"GET", "/health", health, .open = true, .always = true},
    {"GET", "/v1/health", health, .open = true, .always = true},
    {"GET", "/ping", health, .open = true, .always = true},
    {"GET", "/", page, .open = true, .always = true},
    {NULL},
};

const struct style *style_of(const char *path) {
    return path != NULL && strncmp(path, "/api/", strlen("/api/")) == 0 ? &ollama_info_style : NULL;
}

const struct route *route_find(const char *method, const char *path, const char **allow) {
    for (const struct route *r = routes; r->method != NULL; r++) {
        if (r->begins ? strncmp(r->path, path, strlen(r->path)) != 0 : strcmp(r->path, path) != 0) continue;
        *allow = strcmp(r->method, "GET") == 0 ? "GET, HEAD" : r->method;
        if (strcmp(r->method, strcmp(method, "HEAD") == 0 ? "GET" : method) == 0) return r;
    }
    return NULL;
}

// Memory for a body's values: a tree node and the minimum for a text and an array slot for each, plus the body's bytes
// in the tree, rewritten, and joined.
static size_t cost_of(size_t items, size_t length) {
    enum { NODE = 80, TEXT = 32, PLACE = 28 };
    return items * (NODE + TEXT + PLACE) + 3 * length;
}

// Says where a body is wrong.
static void fail_at(struct exchange *ex, const char *error, size_t at) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < ex->length; i++) {
        column = ex->body.data[i] == '\n' ? 1 : column + 1;
        line += ex->body.data[i] == '\n';
    }
    fail(ex, 400, "invalid_json", "%s (line %zu, column %zu)", error, line, column);
}

static void read_body(struct work *w) {
    struct exchange *ex = w->exchange;
    const struct options *o = &ex->server->options;
    const struct json_limits limits = {(uint32_t)o->max_depth, (uint32_t)o->max_items};
    size_t items = 0, at = 0;
    const char *error = json_check(ex->body.data, ex->length, &limits, &items, &at);
    if (error == NULL && !memory_take(ex, &ex->input, cost_of(items, ex->length))) memory_refuse(ex);
    else if (error == NULL) ex->root = json_object(ex->body.data, ex->length, &error, &at);
    if (ex->root == NULL && error == NULL && !ex->finished) memory_lacks(ex);
    if (error != NULL) fail_at(ex, error, at);
    if (ex->finished) ask_over(ex);
}

static void read_fields(struct work *w) {
    struct exchange *ex = w->exchange;
    if (fields_read(ex, ex->root) && ex->route->style != NULL && ex->route->style->keep != NULL) ex->route->style->keep(ex);
    if (ex->finished) ask_over(ex);
}

static void gone(struct work *w) {
    (void)w;
}

void route_let_go(struct exchange *ex) {
    ex->work = (struct work){ask_let_go, gone, ex, NULL};
    work_do(&ex->work, work_line(ex->length), 0);
}

static void fields_known(struct work *w) {
    struct exchange *ex = w->exchange;
    if (ex->gone || ex->finished) return;
    ex->route->handle(ex);
    if (ex->working == 0 && ex->root != NULL) route_let_go(ex); // it was refused
}

void route_go_on(struct exchange *ex) {
    ex->work = (struct work){read_fields, fields_known, ex, NULL};
    work_do(&ex->work, work_line(ex->length), ex->length);
}

static void body_read(struct work *w) {
    struct exchange *ex = w->exchange;
    if (ex->gone || ex->finished) return;
    if (ex->route->away) ex->route->handle(ex);
    else models_take(ex, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(ex->root, "model")));
    if (ex->finished && ex->working == 0 && ex->root != NULL) route_let_go(ex);
}

void route_run(struct exchange *ex) {
    if (ex->route->fields == 0) {
        ex->route->handle(ex);
        return;
    }
    ex->length = buffer_length(&ex->body);
    buffer_add(&ex->body, "", 1); // cJSON's NUL: there is room for it, unless the body is empty
    memory_set(ex, &ex->input, ex->body.capacity);
    ex->work = (struct work){read_body, body_read, ex, NULL};
    work_do(&ex->work, work_line(ex->length), ex->length);
}
