#include "fields.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GENERATE (FIELDS_COMPLETION | FIELDS_CHAT | FIELDS_BATCH)
#define SUBMIT (GENERATE | FIELDS_EMBEDDING)
#define ALL (SUBMIT | FIELDS_TOKENIZE)
#define TEXTUAL (FIELDS_COMPLETION | FIELDS_BATCH)
#define EXACT 9007199254740992.0 // 2^53: cJSON reads numbers as doubles

enum type { WHOLE, LONG, REAL, FLAG, BOOL, TEXT, READ, IGNORED, REFUSED };

struct field {
    const char *name;
    unsigned routes;
    enum type type;
    size_t at;         // in struct ask
    double low, high;  // of a number; FLAG: `high` is the bit
    size_t noted;      // a bool in struct ask that says that the field is there; 0: none
    const char *(*read)(struct exchange *ex, const cJSON *value); // READ: NULL, or what is wrong
};

// -- values that are more than a number or a text ---------------------------------------------------

static bn_string text_of(const cJSON *value) {
    return (bn_string){value->valuestring, strlen(value->valuestring)};
}

static size_t count_of(const cJSON *array) {
    return (size_t)cJSON_GetArraySize(array);
}

static const char *read_tokens(struct ask *ask, const cJSON *array, size_t prompt) {
    const cJSON *item;
    uint32_t *to = ask->tokens;
    for (size_t i = 0; i < prompt; i++) to += ask->token_counts[i];
    cJSON_ArrayForEach(item, array) {
        double id = item->valuedouble;
        if (!cJSON_IsNumber(item) || id < 0 || id > UINT32_MAX || id != (double)(uint32_t)id) return "must have token ids only";
        to[ask->token_counts[prompt]++] = (uint32_t)id;
    }
    return ask->token_counts[prompt] == 0 ? "must have no empty list of tokens" : NULL;
}

// A text, a list of texts, a list of tokens, or a list of lists of tokens.
static const char *read_prompts(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    bool list = cJSON_IsArray(value) && !cJSON_IsNumber(value->child);
    size_t total = 0;
    const cJSON *item;
    if (!cJSON_IsArray(value) && !cJSON_IsString(value)) return "must be a text, a list of texts or lists of token ids";
    if (cJSON_IsArray(value) && value->child == NULL) return "must not be empty";
    if (ask->texts != NULL) return "is there twice";
    ask->prompts = list ? count_of(value) : 1;
    ask->texts = must(calloc(ask->prompts, sizeof *ask->texts));
    ask->token_counts = must(calloc(ask->prompts, sizeof *ask->token_counts));
    if (list) cJSON_ArrayForEach(item, value) total += count_of(item);
    else total = count_of(value);
    ask->tokens = must(calloc(total + 1, sizeof *ask->tokens));
    item = list ? value->child : value;
    for (size_t i = 0; i < ask->prompts; i++, item = item->next) {
        const char *wrong = cJSON_IsArray(item) ? read_tokens(ask, item, i) : cJSON_IsString(item) ? NULL : "must have texts or lists of token ids only";
        if (wrong != NULL) return wrong;
        if (cJSON_IsString(item)) ask->texts[i] = text_of(item);
    }
    return NULL;
}

// A content is a text, or a list of parts of which all are texts.
static const char *read_content(struct ask *ask, const cJSON *content, bn_string *out) {
    if (cJSON_IsString(content)) return *out = text_of(content), NULL;
    if (!cJSON_IsArray(content)) return "each need a 'content' that is a text or a list of text parts";
    size_t length = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, content) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type"), *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        bool known = cJSON_IsString(type) && (strcmp(type->valuestring, "text") == 0 || strcmp(type->valuestring, "input_text") == 0 || strcmp(type->valuestring, "output_text") == 0);
        if (!known || !cJSON_IsString(text)) return "may have text parts only: this server takes no images, audio or files";
        length += strlen(text->valuestring);
    }
    char *joined = must(malloc(length + 1)), *to = joined;
    cJSON_ArrayForEach(part, content) {
        bn_string text = text_of(cJSON_GetObjectItemCaseSensitive(part, "text"));
        memcpy(to, text.data, text.length);
        to += text.length;
    }
    buffer_add(&ask->strings, &joined, sizeof joined); // freed by ask_free
    return *out = (bn_string){joined, length}, NULL;
}

