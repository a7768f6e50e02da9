// /v1/messages, as Anthropic's API has it, for text.
#include "openai.h"

#include <string.h>

static void error(struct buffer *out, unsigned status, const char *code, const char *message, size_t length) {
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                 {413, "request_too_large"},     {429, "rate_limit_error"},     {503, "overloaded_error"},
                 {504, "timeout_error"}};
    const char *type = "api_error";
    (void)code;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) type = types[i].type;
    buffer_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    buffer_json(out, message, length);
    buffer_text(out, "}}");
}

// `"stop_reason":...,"stop_sequence":...`
static void write_stop(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    const char *reason = "max_tokens"; // or another limit that cut it
    const char *stop = ex->ask.stops_kept.data;
    if (event->finish_reason == BN_FINISH_STOP) reason = "end_turn";
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

// How many tokens the prompt has is known at the end: message_delta says so.
static void begin(struct exchange *ex) {
    struct buffer *out = &ex->out;
    buffer_text(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    write_head(out, ex);
    buffer_text(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    write_tokens(out, 0, 0, 0);
    buffer_text(
        out,
        "}}\n\nevent: content_block_start\n"
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n");
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &ex->out;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    (void)job;
    if (status != 0) {
        buffer_text(out, "event: error\ndata: ");
        write_error(ex, status, code, event->message.data, event->message.length);
        buffer_text(out, "\n\n");
        return;
    }
    if (event->text.length > 0) {
        buffer_text(out, "event: content_block_delta\ndata: "
                         "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
        buffer_json(out, event->text.data, event->text.length);
        buffer_text(out, "}}\n\n");
    }
    if (event->kind != BN_EVENT_COMPLETED) return;
    buffer_text(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
                     "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    write_stop(out, ex, event);
    buffer_text(out, "},");
    write_tokens(out, event->prompt_tokens, event->cached_tokens, event->generated_tokens);
    buffer_text(out, "}\n\n");
}

static void end(struct exchange *ex) {
    if (!ex->failed) buffer_text(&ex->out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &job->out;
    if (event->kind != BN_EVENT_COMPLETED) return;
    write_head(out, ex);
    buffer_text(out, ",\"content\":[{\"type\":\"text\",\"text\":");
    buffer_json(out, event->text.data, event->text.length);
    buffer_text(out, "}],");
    write_stop(out, ex, event);
    buffer_text(out, ",");
    write_tokens(out, event->prompt_tokens, event->cached_tokens, event->generated_tokens);
    buffer_text(out, "}");
}

const struct style messages_style = {"text/event-stream", error, begin, chunk, end, choice, write_parts};
