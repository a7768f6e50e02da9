// /v1/responses, OpenAI's newer API, for text and tools.
#include "openai.h"

#include "hash.h"
#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Kinds of an answer's items. The JSON of an item is its head, then its text: a part of its content, or arguments.
static const struct kind {
    const char *type, *prefix, *head, *part, *part_rest, *events;
} kinds[] = {
    {"reasoning", "rs", "\"summary\":[],", "reasoning_text", "", "response.reasoning_text"},
    {"message", "msg", "\"role\":\"assistant\",", "output_text", ",\"annotations\":[],\"logprobs\":[]",
     "response.output_text"},
    {"function_call", "fc", "", NULL, "", "response.function_call_arguments"},
};
enum { REASONING, MESSAGE, CALL };

static const char *status_of(const bn_event *event) {
    return event == NULL ? "in_progress" : event->finish_reason == BN_FINISH_STOP ? "completed" : "incomplete";
}

static void write_tokens(struct buffer *out, const bn_event *event) {
    buffer_format(out, "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":0}",
                  event->prompt_tokens, event->cached_tokens);
    buffer_format(out,
                  ",\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                  event->generated_tokens, (ull)event->reasoning_tokens, (ull)event->prompt_tokens + event->generated_tokens);
}

// Responses are found by their ids, so nobody should guess those of others.
static void write_response_id(const struct exchange *ex, char id[STORE_ID]) {
    struct hash h;
    hash_begin(&h, ex->server->key);
    hash_add(&h, &ex->id, sizeof ex->id);
    snprintf(id, STORE_ID, "resp_%016llx", (ull)hash_end(&h));
}

static bool is_kept(const struct exchange *ex) {
    return ex->server->options.keep_responses > 0 && !ex->ask.unkept;
}

// The items that the conversation has before the answer, as JSON without the last bracket.
static void keep_items(struct exchange *ex) {
    struct buffer *out = &ex->ask.items;
    const cJSON *input = cJSON_GetObjectItemCaseSensitive(ex->root, "input");
    if (ex->ask.previous != NULL && store_get(ex->ask.previous, NULL, out)) out->end--; // its bracket
    buffer_text(out, buffer_length(out) > 0 ? "," : "[");
    char *text = must(cJSON_PrintUnformatted(input));
    if (cJSON_IsString(input)) buffer_format(out, "{\"role\":\"user\",\"content\":%s}", text);
    else buffer_add(out, text + 1, strlen(text) - 2); // without brackets
    free(text);
}