static const char *read_messages(struct exchange *ex, const cJSON *value) {
    static const char *const roles[][2] = {{"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    struct ask *ask = &ex->ask;
    const cJSON *message;
    size_t count = 0;
    if (!cJSON_IsArray(value) || value->child == NULL) return "must be a list of messages that is not empty";
    if (ask->messages != NULL) return "is there twice";
    ask->messages = must(calloc(count_of(value), sizeof *ask->messages));
    cJSON_ArrayForEach(message, value) {
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
        bn_chat_message *to = &ask->messages[count++];
        for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof *roles; i++)
            if (strcmp(role->valuestring, roles[i][0]) == 0) to->role = BN_TEXT(roles[i][1]);
        if (to->role.data == NULL) return "each need the 'role' system, developer, user or assistant";
        const char *wrong = read_content(ask, cJSON_GetObjectItemCaseSensitive(message, "content"), &to->content);
        if (wrong != NULL) return wrong;
    }
    ask->params.messages = ask->messages;
    ask->params.messages_count = count;
    return NULL;
}

static const char *read_stop(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    const cJSON *item = cJSON_IsArray(value) ? value->child : value;
    size_t count = 0;
    if (ask->stops != NULL) return "is there twice";
    ask->stops = must(calloc(BN_MAX_STOPS, sizeof *ask->stops));
    for (; item != NULL; item = cJSON_IsArray(value) ? item->next : NULL) {
        if (!cJSON_IsString(item) || *item->valuestring == 0) return "must be a text or a list of texts, none of them empty";
        if (count == BN_MAX_STOPS) return "has more than 256 texts";
        ask->stops[count++] = text_of(item);
    }
    ask->params.stop_strings = ask->stops;
    ask->params.stop_strings_count = count;
    return NULL;
}

static const char *read_stream_options(struct exchange *ex, const cJSON *value) {
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(value, "include_usage");
    if (!cJSON_IsObject(value) || (usage != NULL && !cJSON_IsBool(usage))) return "must be an object with 'include_usage'";
    ex->ask.include_usage = cJSON_IsTrue(usage);
    return NULL;
}

// In chats a switch, elsewhere the number of alternatives.
static const char *read_logprobs(struct exchange *ex, const cJSON *value) {
    bool chat = ex->route->fields == FIELDS_CHAT;
    ex->ask.has_logprobs = chat ? cJSON_IsTrue(value) : true;
    if (ex->ask.has_logprobs) ex->ask.params.flags |= BN_REQUEST_LOGPROBS;
    if (chat) return cJSON_IsBool(value) ? NULL : "must be true or false";
    if (!cJSON_IsNumber(value) || value->valuedouble < 0 || value->valuedouble > 32) return "must be a number from 0 to 32";
    ex->ask.params.top_logprobs = (uint32_t)value->valuedouble;
    return NULL;
}

static const char *read_response_format(struct exchange *ex, const cJSON *value) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, "type");
    (void)ex;
    return cJSON_IsString(type) && strcmp(type->valuestring, "text") == 0 ? NULL : "can only be {\"type\": \"text\"}: this version has no structured output";
}

static const char *read_encoding(struct exchange *ex, const cJSON *value) {
    bool base64 = cJSON_IsString(value) && strcmp(value->valuestring, "base64") == 0;
    ex->ask.base64 = base64;
    return base64 || (cJSON_IsString(value) && strcmp(value->valuestring, "float") == 0) ? NULL : "must be \"float\" or \"base64\"";
}

// -- the table --------------------------------------------------------------------------------------

#define ASK(field) offsetof(struct ask, field)
#define PARAM(field) offsetof(struct ask, params.field)

