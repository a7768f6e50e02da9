// Anthropic's messages, tools and choices as OpenAI's, which the engine takes.
#include "values.h"

#include <stdlib.h>
#include <string.h>

static const char wrong_block[] = "may have text, tools and thinking only: this server takes no images, audio or files";

static bool is_type(const cJSON *block, const char *type) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(block, "type");
    return cJSON_IsString(value) && strcmp(value->valuestring, type) == 0;
}

static void add_reference(cJSON *to, const char *name, const cJSON *value) {
    if (value != NULL) cJSON_AddItemReferenceToObject(to, name, (cJSON *)value);
}

static cJSON *add_message(cJSON *to, const char *role) {
    cJSON *message = must(cJSON_CreateObject());
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddItemToArray(to, message);
    return message;
}

// A call that the assistant made.
static void add_call(cJSON *message, const cJSON *block) {
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls"), *call = must(cJSON_CreateObject());
    if (calls == NULL) calls = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON_AddItemToArray(calls, call);
    add_reference(call, "id", cJSON_GetObjectItemCaseSensitive(block, "id"));
    cJSON_AddStringToObject(call, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(call, "function");
    add_reference(function, "name", cJSON_GetObjectItemCaseSensitive(block, "name"));
    add_reference(function, "arguments", cJSON_GetObjectItemCaseSensitive(block, "input"));
}

// The message of a list of blocks; results of tools are messages before it.
static const char *add_blocks(cJSON *to, const char *role, const cJSON *blocks) {
    cJSON *message = must(cJSON_CreateObject()), *parts;
    const cJSON *block;
    const char *wrong = NULL;
    cJSON_AddStringToObject(message, "role", role);
    parts = cJSON_AddArrayToObject(message, "content");
    cJSON_ArrayForEach(block, blocks) {
        if (is_type(block, "text")) {
            cJSON_AddItemReferenceToArray(parts, (cJSON *)block);
        } else if (is_type(block, "tool_use")) {
            add_call(message, block);
        } else if (is_type(block, "tool_result")) {
            cJSON *result = add_message(to, "tool");
            const cJSON *content = cJSON_GetObjectItemCaseSensitive(block, "content");
            add_reference(result, "tool_call_id", cJSON_GetObjectItemCaseSensitive(block, "tool_use_id"));
            if (content != NULL) add_reference(result, "content", content);
            else cJSON_AddStringToObject(result, "content", "");
        } else if (is_type(block, "thinking")) {
            add_reference(message, "reasoning_content", cJSON_GetObjectItemCaseSensitive(block, "thinking"));
        } else if (!is_type(block, "redacted_thinking")) {
            wrong = wrong_block;
        }
    }
    bool empty = parts->child == NULL && cJSON_GetObjectItemCaseSensitive(message, "tool_calls") == NULL;
    if (empty) cJSON_Delete(message);
    else cJSON_AddItemToArray(to, message);
    return wrong;
}

static cJSON *chat_of(struct ask *ask) {
    if (ask->chat == NULL) ask->chat = must(cJSON_CreateObject());
    return ask->chat;
}

const char *read_claude_messages(struct exchange *ex, const cJSON *value) {
    const cJSON *message;
    if (!cJSON_IsArray(value) || value->child == NULL) return "must be a list of messages that is not empty";
    if (ex->ask.has_chat) return "is there twice";
    cJSON *to = cJSON_AddArrayToObject(chat_of(&ex->ask), "messages");
    ex->ask.has_chat = true;
    cJSON_ArrayForEach(message, value) {
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role"),
                    *content = cJSON_GetObjectItemCaseSensitive(message, "content");
        const char *name = cJSON_IsString(role) ? role->valuestring : "", *wrong = NULL;
        if (strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0 && strcmp(name, "system") != 0)
            return "needs the 'role' user or assistant in each message";
        if (cJSON_IsString(content)) add_reference(add_message(to, name), "content", content);
        else if (cJSON_IsArray(content)) wrong = add_blocks(to, name, content);
        else return "needs a 'content' that is a text or a list of blocks";
        if (wrong != NULL) return wrong;
    }
    return NULL;
}

const char *read_claude_tools(struct exchange *ex, const cJSON *value) {
    const cJSON *tool;
    if (!cJSON_IsArray(value)) return "must be a list";
    if (cJSON_GetObjectItemCaseSensitive(chat_of(&ex->ask), "tools") != NULL) return "is there twice";
    cJSON *to = cJSON_AddArrayToObject(ex->ask.chat, "tools");
    ex->ask.has_tools = true;
    cJSON_ArrayForEach(tool, value) {
        cJSON *made = must(cJSON_CreateObject());
        cJSON_AddItemToArray(to, made);
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
        if (!cJSON_IsObject(tool) || (type != NULL && !is_type(tool, "custom"))) return "may have tools of your own only";
        cJSON_AddStringToObject(made, "type", "function");
        cJSON *function = cJSON_AddObjectToObject(made, "function");
        add_reference(function, "name", cJSON_GetObjectItemCaseSensitive(tool, "name"));
        add_reference(function, "description", cJSON_GetObjectItemCaseSensitive(tool, "description"));
        add_reference(function, "parameters", cJSON_GetObjectItemCaseSensitive(tool, "input_schema"));
        add_reference(function, "strict", cJSON_GetObjectItemCaseSensitive(tool, "strict"));
    }
    return NULL;
}

const char *read_claude_choice(struct exchange *ex, const cJSON *value) {
    static const char *const choices[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    cJSON *chat = chat_of(&ex->ask);
    bool known = false;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (!is_type(value, choices[i][0])) continue;
        cJSON_AddStringToObject(chat, "tool_choice", choices[i][1]);
        known = true;
    }
    if (is_type(value, "tool")) {
        cJSON *choice = cJSON_AddObjectToObject(chat, "tool_choice");
        cJSON_AddStringToObject(choice, "type", "function");
        cJSON *function = cJSON_AddObjectToObject(choice, "function");
        add_reference(function, "name", cJSON_GetObjectItemCaseSensitive(value, "name"));
        known = true;
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(value, "disable_parallel_tool_use")))
        cJSON_AddFalseToObject(chat, "parallel_tool_calls");
    return known ? NULL : "must have the type auto, any, tool or none";
}

// Most templates that have it call it so.
const char *read_thinking(struct exchange *ex, const cJSON *value) {
    bool off = is_type(value, "disabled");
    if (!off && !is_type(value, "enabled") && !is_type(value, "adaptive")) return "must have the type enabled or disabled";
    cJSON *variables = cJSON_AddObjectToObject(chat_of(&ex->ask), "chat_template_kwargs");
    cJSON_AddBoolToObject(variables, "enable_thinking", !off);
    return NULL;
}

// The system message, in front of the others.
void add_system(struct ask *ask) {
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(ask->chat, "messages"), *system;
    if (ask->system.data == NULL || !cJSON_IsArray(messages)) return;
    char *text = must(calloc(ask->system.length + 1, 1));
    memcpy(text, ask->system.data, ask->system.length);
    system = must(cJSON_CreateObject());
    cJSON_AddStringToObject(system, "role", "system");
    cJSON_AddStringToObject(system, "content", text);
    cJSON_InsertItemInArray(messages, 0, system);
    free(text);
}
