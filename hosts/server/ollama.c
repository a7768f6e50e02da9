// /api/chat, /api/generate, /api/embed and /api/embeddings, Ollama's API.
#include "ollama.h"

#include "models.h"
#include "openai.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void error(struct buffer *out, unsigned status, const char *code, const char *message, size_t length) {
    (void)status, (void)code;
    buffer_text(out, "{\"error\":");
    buffer_json(out, message, length);
    buffer_text(out, "}");
}

void ollama_write_time(struct buffer *out, uint64_t unix_seconds) {
    char date[32];
    time_t at = (time_t)unix_seconds;
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &utc));
    buffer_format(out, "\"%s\"", date);
}

static void write_head(struct buffer *out, const struct exchange *ex) {
    buffer_text(out, "{\"model\":");
    buffer_json_text(out, ex->ask.model);
    buffer_text(out, ",\"created_at\":");
    ollama_write_time(out, (uint64_t)time(NULL));
}

static bool is_chat(const struct exchange *ex) {
    return ex->route->fields == FIELDS_OLLAMA_CHAT;
}

static const char *reason_of(const bn_event *event) {
    bool stopped = event->finish_reason == BN_FINISH_STOP || event->finish_reason == BN_FINISH_STOP_STRING;
    return stopped ? "stop" : "length";
}

// `,"done":...`
static void write_end(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    if (event == NULL) {
        buffer_text(out, ",\"done\":false}");
        return;
    }
    buffer_format(out, ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":%llu",
                  reason_of(event), (ull)(event->total_ns + ex->loading_ns), (ull)ex->loading_ns);
    buffer_format(out,
                  ",\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu,\"eval_count\":%u,\"eval_duration\":%llu}",
                  event->prompt_tokens, (ull)event->prefill_ns, event->generated_tokens, (ull)event->decode_ns);
}

// `,"message":{...` or `,"response":...`, open for tool calls.
static void write_texts(struct buffer *out, const struct exchange *ex, bn_string text, bn_string reasoning) {
    buffer_text(out, is_chat(ex) ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    buffer_json(out, text.data, text.length);
    if (reasoning.length == 0) return;
    buffer_text(out, ",\"thinking\":");
    buffer_json(out, reasoning.data, reasoning.length);
}

static void write_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    if (event->logprobs == NULL || !ex->ask.has_logprobs) return;
    buffer_text(out, ",\"logprobs\":");
    write_token_logprobs(out, ex, event);
}

// -- calls ------------------------------------------------------------------------------------------

// Arguments are an object there, so a call is written once it is whole; one that was cut has none.
static void write_call(struct buffer *out, const char *name, size_t name_length, const char *arguments, size_t length) {
    cJSON *whole = cJSON_ParseWithLength(arguments, length);
    buffer_text(out, "{\"function\":{\"name\":");
    buffer_json(out, name, name_length);
    buffer_text(out, ",\"arguments\":");
    if (cJSON_IsObject(whole)) buffer_add(out, arguments, length);
    else buffer_text(out, "{}");
    buffer_text(out, "}}");
    cJSON_Delete(whole);
}

// In a stream, `job->out` has the name and a NUL, then the arguments so far.
static void end_call(struct exchange *ex, struct job *job) {
    struct buffer *held = &job->out, *out = &ex->out;
    if (buffer_length(held) == 0) return;
    const char *name = held->data + held->start;
    size_t length = strlen(name);
    write_head(out, ex);
    write_texts(out, ex, (bn_string){"", 0}, (bn_string){"", 0});
    buffer_text(out, ",\"tool_calls\":[");
    write_call(out, name, length, name + length + 1, buffer_length(held) - length - 1);
    buffer_text(out, "]}");
    write_end(out, ex, NULL);
    buffer_text(out, "\n");
    buffer_clear(held);
}

static void take_calls(struct exchange *ex, struct job *job, const bn_event *event) {
    for (size_t i = 0; i < event->tool_calls_count; i++) {
        const bn_tool_call *call = &event->tool_calls[i];
        if (call->id.length > 0) {
            end_call(ex, job);
            buffer_add(&job->out, call->name.data, call->name.length);
            buffer_add(&job->out, "", 1);
        }
        buffer_add(&job->out, call->arguments.data, call->arguments.length);
    }
}