static const struct field table[] = {
    {"prompt", FIELDS_COMPLETION, READ, .read = read_prompts},
    {"prompts", FIELDS_BATCH, READ, .read = read_prompts},
    {"input", FIELDS_EMBEDDING, READ, .read = read_prompts},
    {"text", FIELDS_TOKENIZE, READ, .read = read_prompts},
    {"messages", FIELDS_CHAT | FIELDS_TOKENIZE, READ, .read = read_messages},
    {"stop", GENERATE, READ, .read = read_stop},
    {"stream", GENERATE, BOOL, .at = ASK(stream)},
    {"stream_options", FIELDS_COMPLETION | FIELDS_CHAT, READ, .read = read_stream_options},
    {"max_tokens", GENERATE, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX},
    {"max_completion_tokens", FIELDS_CHAT, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX},
    {"max_new_tokens", GENERATE, WHOLE, PARAM(max_new_tokens), 0, UINT32_MAX},
    {"n", GENERATE, WHOLE, ASK(n), 1, 128},
    {"seed", GENERATE, LONG, PARAM(seed), -EXACT, EXACT, ASK(has_seed)},
    {"temperature", GENERATE, REAL, PARAM(temperature), 0, 100, ASK(has_temperature)},
    {"top_p", GENERATE, REAL, PARAM(top_p), 0, 1, ASK(has_top_p)},
    {"top_k", GENERATE, WHOLE, PARAM(top_k), 0, UINT32_MAX},
    {"min_p", GENERATE, REAL, PARAM(min_p), 0, 1},
    {"repetition_penalty", GENERATE, REAL, PARAM(repetition_penalty), 0, 100},
    {"frequency_penalty", GENERATE, REAL, PARAM(frequency_penalty), -100, 100},
    {"presence_penalty", GENERATE, REAL, PARAM(presence_penalty), -100, 100},
    {"logprobs", FIELDS_COMPLETION | FIELDS_CHAT, READ, .read = read_logprobs},
    {"top_logprobs", FIELDS_CHAT, WHOLE, PARAM(top_logprobs), 0, 32},
    {"echo", FIELDS_COMPLETION, FLAG, PARAM(flags), .high = BN_REQUEST_ECHO_PROMPT},
    {"ignore_eos", GENERATE, FLAG, PARAM(flags), .high = BN_REQUEST_IGNORE_EOS},
    {"no_cache", SUBMIT, FLAG, PARAM(flags), .high = BN_REQUEST_NO_CACHE},
    {"drop_late", SUBMIT, FLAG, PARAM(flags), .high = BN_REQUEST_DROP_LATE},
    {"priority", SUBMIT, WHOLE, PARAM(priority), 0, BN_PRIORITY_MAX},
    {"session", GENERATE, TEXT, PARAM(session)},
    {"cache_salt", SUBMIT, LONG, PARAM(cache_salt), 0, EXACT},
    {"timeout_ms", SUBMIT, WHOLE, PARAM(timeout_ms), 1, UINT32_MAX - 1.0},
    {"queue_timeout_ms", SUBMIT, WHOLE, PARAM(queue_timeout_ms), 1, UINT32_MAX - 1.0},
    {"encoding_format", FIELDS_EMBEDDING, READ, .read = read_encoding},
    {"dimensions", FIELDS_EMBEDDING, WHOLE, ASK(dimensions), 1, UINT32_MAX},
    {"response_format", GENERATE, READ, .read = read_response_format},
    // One model is served, whatever name it is called by.
    {"model", ALL, IGNORED},
    {"user", ALL, IGNORED},
    {"metadata", ALL, IGNORED},
    {"store", FIELDS_CHAT, IGNORED},
    {"service_tier", FIELDS_CHAT, IGNORED},
    {"safety_identifier", FIELDS_CHAT, IGNORED},
    {"prompt_cache_key", FIELDS_CHAT, IGNORED},
    // Refused, unless they are empty or ask for nothing.
    {"tools", ALL, REFUSED},
    {"tool_choice", ALL, REFUSED},
    {"functions", ALL, REFUSED},
    {"function_call", ALL, REFUSED},
    {"logit_bias", GENERATE, REFUSED},
    {"suffix", FIELDS_COMPLETION, REFUSED},
    {"best_of", FIELDS_COMPLETION, REFUSED},
};
enum { FIELDS = sizeof table / sizeof *table };

static const char *read_number(struct ask *ask, const struct field *f, const cJSON *value) {
    static char message[96];
    double v = value->valuedouble;
    bool whole = f->type != REAL;
    void *to = (char *)ask + f->at;
    if (!cJSON_IsNumber(value) || !(v >= f->low && v <= f->high) || (whole && v != (double)(int64_t)v)) {
        snprintf(message, sizeof message, "must be a %snumber from %.16g to %.16g", whole ? "whole " : "", f->low, f->high);
        return message;
    }
    if (f->type == WHOLE) memcpy(to, &(uint32_t){(uint32_t)v}, sizeof(uint32_t));
    if (f->type == LONG) memcpy(to, &(uint64_t){(uint64_t)(int64_t)v}, sizeof(uint64_t));
    if (f->type == REAL) memcpy(to, &(float){(float)v}, sizeof(float));
    return NULL;
}

