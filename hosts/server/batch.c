// /generate/batch: prompts in, results with their times out; streamed as lines of JSON.
#include "openai.h"

#include <string.h>

static void write_times(struct buffer *out, const bn_event *event) {
    buffer_format(out, ",\"prompt_tokens\":%u,\"generated_tokens\":%u,\"cached_tokens\":%u", event->prompt_tokens,
                  event->generated_tokens, event->cached_tokens);
    buffer_format(
        out, ",\"queued_ms\":%.3f,\"prefill_ms\":%.3f,\"first_token_ms\":%.3f,\"decode_ms\":%.3f,\"total_ms\":%.3f",
        (double)event->queued_ns / 1e6, (double)event->prefill_ns / 1e6, (double)event->first_token_ns / 1e6,
        (double)event->decode_ns / 1e6, (double)event->total_ns / 1e6);
}

// `{"index":0,"text":"...","finish_reason":...}` with tokens and times at the end.
static void write_result(struct buffer *out, const struct job *job, const bn_event *event) {
    buffer_format(out, "{\"index\":%u,\"text\":", job->index);
    buffer_json(out, event->text.data, event->text.length);
    buffer_text(out, ",\"finish_reason\":");
    if (event->kind != BN_EVENT_COMPLETED) {
        buffer_text(out, "null}");
        return;
    }
    buffer_text(out, finish_name(event->finish_reason));
    if (event->message.length > 0) {
        buffer_text(out, ",\"message\":");
        buffer_json(out, event->message.data, event->message.length);
    }
    write_times(out, event);
    buffer_text(out, "}");
}

static void begin(struct exchange *ex) {
    (void)ex; // each line is complete in itself
}

static void chunk(struct exchange *ex, struct job *job, const bn_event *event) {
    write_result(&ex->out, job, event);
    buffer_text(&ex->out, "\n");
}

static void end(struct exchange *ex) {
    buffer_text(&ex->out, "{\"usage\":");
    write_usage(&ex->out, ex);
    buffer_text(&ex->out, "}\n");
}

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    (void)ex;
    if (event->kind == BN_EVENT_COMPLETED) write_result(&job->out, job, event);
}

static void whole(struct exchange *ex) {
    buffer_text(&ex->out, "{\"results\":[");
    write_parts(ex);
    buffer_text(&ex->out, "],\"usage\":");
    write_usage(&ex->out, ex);
    buffer_text(&ex->out, "}");
}

const struct style batch_style = {"application/x-ndjson", NULL, begin, chunk, end, choice, whole};
