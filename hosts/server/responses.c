// /v1/responses, OpenAI's newer API, for text. Nothing is stored.
#include "openai.h"

static const char *status_of(const bn_event *event) {
    return event == NULL ? "in_progress" : event->finish_reason == BN_FINISH_STOP ? "completed" : "incomplete";
}

static void write_part(struct buffer *out, const char *text, size_t length) {
    buffer_text(out, "{\"type\":\"output_text\",\"text\":");
    buffer_json(out, text, length);
    buffer_text(out, ",\"annotations\":[],\"logprobs\":[]}");
}

// The message of the answer; `event` is NULL while it is made, and its content empty.
static void write_item(struct buffer *out, const struct exchange *ex, const bn_event *event, const char *text,
                       size_t length) {
    buffer_format(out,
                  "{\"type\":\"message\",\"id\":\"msg_%016llx\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[",
                  (ull)ex->id, status_of(event));
    if (event != NULL) write_part(out, text, length);
    buffer_text(out, "]}");
}

static void write_tokens(struct buffer *out, const bn_event *event) {
    buffer_format(out, "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0}",
                  event->prompt_tokens, event->cached_tokens);
    buffer_format(out,
                  ",\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
                  event->generated_tokens, (ull)event->prompt_tokens + event->generated_tokens);
}

static void write_response(struct buffer *out, const struct exchange *ex, const bn_event *event, const char *text,
                           size_t length) {
    const bn_request_params *p = &ex->ask.params;
    bool cut = event != NULL && event->finish_reason != BN_FINISH_STOP;
    buffer_format(out,
                  "{\"id\":\"resp_%016llx\",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\",\"model\":",
                  (ull)ex->id, (ull)ex->created, status_of(event));
    buffer_json_text(out, ex->ask.model);
    buffer_format(out, ",\"error\":null,\"incomplete_details\":%s,\"output\":[",
                  cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (event != NULL) write_item(out, ex, event, text, length);
    buffer_format(out, "],\"temperature\":%g,\"top_p\":%g", (double)p->temperature, (double)p->top_p);
    buffer_text(out, ",\"instructions\":null,\"metadata\":{},\"parallel_tool_calls\":false,\"previous_response_id\":"
                     "null,\"store\":false,"
                     "\"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"none\",\"tools\":[],\"truncation\":"
                     "\"disabled\",\"usage\":");
    if (event != NULL) write_tokens(out, event);
    else buffer_text(out, "null");
    buffer_text(out, "}");
}

// -- streams ----------------------------------------------------------------------------------------

// `event: ...` and the beginning of its data, numbered.
static struct buffer *event_head(struct exchange *ex, const char *type) {
    buffer_format(&ex->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu,", type, type,
                  (ull)ex->events++);
    return &ex->out;
}

static void event_end(struct exchange *ex) {
    buffer_text(&ex->out, "}\n\n");
}

static void write_place(struct exchange *ex) {
    buffer_format(&ex->out, "\"item_id\":\"msg_%016llx\",\"output_index\":0,\"content_index\":0,", (ull)ex->id);
}

static void response_event(struct exchange *ex, const char *type, const bn_event *event, const struct buffer *text) {
    struct buffer *out = event_head(ex, type);
    buffer_text(out, "\"response\":");
    write_response(out, ex, event, text != NULL ? text->data : "", text != NULL ? text->end : 0);
    event_end(ex);
}

static void item_event(struct exchange *ex, const char *type, const bn_event *event, const struct buffer *text) {
    struct buffer *out = event_head(ex, type);
    buffer_text(out, "\"output_index\":0,\"item\":");
    write_item(out, ex, event, text != NULL ? text->data : "", text != NULL ? text->end : 0);
    event_end(ex);
}

static void part_event(struct exchange *ex, const char *type, const struct buffer *text) {
    struct buffer *out = event_head(ex, type);
    write_place(ex);
    buffer_text(out, "\"part\":");
    write_part(out, text != NULL ? text->data : "", text != NULL ? text->end : 0);
    event_end(ex);
}

// `name` is delta or text.
static void text_event(struct exchange *ex, const char *type, const char *name, const char *text, size_t length) {
    struct buffer *out = event_head(ex, type);
    write_place(ex);
    buffer_format(out, "\"logprobs\":[],\"%s\":", name);
    buffer_json(out, text, length);
    event_end(ex);
}

static void begin(struct exchange *ex) {
    response_event(ex, "response.created", NULL, NULL);
    response_event(ex, "response.in_progress", NULL, NULL);
    item_event(ex, "response.output_item.added", NULL, NULL);
    part_event(ex, "response.content_part.added", NULL);
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *text = &job->out; // all of it is said again at the end
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (status != 0) {
        struct buffer *out = event_head(ex, "error");
        buffer_format(out, "\"code\":\"%s\",\"param\":null,\"message\":", code);
        buffer_json(out, event->message.data, event->message.length);
        event_end(ex);
        return;
    }
    buffer_add(text, event->text.data, event->text.length);
    if (event->text.length > 0)
        text_event(ex, "response.output_text.delta", "delta", event->text.data, event->text.length);
    if (event->kind != BN_EVENT_COMPLETED) return;
    bool whole = event->finish_reason == BN_FINISH_STOP;
    text_event(ex, "response.output_text.done", "text", text->data, text->end);
    part_event(ex, "response.content_part.done", text);
    item_event(ex, "response.output_item.done", event, text);
    response_event(ex, whole ? "response.completed" : "response.incomplete", event, text);
}

static void end(struct exchange *ex) {
    (void)ex; // the last event has said it
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    if (event->kind == BN_EVENT_COMPLETED) write_response(&job->out, ex, event, event->text.data, event->text.length);
}

const struct style responses_style = {"text/event-stream", NULL, begin, chunk, end, choice, write_parts};
