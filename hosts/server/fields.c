#include "fields.h"

#include "models.h"
#include "ollama.h"
#include "pairs.h"
#include "values.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Route masks by shared fields.
#define SAMPLES (FIELDS_COMPLETION | FIELDS_CHAT | FIELDS_BATCH)
#define GENERATE (SAMPLES | FIELDS_RESPONSE | FIELDS_MESSAGE)
#define PAIRS (FIELDS_RERANK | FIELDS_SCORE)
#define SUBMIT (GENERATE | FIELDS_EMBEDDING | PAIRS | OLLAMA)
#define CONVERSE (FIELDS_CHAT | FIELDS_RESPONSE | FIELDS_MESSAGE)
#define CHATS (FIELDS_CHAT | FIELDS_TOKENIZE)
#define TEMPLATED (CHATS | FIELDS_RESPONSE)
#define OLLAMA_TEXT (FIELDS_OLLAMA_CHAT | FIELDS_OLLAMA_GENERATE)
#define OLLAMA (OLLAMA_TEXT | FIELDS_OLLAMA_EMBED | FIELDS_OLLAMA_VECTOR)
#define TUNE (GENERATE | FIELDS_OLLAMA_OPTIONS)
#define ALL (SUBMIT | OLLAMA | FIELDS_TOKENIZE | FIELDS_COUNT | FIELDS_DETOKENIZE)
#define OPENAI (FIELDS_COMPLETION | FIELDS_CHAT | FIELDS_RESPONSE)
#define EXACT 9007199254740992.0 // 2^53: cJSON reads numbers as doubles

enum type { WHOLE, LONG, REAL, FLAG, BOOL, TEXT, READ, IGNORED, REFUSED };

struct field {
    const char *name;
    unsigned routes;
    enum type type;
    size_t at;        // in struct ask
    double low, high; // of a number; FLAG: `high` is the bit
    size_t noted;     // offset of a bool in struct ask that records the field's presence; 0: none
    const char *(*read)(struct exchange *ex, const cJSON *value); // READ: values.h
};

static const char *read_options(struct exchange *ex, const cJSON *value);

// -- the table --------------------------------------------------------------------------------------

#define ASK(field) offsetof(struct ask, field)
#define PARAM(field) offsetof(struct ask, params.field)

