// Converts items, tools and choices of the Responses API to a chat's, which the engine takes.
#include "chat.h"
#include "store.h"
#include "values.h"

#include <string.h>

static const cJSON *get(const cJSON *item, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(item, name);
}

static const char *add_content(struct ask *ask, cJSON *message, const char *name, const cJSON *content) {
    bn_string text;
    const char *wrong = read_content(ask, content, &text);
    if (wrong == NULL) cJSON_AddItemToObject(message, name, must(cJSON_CreateStringReference(text.data)));
    return wrong;
}

static const char *add_said(struct ask *ask, cJSON *to, cJSON **turn, const cJSON *item) {
    static const char *const roles[][2] = {
        {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    const cJSON *role = get(item, "role");
    const char *name = NULL;
    for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role->valuestring, roles[i][0]) == 0) name = roles[i][1];
    if (name == NULL) return "needs the 'role' system, developer, user or assistant in each message";
    bool answer = strcmp(name, "assistant") == 0;
    bool goes_on = answer && *turn != NULL && get(*turn, "content") == NULL && get(*turn, "tool_calls") == NULL;
    cJSON *message = goes_on ? *turn : add_message(to, name);
    *turn = answer ? message : NULL;
    return add_content(ask, message, "content", get(item, "content"));
}

static const char *add_result(struct ask *ask, cJSON *to, const cJSON *item) {
    const cJSON *output = get(item, "output");
    if (!cJSON_IsString(get(item, "call_id")) || (!cJSON_IsString(output) && !cJSON_IsArray(output)))
        return "needs a 'call_id' and an 'output', a text or a list of text parts, in each function_call_output";
    cJSON *message = add_message(to, "tool");
    add_reference(message, "tool_call_id", get(item, "call_id"));
    return add_content(ask, message, "content", output);
}

// `turn` is the assistant's last message while its items are consecutive: reasoning, then a text, then calls.
static const char *add_item(struct ask *ask, cJSON *to, cJSON **turn, const cJSON *item) {
    if (get(item, "type") == NULL || is_type(item, "message")) return add_said(ask, to, turn, item);
    if (is_type(item, "function_call_output")) return *turn = NULL, add_result(ask, to, item);
    if (is_type(item, "function_call")) {
        const cJSON *id = get(item, "call_id"), *name = get(item, "name"), *arguments = get(item, "arguments");
        if (!cJSON_IsString(id) || !cJSON_IsString(name) || !cJSON_IsString(arguments))
            return "needs 'call_id', 'name' and 'arguments', all texts, in each function_call";
        if (*turn == NULL) *turn = add_message(to, "assistant");
        add_call(*turn, id, name, arguments);
        return NULL;
    }
    if (!is_type(item, "reasoning"))
        return "may have messages, reasoning, function calls and their outputs only";
    *turn = add_message(to, "assistant");
    const cJSON *content = get(item, "content"); // without it, there is only a summary
    return cJSON_IsArray(content) ? add_content(ask, *turn, "reasoning_content", content) : NULL;
}

// The items of the conversation that `previous_response_id` goes on with. Returns false if `ex` has failed.
static bool read_earlier(struct exchange *ex) {
    const char *id = cJSON_GetStringValue(get(ex->root, "previous_response_id"));
    enum { VALUES = 8 }; // the tree's bytes for each of the text, approximately
    struct buffer text = {0};
    if (id == NULL || ex->server->options.keep_responses == 0) return true;
    if (!store_get(id, NULL, &text)) {
        fail(ex, 400, "previous_response_not_found", "there is no response '%.64s' here any more", id);
        return false;
    }
    bool fits = memory_take(ex, &ex->input, VALUES * text.end);
    if (fits) ex->ask.earlier = cJSON_ParseWithLength(text.data, text.end);
    else memory_refuse(ex);
    buffer_free(&text);
    ex->ask.previous = id;
    return fits;
}

