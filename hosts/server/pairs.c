#include "models.h"
#include "pairs.h"

#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// For models without a template for this task: the likelihood of the query after the document.
static const char usual[] = "Document:\n{document}\n\nQuery:\n{query}";

static struct template usual_template; // of requests that have none

// -- templates --------------------------------------------------------------------------------------

// Returns NULL, or an error text. `text` must stay valid.
static const char *template_read(const char *text, struct template *out) {
    const char *document = strstr(text, "{document}"), *query = strstr(text, "{query}");
    if (document == NULL || query == NULL || strstr(document + 1, "{document}") != NULL ||
        strstr(query + 1, "{query}") != NULL)
        return "must have {document} and {query}, each once";
    out->query_first = query < document;
    const char *first = out->query_first ? query : document, *second = out->query_first ? document : query;
    const char *between = strchr(first, '}') + 1, *rest = strchr(second, '}') + 1;
    out->parts[0] = (bn_string){text, (size_t)(first - text)};
    out->parts[1] = (bn_string){between, (size_t)(second - between)};
    out->judges = out->query_first || *rest != 0;
    if (!out->judges) return NULL;
    const char *open = strrchr(rest, '{'), *end = rest + strlen(rest) - 1;
    const char *bar = open != NULL ? strchr(open, '|') : NULL;
    if (bar == NULL || *end != '}' || bar == open + 1 || bar + 1 == end)
        return "must end with {query}, or with two words like {yes|no}";
    out->parts[2] = (bn_string){rest, (size_t)(open - rest)};
    out->words[0] = (bn_string){open + 1, (size_t)(bar - open - 1)};
    out->words[1] = (bn_string){bar + 1, (size_t)(end - bar - 1)};
    return NULL;
}

bool pairs_start(struct server *server) {
    const char *given = server->options.rerank_template;
    const char *wrong = template_read(*given != 0 ? given : usual, &server->template);
    usual_template = server->template;
    if (wrong != NULL) fprintf(stderr, "bn-server: --rerank-template %s\n", wrong);
    return wrong == NULL;
}

// -- fields -----------------------------------------------------------------------------------------

const char *read_template(struct exchange *ex, const cJSON *value) {
    return cJSON_IsString(value) ? template_read(value->valuestring, &ex->ask.template) : "must be a text";
}

// A text, or a list of texts or of objects with one.
static const char *read_texts(struct exchange *ex, const cJSON *value, bn_string **out, size_t *count) {
    static _Thread_local char message[80];
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    uint64_t most = ex->model->options.queue;
    if (*out != NULL) return "is there twice";
    *count = cJSON_IsArray(value) ? (size_t)cJSON_GetArraySize(value) : 1;
    if (*count == 0) return "must not be empty";
    if (*count > most) {
        snprintf(message, sizeof message, "has more than the %llu texts that this server takes", (ull)most);
        return message;
    }
    *out = must(calloc(*count, sizeof **out));
    for (size_t i = 0; i < *count; i++, item = item->next) {
        const cJSON *text = cJSON_IsObject(item) ? cJSON_GetObjectItemCaseSensitive(item, "text") : item;
        if (!cJSON_IsString(text)) return "must have texts, or objects with a 'text', only";
        (*out)[i] = text_of(text);
    }
    return NULL;
}

const char *read_documents(struct exchange *ex, const cJSON *value) {
    return read_texts(ex, value, &ex->ask.texts, &ex->ask.prompts);
}

const char *read_queries(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    const char *wrong = read_texts(ex, value, &ask->queries, &ask->queries_count);
    for (size_t i = 0; wrong == NULL && i < ask->queries_count; i++)
        if (ask->queries[i].length == 0) wrong = "must not be empty";
    return wrong;
}

const char *read_query(struct exchange *ex, const cJSON *value) {
    return cJSON_IsString(value) ? read_queries(ex, value) : "must be a text";
}

// The messages of a pair whose prompt gets another instruction.
static void make_messages(struct ask *ask) {
    ask->messages = must(calloc(3 * ask->prompts, sizeof *ask->messages));
    for (size_t i = 0; i < ask->prompts; i++) {
        bn_chat_message *of = ask->messages + 3 * i;
        of[0] = (bn_chat_message){{"system", 6}, ask->instruction};
        of[1] = (bn_chat_message){{"query", 5}, ask->queries[ask->queries_count == 1 ? 0 : i]};
        of[2] = (bn_chat_message){{"document", 8}, ask->texts[i]};
    }
}