static const struct field table[] = {
    {"prompt", FIELDS_COMPLETION, READ, .read = read_prompts},
    {"messages", FIELDS_OLLAMA_CHAT, READ, .read = ollama_read_messages},
    {"prompt", FIELDS_OLLAMA_GENERATE | FIELDS_OLLAMA_VECTOR, READ, .read = read_prompts},
    {"input", FIELDS_OLLAMA_EMBED, READ, .read = read_prompts},
    {"prompts", FIELDS_BATCH, READ, .read = read_prompts},
    {"input", FIELDS_EMBEDDING, READ, .read = read_prompts},
    {"input", FIELDS_RESPONSE, READ, .read = read_input},
    {"tokens", FIELDS_DETOKENIZE, READ, .read = read_prompts},
    {"text", FIELDS_TOKENIZE, READ, .read = read_prompts},
    {"messages", CHATS, READ, .read = read_chat},
    {"messages", FIELDS_MESSAGE | FIELDS_COUNT, READ, .read = read_claude_messages},
    {"text_2", FIELDS_SCORE, READ, .read = read_documents},
    {"text_1", FIELDS_SCORE, READ, .read = read_queries},
    {"queries", FIELDS_SCORE, READ, .read = read_queries},
    {"documents", PAIRS, READ, .read = read_documents},
    {"query", FIELDS_RERANK, READ, .read = read_query},
    {"template", PAIRS, READ, .read = read_template},
    {"instruction", PAIRS, TEXT, ASK(instruction)},
    {"top_n", FIELDS_RERANK, WHOLE, ASK(top_n), 0, UINT32_MAX},
    {"return_documents", FIELDS_RERANK, BOOL, .at = ASK(return_documents)},
    {"max_tokens_per_doc", PAIRS, WHOLE, ASK(document_tokens), 1, UINT32_MAX},
    {"instructions", FIELDS_RESPONSE, READ, .read = read_system},
    {"system", FIELDS_MESSAGE | FIELDS_COUNT, READ, .read = read_system},
    {"tools", FIELDS_RESPONSE, READ, .read = read_response_tools},
    {"tool_choice", FIELDS_RESPONSE, READ, .read = read_response_choice},
    {"reasoning", FIELDS_RESPONSE, READ, .read = read_reasoning},
    {"reasoning_effort", FIELDS_CHAT, READ, .read = read_effort},
    {"max_reasoning_tokens", CONVERSE, LONG, ASK(reasoning), 0, EXACT},
    {"thinking_token_budget", CONVERSE, LONG, ASK(reasoning), 0, EXACT}, // vLLM's
    {"thinking_budget", CONVERSE, LONG, ASK(reasoning), 0, EXACT},       // DashScope's
    {"reasoning_budget", CONVERSE, READ, .read = read_budget},           // llama.cpp's, where -1 is no bound
    {"tools", CHATS, READ, .read = read_chat},
    {"tool_choice", CHATS, READ, .read = read_chat},
    {"parallel_tool_calls", TEMPLATED, READ, .read = read_chat},
    {"tools", FIELDS_MESSAGE | FIELDS_COUNT, READ, .read = read_claude_tools},
    {"tool_choice", FIELDS_MESSAGE | FIELDS_COUNT, READ, .read = read_claude_choice},
    // vLLM's and transformers' names.
    {"chat_template_kwargs", TEMPLATED, READ, .read = read_chat},
    {"documents", TEMPLATED, READ, .read = read_chat},
    {"add_generation_prompt", TEMPLATED, READ, .read = read_chat},
    {"continue_final_message", TEMPLATED, READ, .read = read_chat},
    {"tool_format", TEMPLATED, READ, .read = read_chat},
    {"reasoning_format", TEMPLATED, READ, .read = read_chat},
    {"stop", SAMPLES | FIELDS_OLLAMA_OPTIONS, READ, .read = read_stop},
    {"stop_sequences", FIELDS_MESSAGE, READ, .read = read_stop},
    {"stream", GENERATE, BOOL, .at = ASK(stream)},
    {"stream_options", FIELDS_COMPLETION | FIELDS_CHAT, READ, .read = read_stream_options},
    {"max_tokens", FIELDS_COMPLETION, READ, .read = read_max_tokens},
    {"max_tokens", FIELDS_CHAT | FIELDS_BATCH, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX},
    {"max_tokens", FIELDS_MESSAGE, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX, ASK(has_max_tokens)},
    {"max_completion_tokens", FIELDS_CHAT, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX},
    {"max_output_tokens", FIELDS_RESPONSE, WHOLE, PARAM(max_new_tokens), 1, UINT32_MAX},
    {"max_new_tokens", SAMPLES, WHOLE, PARAM(max_new_tokens), 0, UINT32_MAX},
    {"n", SAMPLES, WHOLE, ASK(n), 1, 128},
    {"seed", TUNE, LONG, PARAM(sampling.seed), -EXACT, EXACT, ASK(has_seed)},
    {"temperature", TUNE, REAL, PARAM(sampling.temperature), 0, 100},
    {"top_p", TUNE, REAL, PARAM(sampling.top_p), 0, 1},
    {"top_k", TUNE, WHOLE, PARAM(sampling.top_k), 0, UINT32_MAX},
    {"min_p", TUNE, REAL, PARAM(sampling.min_p), 0, 1},
    {"repetition_penalty", GENERATE, REAL, PARAM(sampling.repetition_penalty), 0, 100},
    {"frequency_penalty", TUNE, REAL, PARAM(sampling.frequency_penalty), -100, 100},
    {"presence_penalty", TUNE, REAL, PARAM(sampling.presence_penalty), -100, 100},
    {"logit_bias", GENERATE, READ, .read = read_logit_bias},
    // llama.cpp's and vLLM's names, if they have one.
    {"min_tokens", GENERATE, WHOLE, PARAM(min_new_tokens), 0, UINT32_MAX},
    {"typical_p", TUNE, REAL, PARAM(sampling.typical_p), 0, 1},
    {"top_n_sigma", GENERATE, REAL, PARAM(sampling.top_n_sigma), 0, 1000},
    {"xtc_probability", GENERATE, REAL, PARAM(sampling.xtc_probability), 0, 1},
    {"xtc_threshold", GENERATE, REAL, PARAM(sampling.xtc_threshold), 0, 1},
    {"mirostat_tau", TUNE, REAL, PARAM(sampling.mirostat_tau), 0, 100},
    {"mirostat_eta", TUNE, REAL, PARAM(sampling.mirostat_eta), 0, 1},
    {"dynatemp_range", GENERATE, REAL, PARAM(sampling.temperature_range), 0, 100},
    {"dynatemp_exponent", GENERATE, REAL, PARAM(sampling.temperature_exponent), 0, 100},
    {"repeat_last_n", GENERATE, WHOLE, PARAM(sampling.penalty_window), 0, UINT32_MAX},
    {"dry_multiplier", GENERATE, REAL, PARAM(sampling.dry_multiplier), 0, 100},
    {"dry_base", GENERATE, REAL, PARAM(sampling.dry_base), 1, 100},
    {"dry_allowed_length", GENERATE, WHOLE, PARAM(sampling.dry_allowed_length), 0, UINT32_MAX},
    {"dry_penalty_last_n", GENERATE, WHOLE, PARAM(sampling.dry_window), 0, UINT32_MAX},
    {"logprobs", FIELDS_COMPLETION | FIELDS_CHAT, READ, .read = read_logprobs},
    {"top_logprobs", FIELDS_CHAT, WHOLE, PARAM(top_logprobs), 0, 32},
    {"prompt_logprobs", FIELDS_COMPLETION | FIELDS_CHAT, WHOLE, ASK(prompt_logprobs), 0, 32, ASK(has_prompt_logprobs)},
    {"echo", FIELDS_COMPLETION, FLAG, PARAM(flags), .high = BN_REQUEST_ECHO_PROMPT},
    {"ignore_eos", GENERATE, FLAG, PARAM(flags), .high = BN_REQUEST_IGNORE_EOS},
    {"no_cache", SUBMIT, FLAG, PARAM(flags), .high = BN_REQUEST_NO_CACHE},
    {"drop_late", SUBMIT, FLAG, PARAM(flags), .high = BN_REQUEST_DROP_LATE},
    {"priority", SUBMIT, WHOLE, PARAM(priority), 0, BN_PRIORITY_MAX},
    {"session", GENERATE, TEXT, PARAM(session)},
    {"speculation", GENERATE, READ, .read = read_speculation},
    {"draft_tokens", GENERATE, WHOLE, PARAM(draft_tokens), 0, BN_MAX_DRAFT_TOKENS},
    {"cache_salt", SUBMIT, LONG, PARAM(cache_salt), 0, EXACT},
    {"timeout_ms", SUBMIT, WHOLE, PARAM(timeout_ms), 1, UINT32_MAX - 1.0},
    {"queue_timeout_ms", SUBMIT, WHOLE, PARAM(queue_timeout_ms), 1, UINT32_MAX - 1.0},
    {"encoding_format", FIELDS_EMBEDDING, READ, .read = read_encoding},
    {"dimensions", FIELDS_EMBEDDING, WHOLE, ASK(dimensions), 1, UINT32_MAX},
    {"response_format", SAMPLES, READ, .read = read_response_format},
    {"text", FIELDS_RESPONSE, READ, .read = read_text_format},
    {"output_config", FIELDS_MESSAGE, READ, .read = read_text_format},
    // llama.cpp's and vLLM's.
    {"json_schema", GENERATE, READ, .read = read_json_schema},
    {"guided_json", GENERATE, READ, .read = read_json_schema},
    {"json_whitespace", GENERATE, READ, .read = read_json_whitespace},
    {"unknown_formats", GENERATE, READ, .read = read_unknown_formats},
    {"guided_regex", GENERATE, READ, .read = read_regex},
    {"grammar", GENERATE, READ, .read = read_grammar},
    {"guided_grammar", GENERATE, READ, .read = read_grammar},
    {"structured_outputs", GENERATE, READ, .read = read_structured_outputs},
    {"thread", FIELDS_MESSAGE, READ, .read = read_thread},
    {"thinking", FIELDS_MESSAGE | FIELDS_COUNT, READ, .read = read_thinking},
    {"model", ALL, READ, .read = read_model},
    // Ollama's.
    {"options", OLLAMA, READ, .read = read_options},
    {"format", OLLAMA_TEXT, READ, .read = ollama_read_format},
    {"think", OLLAMA_TEXT, READ, .read = ollama_read_think},
    {"keep_alive", OLLAMA, READ, .read = ollama_read_keep_alive},
    {"raw", FIELDS_OLLAMA_GENERATE, BOOL, .at = ASK(raw)},
    {"system", FIELDS_OLLAMA_GENERATE, READ, .read = read_system},
    {"stream", OLLAMA_TEXT, BOOL, .at = ASK(stream)},
    {"tools", FIELDS_OLLAMA_CHAT, READ, .read = read_chat},
    {"logprobs", OLLAMA_TEXT, READ, .read = read_logprobs},
    {"top_logprobs", OLLAMA_TEXT, WHOLE, PARAM(top_logprobs), 0, 32},
    {"max_reasoning_tokens", OLLAMA_TEXT, LONG, ASK(reasoning), 0, EXACT},
    {"suffix", FIELDS_OLLAMA_GENERATE, TEXT, ASK(suffix)},
    {"dimensions", FIELDS_OLLAMA_EMBED, WHOLE, ASK(dimensions), 1, UINT32_MAX},
    {"truncate", FIELDS_OLLAMA_EMBED, IGNORED}, // texts that are too long are refused
    {"template", FIELDS_OLLAMA_GENERATE, REFUSED},
    {"context", FIELDS_OLLAMA_GENERATE, REFUSED}, // /api/chat takes conversations
    {"images", FIELDS_OLLAMA_GENERATE, REFUSED},
    {"num_predict", FIELDS_OLLAMA_OPTIONS, READ, .read = ollama_read_predict},
    {"repeat_penalty", FIELDS_OLLAMA_OPTIONS, REAL, PARAM(sampling.repetition_penalty), 0, 100},
    {"repeat_last_n", FIELDS_OLLAMA_OPTIONS, READ, .read = ollama_read_window},
    {"mirostat", FIELDS_OLLAMA_OPTIONS, READ, .read = ollama_read_mirostat},
    // The server's options decide these, and a model is loaded once for all.
    {"num_ctx", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"num_batch", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"num_gpu", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"num_keep", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"num_thread", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"main_gpu", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"numa", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"low_vram", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"f16_kv", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"use_mmap", FIELDS_OLLAMA_OPTIONS, IGNORED},
    {"use_mlock", FIELDS_OLLAMA_OPTIONS, IGNORED},
    // Nothing is stored, and users are not tracked.
    {"user", ALL, IGNORED},
    {"metadata", ALL, IGNORED},
    {"store", OPENAI, READ, .read = read_store},
    {"service_tier", OPENAI | FIELDS_MESSAGE, IGNORED},
    {"safety_identifier", OPENAI, IGNORED},
    {"prompt_cache_key", OPENAI, IGNORED},
    {"output_config", FIELDS_COUNT, IGNORED},
    {"cache_control", FIELDS_MESSAGE | FIELDS_COUNT, IGNORED},
    // Without tools there is nothing to choose or to run in parallel.
    {"parallel_tool_calls", FIELDS_COMPLETION, IGNORED},
    {"truncation", FIELDS_RESPONSE, IGNORED}, // texts that are too long are refused
    // Refused, unless they are empty or ask for nothing.
    {"tools", ALL, REFUSED},
    {"tool_choice", ALL, REFUSED},
    {"functions", ALL, REFUSED},
    {"function_call", ALL, REFUSED},
    {"suffix", FIELDS_COMPLETION, TEXT, ASK(suffix)},
    {"best_of", FIELDS_COMPLETION, WHOLE, ASK(best_of), 1, 128},
    {"previous_response_id", FIELDS_RESPONSE, READ, .read = read_store},
    {"conversation", FIELDS_RESPONSE, REFUSED},
    {"background", FIELDS_RESPONSE, REFUSED},
    {"include", FIELDS_RESPONSE, REFUSED},
};
enum { FIELDS = sizeof table / sizeof *table };

