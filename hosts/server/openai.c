// /v1/completions and /v1/chat/completions.
#include "models.h"
#include "openai.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Maximum of `top_logprobs` (fields.c).
enum { MAX_ALTERNATIVES = 32 };

const char *finish_name(int32_t reason) {
    switch (reason) {
    case BN_FINISH_STOP:
    case BN_FINISH_STOP_STRING: return "\"stop\"";
    case BN_FINISH_LENGTH: return "\"length\"";
    case BN_FINISH_CANCELLED: return "\"cancelled\"";
    case BN_FINISH_TIMED_OUT: return "\"timed_out\"";
    case BN_FINISH_NONE: return "null";
    default: return "\"error\"";
    }
}

void write_usage(struct buffer *out, const struct exchange *ex) {
    buffer_text(out, "{\"prompt_tokens\":");
    buffer_number(out, ex->prompt_tokens);
    buffer_text(out, ",\"completion_tokens\":");
    buffer_number(out, ex->generated_tokens);
    buffer_text(out, ",\"total_tokens\":");
    buffer_number(out, ex->prompt_tokens + ex->generated_tokens);
    buffer_text(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    buffer_number(out, ex->cached_tokens);
    buffer_text(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    buffer_number(out, ex->reasoning_tokens);
    buffer_text(out, ",\"accepted_prediction_tokens\":");
    buffer_number(out, ex->accepted_tokens);
    buffer_text(out, ",\"rejected_prediction_tokens\":");
    buffer_number(out, ex->drafted_tokens - ex->accepted_tokens);
    buffer_text(out, "}}");
}

static bool is_chat(const struct exchange *ex) {
    return ex->route->fields == FIELDS_CHAT;
}

// `{"id":...,"model":...,`
static void write_head(struct buffer *out, const struct exchange *ex) {
    const char *object = !is_chat(ex)     ? "text_completion"
                         : ex->ask.stream ? "chat.completion.chunk"
                                          : "chat.completion";
    buffer_format(out, "{\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":%llu,\"model\":",
                  is_chat(ex) ? "chatcmpl" : "cmpl", (ull)ex->id, object, (ull)ex->created);
    buffer_json_text(out, ex->ask.model);
    buffer_text(out, ",");
}

// -- log probabilities ------------------------------------------------------------------------------

static size_t token_text(const struct exchange *ex, uint32_t token, char *text, size_t room) {
    size_t length = 0;
    return bn_model_token_bytes(ex->model->handle, token, text, room, &length, NULL) == BN_OK ? length : 0;
}

// JSON has no infinities, and a prompt's first token has no probability.
static void write_logprob(struct buffer *out, float value) {
    if (isnan(value)) buffer_text(out, "null");
    else buffer_format(out, "%.6f", value < -9999 ? -9999.0 : value > -5e-7f ? 0.0 : (double)value);
}

static void write_token(struct buffer *out, const struct exchange *ex, const bn_logprob *entry) {
    char text[512];
    size_t length = token_text(ex, entry->token, text, sizeof text);
    buffer_text(out, "{\"token\":");
    buffer_json(out, text, length);
    buffer_text(out, ",\"logprob\":");
    write_logprob(out, entry->logprob);
    buffer_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++) buffer_format(out, "%s%u", i > 0 ? "," : "", (unsigned char)text[i]);
    buffer_text(out, "]");
}

void write_token_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    uint32_t each = event->logprobs_per_token;
    buffer_text(out, "[");
    for (size_t i = 0; i < event->tokens_count; i++) {
        if (i > 0) buffer_text(out, ",");
        write_token(out, ex, &event->logprobs[i * each]);
        buffer_text(out, ",\"top_logprobs\":[");
        for (uint32_t k = 1; k < each; k++) {
            if (k > 1) buffer_text(out, ",");
            write_token(out, ex, &event->logprobs[i * each + k]);
            buffer_text(out, "}");
        }
        buffer_text(out, "]}");
    }
    buffer_text(out, "]");
}

static void chat_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    buffer_text(out, "{\"content\":");
    write_token_logprobs(out, ex, event);
    buffer_text(out, ",\"refusal\":null}");
}

static void write_key(struct buffer *out, const struct exchange *ex, const bn_logprob *entry) {
    char text[512];
    buffer_json(out, text, token_text(ex, entry->token, text, sizeof text));
}

struct key {
    size_t at, length; // in the output
};

