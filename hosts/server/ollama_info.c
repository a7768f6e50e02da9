// /api/tags, /api/ps and /api/show: models as Ollama lists them.
#include "hash.h"
#include "models.h"
#include "ollama.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// Clients take it for the hash of the files, which nobody computes here: of their name, size and time.
static void write_digest(struct buffer *out, const struct model *m) {
    static const uint64_t key[2] = {1, 2};
    buffer_text(out, "\"");
    for (uint64_t part = 0; part < 4; part++) {
        struct hash h;
        hash_begin(&h, key);
        hash_add(&h, &part, sizeof part);
        hash_add(&h, m->options.model, strlen(m->options.model));
        hash_add(&h, &m->bytes, sizeof m->bytes);
        hash_add(&h, &m->created, sizeof m->created);
        buffer_format(out, "%016llx", (ull)hash_end(&h));
    }
    buffer_text(out, "\"");
}

static void write_details(struct buffer *out, const struct model *m) {
    struct stat s;
    bool folder = stat(m->options.model, &s) == 0 && S_ISDIR(s.st_mode), here = m->stage == HERE;
    bn_string family = here ? m->info.architecture : (bn_string){"", 0};
    char size[24] = "";
    double parameters = here ? (double)m->info.parameters : 0;
    bool millions = parameters < 1e9;
    if (here) snprintf(size, sizeof size, "%.1f%c", parameters / (millions ? 1e6 : 1e9), millions ? 'M' : 'B');
    buffer_format(out, "{\"parent_model\":\"\",\"format\":\"%s\",\"family\":", folder ? "safetensors" : "gguf");
    buffer_json(out, family.data, family.length);
    buffer_text(out, ",\"families\":[");
    buffer_json(out, family.data, family.length);
    buffer_format(out, "],\"parameter_size\":\"%s\",\"quantization_level\":\"\"}", size);
}

static void write_model(struct buffer *out, const struct model *m) {
    buffer_text(out, "{\"name\":");
    buffer_json_text(out, m->name);
    buffer_text(out, ",\"model\":");
    buffer_json_text(out, m->name);
    buffer_format(out, ",\"size\":%llu,\"digest\":", (ull)m->bytes);
    write_digest(out, m);
    buffer_text(out, ",\"details\":");
    write_details(out, m);
}

void ollama_tags(struct exchange *ex) {
    buffer_text(&ex->out, "{\"models\":[");
    for (const struct model *m = ex->server->models; m != NULL; m = m->next) {
        if (m != ex->server->models) buffer_text(&ex->out, ",");
        write_model(&ex->out, m);
        buffer_text(&ex->out, ",\"modified_at\":");
        ollama_write_time(&ex->out, m->created);
        buffer_text(&ex->out, "}");
    }
    buffer_text(&ex->out, "]}");
    ex->finished = true;
}

void ollama_ps(struct exchange *ex) {
    const char *more = "";
    buffer_text(&ex->out, "{\"models\":[");
    for (const struct model *m = ex->server->models; m != NULL; m = m->next) {
        if (m->stage != HERE) continue;
        uint64_t left_ms = models_left_ms(ex->server, m);
        buffer_text(&ex->out, more);
        write_model(&ex->out, m);
        buffer_format(&ex->out, ",\"size_vram\":0,\"context_length\":%llu,\"expires_at\":", (ull)m->info.context_length);
        // One that stays has a time far away, as in Ollama.
        ollama_write_time(&ex->out, ex->created + (left_ms == UINT64_MAX ? UINT64_C(3155760000) : left_ms / 1000));
        buffer_text(&ex->out, "}");
        more = ",";
    }
    buffer_text(&ex->out, "]}");
    ex->finished = true;
}

void ollama_show(struct exchange *ex) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(ex->root, "model"));
    if (name == NULL) name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(ex->root, "name"));
    const struct model *m = name == NULL ? NULL : models_find(ex->server, name);
    if (m == NULL) {
        if (name == NULL) fail(ex, 400, "invalid_request_error", "'model' is missing");
        else fail(ex, 404, "model_not_found", "model '%.200s' not found", name);
        return;
    }
    bool here = m->stage == HERE;
    buffer_text(&ex->out, "{\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",\"details\":");
    write_details(&ex->out, m);
    buffer_text(&ex->out, ",\"model_info\":{");
    if (here) {
        buffer_text(&ex->out, "\"general.architecture\":");
        buffer_json(&ex->out, m->info.architecture.data, m->info.architecture.length);
        buffer_format(&ex->out, ",\"general.parameter_count\":%llu,", (ull)m->info.parameters);
        buffer_text(&ex->out, "\"");
        buffer_add(&ex->out, m->info.architecture.data, m->info.architecture.length);
        buffer_format(&ex->out, ".context_length\":%llu", (ull)m->info.context_length);
    }
    bool embeds = here && m->info.encodes != 0, tools = here && m->info.has_chat_template != 0;
    buffer_format(&ex->out, "},\"capabilities\":[\"%s\"%s],\"modified_at\":", embeds ? "embedding" : "completion",
                  tools && !embeds ? ",\"tools\"" : "");
    ollama_write_time(&ex->out, m->created);
    buffer_text(&ex->out, "}");
    ex->finished = true;
}