static bool nothing(const cJSON *value) {
    bool none = cJSON_IsString(value) && (*value->valuestring == 0 || strcmp(value->valuestring, "none") == 0);
    bool one = cJSON_IsNumber(value) && value->valuedouble == 1; // best_of
    return none || one || ((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

// NULL, or what is wrong.
static const char *read_field(struct exchange *ex, const struct field *f, const cJSON *value) {
    struct ask *ask = &ex->ask;
    if (f->type == IGNORED || cJSON_IsNull(value)) return NULL;
    if (f->noted != 0) *(bool *)((char *)ask + f->noted) = true;
    switch (f->type) {
    case REFUSED: return nothing(value) ? NULL : "is not supported by this version";
    case READ: return f->read(ex, value);
    case TEXT:
        if (!cJSON_IsString(value)) return "must be a text";
        *(bn_string *)((char *)ask + f->at) = text_of(value);
        return NULL;
    case BOOL:
    case FLAG:
        if (!cJSON_IsBool(value)) return "must be true or false";
        if (f->type == BOOL) *(bool *)((char *)ask + f->at) = cJSON_IsTrue(value);
        else if (cJSON_IsTrue(value)) *(uint32_t *)((char *)ask + f->at) |= (uint32_t)f->high;
        return NULL;
    default: return read_number(ask, f, value);
    }
}

static const struct field *find(const char *name, unsigned route) {
    for (size_t i = 0; i < FIELDS; i++)
        if ((table[i].routes & route) != 0 && strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

// OpenAI's defaults, unless the model's authors recommend others.
static void sampling_defaults(struct exchange *ex) {
    const bn_model_info *info = &ex->server->info;
    bn_request_params *p = &ex->ask.params;
    p->temperature = info->sampling_fields & BN_SAMPLING_TEMPERATURE ? info->temperature : 1;
    if (info->sampling_fields & BN_SAMPLING_TOP_K) p->top_k = info->top_k;
    if (info->sampling_fields & BN_SAMPLING_TOP_P) p->top_p = info->top_p;
    if (info->sampling_fields & BN_SAMPLING_MIN_P) p->min_p = info->min_p;
    if (info->sampling_fields & BN_SAMPLING_REPETITION_PENALTY) p->repetition_penalty = info->repetition_penalty;
    p->max_new_tokens = ex->route->fields == FIELDS_COMPLETION ? 16 : ex->route->fields == FIELDS_CHAT ? 0 : p->max_new_tokens;
}

bool fields_read(struct exchange *ex, const cJSON *root) {
    struct ask *ask = &ex->ask;
    const cJSON *value;
    bn_request_params_init(&ask->params, sizeof ask->params);
    ask->n = 1;
    ask->generates = (ex->route->fields & GENERATE) != 0;
    if (ask->generates) sampling_defaults(ex);
    cJSON_ArrayForEach(value, root) {
        const struct field *f = find(value->string, ex->route->fields);
        const char *wrong = f == NULL ? "is not a field of this request" : read_field(ex, f, value);
        if (wrong == NULL) continue;
        fail(ex, 400, "invalid_request_error", "'%.64s' %s", value->string, wrong);
        return false;
    }
    if (ask->prompts == 0 && ask->messages == NULL) {
        bool chat = ex->route->fields == FIELDS_CHAT;
        fail(ex, 400, "invalid_request_error", "'%s' is missing", chat ? "messages" : find("prompt", ex->route->fields) ? "prompt" : find("input", ex->route->fields) ? "input" : find("text", ex->route->fields) ? "text" : "prompts");
        return false;
    }
    if (ask->params.top_logprobs > 0 && !ask->has_logprobs) {
        fail(ex, 400, "invalid_request_error", "'top_logprobs' needs 'logprobs' to be true");
        return false;
    }
    if (ask->dimensions != 0 && ask->dimensions != ex->server->info.embedding_size) {
        fail(ex, 400, "invalid_request_error", "'dimensions' can only be %llu with this model", (unsigned long long)ex->server->info.embedding_size);
        return false;
    }
    if (ask->prompts == 0) ask->prompts = 1; // the conversation
    return true;
}

void ask_free(struct ask *ask) {
    char *joined;
    while (buffer_length(&ask->strings) > 0) {
        buffer_take(&ask->strings, (char *)&joined, sizeof joined);
        free(joined);
    }
    buffer_free(&ask->strings);
    free(ask->texts);
    free(ask->tokens);
    free(ask->token_counts);
    free(ask->messages);
    free(ask->stops);
    ask->texts = NULL;
    ask->tokens = NULL;
    ask->token_counts = NULL;
    ask->messages = NULL;
    ask->stops = NULL;
}
