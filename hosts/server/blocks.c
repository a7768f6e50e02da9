// Converts Anthropic's messages, tools and choices to OpenAI's, which the engine takes.
#include "chat.h"
#include "values.h"

#include <string.h>

static const char wrong_block[] = "may have text, tools and thinking only: this server takes no images, audio or files";

// Adds the message of a list of blocks; results of tools become messages before it.
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
            add_call(message, cJSON_GetObjectItemCaseSensitive(block, "id"),
                     cJSON_GetObjectItemCaseSensitive(block, "name"),
                     cJSON_GetObjectItemCaseSensitive(block, "input"));
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
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
        if (!cJSON_IsObject(tool) || (type != NULL && !is_type(tool, "custom"))) return "may have tools of your own only";
        add_tool(to, tool, "input_schema");
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
        add_choice(chat, value);
        known = true;
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(value, "disable_parallel_tool_use")))
        cJSON_AddFalseToObject(chat, "parallel_tool_calls");
    return known ? NULL : "must have the type auto, any, tool or none";
}

// Refuses a conversation stored by the server. The code tells Anthropic's clients to send the whole conversation.
const char *read_thread(struct exchange *ex, const cJSON *value) {
    (void)value;
    fail(ex, 400, "thread_unsupported_request", "'thread' is not supported: send the whole conversation");
    return "";
}

const char *read_thinking(struct exchange *ex, const cJSON *value) {
    bool off = is_type(value, "disabled");
    if (!off && !is_type(value, "enabled") && !is_type(value, "adaptive")) return "must have the type enabled or disabled";
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(value, "budget_tokens");
    const char *wrong = budget == NULL || off ? NULL : read_budget(ex, budget);
    return wrong != NULL ? wrong : set_thinking(&ex->ask, !off, NULL);
}