void pairs_check(struct exchange *ex) {
    struct ask *ask = &ex->ask;
    bool many = ex->route->fields == FIELDS_SCORE;
    if (ask->queries == NULL)
        fail(ex, 400, "invalid_request_error", "'%s' is missing", many ? "text_1" : "query");
    else if (ask->queries_count != 1 && ask->queries_count != ask->prompts)
        fail(ex, 400, "invalid_request_error", "'text_1' must be one text, or as many as 'text_2'");
    if (ask->template.parts[0].data == NULL) ask->template = ex->server->template;
    if (ex->finished) return;
    size_t each = ask->instruction.length + (ask->queries_count == 1 ? ask->queries[0].length : 0);
    for (int part = 0; part < 3; part++) each += ask->template.parts[part].length;
    if (each > 4 * ex->server->options.max_body / ask->prompts)
        fail(ex, 400, "invalid_request_error", "%zu bytes of query and template for each of %zu texts are too many", each,
             ask->prompts);
    else if (ask->instruction.data != NULL)
        make_messages(ask);
}

// -- prompts ----------------------------------------------------------------------------------------

// The common parts of an exchange's prompts, tokenized once: the template's parts, and the query if there is only one.
enum { QUERY = 3, PIECES };

struct common {
    struct tokens tokens;
    size_t ends[PIECES];
};

static bool spaced(bn_string part) {
    return part.length > 0 && part.data[part.length - 1] == ' ';
}

// Adds the value of a placeholder. A space before it is tokenized with it, as tokenizers expect.
static bn_status add_value(struct tokens *t, const bn_model *model, bn_string text, bool space, uint32_t flags,
                           bn_error *error) {
    if (!space) return tokens_add_text(t, model, text, flags, error);
    char *copy = must(malloc(text.length + 1));
    *copy = ' ';
    memcpy(copy + 1, text.data, text.length);
    bn_status status = tokens_add_text(t, model, (bn_string){copy, text.length + 1}, flags, error);
    free(copy);
    return status;
}

static bn_status find_common(const struct ask *ask, const bn_model *model, struct common *common, bn_error *error) {
    const struct template *template = &ask->template;
    bn_status status = BN_OK;
    for (int part = 0; part < QUERY && status == BN_OK; part++) {
        bn_string own = template->parts[part];
        uint32_t flags = BN_TOKENIZE_PARSE_SPECIAL | (part == 0 ? BN_TOKENIZE_ADD_SPECIAL : 0);
        own.length -= spaced(own);
        if (part == 0 || own.length > 0) status = tokens_add_text(&common->tokens, model, own, flags, error);
        common->ends[part] = common->tokens.count;
    }
    // Texts from requests spell no control tokens.
    if (status == BN_OK && ask->queries_count == 1)
        status = add_value(&common->tokens, model, ask->queries[0], spaced(template->parts[!template->query_first]), 0, error);
    common->ends[QUERY] = common->tokens.count;
    return status;
}

static void add_common(struct tokens *t, const struct common *common, int piece) {
    size_t from = piece > 0 ? common->ends[piece - 1] : 0;
    tokens_add_ids(t, common->tokens.ids + from, common->ends[piece] - from);
}

// Adds a prompt. `*from` is the index of the query's first token in it.
static bn_status add_pair(const struct ask *ask, size_t i, const bn_model *model, const struct common *common,
                          struct tokens *t, uint32_t *from, bn_error *error) {
    const struct template *template = &ask->template;
    size_t begin = t->count;
    bn_status status = BN_OK;
    for (int part = 0; part < 2 && status == BN_OK; part++) {
        bool is_query = template->query_first == (part == 0);
        add_common(t, common, part);
        size_t before = t->count;
        if (is_query && ask->queries_count == 1) add_common(t, common, QUERY);
        else
            status = add_value(t, model, is_query ? ask->queries[i] : ask->texts[i], spaced(template->parts[part]), 0, error);
        if (is_query) *from = (uint32_t)(before - begin);
        else if (ask->document_tokens != 0 && t->count - before > ask->document_tokens)
            t->count = before + ask->document_tokens;
    }
    add_common(t, common, 2);
    return status;
}

// Refuses a prompt before the next one is made: the engine would refuse it too, but only with all of them in memory.
static bn_status too_long(size_t i, size_t count, uint64_t most, bn_error *error) {
    if (count <= most) return BN_OK;
    snprintf(error->message, sizeof error->message, "request %zu: the prompt has %zu tokens, more than the %llu of a sequence",
             i, count, (ull)most);
    return error->status = BN_ERR_TOO_LONG;
}

// Adds the two words of a verdict, each one token.
static bn_status add_words(const struct template *template, const bn_model *model, struct tokens *t, bn_error *error) {
    for (size_t i = 0; i < 2; i++) {
        bn_string word = template->words[i];
        bool space = spaced(template->parts[2]);
        bn_status status = add_value(t, model, word, space, BN_TOKENIZE_PARSE_SPECIAL, error);
        if (status != BN_OK) return status;
        if (t->count == i + 1) continue;
        snprintf(error->message, sizeof error->message, "'template' ends with '%s%.*s', which is not one token of this model",
                 space ? " " : "", (int)(word.length < 64 ? word.length : 64), word.data);
        return error->status = BN_ERR_INVALID_ARGUMENT;
    }
    return BN_OK;
}