// The user's text, or items.
const char *read_input(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    const cJSON *item;
    cJSON *turn = NULL, *message;
    if (ask->has_chat) return "is there twice";
    cJSON *to = cJSON_AddArrayToObject(chat_of(ask), "messages");
    ask->has_chat = true;
    if (!read_earlier(ex)) return "";
    cJSON_ArrayForEach(item, ask->earlier) {
        const char *wrong = add_item(ask, to, &turn, item);
        if (wrong != NULL) return wrong;
    }
    if (cJSON_IsString(value)) return add_content(ask, add_message(to, "user"), "content", value);
    if (!cJSON_IsArray(value) || value->child == NULL) return "must be a text, or a list of items that is not empty";
    cJSON_ArrayForEach(item, value) {
        const char *wrong = add_item(ask, to, &turn, item);
        if (wrong != NULL) return wrong;
    }
    cJSON_ArrayForEach(message, to) {
        if (get(message, "content") == NULL && get(message, "tool_calls") == NULL)
            cJSON_AddStringToObject(message, "content", "");
    }
    return NULL;
}

const char *read_response_tools(struct exchange *ex, const cJSON *value) {
    const cJSON *tool;
    if (!cJSON_IsArray(value)) return "must be a list";
    if (get(chat_of(&ex->ask), "tools") != NULL) return "is there twice";
    cJSON *to = cJSON_AddArrayToObject(ex->ask.chat, "tools");
    ex->ask.has_tools = true;
    cJSON_ArrayForEach(tool, value) {
        if (!is_type(tool, "function")) return "may have functions only";
        add_tool(to, tool, "parameters");
    }
    return NULL;
}

const char *read_response_choice(struct exchange *ex, const cJSON *value) {
    cJSON *chat = chat_of(&ex->ask);
    if (get(chat, "tool_choice") != NULL) return "is there twice";
    if (cJSON_IsString(value)) add_reference(chat, "tool_choice", value);
    else if (is_type(value, "function")) add_choice(chat, value);
    else return "must be none, auto, required or a function";
    return NULL;
}

const char *read_reasoning(struct exchange *ex, const cJSON *value) {
    const cJSON *effort = get(value, "effort");
    if (!cJSON_IsObject(value)) return "must be an object";
    if (effort == NULL || cJSON_IsNull(effort)) return NULL;
    return read_effort(ex, effort) == NULL ? NULL : "must have an 'effort' of none, minimal, low, medium, high or xhigh";
}

// Templates know three degrees, or none.
const char *read_effort(struct exchange *ex, const cJSON *value) {
    static const char *const degrees[][2] = {{"none", NULL},       {"minimal", "low"}, {"low", "low"},
                                             {"medium", "medium"}, {"high", "high"},   {"xhigh", "high"}, {"max", "high"}};
    for (size_t i = 0; cJSON_IsString(value) && i < sizeof degrees / sizeof *degrees; i++)
        if (strcmp(value->valuestring, degrees[i][0]) == 0) return set_thinking(&ex->ask, i > 0, degrees[i][1]);
    return "must be none, minimal, low, medium, high or xhigh";
}

const char *read_budget(struct exchange *ex, const cJSON *value) {
    double tokens = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(tokens >= -1 && tokens <= UINT32_MAX) || tokens != (double)(int64_t)tokens)
        return "must be a whole number of tokens";
    ex->ask.reasoning = tokens < 0 ? UINT64_MAX : (uint64_t)tokens;
    return NULL;
}

const char *read_store(struct exchange *ex, const cJSON *value) {
    bool keeps = ex->server->options.keep_responses > 0 && ex->route->fields == FIELDS_RESPONSE;
    bool id = strcmp(value->string, "store") != 0;
    if (keeps && (id ? !cJSON_IsString(value) : !cJSON_IsBool(value))) return id ? "must be a text" : "must be true or false";
    if (cJSON_IsFalse(value)) ex->ask.unkept = true;
    if (cJSON_IsFalse(value) || keeps) return NULL;
    return "is not supported: this server keeps no answers, so send the whole conversation";
}
