// Formats and grammars of answers: OpenAI's fields, and llama.cpp's and vLLM's names for them.
#include "models.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

static const char *constrain(struct ask *ask, uint32_t kind, bn_string text) {
    if (ask->params.constraint.kind != BN_CONSTRAINT_NONE) return "is a second format or grammar of the answer";
    ask->params.constraint.kind = kind;
    ask->params.constraint.text = text;
    return NULL;
}

// Reads a schema given as an object, as `true` or `false`, or as text.
static const char *read_schema(struct ask *ask, const cJSON *schema) {
    if (cJSON_IsString(schema)) return constrain(ask, BN_CONSTRAINT_JSON_SCHEMA, text_of(schema));
    if (!cJSON_IsObject(schema) && !cJSON_IsBool(schema)) return "needs a JSON schema";
    char *text = must(cJSON_PrintUnformatted(schema));
    buffer_add(&ask->joined, (const char *)&text, sizeof text);
    return constrain(ask, BN_CONSTRAINT_JSON_SCHEMA, (bn_string){text, strlen(text)});
}

// `schema_in`: the field that contains the schema in a format of type json_schema; NULL: the format itself.
static const char *read_format(struct ask *ask, const cJSON *format, const char *schema_in) {
    static const char wrong[] = "must have the type 'text', 'json_object' or 'json_schema'";
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(format, "type");
    if (!cJSON_IsString(type)) return wrong;
    if (strcmp(type->valuestring, "text") == 0) return NULL;
    if (strcmp(type->valuestring, "json_object") == 0)
        return constrain(ask, BN_CONSTRAINT_JSON_OBJECT, (bn_string){NULL, 0});
    if (strcmp(type->valuestring, "json_schema") != 0) return wrong;
    if (schema_in != NULL) format = cJSON_GetObjectItemCaseSensitive(format, schema_in);
    return read_schema(ask, cJSON_GetObjectItemCaseSensitive(format, "schema"));
}

const char *read_response_format(struct exchange *ex, const cJSON *value) {
    return read_format(&ex->ask, value, "json_schema");
}

const char *read_text_format(struct exchange *ex, const cJSON *value) {
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(value, "format");
    if (!cJSON_IsObject(value)) return "must be an object";
    return format == NULL || cJSON_IsNull(format) ? NULL : read_format(&ex->ask, format, NULL);
}

const char *read_json_schema(struct exchange *ex, const cJSON *value) {
    return read_schema(&ex->ask, value);
}

// Takes the same names as --json-whitespace.
const char *read_json_whitespace(struct exchange *ex, const cJSON *value) {
    const char *name = cJSON_GetStringValue(value);
    int64_t flags = name == NULL || *name == 0 ? -1 : json_whitespace_of(name);
    if (flags < 0) return "must be 'compact', 'tight' or 'flexible'";
    ex->ask.has_json_whitespace = true;
    ex->ask.params.constraint.json_flags |= (uint32_t)flags;
    return NULL;
}

const char *read_unknown_formats(struct exchange *ex, const cJSON *value) {
    const char *name = cJSON_GetStringValue(value);
    bool ignored = name != NULL && strcmp(name, "ignore") == 0;
    if (!ignored && (name == NULL || strcmp(name, "refuse") != 0)) return "must be 'refuse' or 'ignore'";
    if (ignored) ex->ask.params.constraint.json_flags |= BN_JSON_ANY_FORMAT;
    return NULL;
}

static bool calls_only(const cJSON *chat) {
    const cJSON *choice = cJSON_GetObjectItemCaseSensitive(chat, "tool_choice");
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(chat, "tools");
    return cJSON_GetArraySize(tools) > 0 &&
           (cJSON_IsObject(choice) || (cJSON_IsString(choice) && strcmp(choice->valuestring, "required") == 0));
}

void json_done(struct exchange *ex) {
    bn_constraint *c = &ex->ask.params.constraint;
    // An answer that must be a call has no text to give this format to.
    if (ex->ask.has_tools && calls_only(ex->ask.chat)) {
        c->kind = BN_CONSTRAINT_NONE;
        c->text = (bn_string){NULL, 0};
    }
    bool json = c->kind == BN_CONSTRAINT_JSON_SCHEMA || c->kind == BN_CONSTRAINT_JSON_OBJECT;
    if (!ex->ask.has_json_whitespace)
        c->json_flags |= (uint32_t)json_whitespace_of(ex->model->options.json_whitespace);
    int closed = closed_schemas_of(ex->model->options.closed_schemas);
    if (closed == 2 || (closed == 1 && ex->ask.has_tools)) c->json_flags |= BN_JSON_CLOSED;
    if (!json && !ex->ask.has_tools) c->json_flags = 0;
}

static const char *read_text(struct ask *ask, uint32_t kind, const cJSON *value) {
    return cJSON_IsString(value) ? constrain(ask, kind, text_of(value)) : "must be a text";
}

const char *read_grammar(struct exchange *ex, const cJSON *value) {
    return read_text(&ex->ask, BN_CONSTRAINT_GBNF, value);
}

const char *read_regex(struct exchange *ex, const cJSON *value) {
    return read_text(&ex->ask, BN_CONSTRAINT_REGEX, value);
}

// vLLM's field: one of `json`, `regex` and `grammar`.
const char *read_structured_outputs(struct exchange *ex, const cJSON *value) {
    const cJSON *json = cJSON_GetObjectItemCaseSensitive(value, "json");
    const cJSON *regex = cJSON_GetObjectItemCaseSensitive(value, "regex");
    const cJSON *grammar = cJSON_GetObjectItemCaseSensitive(value, "grammar");
    if (cJSON_GetArraySize(value) != 1 || (json == NULL && regex == NULL && grammar == NULL))
        return "must be an object with one of 'json', 'regex' and 'grammar'";
    return json != NULL ? read_json_schema(ex, json) : regex != NULL ? read_regex(ex, regex) : read_grammar(ex, grammar);
}