bn_status pairs_loaded(const bn_model *model, bn_error *error) {
    struct tokens tokens = {NULL, 0, 0};
    bn_status status = usual_template.judges ? add_words(&usual_template, model, &tokens, error) : BN_OK;
    free(tokens.ids);
    if (status == BN_OK) return BN_OK;
    char message[sizeof error->message];
    snprintf(message, sizeof message, "--rerank-template: %.400s", error->message);
    memcpy(error->message, message, sizeof message);
    return status;
}

// A model that scores pairs takes the texts themselves. A template overrides that: of the request, or of the server if the
// model generates.
static bool by_head(const struct exchange *ex) {
    const bn_model_info *info = &ex->model->info;
    bool own = ex->ask.template.parts[0].data != ex->server->template.parts[0].data;
    bool given = *ex->server->options.rerank_template != 0 && info->encodes == 0;
    return info->scores_pairs != 0 && !own && !given;
}

static bn_status fill_texts(const struct exchange *ex, bn_request_params *params, bn_error *error) {
    const struct ask *ask = &ex->ask;
    if (ask->document_tokens != 0) {
        snprintf(error->message, sizeof error->message, "'max_tokens_per_doc' is not for a model that scores pairs by itself");
        return error->status = BN_ERR_INVALID_ARGUMENT;
    }
    for (size_t i = 0; i < ask->prompts; i++) {
        params[i].task = BN_TASK_RERANK;
        if (ask->messages != NULL) {
            params[i].chat.messages = ask->messages + 3 * i, params[i].chat.messages_count = 3;
            continue;
        }
        params[i].prompt = ask->queries[ask->queries_count == 1 ? 0 : i];
        params[i].document = ask->texts[i];
    }
    return BN_OK;
}

bn_status pairs_fill(const struct exchange *ex, bn_request_params *params, struct tokens *t, bn_error *error) {
    const struct ask *ask = &ex->ask;
    const bn_model *model = ex->model->handle;
    struct common common = {.ends = {0}};
    bool own = by_head(ex);
    if (ask->instruction.data != NULL && (!own || ex->model->info.encodes != 0)) {
        snprintf(error->message, sizeof error->message, "'instruction' is for models that score pairs with a prompt of their own");
        return error->status = BN_ERR_INVALID_ARGUMENT;
    }
    if (own) return fill_texts(ex, params, error);
    bn_stats stats;
    bn_stats_init(&stats, sizeof stats);
    bn_status status = bn_engine_stats(ex->model->engine, &stats, error);
    if (status == BN_OK && ask->template.judges) status = add_words(&ask->template, model, t, error);
    if (status == BN_OK) status = find_common(ask, model, &common, error);
    size_t words = t->count;
    for (size_t i = 0; i < ask->prompts && status == BN_OK; i++) {
        size_t begin = t->count;
        uint32_t from = 0;
        status = add_pair(ask, i, model, &common, t, &from, error);
        if (status == BN_OK) status = too_long(i, t->count - begin, stats.context_length, error);
        params[i].flags |= BN_REQUEST_LOGPROBS | (ask->template.judges ? BN_REQUEST_NO_STREAM : 0);
        params[i].task = ask->template.judges ? BN_TASK_GENERATE : BN_TASK_SCORE;
        params[i].prompt_tokens_count = t->count - begin;
        params[i].logprobs_from = ask->template.judges ? 0 : from;
    }
    free(common.tokens.ids);
    const uint32_t *next = t->ids + words;
    for (size_t i = 0; i < ask->prompts && status == BN_OK; next += params[i++].prompt_tokens_count) {
        params[i].prompt_tokens = next;
        params[i].max_new_tokens = 1;
        params[i].logprob_tokens = t->ids;
        params[i].logprob_tokens_count = words;
    }
    return status;
}

// The first word's share of both probabilities, or the geometric mean probability of the query's tokens.
double pairs_score(const struct exchange *ex, const bn_event *event) {
    const bn_logprob *entries = event->logprobs;
    if (event->embedding_count == 1) return (double)event->embedding[0]; // by the model's head
    double sum = 0, count = 0;
    if (ex->ask.template.judges) {
        double score = 1 / (1 + exp((double)entries[2].logprob - (double)entries[1].logprob));
        return isnan(score) ? 0 : score; // neither word is possible
    }
    for (size_t i = 0; i < event->logprobs_count; i++) {
        if (isnan(entries[i].logprob)) continue; // the first token of all
        sum += (double)entries[i].logprob;
        count++;
    }
    return count > 0 ? exp(sum / count) : 0;
}
