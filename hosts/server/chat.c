// Conversations with tools: the fields of a chat go to the engine as JSON.
#include "values.h"

#include <stdlib.h>
#include <string.h>

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

// The body's field goes into the chat as it is.
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
    if (ask->chat == NULL) ask->chat = must(cJSON_CreateObject());
    if (cJSON_GetObjectItemCaseSensitive(ask->chat, value->string) != NULL) return "is there twice";
    cJSON_AddItemReferenceToObject(ask->chat, value->string, (cJSON *)value);
    return NULL;
}

void chat_done(struct ask *ask) {
    if (!ask->has_chat) return;
    add_system(ask);
    char *text = must(cJSON_PrintUnformatted(ask->chat));
    buffer_add(&ask->joined, (const char *)&text, sizeof text); // freed by ask_free
    ask->params.chat_json = (bn_string){text, strlen(text)};
    if (ask->generates) ask->params.flags |= BN_REQUEST_PARSE_OUTPUT;
}
