// Values of fields other than numbers and texts.
#include "models.h"
#include "values.h"

#include "adapters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bn_string text_of(const cJSON *value) {
    return (bn_string){value->valuestring, strlen(value->valuestring)};
}

const char *read_model(struct exchange *ex, const cJSON *value) {
    if (!cJSON_IsString(value)) return "must be a text";
    const struct adapter *found = adapters_find(ex->model, value->valuestring); // else it was chosen by this name
    if (found == NULL) return NULL;
    ex->ask.model = found->name;
    ex->ask.params.adapter = found->handle;
    return NULL;
}

// OpenAI's field, where 0 asks for the prompt alone; in the engine, 0 asks for as many as there is room for.
const char *read_max_tokens(struct exchange *ex, const cJSON *value) {
    double most = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(most >= 0 && most <= UINT32_MAX) || most != (double)(uint32_t)most)
        return "must be a whole number from 0 to 4294967295";
    ex->ask.params.task = most == 0 ? BN_TASK_SCORE : BN_TASK_GENERATE;
    ex->ask.params.max_new_tokens = (uint32_t)most;
    return NULL;
}

static size_t count_of(const cJSON *array) {
    return (size_t)cJSON_GetArraySize(array);
}

// Appends the ids of a list; `token_from` of the next prompt marks their end.
static const char *read_tokens(struct ask *ask, const cJSON *array, size_t prompt) {
    const cJSON *item;
    size_t *end = &ask->token_from[prompt + 1];
    if (array->child == NULL) return "must have no empty list of tokens";
    cJSON_ArrayForEach(item, array) {
        double id = item->valuedouble;
        if (!cJSON_IsNumber(item) || !(id >= 0 && id <= UINT32_MAX) || id != (double)(uint32_t)id)
            return "must have token ids only";
        ask->tokens[(*end)++] = (uint32_t)id;
    }
    return NULL;
}

// A text, a list of texts, a list of tokens, or a list of lists of tokens.
const char *read_prompts(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    bool many = cJSON_IsArray(value) && !cJSON_IsNumber(value->child);
    size_t total = 0;
    const cJSON *item;
    if (!cJSON_IsArray(value) && !cJSON_IsString(value)) return "must be a text, a list of texts or lists of token ids";
    if (cJSON_IsArray(value) && value->child == NULL) return "must not be empty";
    if (ask->texts != NULL) return "is there twice";
    ask->prompts = many ? count_of(value) : 1;
    ask->texts = must(calloc(ask->prompts, sizeof *ask->texts));
    ask->token_from = must(calloc(ask->prompts + 1, sizeof *ask->token_from));
    if (many) cJSON_ArrayForEach(item, value) total += count_of(item);
    else total = count_of(value);
    ask->tokens = must(calloc(total + 1, sizeof *ask->tokens));
    item = many ? value->child : value;
    for (size_t i = 0; i < ask->prompts; i++, item = item->next) {
        ask->token_from[i + 1] = ask->token_from[i];
        if (!cJSON_IsArray(item) && !cJSON_IsString(item)) return "must have texts or lists of token ids only";
        if (cJSON_IsString(item)) ask->texts[i] = text_of(item);
        const char *wrong = cJSON_IsArray(item) ? read_tokens(ask, item, i) : NULL;
        if (wrong != NULL) return wrong;
    }
    return NULL;
}

