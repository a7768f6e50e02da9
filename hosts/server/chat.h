// Converts other APIs' fields to conversations in the shape of OpenAI's chats.
#ifndef BN_SERVER_CHAT_H
#define BN_SERVER_CHAT_H

#include "server.h"

// The exchange's chat, created if there is none.
cJSON *chat_of(struct ask *ask);
// Returns true if the value's `type` is this one.
bool is_type(const cJSON *value, const char *type);
// `value` belongs to the body; NULL adds nothing.
void add_reference(cJSON *to, const char *name, const cJSON *value);
cJSON *add_message(cJSON *to, const char *role);
// Adds a call that the assistant made.
void add_call(cJSON *message, const cJSON *id, const cJSON *name, const cJSON *arguments);
// Adds a function with the tool's own fields; its parameters are in the field `schema`.
void add_tool(cJSON *tools, const cJSON *tool, const char *schema);
// Sets the tool choice to the function that `choice` names.
void add_choice(cJSON *chat, const cJSON *choice);
// Sets the template variable by its most common name. Returns NULL, or an error text.
// `effort` is its degree; NULL: the template's own.
const char *set_thinking(struct ask *ask, bool on, const char *effort);

#endif
