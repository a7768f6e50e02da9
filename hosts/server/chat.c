// Passes the fields of a chat to the engine as JSON.
#include "chat.h"

#include "values.h"

#include <stdlib.h>
#include <string.h>

cJSON *chat_of(struct ask *ask) {
    if (ask->chat == NULL) ask->chat = must(cJSON_CreateObject());
    return ask->chat;
}

bool is_type(const cJSON *value, const char *type) {
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(value, "type");
    return cJSON_IsString(given) && strcmp(given->valuestring, type) == 0;
}

void add_reference(cJSON *to, const char *name, const cJSON *value) {
    if (value != NULL) cJSON_AddItemReferenceToObject(to, name, (cJSON *)value);
}

cJSON *add_message(cJSON *to, const char *role) {
    cJSON *message = must(cJSON_CreateObject());
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddItemToArray(to, message);
    return message;
}

void add_call(cJSON *message, const cJSON *id, const cJSON *name, const cJSON *arguments) {
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls"), *call = must(cJSON_CreateObject());
    if (calls == NULL) calls = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON_AddItemToArray(calls, call);
    add_reference(call, "id", id);
    cJSON_AddStringToObject(call, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(call, "function");
    add_reference(function, "name", name);
    add_reference(function, "arguments", arguments);
}

void add_tool(cJSON *tools, const cJSON *tool, const char *schema) {
    cJSON *made = must(cJSON_CreateObject());
    cJSON_AddItemToArray(tools, made);
    cJSON_AddStringToObject(made, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(made, "function");
    add_reference(function, "name", cJSON_GetObjectItemCaseSensitive(tool, "name"));
    add_reference(function, "description", cJSON_GetObjectItemCaseSensitive(tool, "description"));
    add_reference(function, "parameters", cJSON_GetObjectItemCaseSensitive(tool, schema));
    add_reference(function, "strict", cJSON_GetObjectItemCaseSensitive(tool, "strict"));
}

void add_choice(cJSON *chat, const cJSON *choice) {
    cJSON *made = cJSON_AddObjectToObject(chat, "tool_choice");
    cJSON_AddStringToObject(made, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(made, "function");
    add_reference(function, "name", cJSON_GetObjectItemCaseSensitive(choice, "name"));
}

const char *set_thinking(struct ask *ask, bool on, const char *effort) {
    cJSON *chat = chat_of(ask);
    if (cJSON_GetObjectItemCaseSensitive(chat, "chat_template_kwargs") != NULL)
        return "cannot be set beside 'chat_template_kwargs'";
    cJSON *variables = cJSON_AddObjectToObject(chat, "chat_template_kwargs");
    cJSON_AddBoolToObject(variables, "enable_thinking", on);
    if (effort != NULL) cJSON_AddStringToObject(variables, "reasoning_effort", effort);
    return NULL;
}

static const char *check_message(cJSON *message) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    if (cJSON_IsString(role) && strcmp(role->valuestring, "developer") == 0) cJSON_SetValuestring(role, "system");
    bool known = false;
    for (size_t i = 0; cJSON_IsString(role) && i < sizeof roles / sizeof *roles; i++)
        known |= strcmp(role->valuestring, roles[i]) == 0;
    if (!known) return "needs the 'role' system, developer, user, assistant or tool in each message";
    bool calls = cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(message, "tool_calls"));
    if (!calls && cJSON_GetObjectItemCaseSensitive(message, "content") == NULL)
        return "needs a 'content' or 'tool_calls' in each message";
    return NULL;
}

// Copies the body's field into the chat unchanged.
const char *read_chat(struct exchange *ex, const cJSON *value) {
    struct ask *ask = &ex->ask;
    if (strcmp(value->string, "messages") == 0) {
        if (!cJSON_IsArray(value) || value->child == NULL) return "must be a list of messages that is not empty";
        for (cJSON *message = value->child; message != NULL; message = message->next) {
            const char *wrong = check_message(message);
            if (wrong != NULL) return wrong;
        }
        ask->has_chat = true;
    }
    if (strcmp(value->string, "tools") == 0) ask->has_tools = true;
    if (cJSON_GetObjectItemCaseSensitive(chat_of(ask), value->string) != NULL) return "is there twice";
    add_reference(ask->chat, value->string, value);
    return NULL;
}

// Adds the system message before the others.
static void add_system(struct ask *ask) {
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(ask->chat, "messages"), *system;
    if (ask->system.data == NULL || !cJSON_IsArray(messages)) return;
    system = must(cJSON_CreateObject());
    cJSON_AddStringToObject(system, "role", "system");
    cJSON_AddStringToObject(system, "content", ask->system.data);
    cJSON_InsertItemInArray(messages, 0, system);
}

void chat_done(struct ask *ask) {
    if (!ask->has_chat) return;
    add_system(ask);
    char *text = must(cJSON_PrintUnformatted(ask->chat));
    buffer_add(&ask->joined, (const char *)&text, sizeof text); // freed by ask_free
    ask->params.chat.json = (bn_string){text, strlen(text)};
    if (!ask->generates) return;
    ask->params.flags |= BN_REQUEST_PARSE_OUTPUT;
    ask->params.max_reasoning_tokens = ask->reasoning < BN_NO_LIMIT ? (uint32_t)ask->reasoning : BN_NO_LIMIT;
}
