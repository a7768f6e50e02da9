#include "models.h"
#include "info.h"

#include "adapters.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

// `adapter` NULL: the model itself. A model that is not loaded has fewer fields.
static void write_model(struct buffer *out, const struct model *m, const char *adapter) {
    char date[32];
    time_t created = (time_t)m->created;
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    buffer_text(out, "{\"id\":");
    buffer_json_text(out, adapter == NULL ? m->name : adapter);
    buffer_text(out, ",\"display_name\":");
    buffer_json_text(out, adapter == NULL ? m->name : adapter);
    buffer_format(out, ",\"type\":\"model\",\"object\":\"model\",\"created\":%llu,\"created_at\":\"%s\"",
                  (ull)m->created, date);
    buffer_text(out, ",\"owned_by\":\"bn_engine\",\"parent\":");
    if (adapter == NULL) buffer_text(out, "null");
    else buffer_json_text(out, m->name);
    buffer_format(out, ",\"loaded\":%s", m->stage == HERE ? "true" : "false");
    if (m->stage == HERE) {
        buffer_text(out, ",\"architecture\":");
        buffer_json(out, m->info.architecture.data, m->info.architecture.length);
        buffer_format(out, ",\"context_length\":%llu,\"parameters\":%llu,\"chat\":%s,\"embedding_size\":%llu",
                      (ull)m->info.context_length, (ull)m->info.parameters, m->info.has_chat_template ? "true" : "false",
                      (ull)m->info.embedding_size);
    }
    buffer_text(out, "}");
}

void models(struct exchange *ex) {
    const char *last = ex->server->models->name, *more = "";
    buffer_text(&ex->out, "{\"object\":\"list\",\"data\":[");
    for (const struct model *m = ex->server->models; m != NULL; m = m->next, more = ",") {
        buffer_text(&ex->out, more);
        write_model(&ex->out, m, NULL);
        last = m->name;
        for (const struct adapter *a = m->adapters; a != NULL; a = a->next) {
            buffer_text(&ex->out, ",");
            write_model(&ex->out, m, a->name);
            last = a->name;
        }
    }
    buffer_text(&ex->out, "],\"has_more\":false,\"first_id\":"); // as Anthropic's API has it
    buffer_json_text(&ex->out, ex->server->models->name);
    buffer_text(&ex->out, ",\"last_id\":");
    buffer_json_text(&ex->out, last);
    buffer_text(&ex->out, "}");
    ex->finished = true;
}

// The path was decoded, so slashes in a name may be sent verbatim or as %2F.
void model(struct exchange *ex) {
    const struct model *m = models_find(ex->server, ex->rest);
    if (m != NULL) write_model(&ex->out, m, strcmp(ex->rest, m->name) == 0 ? NULL : ex->rest);
    else fail(ex, 404, "model_not_found", "there is no model '%.200s' here", ex->rest);
    ex->finished = true;
}

// One that is loaded, if any is: what asks without a name means the only model.
static const struct model *loaded(const struct server *server) {
    const struct model *m = server->models;
    while (m != NULL && m->stage != HERE) m = m->next;
    return m != NULL ? m : server->models;
}

static void latency(struct buffer *out, const char *name, const bn_latency *l) {
    buffer_format(out, ",\"%s\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"count\":%llu}", name, (double)l->p50_ns / 1e6,
                  (double)l->p90_ns / 1e6, (double)l->p99_ns / 1e6, (ull)l->count);
}

// For the page: times in milliseconds.
void stats(struct exchange *ex) {
    bn_stats s;
    const struct model *m = loaded(ex->server);
    bn_stats_init(&s, sizeof s);
    if (m->stage == HERE) bn_engine_stats(m->engine, &s, NULL);
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
    buffer_json_text(&ex->out, m->name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        buffer_format(&ex->out, ",\"%s\":%llu", numbers[i].name, (ull)numbers[i].value);
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

void version(struct exchange *ex) {
    buffer_format(&ex->out, "{\"version\":\"%s\"}", bn_version());
    ex->finished = true;
}

void props(struct exchange *ex) {
    bn_stats stats;
    const struct model *m = loaded(ex->server);
    bn_stats_init(&stats, sizeof stats);
    if (m->stage == HERE) bn_engine_stats(m->engine, &stats, NULL);
    buffer_format(&ex->out, "{\"build_info\":\"bn_engine %s\",\"total_slots\":%llu,\"model_alias\":", bn_version(),
                  (ull)stats.max_batch_size);
    buffer_json_text(&ex->out, m->name);
    buffer_text(&ex->out, ",\"model_path\":");
    buffer_json_text(&ex->out, m->options.model);
    buffer_format(&ex->out,
                  ",\"default_generation_settings\":{\"n_ctx\":%llu},\"modalities\":{\"vision\":false,\"audio\":false}}",
                  (ull)stats.context_length);
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
