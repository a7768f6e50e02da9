// /v1/messages, Anthropic's API.
#include "openai.h"

#include <string.h>

static void error(struct buffer *out, unsigned status, const char *code, const char *message, size_t length) {
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
                 {503, "overloaded_error"},      {504, "timeout_error"}};
    const char *type = "api_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) type = types[i].type;
    buffer_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    buffer_json(out, message, length);
    if (strncmp(code, "thread_", 7) == 0) buffer_format(out, ",\"details\":{\"error_code\":\"%s\"}", code);
    buffer_text(out, "}}");
}

// `"stop_reason":...,"stop_sequence":...`
static void write_stop(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    const char *reason = "max_tokens"; // or another limit
    const char *stop = ex->ask.kept.data;
    if (event->finish_reason == BN_FINISH_STOP) reason = event->tool_calls_total > 0 ? "tool_use" : "end_turn";
    if (event->finish_reason == BN_FINISH_STOP_STRING) reason = "stop_sequence";
    buffer_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (event->finish_reason != BN_FINISH_STOP_STRING) {
        buffer_text(out, "null");
        return;
    }
    for (int32_t i = 0; i < event->stop_index; i++) stop += strlen(stop) + 1;
    buffer_json_text(out, stop);
}

static void write_tokens(struct buffer *out, uint64_t in, uint64_t cached, uint64_t generated) {
    buffer_format(out,
                  "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%llu,"
                  "\"output_tokens\":%llu}",
                  (ull)(in - cached), (ull)cached, (ull)generated);
}

// `{"id":...,"role":"assistant","model":...`
static void write_head(struct buffer *out, const struct exchange *ex) {
    buffer_format(out, "{\"id\":\"msg_%016llx\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", (ull)ex->id);
    buffer_json_text(out, ex->ask.model);
}

// The number of prompt tokens is known only at the end, so message_delta reports it.
static void begin(struct exchange *ex) {
    struct buffer *out = &ex->out;
    buffer_text(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    write_head(out, ex);
    buffer_text(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    write_tokens(out, 0, 0, 0);
    buffer_text(out, "}}\n\n");
}

static void close_block(struct buffer *out, struct job *job) {
    if (job->block == NULL) return;
    buffer_format(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%u}\n\n",
                  job->blocks - 1);
    job->block = NULL;
}

// Opens a block of this type, unless one is open; `call` always begins a new one.
static void open_block(struct buffer *out, struct job *job, const char *type, const bn_tool_call *call) {
    if (call == NULL && job->block != NULL && strcmp(job->block, type) == 0) return;
    close_block(out, job);
    job->block = type;
    buffer_format(out,
                  "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%u,\"content_block\":"
                  "{\"type\":\"%s\",",
                  job->blocks++, type);
    if (call != NULL) {
        buffer_text(out, "\"id\":");
        buffer_json(out, call->id.data, call->id.length);
        buffer_text(out, ",\"name\":");
        buffer_json(out, call->name.data, call->name.length);
        buffer_text(out, ",\"input\":{}}}\n\n");
        return;
    }
    buffer_format(out, "\"%s\":\"\"%s}}\n\n", type, strcmp(type, "thinking") == 0 ? ",\"signature\":\"\"" : "");
}

static void write_delta(struct buffer *out, const struct job *job, const char *type, const char *name, bn_string text) {
    if (text.length == 0) return;
    buffer_format(out,
                  "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%u,\"delta\":"
                  "{\"type\":\"%s\",\"%s\":",
                  job->blocks - 1, type, name);
    buffer_json(out, text.data, text.length);
    buffer_text(out, "}}\n\n");
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &ex->out;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (status != 0) {
        buffer_text(out, "event: error\ndata: ");
        write_error(ex, status, code, event->message.data, event->message.length);
        buffer_text(out, "\n\n");
        return;
    }
    size_t i = 0;
    // The open call's remaining arguments come before the items after it.
    for (; i < event->tool_calls_count && event->tool_calls[i].id.length == 0; i++)
        write_delta(out, job, "input_json_delta", "partial_json", event->tool_calls[i].arguments);
    if (event->reasoning.length > 0) open_block(out, job, "thinking", NULL);
    write_delta(out, job, "thinking_delta", "thinking", event->reasoning);
    if (event->text.length > 0) open_block(out, job, "text", NULL);
    write_delta(out, job, "text_delta", "text", event->text);
    for (; i < event->tool_calls_count; i++) {
        const bn_tool_call *call = &event->tool_calls[i];
        if (call->id.length > 0) open_block(out, job, "tool_use", call);
        write_delta(out, job, "input_json_delta", "partial_json", call->arguments);
    }
    if (event->kind != BN_EVENT_COMPLETED) return;
    if (job->blocks == 0) open_block(out, job, "text", NULL);
    close_block(out, job);
    buffer_text(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    write_stop(out, ex, event);
    buffer_text(out, "},");
    write_tokens(out, event->prompt_tokens, event->cached_tokens, event->generated_tokens);
    buffer_text(out, "}\n\n");
}

static void end(struct exchange *ex) {
    if (!ex->failed) buffer_text(&ex->out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

// The arguments of a call that was cut off are not valid JSON.
static void write_call(struct buffer *out, const bn_tool_call *call) {
    cJSON *input = cJSON_ParseWithLength(call->arguments.data, call->arguments.length);
    buffer_text(out, "{\"type\":\"tool_use\",\"id\":");
    buffer_json(out, call->id.data, call->id.length);
    buffer_text(out, ",\"name\":");
    buffer_json(out, call->name.data, call->name.length);
    buffer_text(out, ",\"input\":");
    if (input == NULL) buffer_text(out, "{}");
    else buffer_add(out, call->arguments.data, call->arguments.length);
    buffer_text(out, "}");
    cJSON_Delete(input);
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &job->out;
    bool calls = event->tool_calls_count > 0, thoughts = event->reasoning.length > 0;
    if (event->kind != BN_EVENT_COMPLETED) return;
    write_head(out, ex);
    buffer_text(out, ",\"content\":[");
    if (thoughts) {
        buffer_text(out, "{\"type\":\"thinking\",\"thinking\":");
        buffer_json(out, event->reasoning.data, event->reasoning.length);
        buffer_text(out, ",\"signature\":\"\"}");
    }
    if (event->text.length > 0 || !calls) {
        buffer_format(out, "%s{\"type\":\"text\",\"text\":", thoughts ? "," : "");
        buffer_json(out, event->text.data, event->text.length);
        buffer_text(out, "}");
    }
    for (size_t i = 0; i < event->tool_calls_count; i++) {
        if (i > 0 || thoughts || event->text.length > 0) buffer_text(out, ",");
        write_call(out, &event->tool_calls[i]);
    }
    buffer_text(out, "],");
    write_stop(out, ex, event);
    buffer_text(out, ",");
    write_tokens(out, event->prompt_tokens, event->cached_tokens, event->generated_tokens);
    buffer_text(out, "}");
}

const struct style messages_style = {"text/event-stream", error, begin, chunk, end, choice, write_parts};
