// /metrics: the engines' metrics and the server's own.
#include "info.h"
#include "models.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

// Metrics while there is no engine yet. The engine reports its other states itself.
static const char loading[] = "# HELP bn_engine_state 1 for the state that the engine is in.\n"
                              "# TYPE bn_engine_state gauge\nbn_engine_state{state=\"loading\"} 1\n";

// An engine's text, for free(), with its model's name for labels.
struct text {
    const char *name;
    char *all, *next; // `next`: the family that was not written yet
};

static char *engine_text(struct exchange *ex, const struct model *m) {
    size_t length = 0;
    bn_error error = {0};
    bn_engine_metrics(m->engine, NULL, 0, &length, NULL);
    size_t room = length + 4096; // numbers grow
    char *text = must(malloc(room + 1));
    if (bn_engine_metrics(m->engine, text, room, &length, &error) != BN_OK) {
        fail_with(ex, &error);
        free(text);
        return NULL;
    }
    text[length] = 0;
    return text;
}

static const char *line_end(const char *line) {
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : line + strlen(line);
}

// A sample with one more label.
static void write_sample(struct buffer *out, const char *line, const char *end, const char *model) {
    size_t name = strcspn(line, "{ ");
    buffer_add(out, line, name);
    buffer_text(out, "{model=");
    buffer_json_text(out, model); // a label's value has the same escapes
    buffer_text(out, line[name] == '{' ? "," : "}");
    if (line[name] == '{') name++;
    buffer_add(out, line + name, (size_t)(end - line) - name);
}

// Writes the samples of the family at `from`, and returns where the next one begins.
static char *write_family(struct buffer *out, char *from, const char *model, bool comments) {
    char *line = from;
    bool sampled = false;
    while (*line != 0 && !(sampled && *line == '#')) {
        const char *end = line_end(line);
        sampled |= *line != '#';
        if (*line != '#') write_sample(out, line, end, model);
        else if (comments) buffer_add(out, line, (size_t)(end - line));
        line += end - line;
    }
    return line;
}

// All engines have the same families in one order: each is written once, with the samples of all models.
static void write_all(struct buffer *out, struct text *texts, size_t count) {
    while (count > 0 && *texts[0].next != 0) {
        size_t head = (size_t)(line_end(texts[0].next) - texts[0].next);
        const char *family = texts[0].next;
        texts[0].next = write_family(out, texts[0].next, texts[0].name, true);
        for (size_t i = 1; i < count; i++)
            if (strncmp(texts[i].next, family, head) == 0)
                texts[i].next = write_family(out, texts[i].next, texts[i].name, false);
    }
}

static void models_metrics(struct exchange *ex) {
    struct text texts[256];
    size_t count = 0;
    buffer_text(&ex->out, "# HELP bn_model_loaded 1 for a model that is loaded.\n# TYPE bn_model_loaded gauge\n");
    for (const struct model *m = ex->server->models; m != NULL; m = m->next) {
        buffer_text(&ex->out, "bn_model_loaded{model=");
        buffer_json_text(&ex->out, m->name);
        buffer_format(&ex->out, "} %d\n", m->stage == HERE);
        char *text = m->stage == HERE && count < 256 ? engine_text(ex, m) : NULL;
        if (text != NULL) texts[count++] = (struct text){m->name, text, text};
    }
    if (!ex->finished) write_all(&ex->out, texts, count);
    for (size_t i = 0; i < count; i++) free(texts[i].all);
}

static void model_metrics(struct exchange *ex) {
    const struct model *m = ex->server->models;
    char *text = m->stage == HERE ? engine_text(ex, m) : NULL;
    buffer_text(&ex->out, text != NULL ? text : ex->finished ? "" : loading);
    free(text);
}

void metrics(struct exchange *ex) {
    if (ex->server->several) models_metrics(ex);
    else model_metrics(ex);
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
