// Readers of fields for the table in fields.c. Each returns NULL, or an error text to follow the field's name, unless
// `ex` has failed already.
#ifndef BN_SERVER_VALUES_H
#define BN_SERVER_VALUES_H

#include "server.h"

bn_string text_of(const cJSON *value);
// A content is a text, or a list of parts that are all texts. The result ends with a NUL.
const char *read_content(struct ask *ask, const cJSON *content, bn_string *out);
const char *read_max_tokens(struct exchange *ex, const cJSON *value);
const char *read_model(struct exchange *ex, const cJSON *value);
const char *read_prompts(struct exchange *ex, const cJSON *value);
const char *read_chat(struct exchange *ex, const cJSON *value);
// Call this once all fields are read.
void chat_done(struct ask *ask);
const char *read_claude_messages(struct exchange *ex, const cJSON *value);
const char *read_claude_tools(struct exchange *ex, const cJSON *value);
const char *read_claude_choice(struct exchange *ex, const cJSON *value);
const char *read_input(struct exchange *ex, const cJSON *value);
const char *read_response_tools(struct exchange *ex, const cJSON *value);
const char *read_response_choice(struct exchange *ex, const cJSON *value);
const char *read_reasoning(struct exchange *ex, const cJSON *value);
const char *read_system(struct exchange *ex, const cJSON *value);
const char *read_documents(struct exchange *ex, const cJSON *value);
const char *read_query(struct exchange *ex, const cJSON *value);
const char *read_queries(struct exchange *ex, const cJSON *value);
const char *read_template(struct exchange *ex, const cJSON *value);
const char *read_logit_bias(struct exchange *ex, const cJSON *value);
const char *read_stop(struct exchange *ex, const cJSON *value);
const char *read_stream_options(struct exchange *ex, const cJSON *value);
const char *read_speculation(struct exchange *ex, const cJSON *value);
const char *read_logprobs(struct exchange *ex, const cJSON *value);
const char *read_response_format(struct exchange *ex, const cJSON *value);
const char *read_text_format(struct exchange *ex, const cJSON *value);
const char *read_json_schema(struct exchange *ex, const cJSON *value);
const char *read_json_whitespace(struct exchange *ex, const cJSON *value);
const char *read_unknown_formats(struct exchange *ex, const cJSON *value);
// Call this once all fields are read: sets the BN_JSON_* flags, if there is JSON that they affect.
void json_done(struct exchange *ex);
const char *read_grammar(struct exchange *ex, const cJSON *value);
const char *read_regex(struct exchange *ex, const cJSON *value);
const char *read_structured_outputs(struct exchange *ex, const cJSON *value);
const char *read_effort(struct exchange *ex, const cJSON *value);
const char *read_budget(struct exchange *ex, const cJSON *value);
const char *read_store(struct exchange *ex, const cJSON *value);
const char *read_thread(struct exchange *ex, const cJSON *value);
const char *read_thinking(struct exchange *ex, const cJSON *value);
const char *read_encoding(struct exchange *ex, const cJSON *value);

#endif
