// /v1/embeddings.
#include "openai.h"

static void choice(struct exchange *ex, struct job *job, const bn_event *event) {
    struct buffer *out = &job->out;
    buffer_format(out, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":", job->index);
    if (ex->ask.base64) { // little-endian floats, the byte order of all supported machines
        buffer_text(out, "\"");
        buffer_base64(out, event->embedding, event->embedding_count * sizeof *event->embedding);
        buffer_text(out, "\"");
    } else {
        for (size_t i = 0; i < event->embedding_count; i++)
            buffer_format(out, "%s%.9g", i > 0 ? "," : "[", (double)event->embedding[i]);
        buffer_text(out, "]");
    }
    buffer_text(out, "}");
}

static void whole(struct exchange *ex) {
    buffer_text(&ex->out, "{\"object\":\"list\",\"data\":[");
    write_parts(ex);
    buffer_text(&ex->out, "],\"model\":");
    buffer_json_text(&ex->out, ex->ask.model);
    buffer_text(&ex->out, ",\"usage\":{\"prompt_tokens\":");
    buffer_number(&ex->out, ex->prompt_tokens);
    buffer_text(&ex->out, ",\"total_tokens\":");
    buffer_number(&ex->out, ex->prompt_tokens);
    buffer_text(&ex->out, "}}");
}

const struct style embeddings_style = {.choice = choice, .whole = whole};