static bool is_there(const struct buffer *out, const struct key *keys, size_t count, const struct key *key) {
    const char *written = out->data + out->start;
    for (size_t i = 0; i < count; i++)
        if (keys[i].length == key->length && memcmp(written + keys[i].at, written + key->at, key->length) == 0) return true;
    return false;
}

// An object keyed by text. Several tokens may have the same text, as parts of characters do: the likeliest is reported.
static void write_alternatives(struct buffer *out, const struct exchange *ex, const bn_logprob *entries, uint32_t count) {
    struct key keys[MAX_ALTERNATIVES];
    size_t written = 0;
    buffer_text(out, "{");
    for (uint32_t i = 0; i < count; i++) {
        const size_t before = buffer_length(out);
        struct key *key = &keys[written];
        if (written > 0) buffer_text(out, ",");
        key->at = buffer_length(out);
        write_key(out, ex, &entries[i]);
        key->length = buffer_length(out) - key->at;
        if (is_there(out, keys, written, key)) {
            out->end = out->start + before;
            continue;
        }
        written++;
        buffer_text(out, ":");
        write_logprob(out, entries[i].logprob);
    }
    buffer_text(out, "}");
}

// `offset` is the length in bytes of the text before these tokens.
static void text_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event, size_t offset) {
    uint32_t each = event->logprobs_per_token;
    const bn_logprob *entries = event->logprobs;
    buffer_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < event->tokens_count; i++) {
        if (i > 0) buffer_text(out, ",");
        write_key(out, ex, &entries[i * each]);
    }
    buffer_text(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < event->tokens_count; i++) {
        if (i > 0) buffer_text(out, ",");
        write_logprob(out, entries[i * each].logprob);
    }
    buffer_text(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < event->tokens_count; i++) {
        if (i > 0) buffer_text(out, ",");
        if (isnan(entries[i * each].logprob)) buffer_text(out, "null");
        else write_alternatives(out, ex, &entries[i * each + 1], each - 1);
    }
    buffer_text(out, "],\"text_offset\":[");
    for (size_t i = 0; i < event->tokens_count; i++) {
        char text[512];
        buffer_format(out, "%s%zu", i > 0 ? "," : "", offset);
        offset += token_text(ex, entries[i * each].token, text, sizeof text);
    }
    buffer_text(out, "]}");
}

// vLLM's format: null for the first token, then maps by token id, the prompt's own first. A token's rank is known only
// among the requested ones.
static void write_prompt_logprobs(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    uint32_t each = event->logprobs_per_token;
    for (size_t i = 0; i < event->tokens_count; i++) {
        const bn_logprob *entries = &event->logprobs[i * each];
        uint32_t own = 0; // its rank
        for (uint32_t k = 1; k < each && own == 0; k++)
            if (entries[k].token == entries->token) own = k;
        buffer_text(out, i > 0 ? "," : "[");
        for (uint32_t k = 0; k < each && !isnan(entries->logprob); k++) {
            uint32_t rank = k == 0 ? own : k;
            if (k > 0 && k == own) continue;
            buffer_format(out, "%s\"%u\":{\"logprob\":", k > 0 ? "," : "{", entries[k].token);
            write_logprob(out, entries[k].logprob);
            if (rank == 0) buffer_text(out, ",\"rank\":null");
            else buffer_format(out, ",\"rank\":%u", rank);
            buffer_text(out, ",\"decoded_token\":");
            write_key(out, ex, &entries[k]);
            buffer_text(out, "}");
        }
        buffer_text(out, isnan(entries->logprob) ? "null" : "}");
    }
    buffer_text(out, "]");
}

// The text of a completion. A scored prompt appears only in its tokens.
static void write_text(struct buffer *out, const struct exchange *ex, const bn_event *event) {
    if (ex->ask.params.task != BN_TASK_SCORE) {
        buffer_json(out, event->text.data, event->text.length);
        return;
    }
    const bn_model *model = ex->model->handle;
    size_t length = 0;
    bn_model_detokenize(model, event->tokens, event->tokens_count, NULL, 0, &length, NULL);
    char *text = must(malloc(length + 1));
    bn_status status = bn_model_detokenize(model, event->tokens, event->tokens_count, text, length, &length, NULL);
    buffer_json(out, text, status == BN_OK ? length : 0);
    free(text);
}

