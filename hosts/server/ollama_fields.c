// Fields of Ollama's requests.
#include "chat.h"
#include "models.h"
#include "ollama.h"
#include "values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *get(const cJSON *item, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(item, name);
}

static bool is_empty(const cJSON *value) {
    return value == NULL || cJSON_IsNull(value) || (cJSON_IsArray(value) && value->child == NULL);
}

// Calls have no ids there: results belong to the calls before them, in order. Some templates want nine letters and
// digits.
static void add_id(cJSON *to, const char *name, unsigned number) {
    char id[16];
    snprintf(id, sizeof id, "call%05u", number % 100000);
    cJSON_AddStringToObject(to, name, id);
}

static void add_calls(cJSON *message, const cJSON *calls, unsigned *made) {
    const cJSON *call;
    cJSON *to = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON_ArrayForEach(call, calls) {
        cJSON *copy = must(cJSON_CreateObject());
        cJSON_AddItemToArray(to, copy);
        add_id(copy, "id", (*made)++);
        cJSON_AddStringToObject(copy, "type", "function");
        add_reference(copy, "function", get(call, "function"));
    }
}

const char *ollama_read_messages(struct exchange *ex, const cJSON *value) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const cJSON *message;
    unsigned made = 0, answered = 0;
    if (!cJSON_IsArray(value)) return "must be a list of messages";
    if (value->child == NULL) return NULL; // it asks for the model alone
    cJSON *to = cJSON_AddArrayToObject(chat_of(&ex->ask), "messages");
    cJSON_ArrayForEach(message, value) {
        const char *role = cJSON_GetStringValue(get(message, "role"));
        bool known = false;
        for (size_t i = 0; role != NULL && i < sizeof roles / sizeof *roles; i++) known |= strcmp(role, roles[i]) == 0;
        if (!known) return "needs the 'role' system, user, assistant or tool in each message";
        if (!is_empty(get(message, "images"))) return "may have texts only: this server takes no images";
        cJSON *made_of = add_message(to, role);
        const cJSON *content = get(message, "content");
        if (content != NULL && !cJSON_IsString(content) && !cJSON_IsNull(content))
            return "needs a 'content' that is a text";
        const char *text = cJSON_IsString(content) ? content->valuestring : "";
        cJSON_AddItemToObject(made_of, "content", must(cJSON_CreateStringReference(text)));
        if (cJSON_IsString(get(message, "thinking")))
            add_reference(made_of, "reasoning_content", get(message, "thinking"));
        if (!is_empty(get(message, "tool_calls"))) add_calls(made_of, get(message, "tool_calls"), &made);
        if (strcmp(role, "tool") != 0) continue;
        add_id(made_of, "tool_call_id", answered++);
        if (cJSON_IsString(get(message, "tool_name"))) add_reference(made_of, "name", get(message, "tool_name"));
    }
    ex->ask.has_chat = true;
    return NULL;
}

const char *ollama_read_format(struct exchange *ex, const cJSON *value) {
    const char *name = cJSON_GetStringValue(value);
    if (name != NULL && *name == 0) return NULL;
    if (name != NULL && strcmp(name, "json") == 0) {
        ex->ask.params.constraint.kind = BN_CONSTRAINT_JSON_OBJECT;
        return NULL;
    }
    return cJSON_IsObject(value) ? read_json_schema(ex, value) : "must be \"json\" or a JSON schema";
}

const char *ollama_read_think(struct exchange *ex, const cJSON *value) {
    if (cJSON_IsString(value)) return read_effort(ex, value);
    return cJSON_IsBool(value) ? set_thinking(&ex->ask, cJSON_IsTrue(value), NULL) : "must be true, false or a degree";
}

// A number of seconds, or a text like "5m". Below 0: for good.
const char *ollama_read_keep_alive(struct exchange *ex, const cJSON *value) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}};
    double number = value->valuedouble, unit = cJSON_IsNumber(value) ? 1 : -1;
    if (cJSON_IsString(value)) {
        char *end;
        number = strtod(value->valuestring, &end);
        for (size_t i = 0; end != value->valuestring && i < sizeof units / sizeof *units; i++)
            if (strcmp(end, units[i].name) == 0) unit = units[i].seconds;
    }
    if (unit < 0 || !(number * unit < 1e9)) return "must be a number of seconds, or a time like \"5m\"";
    ex->ask.keep_ms = number < 0 ? UINT64_MAX - 1 : (uint64_t)(number * unit * 1000);
    return NULL;
}

// Below 1: what the context leaves.
const char *ollama_read_predict(struct exchange *ex, const cJSON *value) {
    double most = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(most >= -2 && most <= UINT32_MAX)) return "must be a number of tokens, or -1";
    ex->ask.params.max_new_tokens = most < 1 ? 0 : (uint32_t)most;
    return NULL;
}

// The engine's 0 is Ollama's -1, and Ollama's 0 is no penalty.
const char *ollama_read_window(struct exchange *ex, const cJSON *value) {
    double last = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(last >= -1 && last <= UINT32_MAX)) return "must be a number of tokens, or -1";
    ex->ask.params.sampling.penalty_window = last < 0 ? 0 : (uint32_t)last;
    ex->ask.no_penalties = last == 0;
    return NULL;
}

const char *ollama_read_mirostat(struct exchange *ex, const cJSON *value) {
    if (!cJSON_IsNumber(value) || (value->valuedouble != 0 && value->valuedouble != 2)) return "must be 0 or 2";
    ex->ask.mirostat = value->valuedouble == 2 ? 2 : 1;
    return NULL;
}

static void samplers_done(struct ask *ask) {
    bn_sampling *p = &ask->params.sampling;
    if (ask->no_penalties) p->repetition_penalty = 1, p->presence_penalty = p->frequency_penalty = 0;
    if (ask->mirostat != 2) p->mirostat_tau = 0; // Ollama's tau alone does not turn it on
    if (ask->mirostat != 2) return;
    if (p->mirostat_tau == 0) p->mirostat_tau = 5;
    p->top_k = 0; // it is alone
    p->top_p = 1;
    p->min_p = 0;
    p->typical_p = 1;
}

void ollama_done(struct exchange *ex) {
    struct ask *ask = &ex->ask;
    if ((ex->route->fields & (FIELDS_OLLAMA_CHAT | FIELDS_OLLAMA_GENERATE)) != 0) samplers_done(ask);
    bool plain = ask->raw || ask->suffix.data != NULL || ask->has_chat || ask->texts == NULL;
    if (ex->route->fields != FIELDS_OLLAMA_GENERATE || plain || ex->model->info.has_chat_template == 0) return;
    cJSON *messages = cJSON_AddArrayToObject(chat_of(ask), "messages");
    cJSON *text = must(cJSON_CreateStringReference(ask->texts[0].data));
    cJSON_AddItemToObject(add_message(messages, "user"), "content", text);
    ask->has_chat = true; // chat_done adds the system message
}
