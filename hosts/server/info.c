#include "info.h"

#include "adapters.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

// `adapter` NULL: the model itself.
static void write_model(struct buffer *out, const struct server *s, const struct adapter *adapter) {
    buffer_text(out, "{\"id\":");
    buffer_json_text(out, adapter == NULL ? s->name : adapter->name);
    buffer_format(out, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"bn_engine\",\"parent\":");
    if (adapter == NULL) buffer_text(out, "null");
    else buffer_json_text(out, s->name);
    buffer_text(out, ",\"architecture\":");
    buffer_json(out, s->info.architecture.data, s->info.architecture.length);
    buffer_format(out, ",\"context_length\":%llu,\"parameters\":%llu,\"chat\":%s,\"embedding_size\":%llu}",
                  (ull)s->info.context_length, (ull)s->info.parameters, s->info.has_chat_template ? "true" : "false",
                  (ull)s->info.embedding_size);
}

void models(struct exchange *ex) {
    buffer_text(&ex->out, "{\"object\":\"list\",\"data\":[");
    write_model(&ex->out, ex->server, NULL);
    for (const struct adapter *a = ex->server->adapters; a != NULL; a = a->next) {
        buffer_text(&ex->out, ",");
        write_model(&ex->out, ex->server, a);
    }
    buffer_text(&ex->out, "]}");
    ex->finished = true;
}

// The path was decoded, so slashes in a name may be sent verbatim or as %2F.
void model(struct exchange *ex) {
    const struct adapter *adapter = adapters_find(ex->server, ex->rest);
    if (adapter != NULL || strcmp(ex->rest, ex->server->name) == 0) write_model(&ex->out, ex->server, adapter);
    else fail(ex, 404, "model_not_found", "there is no model '%.200s' here", ex->rest);
    ex->finished = true;
}

// Metrics while there is no engine yet. The engine reports its other states itself.
static const char loading[] = "# HELP bn_engine_state 1 for the state that the engine is in.\n"
                              "# TYPE bn_engine_state gauge\nbn_engine_state{state=\"loading\"} 1\n";

static void engine_metrics(struct exchange *ex) {
    size_t length = 0;
    bn_error error = {0};
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
                  "# TYPE bn_server_exchanges gauge\nbn_server_exchanges %zu\n"
                  "# HELP bn_server_connections Open connections.\n"
                  "# TYPE bn_server_connections gauge\nbn_server_connections %zu\n"
                  "# HELP bn_server_memory_bytes Bytes of bodies, their values and answers.\n"
                  "# TYPE bn_server_memory_bytes gauge\nbn_server_memory_bytes %zu\n",
                  ex->server->exchanges, clients_count(ex->server), atomic_load(&ex->server->memory));
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
        {"working", ex->server->working},
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