// The text of a part, NULL if it is no text.
static const cJSON *part_text(const cJSON *part) {
    static const char *const types[] = {"text", "input_text", "output_text", "reasoning_text"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type"),
                *text = cJSON_GetObjectItemCaseSensitive(part, "text");
    for (size_t i = 0; cJSON_IsString(type) && cJSON_IsString(text) && i < sizeof types / sizeof *types; i++)
        if (strcmp(type->valuestring, types[i]) == 0) return text;
    return NULL;
}

const char *read_content(struct ask *ask, const cJSON *content, bn_string *out) {
    const cJSON *part;
    size_t length = 0;
    if (cJSON_IsString(content)) return *out = text_of(content), NULL;
    if (!cJSON_IsArray(content)) return "needs a 'content' that is a text or a list of text parts";
    cJSON_ArrayForEach(part, content) {
        if (part_text(part) == NULL)
            return "may have text parts only: this server takes no images, audio or files";
        length += strlen(part_text(part)->valuestring);
    }
    char *joined = must(malloc(length + 1)), *to = joined;
    cJSON_ArrayForEach(part, content) {
        bn_string text = text_of(part_text(part));
        memcpy(to, text.data, text.length);
        to += text.length;
    }
    *to = 0;
    buffer_add(&ask->joined, &joined, sizeof joined); // freed by ask_free
    return *out = (bn_string){joined, length}, NULL;
}

const char *read_system(struct exchange *ex, const cJSON *value) {
    return read_content(&ex->ask, value, &ex->ask.system);
}

const char *read_stop(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    size_t count = 0;
    if (ask->stops != NULL) return "is there twice";
    ask->stops = must(calloc(BN_MAX_STOPS, sizeof *ask->stops));
    for (; item != NULL; item = cJSON_IsArray(value) ? item->next : NULL) {
        if (!cJSON_IsString(item) || *item->valuestring == 0)
            return "must be a text or a list of texts, none of them empty";
        if (count == BN_MAX_STOPS) return "has more than 256 texts";
        ask->stops[count++] = text_of(item);
        buffer_add(&ask->kept, item->valuestring, strlen(item->valuestring) + 1);
    }
    ask->params.stop_strings = ask->stops;
    ask->params.stop_strings_count = count;
    return NULL;
}

// Token ids, as texts, and numbers added to their logits: OpenAI's -100 forbids a token.
const char *read_logit_bias(struct exchange *ex, const cJSON *value) {
    static const char wrong[] = "must be an object of token ids with numbers from -100 to 100";
    struct ask *ask = &ex->ask;
    int count = cJSON_IsObject(value) ? cJSON_GetArraySize(value) : -1;
    if (count < 0) return wrong;
    if (count == 0 || ask->biases != NULL) return count == 0 ? NULL : "is there twice";
    bn_logit_bias *next = ask->biases = must(calloc((size_t)count, sizeof *next));
    for (const cJSON *item = value->child; item != NULL; item = item->next, next++) {
        char *end = NULL;
        unsigned long long token = strtoull(item->string, &end, 10);
        bool id = *item->string >= '0' && *item->string <= '9' && *end == 0 && token <= UINT32_MAX;
        double bias = item->valuedouble;
        if (!id || !cJSON_IsNumber(item) || !(bias >= -100 && bias <= 100)) return wrong;
        *next = (bn_logit_bias){(uint32_t)token, bias == -100 ? -INFINITY : (float)bias};
    }
    ask->params.sampling.logit_bias = ask->biases;
    ask->params.sampling.logit_bias_count = (size_t)count;
    return NULL;
}

const char *read_stream_options(struct exchange *ex, const cJSON *value) {
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(value, "include_usage");
    if (!cJSON_IsObject(value) || (usage != NULL && !cJSON_IsBool(usage)))
        return "must be an object with 'include_usage'";
    ex->ask.include_usage = cJSON_IsTrue(usage);
    return NULL;
}

const char *read_speculation(struct exchange *ex, const cJSON *value) {
    const char *name = cJSON_GetStringValue(value);
    int32_t how = name == NULL ? -1 : speculation_of(name);
    ex->ask.params.speculation = how < 0 ? BN_SPECULATION_DEFAULT : (uint32_t)how;
    return how > (int32_t)BN_SPECULATION_DEFAULT ? NULL : "must be 'off', 'lookup' or 'draft'";
}

// A switch in chats, elsewhere the number of alternatives.
const char *read_logprobs(struct exchange *ex, const cJSON *value) {
    bool chat = (ex->route->fields & (FIELDS_CHAT | FIELDS_OLLAMA_CHAT | FIELDS_OLLAMA_GENERATE)) != 0;
    ex->ask.has_logprobs = chat ? cJSON_IsTrue(value) : true;
    if (ex->ask.has_logprobs) ex->ask.params.flags |= BN_REQUEST_LOGPROBS;
    if (chat) return cJSON_IsBool(value) ? NULL : "must be true or false";
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || value->valuedouble > 32)
        return "must be a number from 0 to 32";
    ex->ask.params.top_logprobs = (uint32_t)value->valuedouble;
    return NULL;
}

const char *read_encoding(struct exchange *ex, const cJSON *value) {
    bool base64 = cJSON_IsString(value) && strcmp(value->valuestring, "base64") == 0;
    ex->ask.base64 = base64;
    return base64 || (cJSON_IsString(value) && strcmp(value->valuestring, "float") == 0)
               ? NULL
               : "must be \"float\" or \"base64\"";
}
