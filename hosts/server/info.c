#include "info.h"

#include "trace.h"

#include <stdlib.h>

void models(struct exchange *ex) {
    const struct server *s = ex->server;
    buffer_text(&ex->out, "{\"object\":\"list\",\"data\":[{\"id\":");
    buffer_json_text(&ex->out, s->name);
    buffer_format(&ex->out, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"bn_engine\",\"architecture\":");
    buffer_json(&ex->out, s->info.architecture.data, s->info.architecture.length);
    buffer_format(&ex->out, ",\"context_length\":%llu,\"parameters\":%llu,\"chat\":%s,\"embedding_size\":%llu}]}",
                  (ull)s->info.context_length, (ull)s->info.parameters, s->info.has_chat_template ? "true" : "false",
                  (ull)s->info.embedding_size);
    ex->finished = true;
}

// Where there is no engine yet. The others of its states come with it.
static const char loading[] = "# HELP bn_engine_state 1 for the state that the engine is in.\n"
                              "# TYPE bn_engine_state gauge\nbn_engine_state{state=\"loading\"} 1\n";

static void engine_metrics(struct exchange *ex) {
    size_t length = 0;
    bn_error error = {.struct_size = sizeof error};
    bn_engine_metrics(ex->server->engine, NULL, 0, &length, NULL);
    size_t room = length + 4096; // numbers grow
    char *text = must(malloc(room));
    if (bn_engine_metrics(ex->server->engine, text, room, &length, &error) != BN_OK) fail_with(ex, &error);
    else buffer_add(&ex->out, text, length);
    free(text);
}

void metrics(struct exchange *ex) {
    if (ex->server->engine == NULL) buffer_text(&ex->out, loading);
    else engine_metrics(ex);
    if (ex->finished) return;
    buffer_format(&ex->out,
                  "# HELP bn_server_exchanges Requests over HTTP that are being answered.\n"
                  "# TYPE bn_server_exchanges gauge\nbn_server_exchanges %zu\n",
                  ex->server->exchanges);
    otlp_metrics(&ex->out);
    ex->type = "text/plain; version=0.0.4; charset=utf-8";
    ex->finished = true;
}

static void latency(struct buffer *out, const char *name, const bn_latency *l) {
    buffer_format(out, ",\"%s\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"count\":%llu}", name, (double)l->p50_ns / 1e6,
                  (double)l->p90_ns / 1e6, (double)l->p99_ns / 1e6, (ull)l->count);
}

// For the page: times in milliseconds.
void stats(struct exchange *ex) {
    bn_stats s;
    bn_stats_init(&s, sizeof s);
    bn_engine_stats(ex->server->engine, &s, NULL);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"running", s.running},
        {"queued", s.queued},
        {"paused", s.paused},
        {"unreleased", s.unreleased},
        {"kv_blocks_used", s.kv_blocks_used},
        {"kv_blocks_total", s.kv_blocks_total},
        {"kv_blocks_cached", s.kv_blocks_cached},
        {"memory_used_bytes", s.memory_used_bytes},
        {"generated_tokens", s.generated_tokens},
        {"prompt_tokens", s.prompt_tokens},
        {"cached_tokens", s.cached_tokens},
        {"accepted", s.accepted},
        {"cancelled", s.completed_cancelled},
        {"rejected_queue_full", s.rejected_queue_full},
        {"rejected_memory", s.rejected_memory},
        {"preemptions", s.preemptions},
        {"sessions", s.sessions},
        {"exchanges", ex->server->exchanges},
    };
    buffer_text(&ex->out, "{\"model\":");
    buffer_json_text(&ex->out, ex->server->name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        buffer_format(&ex->out, ",\"%s\":%llu", numbers[i].name, (ull)numbers[i].value);
    buffer_format(&ex->out, ",\"generated_tokens_per_second\":%.1f,\"prompt_tokens_per_second\":%.1f",
                  s.recent_generated_tokens_per_second, s.recent_prompt_tokens_per_second);
    buffer_format(&ex->out, ",\"prefill_ms\":%.1f,\"decode_ms\":%.1f,\"idle_ms\":%.1f,\"uptime_ms\":%.1f",
                  (double)s.prefill_ns / 1e6, (double)s.decode_ns / 1e6, (double)s.idle_ns / 1e6,
                  (double)s.uptime_ns / 1e6);
    latency(&ex->out, "queue_wait_ms", &s.queue_wait);
    latency(&ex->out, "first_token_ms", &s.time_to_first_token);
    latency(&ex->out, "inter_token_ms", &s.inter_token);
    latency(&ex->out, "total_ms", &s.end_to_end);
    buffer_text(&ex->out, "}");
    ex->finished = true;
}

void health(struct exchange *ex) {
    static const char *const names[] = {"loading", "ok", "draining", "draining"};
    ex->status = ex->server->state == SERVING ? 200 : 503;
    buffer_format(&ex->out, "{\"status\":\"%s\"}", names[ex->server->state]);
    ex->finished = true;
}

// page.html, put into the program by the linker.
extern const char _binary_hosts_server_page_html_start[], _binary_hosts_server_page_html_end[];

void page(struct exchange *ex) {
    const char *from = _binary_hosts_server_page_html_start;
    buffer_add(&ex->out, from, (size_t)(_binary_hosts_server_page_html_end - from));
    ex->type = "text/html; charset=utf-8";
    ex->finished = true;
}

static void write_ids(struct buffer *out, const uint32_t *ids, size_t count) {
    buffer_text(out, "[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buffer_text(out, ",");
        buffer_number(out, ids[i]);
    }
    buffer_text(out, "]");
}

// The ids of the text or conversation and their number; NULL: `ex` has failed.
static uint32_t *ids_of(struct exchange *ex, size_t *count) {
    const bn_request_params *p = &ex->ask.params;
    const bn_model *model = ex->server->model;
    bn_error error = {.struct_size = sizeof error};
    uint32_t *ids = NULL;
    size_t room = 0;
    for (;;) { // the first turn asks for the number
        bn_status status =
            p->messages != NULL
                ? bn_model_chat_tokenize(model, p->messages, p->messages_count, p->message_size,
                                         BN_CHAT_ADD_GENERATION_PROMPT, ids, room, count, &error)
                : bn_model_tokenize(model, ex->ask.texts[0], BN_TOKENIZE_ADD_SPECIAL, ids, room, count, &error);
        if (status == BN_OK && ids != NULL) return ids;
        if (status != BN_OK && status != BN_ERR_BUFFER_TOO_SMALL) {
            free(ids);
            return fail_with(ex, &error), NULL;
        }
        room = *count + 1;
        ids = must(realloc(ids, room * sizeof *ids));
    }
}

void tokenize(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    size_t count = 0;
    if (ask->messages == NULL && (ask->prompts != 1 || ask->texts[0].data == NULL)) {
        fail(ex, 400, "invalid_request_error", "'text' must be one text");
        return;
    }
    uint32_t *ids = ids_of(ex, &count);
    if (ids == NULL) return;
    buffer_format(&ex->out, "{\"count\":%zu,\"tokens\":", count);
    write_ids(&ex->out, ids, count);
    buffer_text(&ex->out, "}");
    free(ids);
    ex->finished = true;
}

void count_tokens(struct exchange *ex) {
    size_t count = 0;
    uint32_t *ids = ids_of(ex, &count);
    if (ids == NULL) return;
    free(ids);
    buffer_format(&ex->out, "{\"input_tokens\":%zu}", count);
    ex->finished = true;
}