static const char *read_number(struct ask *ask, const struct field *f, const cJSON *value) {
    static _Thread_local char message[96];
    double v = value->valuedouble;
    bool whole = f->type != REAL;
    void *to = (char *)ask + f->at;
    if (!cJSON_IsNumber(value) || !(v >= f->low && v <= f->high) || (whole && v != (double)(int64_t)v)) {
        snprintf(message, sizeof message, "must be a %snumber from %.16g to %.16g", whole ? "whole " : "", f->low,
                 f->high);
        return message;
    }
    if (f->type == WHOLE) memcpy(to, &(uint32_t){(uint32_t)v}, sizeof(uint32_t));
    if (f->type == LONG) memcpy(to, &(uint64_t){(uint64_t)(int64_t)v}, sizeof(uint64_t));
    if (f->type == REAL) memcpy(to, &(float){(float)v}, sizeof(float));
    return NULL;
}

static bool nothing(const cJSON *value) {
    bool none = cJSON_IsString(value) && (*value->valuestring == 0 || strcmp(value->valuestring, "none") == 0 ||
                                          strcmp(value->valuestring, "auto") == 0);
    return none || cJSON_IsFalse(value) ||
           ((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

// Returns NULL, or an error text.
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

static const char *read_options(struct exchange *ex, const cJSON *value) {
    static _Thread_local char message[160];
    const cJSON *option;
    if (!cJSON_IsObject(value)) return "must be an object";
    cJSON_ArrayForEach(option, value) {
        const struct field *f = find(option->string, FIELDS_OLLAMA_OPTIONS);
        const char *wrong = f == NULL ? "is not known" : read_field(ex, f, option);
        if (wrong == NULL) continue;
        snprintf(message, sizeof message, "has '%.40s', which %s", option->string, wrong);
        return message;
    }
    return NULL;
}

// OpenAI's defaults, unless the model's authors recommend others.
static void sampling_defaults(struct exchange *ex) {
    const bn_model_info *info = &ex->model->info;
    bn_sampling *s = &ex->ask.params.sampling;
    bn_request_params *p = &ex->ask.params;
    s->temperature = info->sampling_fields & BN_SAMPLING_FIELD_TEMPERATURE ? info->temperature : 1;
    if (info->sampling_fields & BN_SAMPLING_FIELD_TOP_K) s->top_k = info->top_k;
    if (info->sampling_fields & BN_SAMPLING_FIELD_TOP_P) s->top_p = info->top_p;
    if (info->sampling_fields & BN_SAMPLING_FIELD_MIN_P) s->min_p = info->min_p;
    if (info->sampling_fields & BN_SAMPLING_FIELD_REPETITION_PENALTY) s->repetition_penalty = info->repetition_penalty;
    if (ex->route->fields == FIELDS_COMPLETION) p->max_new_tokens = 16;
    if (ex->route->fields & (FIELDS_CHAT | FIELDS_RESPONSE | OLLAMA_TEXT)) p->max_new_tokens = 0; // what the context leaves
}

// A completion of no tokens returns its prompt, with log probabilities if requested.
static void score_prompt(struct ask *ask) {
    const bn_request_params p = ask->params;
    const uint32_t kept = BN_REQUEST_NO_CACHE | BN_REQUEST_DROP_LATE;
    bn_request_params_init(&ask->params, sizeof ask->params);
    ask->params.task = BN_TASK_SCORE;
    ask->params.flags = p.flags & kept;
    ask->params.top_logprobs = p.top_logprobs;
    ask->params.cache_salt = p.cache_salt;
    ask->params.timeout_ms = p.timeout_ms;
    ask->params.queue_timeout_ms = p.queue_timeout_ms;
    ask->params.priority = p.priority;
    ask->params.adapter = p.adapter;
}

static bool all_texts(const struct ask *ask) {
    for (size_t i = 0; i < ask->prompts; i++)
        if (ask->texts[i].data == NULL) return false;
    return true;
}

// Of `best_of` samples the `n` likeliest are the answer.
static void samples_done(struct ask *ask) {
    uint32_t samples = ask->best_of;
    if (ask->suffix.length == 0) ask->suffix = (bn_string){NULL, 0};
    ask->best_of = samples > ask->n ? ask->n : 0;
    if (ask->best_of == 0) return;
    ask->n = samples;
    ask->params.flags |= BN_REQUEST_LOGPROBS;
}

// Checks for missing or contradictory fields once all are read.
static bool check(struct exchange *ex) {
    struct ask *ask = &ex->ask;
    const char *wanted = NULL;
    const bool prompt_only = ask->params.task == BN_TASK_SCORE; // of a completion
    if (ask->prompts == 0 && !ask->has_chat) {
        for (size_t i = 0; wanted == NULL; i++) // the table begins with them
            if ((table[i].routes & ex->route->fields) != 0) wanted = table[i].name;
    } else if (ex->route->fields == FIELDS_MESSAGE && !ask->has_max_tokens) {
        wanted = "max_tokens";
    }
    if (wanted != NULL) fail(ex, 400, "invalid_request_error", "'%s' is missing", wanted);
    else if (ask->params.top_logprobs > 0 && !ask->has_logprobs)
        fail(ex, 400, "invalid_request_error", "'top_logprobs' needs 'logprobs' to be true");
    else if (prompt_only && (ask->params.flags & BN_REQUEST_ECHO_PROMPT) == 0)
        fail(ex, 400, "invalid_request_error", "'max_tokens' can be 0 with 'echo' only");
    else if (ask->has_prompt_logprobs && ask->stream)
        fail(ex, 400, "invalid_request_error", "'prompt_logprobs' cannot be streamed");
    else if (ask->has_prompt_logprobs && ask->n > 1 && !ask->has_chat) // each choice would repeat them
        fail(ex, 400, "invalid_request_error", "'prompt_logprobs' of a completion needs 'n' to be 1");
    else if (ask->dimensions != 0 && ask->dimensions != ex->model->info.embedding_size)
        fail(ex, 400, "invalid_request_error", "'dimensions' can only be %llu with this model",
             (ull)ex->model->info.embedding_size);
    else if (ask->best_of != 0 && ask->best_of < ask->n)
        fail(ex, 400, "invalid_request_error", "'best_of' must not be less than 'n'");
    else if (ask->best_of > ask->n && (ask->stream || prompt_only || ask->has_prompt_logprobs))
        fail(ex, 400, "invalid_request_error", "'best_of' is for whole answers that have tokens of their own");
    else if (ask->suffix.length > 0 && (prompt_only || !all_texts(ask)))
        fail(ex, 400, "invalid_request_error", "'suffix' needs prompts that are texts, and 'max_tokens' above 0");
    else if ((ex->route->fields & PAIRS) != 0) pairs_check(ex);
    // As in OpenAI's API, the echoed prompt has log probabilities too.
    const uint32_t both = BN_REQUEST_ECHO_PROMPT | BN_REQUEST_LOGPROBS;
    if (prompt_only) score_prompt(ask);
    else if ((ask->params.flags & both) == both) ask->params.flags |= BN_REQUEST_PROMPT_LOGPROBS;
    return !ex->finished;
}

bool fields_read(struct exchange *ex, const cJSON *root) {
    struct ask *ask = &ex->ask;
    const cJSON *value;
    bn_request_params_init(&ask->params, sizeof ask->params);
    ask->n = 1;
    ask->reasoning = ex->model->options.reasoning_budget;
    ask->model = ex->model->name;
    ask->generates = (ex->route->fields & (GENERATE | OLLAMA_TEXT)) != 0;
    ask->stream = (ex->route->fields & OLLAMA_TEXT) != 0;
    if (ask->generates) sampling_defaults(ex);
    if (ex->route->fields & (FIELDS_EMBEDDING | FIELDS_OLLAMA_EMBED | FIELDS_OLLAMA_VECTOR)) ask->params.task = BN_TASK_EMBED;
    // Ollama's have length 1, of any model.
    if (ex->route->fields & FIELDS_OLLAMA_EMBED) ask->params.embedding.normalization = BN_NORMALIZATION_UNIT;
    cJSON_ArrayForEach(value, root) {
        const struct field *f = find(value->string, ex->route->fields);
        const char *wrong = f == NULL ? "is not a field of this request" : read_field(ex, f, value);
        if (wrong == NULL) continue;
        if (!ex->finished) fail(ex, 400, "invalid_request_error", "'%.64s' %s", value->string, wrong);
        return false;
    }
    if (ollama_loads(ex) || !check(ex)) return false;
    ollama_done(ex);
    if (ask->generates && !ask->stream) ask->params.flags |= BN_REQUEST_NO_STREAM;
    if (ask->prompts == 0) ask->prompts = 1; // the conversation
    chat_done(ask);
    json_done(ex);
    samples_done(ask);
    return true;
}

static void ask_free(struct ask *ask) {
    char *joined;
    while (buffer_length(&ask->joined) > 0) {
        buffer_take(&ask->joined, (char *)&joined, sizeof joined);
        free(joined);
    }
    buffer_free(&ask->joined);
    cJSON_Delete(ask->chat);
    cJSON_Delete(ask->earlier);
    ask->chat = NULL;
    ask->earlier = NULL;
    ask->previous = NULL;
    free(ask->texts);
    free(ask->tokens);
    free(ask->token_from);
    free(ask->queries);
    free(ask->messages);
    free(ask->stops);
    free(ask->biases);
    ask->texts = NULL;
    ask->tokens = NULL;
    ask->token_from = NULL;
    ask->queries = NULL;
    ask->messages = NULL;
    ask->stops = NULL;
    ask->biases = NULL;
}

void ask_over(struct exchange *ex) {
    ask_free(&ex->ask); // `n` and the like stay
    cJSON_Delete(ex->root);
    ex->root = NULL;
    buffer_free(&ex->body);
    memory_set(ex, &ex->input, ex->ask.kept.capacity + ex->ask.items.capacity);
}

void ask_let_go(struct work *work) {
    ask_over(work->exchange);
}
