// Conversations in the shape of OpenAI's chats, made of other APIs' fields.
#ifndef BN_SERVER_CHAT_H
#define BN_SERVER_CHAT_H

#include "server.h"

// The exchange's, made if there is none.
cJSON *chat_of(struct ask *ask);
// Whether the value's `type` is this one.
bool is_type(const cJSON *value, const char *type);
// `value` belongs to the body; NULL adds nothing.
void add_reference(cJSON *to, const char *name, const cJSON *value);
cJSON *add_message(cJSON *to, const char *role);
// A call that the assistant made.
void add_call(cJSON *message, const cJSON *id, const cJSON *name, const cJSON *arguments);
// A function whose fields are the tool's own, its parameters by the name `schema`.
void add_tool(cJSON *tools, const cJSON *tool, const char *schema);
// The choice of the function that `choice` names.
void add_choice(cJSON *chat, const cJSON *choice);
// Most templates that have it call it so. NULL, or what is wrong.
const char *set_thinking(struct ask *ask, bool on);

#endif