// `,"logprobs":...`
static void write_logprobs(struct buffer *out, const struct exchange *ex, const struct job *job, const bn_event *event) {
    buffer_text(out, ",\"logprobs\":");
    if (event->logprobs == NULL || !ex->ask.has_logprobs) buffer_text(out, "null");
    else if (is_chat(ex)) chat_logprobs(out, ex, event);
    else text_logprobs(out, ex, event, job->written);
}

// `,"finish_reason":...`
static void write_finish(struct buffer *out, const bn_event *event) {
    bool calls = event->finish_reason == BN_FINISH_STOP && event->tool_calls_total > 0;
    buffer_text(out, ",\"finish_reason\":");
    buffer_text(out, calls ? "\"tool_calls\"" : finish_name(event->finish_reason));
}

// -- messages ---------------------------------------------------------------------------------------

// The first part of a call has its id and name.
static void write_call(struct buffer *out, const bn_tool_call *call, bool streaming) {
    bool first = call->id.length > 0;
    buffer_text(out, "{");
    if (streaming) buffer_format(out, "\"index\":%u,", call->index);
    if (first) {
        buffer_text(out, "\"id\":");
        buffer_json(out, call->id.data, call->id.length);
        buffer_text(out, ",\"type\":\"function\",");
    }
    buffer_text(out, "\"function\":{");
    if (first) {
        buffer_text(out, "\"name\":");
        buffer_json(out, call->name.data, call->name.length);
        buffer_text(out, ",");
    }
    buffer_text(out, "\"arguments\":");
    buffer_json(out, call->arguments.data, call->arguments.length);
    buffer_text(out, "}}");
}

// Writes a field's name, after a comma if `more` says that other fields precede it.
static void name_field(struct buffer *out, bool *more, const char *name) {
    buffer_format(out, "%s\"%s\":", *more ? "," : "", name);
    *more = true;
}

// `"reasoning_content":...,"tool_calls":[...]`, as far as present.
static void write_more(struct buffer *out, const bn_event *event, bool streaming, bool more) {
    if (event->reasoning.length > 0) {
        name_field(out, &more, "reasoning_content");
        buffer_json(out, event->reasoning.data, event->reasoning.length);
    }
    if (event->tool_calls_count == 0) return;
    name_field(out, &more, "tool_calls");
    for (size_t i = 0; i < event->tool_calls_count; i++) {
        buffer_text(out, i == 0 ? "[" : ",");
        write_call(out, &event->tool_calls[i], streaming);
    }
    buffer_text(out, "]");
}

// Writes the new part of a message.
static void write_delta(struct buffer *out, const bn_event *event) {
    bool more = false;
    buffer_text(out, ",\"delta\":{");
    if (event->text.length > 0) {
        name_field(out, &more, "content");
        buffer_json(out, event->text.data, event->text.length);
    }
    write_more(out, event, true, more);
    buffer_text(out, "}");
}

// -- streams ----------------------------------------------------------------------------------------