// -- text -------------------------------------------------------------------------------------------

static void begin(struct exchange *ex) {
    (void)ex; // each line is complete in itself
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &ex->out;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (status != 0) {
        write_error(ex, status, code, event->message.data, event->message.length);
        buffer_text(out, "\n");
        return;
    }
    bool last = event->kind == BN_EVENT_COMPLETED;
    if (event->text.length > 0 || event->reasoning.length > 0 || event->logprobs_count > 0) {
        write_head(out, ex);
        write_texts(out, ex, event->text, event->reasoning);
        if (is_chat(ex)) buffer_text(out, "}");
        write_logprobs(out, ex, event);
        write_end(out, ex, NULL);
        buffer_text(out, "\n");
    }
    take_calls(ex, job, event);
    if (!last) return;
    end_call(ex, job);
    write_head(out, ex);
    write_texts(out, ex, (bn_string){"", 0}, (bn_string){"", 0});
    if (is_chat(ex)) buffer_text(out, "}");
    write_end(out, ex, event);
    buffer_text(out, "\n");
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &job->out;
    if (event->kind != BN_EVENT_COMPLETED) return;
    write_head(out, ex);
    write_texts(out, ex, event->text, event->reasoning);
    for (size_t i = 0; i < event->tool_calls_count; i++) {
        const bn_tool_call *call = &event->tool_calls[i];
        buffer_text(out, i == 0 ? ",\"tool_calls\":[" : ",");
        write_call(out, call->name.data, call->name.length, call->arguments.data, call->arguments.length);
    }
    if (event->tool_calls_count > 0) buffer_text(out, "]");
    if (is_chat(ex)) buffer_text(out, "}");
    write_logprobs(out, ex, event);
    write_end(out, ex, event);
}

bool ollama_loads(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    bool text = (ex->route->fields & (FIELDS_OLLAMA_CHAT | FIELDS_OLLAMA_GENERATE)) != 0;
    bool prompt = ask->prompts > 1 || (ask->prompts == 1 && ask->texts[0].length > 0);
    bool says = ask->has_chat || ask->suffix.length > 0 || prompt;
    if (!text || says) return false;
    write_head(&ex->out, ex);
    write_texts(&ex->out, ex, (bn_string){"", 0}, (bn_string){"", 0});
    buffer_format(&ex->out, "%s,\"done\":true,\"done_reason\":\"%s\"}", is_chat(ex) ? "}" : "",
                  ask->keep_ms == 0 ? "unload" : "load");
    return ex->finished = true;
}

static void end(struct exchange *ex) {
    (void)ex; // the last event has ended it
}

// -- embeddings -------------------------------------------------------------------------------------

static void vector(struct exchange *ex, struct job *job, const bn_event *event) {
    (void)ex;
    for (size_t i = 0; i < event->embedding_count; i++)
        buffer_format(&job->out, "%s%.9g", i > 0 ? "," : "[", (double)event->embedding[i]);
    buffer_text(&job->out, "]");
    if (event->total_ns > ex->longest_ns) ex->longest_ns = event->total_ns;
}

static void vectors(struct exchange *ex) {
    buffer_text(&ex->out, "{\"model\":");
    buffer_json_text(&ex->out, ex->ask.model);
    buffer_text(&ex->out, ",\"embeddings\":[");
    write_parts(ex);
    buffer_format(&ex->out, "],\"total_duration\":%llu,\"load_duration\":%llu,\"prompt_eval_count\":%llu}",
                  (ull)(ex->longest_ns + ex->loading_ns), (ull)ex->loading_ns, (ull)ex->prompt_tokens);
}

static void one_vector(struct exchange *ex) {
    buffer_text(&ex->out, "{\"embedding\":");
    write_parts(ex);
    buffer_text(&ex->out, "}");
}

#define LINES "application/x-ndjson"
const struct style ollama_chat_style = {LINES, error, begin, chunk, end, choice, write_parts};
const struct style ollama_generate_style = {LINES, error, begin, chunk, end, choice, write_parts};
const struct style ollama_embed_style = {.error = error, .choice = vector, .whole = vectors};
const struct style ollama_embeddings_style = {.error = error, .choice = vector, .whole = one_vector};
const struct style ollama_info_style = {.error = error};