// Keeps the fields of the request that the answer repeats.
static void keep(struct exchange *ex) {
    static const char *const names[][2] = {{"instructions", "null"},
                                           {"max_output_tokens", "null"},
                                           {"metadata", "{}"},
                                           {"parallel_tool_calls", "true"},
                                           {"reasoning", "null"},
                                           {"text", "{\"format\":{\"type\":\"text\"}}"},
                                           {"tool_choice", "\"auto\""},
                                           {"tools", "[]"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(ex->root, names[i][0]);
        bool given = value != NULL && !cJSON_IsNull(value);
        char *text = given ? must(cJSON_PrintUnformatted(value)) : NULL;
        buffer_format(&ex->ask.kept, ",\"%s\":", names[i][0]);
        buffer_text(&ex->ask.kept, given ? text : names[i][1]);
        free(text);
    }
    buffer_text(&ex->ask.kept, ",\"previous_response_id\":");
    if (ex->ask.previous != NULL) buffer_json_text(&ex->ask.kept, ex->ask.previous);
    else buffer_text(&ex->ask.kept, "null");
    if (is_kept(ex)) keep_items(ex);
}

// `event` is NULL, and there are no items, while the answer is being generated.
static void write_response(struct buffer *out, const struct exchange *ex, const bn_event *event,
                           const struct buffer *items) {
    const bn_sampling *s = &ex->ask.params.sampling;
    bool cut = event != NULL && event->finish_reason != BN_FINISH_STOP;
    char id[STORE_ID];
    write_response_id(ex, id);
    buffer_format(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\",\"model\":", id,
                  (ull)ex->created, status_of(event));
    buffer_json_text(out, ex->ask.model);
    buffer_format(out, ",\"error\":null,\"incomplete_details\":%s,\"output\":[",
                  cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    if (items != NULL) buffer_add(out, items->data, items->end);
    buffer_format(out, "],\"temperature\":%g,\"top_p\":%g", (double)s->temperature, (double)s->top_p);
    buffer_add(out, ex->ask.kept.data, ex->ask.kept.end);
    buffer_format(out, ",\"store\":%s,\"truncation\":\"disabled\",\"usage\":", is_kept(ex) ? "true" : "false");
    if (event != NULL) write_tokens(out, event);
    else buffer_text(out, "null");
    buffer_text(out, "}");
}

// -- items ------------------------------------------------------------------------------------------

static const struct kind *open_kind(const struct job *job) {
    const struct kind *kind = kinds;
    while (strcmp(kind->type, job->block) != 0) kind++;
    return kind;
}

static void write_id(struct buffer *out, const struct exchange *ex, const struct job *job) {
    buffer_format(out, "\"%s_%016llx%02x\"", open_kind(job)->prefix, (ull)ex->id, job->blocks - 1);
}

static void write_part(struct buffer *out, const struct kind *kind, const struct buffer *text) {
    buffer_format(out, "{\"type\":\"%s\",\"text\":", kind->part);
    buffer_json(out, text->data, text->end);
    buffer_format(out, "%s}", kind->part_rest);
}

// Writes the part after the head. `text` is NULL if there is none yet.
static void write_tail(struct buffer *out, const struct kind *kind, const struct buffer *text, const char *status) {
    if (kind->part == NULL) {
        buffer_text(out, "\"arguments\":");
        buffer_json(out, text != NULL ? text->data : "", text != NULL ? text->end : 0);
    } else {
        buffer_text(out, "\"content\":[");
        if (text != NULL) write_part(out, kind, text);
        buffer_text(out, "]");
    }
    buffer_format(out, ",\"status\":\"%s\"}", status);
}

// `event: ...` and the beginning of its numbered data.
static struct buffer *event_head(struct exchange *ex, const char *type, const char *more) {
    buffer_format(&ex->out, "event: %s%s\ndata: {\"type\":\"%s%s\",\"sequence_number\":%llu,", type, more, type, more,
                  (ull)ex->events++);
    return &ex->out;
}

static void event_end(struct exchange *ex) {
    buffer_text(&ex->out, "}\n\n");
}

// Sends the item in `job->out`, either its head or the whole item.
static void item_event(struct exchange *ex, const struct job *job, const char *type, bool whole) {
    struct buffer *out = event_head(ex, "response.output_item.", type);
    buffer_format(out, "\"output_index\":%u,\"item\":", job->blocks - 1);
    buffer_add(out, job->out.data + job->written, job->out.end - job->written);
    if (!whole) write_tail(out, open_kind(job), NULL, "in_progress");
    event_end(ex);
}

// Writes the position of the open item's text.
static void write_place(struct exchange *ex, const struct job *job) {
    buffer_text(&ex->out, "\"item_id\":");
    write_id(&ex->out, ex, job);
    buffer_format(&ex->out, ",\"output_index\":%u,", job->blocks - 1);
    if (open_kind(job)->part != NULL) buffer_text(&ex->out, "\"content_index\":0,");
}

static void part_event(struct exchange *ex, const struct job *job, const char *type) {
    const struct kind *kind = open_kind(job);
    if (kind->part == NULL) return;
    struct buffer *out = event_head(ex, "response.content_part.", type);
    write_place(ex, job);
    buffer_text(out, "\"part\":");
    write_part(out, kind, &ex->head);
    event_end(ex);
}

// `name` is the field that holds the text in the event.
static void text_event(struct exchange *ex, const struct job *job, const char *type, const char *name, const char *text,
                       size_t length) {
    struct buffer *out = event_head(ex, open_kind(job)->events, type);
    write_place(ex, job);
    buffer_format(out, "%s\"%s\":", open_kind(job) == &kinds[MESSAGE] ? "\"logprobs\":[]," : "", name);
    buffer_json(out, text, length);
    event_end(ex);
}

static void close_item(struct exchange *ex, struct job *job, const char *status) {
    if (job->block == NULL) return;
    const struct kind *kind = open_kind(job);
    bool tells = ex->ask.stream;
    if (tells) {
        text_event(ex, job, ".done", kind->part != NULL ? "text" : "arguments", ex->head.data, ex->head.end);
        part_event(ex, job, "done");
    }
    write_tail(&job->out, kind, &ex->head, status);
    if (tells) item_event(ex, job, "done", true);
    job->block = NULL;
}

// Opens an item of this kind, unless one is open; `call` always begins a new one.
static void open_item(struct exchange *ex, struct job *job, const struct kind *kind, const bn_tool_call *call) {
    struct buffer *items = &job->out;
    if (call == NULL && job->block == kind->type) return;
    close_item(ex, job, "completed");
    buffer_clear(&ex->head);
    if (job->blocks++ > 0) buffer_text(items, ",");
    job->block = kind->type;
    job->written = items->end;
    buffer_format(items, "{\"type\":\"%s\",\"id\":", kind->type);
    write_id(items, ex, job);
    buffer_format(items, ",%s", kind->head);
    if (call != NULL) {
        buffer_text(items, "\"call_id\":");
        buffer_json(items, call->id.data, call->id.length);
        buffer_text(items, ",\"name\":");
        buffer_json(items, call->name.data, call->name.length);
        buffer_text(items, ",");
    }
    if (!ex->ask.stream) return;
    item_event(ex, job, "added", false);
    part_event(ex, job, "added");
}

// Appends text to the open item.
static void add_text(struct exchange *ex, struct job *job, bn_string text) {
    if (text.length == 0) return;
    buffer_add(&ex->head, text.data, text.length);
    if (ex->ask.stream) text_event(ex, job, ".delta", "delta", text.data, text.length);
}

// Takes the new part of the answer, and at the end the whole answer.
static void take(struct exchange *ex, struct job *job, const bn_event *event) {
    size_t i = 0;
    // The open call's remaining arguments come before the items after it.
    for (; i < event->tool_calls_count && event->tool_calls[i].id.length == 0; i++)
        add_text(ex, job, event->tool_calls[i].arguments);
    if (event->reasoning.length > 0) open_item(ex, job, &kinds[REASONING], NULL);
    add_text(ex, job, event->reasoning);
    if (event->text.length > 0) open_item(ex, job, &kinds[MESSAGE], NULL);
    add_text(ex, job, event->text);
    for (; i < event->tool_calls_count; i++) {
        const bn_tool_call *call = &event->tool_calls[i];
        if (call->id.length > 0) open_item(ex, job, &kinds[CALL], call);
        add_text(ex, job, call->arguments);
    }
    if (event->kind != BN_EVENT_COMPLETED) return;
    if (job->blocks == 0) open_item(ex, job, &kinds[MESSAGE], NULL);
    close_item(ex, job, status_of(event));
}

// -- answers ----------------------------------------------------------------------------------------

// Writes the whole response, and keeps it. One that is too large for that says so.
static void write_whole(struct buffer *out, struct exchange *ex, const bn_event *event, const struct buffer *items) {
    struct buffer whole = {0};
    char id[STORE_ID];
    write_response(&whole, ex, event, items);
    if (is_kept(ex)) {
        write_response_id(ex, id);
        buffer_text(&ex->ask.items, ",");
        buffer_add(&ex->ask.items, items->data, items->end);
        buffer_text(&ex->ask.items, "]");
        ex->ask.unkept = !store_put(ex->server, id, &whole, &ex->ask.items);
        if (ex->ask.unkept) buffer_clear(&whole), write_response(&whole, ex, event, items);
    }
    buffer_move(out, &whole);
}

static void response_event(struct exchange *ex, const char *type, const bn_event *event, const struct buffer *items) {
    struct buffer *out = event_head(ex, "response.", type);
    buffer_text(out, "\"response\":");
    if (event == NULL) write_response(out, ex, event, items);
    else write_whole(out, ex, event, items);
    event_end(ex);
}

static void begin(struct exchange *ex) {
    response_event(ex, "created", NULL, NULL);
    response_event(ex, "in_progress", NULL, NULL);
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (status != 0) {
        struct buffer *out = event_head(ex, "error", "");
        buffer_format(out, "\"code\":\"%s\",\"param\":null,\"message\":", code);
        buffer_json(out, event->message.data, event->message.length);
        event_end(ex);
        return;
    }
    take(ex, job, event);
    if (event->kind == BN_EVENT_COMPLETED) response_event(ex, status_of(event), event, &job->out);
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    if (event->kind != BN_EVENT_COMPLETED) return;
    take(ex, job, event);
    write_whole(&ex->out, ex, event, &job->out); // there is only one job
}

static void not_there(struct exchange *ex) {
    bool keeps = ex->server->options.keep_responses > 0;
    fail(ex, 404, "not_found", "there is no response '%.64s' here%s", ex->rest,
         keeps ? " any more" : ": this server keeps no answers");
}

void response_get(struct exchange *ex) {
    if (store_get(ex->rest, &ex->out, NULL)) ex->finished = true;
    else not_there(ex);
}

void response_delete(struct exchange *ex) {
    if (!store_drop(ex->rest)) {
        not_there(ex);
        return;
    }
    buffer_text(&ex->out, "{\"id\":");
    buffer_json_text(&ex->out, ex->rest);
    buffer_text(&ex->out, ",\"object\":\"response\",\"deleted\":true}");
    ex->finished = true;
}

static void end(struct exchange *ex) {
    (void)ex; // the last event has ended it
}

const struct style responses_style = {"text/event-stream", NULL, begin, chunk, end, choice, end, keep};