static void begin(struct exchange *ex) {
    buffer_text(&ex->head, "data: ");
    write_head(&ex->head, ex);
    if (ex->ask.include_usage) buffer_text(&ex->head, "\"usage\":null,");
    buffer_text(&ex->head, "\"choices\":[{\"index\":");
    for (size_t i = 0; is_chat(ex) && i < ex->jobs_count; i++) {
        buffer_add(&ex->out, ex->head.data, ex->head.end);
        buffer_format(
            &ex->out,
            "%zu,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            i);
    }
}

// Writes the new part of a chat, or only its finish reason, as OpenAI does: clients take a call as complete then.
static void write_chunk(struct exchange *ex, const struct job *job, const bn_event *event, bool end) {
    struct buffer *out = &ex->out;
    buffer_add(out, ex->head.data, ex->head.end);
    buffer_number(out, job->index);
    if (end) {
        buffer_text(out, ",\"delta\":{},\"logprobs\":null");
        write_finish(out, event);
    } else {
        write_delta(out, event);
        write_logprobs(out, ex, job, event);
        buffer_text(out, ",\"finish_reason\":null");
    }
    buffer_text(out, "}]}\n\n");
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &ex->out;
    const char *code = NULL;
    unsigned status = event_status(event, &code);
    if (status != 0) {
        buffer_text(out, "data: ");
        write_error(ex, status, code, event->message.data, event->message.length);
        buffer_text(out, "\n\n");
        return;
    }
    bool news = event->text.length > 0 || event->reasoning.length > 0 || event->tool_calls_count > 0 ||
                event->logprobs_count > 0;
    bool last = event->kind == BN_EVENT_COMPLETED;
    if (is_chat(ex)) {
        if (news) write_chunk(ex, job, event, false);
        if (last) write_chunk(ex, job, event, true);
    } else if (news || last) {
        buffer_add(out, ex->head.data, ex->head.end);
        buffer_format(out, "%u,\"text\":", job->index);
        write_text(out, ex, event);
        write_logprobs(out, ex, job, event);
        write_finish(out, event);
        buffer_text(out, "}]}\n\n");
    }
    job->written += event->text.length;
}

static void end(struct exchange *ex) {
    if (ex->ask.include_usage) {
        buffer_text(&ex->out, "data: ");
        write_head(&ex->out, ex);
        buffer_text(&ex->out, "\"choices\":[],\"usage\":");
        write_usage(&ex->out, ex);
        buffer_text(&ex->out, "}\n\n");
    }
    buffer_text(&ex->out, "data: [DONE]\n\n");
}

// -- whole answers ----------------------------------------------------------------------------------

// The mean log probability of a sample's tokens.
static void rank(struct job *job, const bn_event *event) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < event->tokens_count; i++) {
        float value = event->logprobs[i * event->logprobs_per_token].logprob;
        if (!isnan(value)) sum += (double)value, count++;
    }
    job->rank = count > 0 ? sum / (double)count : -INFINITY;
}

// The next of a prompt's samples: the best of those that are left, if not all are kept.
static struct job *next_sample(struct exchange *ex, size_t prompt, size_t k) {
    struct job **samples = &ex->jobs[prompt * ex->ask.n], *best = NULL;
    if (ex->ask.best_of == 0) return samples[k];
    for (uint32_t i = 0; i < ex->ask.n; i++)
        if (!isnan(samples[i]->rank) && (best == NULL || samples[i]->rank > best->rank)) best = samples[i];
    return best;
}

// A choice without its braces and its index, or a prompt's log probabilities.
static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &job->out;
    if (event->kind != BN_EVENT_COMPLETED) return;
    if (job->scores) {
        write_prompt_logprobs(out, ex, event);
        return;
    }
    if (ex->ask.best_of != 0) rank(job, event);
    buffer_text(out, is_chat(ex) ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    if (event->text.length == 0 && event->tool_calls_count > 0) buffer_text(out, "null");
    else write_text(out, ex, event);
    if (is_chat(ex)) {
        buffer_text(out, ",\"refusal\":null");
        write_more(out, event, false, true);
        buffer_text(out, "}");
    }
    write_logprobs(out, ex, job, event);
    write_finish(out, event);
}

// Adds those of prompt `i`. They belong to a completion's choice, and to a chat as a whole.
static void add_prompt_logprobs(struct exchange *ex, size_t i) {
    if (!ex->ask.has_prompt_logprobs) return;
    buffer_text(&ex->out, ",\"prompt_logprobs\":");
    buffer_move(&ex->out, &ex->jobs[ex->ask.prompts * ex->ask.n + i]->out);
}

static void whole(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    write_head(&ex->out, ex);
    buffer_text(&ex->out, "\"choices\":[");
    const size_t each = ask->best_of != 0 ? ask->best_of : ask->n;
    for (size_t i = 0; i < ask->prompts * each; i++) {
        struct job *job = next_sample(ex, i / each, i % each);
        buffer_format(&ex->out, "%s{\"index\":%zu,", i > 0 ? "," : "", i);
        buffer_move(&ex->out, &job->out);
        job->rank = NAN; // written
        if (!is_chat(ex)) add_prompt_logprobs(ex, i / each);
        buffer_text(&ex->out, "}");
    }
    buffer_text(&ex->out, "]");
    if (is_chat(ex)) add_prompt_logprobs(ex, 0);
    buffer_text(&ex->out, ",\"usage\":");
    write_usage(&ex->out, ex);
    buffer_text(&ex->out, "}");
}

void write_parts(struct exchange *ex) {
    for (size_t i = 0; i < ex->jobs_count; i++) {
        if (i > 0) buffer_text(&ex->out, ",");
        buffer_move(&ex->out, &ex->jobs[i]->out);
    }
}

const struct style openai_style = {"text/event-stream", NULL, begin, chunk, end, choice, whole};
