// /tokenize, /detokenize and /v1/messages/count_tokens.
#include "models.h"
#include "fields.h"
#include "tokens.h"
#include "work.h"

#include <stdlib.h>

struct answer {
    struct tokens tokens;
    bn_status status;
    bn_error error;
    struct buffer out;
    bool fits;
};

static void write_ids(struct buffer *out, const struct tokens *t, bool number_only) {
    buffer_format(out, "{\"%s\":%zu", number_only ? "input_tokens" : "count", t->count);
    if (!number_only) buffer_text(out, ",\"tokens\":[");
    for (size_t i = 0; i < t->count && !number_only; i++) {
        if (i > 0) buffer_text(out, ",");
        buffer_number(out, t->ids[i]);
    }
    buffer_text(out, number_only ? "}" : "]}");
}

static void find_ids(struct work *w) {
    struct exchange *ex = w->exchange;
    const struct ask *ask = &ex->ask;
    const bn_model *model = ex->model->handle;
    struct answer *a = w->data;
    a->status = ask->has_chat
                    ? tokens_add_chat(&a->tokens, model, &ask->params.chat, &a->error)
                    : tokens_add_text(&a->tokens, model, ask->texts[0], BN_TOKENIZE_ADD_SPECIAL, &a->error);
    // An id has up to ten digits and a comma.
    a->fits = a->status != BN_OK || memory_take(ex, &ex->output, 11 * a->tokens.count);
    if (a->status == BN_OK && a->fits) write_ids(&a->out, &a->tokens, ex->route->fields == FIELDS_COUNT);
    free(a->tokens.ids);
    ask_over(ex);
}

static void ids_found(struct work *w) {
    struct exchange *ex = w->exchange;
    struct answer *a = w->data;
    ex->finished = true;
    if (a->status != BN_OK) fail_with(ex, &a->error);
    else if (!a->fits) memory_refuse(ex);
    else ex->out = a->out;
    free(a);
}

void tokenize(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    const char *wrong = NULL;
    if (ask->has_chat && ask->texts != NULL) wrong = "'text' and 'messages' are both there";
    if (!ask->has_chat && (ask->prompts != 1 || ask->texts[0].data == NULL)) wrong = "'text' must be one text";
    if (wrong != NULL) {
        fail(ex, 400, "invalid_request_error", "%s", wrong);
        return;
    }
    ex->work = (struct work){find_ids, ids_found, ex, must(calloc(1, sizeof(struct answer)))};
    work_do(&ex->work, work_line(ex->length), ex->length);
}

// -- the text of ids --------------------------------------------------------------------------------

// Under vLLM's name and llama.cpp's.
static void find_text(struct work *w) {
    struct exchange *ex = w->exchange;
    const struct ask *ask = &ex->ask;
    struct answer *a = w->data;
    size_t length = 0, count = ask->token_from[1];
    a->status = bn_model_detokenize(ex->model->handle, ask->tokens, count, NULL, 0, &length, &a->error);
    if (a->status == BN_ERR_BUFFER_TOO_SMALL) a->status = BN_OK;
    a->fits = a->status != BN_OK || memory_take(ex, &ex->output, 3 * length);
    if (a->status == BN_OK && a->fits) {
        char *text = must(malloc(length + 1));
        a->status = bn_model_detokenize(ex->model->handle, ask->tokens, count, text, length, &length, &a->error);
        buffer_text(&a->out, "{\"prompt\":");
        buffer_json(&a->out, text, a->status == BN_OK ? length : 0);
        buffer_text(&a->out, ",\"content\":");
        buffer_json(&a->out, text, a->status == BN_OK ? length : 0);
        buffer_text(&a->out, "}");
        free(text);
    }
    ask_over(ex);
}

void detokenize(struct exchange *ex) {
    const struct ask *ask = &ex->ask;
    if (ask->prompts != 1 || ask->token_from[1] == 0) {
        fail(ex, 400, "invalid_request_error", "'tokens' must be one list of token ids");
        return;
    }
    ex->work = (struct work){find_text, ids_found, ex, must(calloc(1, sizeof(struct answer)))};
    work_do(&ex->work, work_line(ex->length), ex->length);
}
