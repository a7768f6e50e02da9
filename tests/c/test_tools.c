// Conversations with tools, and parsed answers. builtin:echo's template knows no tools, so they are described
// in a system message; its answer is the prompt.
#include "harness.h"

#define TOOLS                                                                                                          \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\","   \
    "\"properties\": {\"unit\": {\"enum\": [\"C\", \"F\"]}}, \"required\": [\"unit\"], \"additionalProperties\": false}}}]"
#define CALL(arguments) "<tool_call>{\\\"name\\\": \\\"get_weather\\\", \\\"arguments\\\": " arguments "}</tool_call>"

static bn_request_params chat_of(const char *json) {
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.chat.json = BN_TEXT(json);
    params.max_new_tokens = 0;
    params.flags = BN_REQUEST_PARSE_OUTPUT;
    return params;
}

struct call {
    char id[16], name[64], arguments[512];
    size_t text_before;
};

struct told {
    char text[8192], reasoning[1024];
    struct call calls[8];
    uint32_t calls_count, total;
    size_t events;
    int32_t reason;
};

static void append(char *to, size_t room, bn_string text) {
    size_t length = strlen(to);
    CHECK(text.data != NULL && length + text.length < room);
    memcpy(to + length, text.data, text.length);
    to[length + text.length] = 0;
}

static void add(struct told *told, const bn_event *event) {
    size_t before = strlen(told->text);
    told->events++;
    append(told->text, sizeof told->text, event->text);
    append(told->reasoning, sizeof told->reasoning, event->reasoning);
    CHECK((event->tool_calls == NULL) == (event->tool_calls_count == 0));
    for (size_t i = 0; i < event->tool_calls_count; i++) {
        const bn_tool_call *call = &event->tool_calls[i];
        struct call *known = &told->calls[call->index];
        CHECK(call->index < 8);
        if (call->index == told->calls_count) {
            CHECK_EQ(call->id.length, 9);
            CHECK(call->name.length > 0);
            CHECK(call->text_before <= event->text.length);
            known->text_before = before + call->text_before;
            told->calls_count++;
        } else {
            CHECK_EQ(call->index + 1, told->calls_count);
            CHECK_EQ(call->id.length + call->name.length, 0);
        }
        append(known->id, sizeof known->id, call->id);
        append(known->name, sizeof known->name, call->name);
        append(known->arguments, sizeof known->arguments, call->arguments);
    }
    if (event->kind != BN_EVENT_COMPLETED) CHECK_EQ(event->tool_calls_total, 0);
    told->total = event->tool_calls_total;
    told->reason = event->finish_reason;
}

static struct told *listen_to(bn_engine *engine, const bn_request_params *params) {
    struct told *told = calloc(1, sizeof *told);
    bn_request request = submit(engine, params);
    for (bool over = false; !over;) {
        bn_event event = poll_one(engine, request);
        over = event.kind == BN_EVENT_COMPLETED;
        add(told, &event);
        give_back(&event);
    }
    CHECK_OK(bn_request_free(engine, request, NULL));
    CHECK_EQ(told->total, told->calls_count);
    return told;
}

TEST(answers_are_told_apart_streamed_or_not) {
    bn_engine_config config = slow_config("builtin:echo?us_per_token=20");
    bn_engine *engine = start(&config);
    // A role with an unusual name comes first, so the answer begins with it.
    bn_request_params params = chat_of(
        "{\"messages\": [{\"role\": \"<think>\\nhm</think>\", \"content\": \"Both. " CALL("{\\\"unit\\\": \\\"C\\\"}") "\\n" CALL(
            "{}") "\\n\\nDone <tool_call>x\"}], \"tool_format\": \"hermes\", \"reasoning_format\": \"think\", \"add_generation_prompt\": "
                  "false, " TOOLS "}");
    struct told *streamed = listen_to(engine, &params);
    CHECK(streamed->events > 1);
    // The tools are described before it.
    CHECK_CONTAINS(streamed->text, "{\"name\": \"the function's name\", \"arguments\":");
    CHECK_CONTAINS(streamed->text, "<think>\nhm</think>: Both. Done <tool_call>x\n");
    CHECK_EQ(streamed->calls_count, 2);
    for (int i = 0; i < 2; i++) CHECK(strcmp(streamed->calls[i].name, "get_weather") == 0);
    CHECK(strcmp(streamed->calls[0].arguments, "{\"unit\": \"C\"}") == 0);
    CHECK(strcmp(streamed->calls[1].arguments, "{}") == 0);
    CHECK(strcmp(streamed->calls[0].id, streamed->calls[1].id) != 0);
    CHECK_EQ(streamed->calls[0].text_before, streamed->calls[1].text_before);
    CHECK_CONTAINS(streamed->text + streamed->calls[0].text_before - 6, "Both. ");
    CHECK_EQ(streamed->reason, BN_FINISH_STOP);

    params.flags |= BN_REQUEST_NO_STREAM;
    struct told *whole = listen_to(engine, &params);
    CHECK_EQ(whole->events, 1);
    whole->events = streamed->events;
    CHECK(memcmp(whole, streamed, sizeof *whole) == 0);
    bn_event event = {0};
    CHECK_OK(bn_generate(engine, &params, &event, sizeof event, NULL));
    CHECK_EQ(event.tool_calls_count, 2);
    CHECK_TEXT(event.tool_calls[0].arguments.data, event.tool_calls[0].arguments.length, "{\"unit\": \"C\"}");
    bn_events_free(&event, sizeof event, 1);

    // Another seed gives other ids.
    params.sampling.seed = 1;
    struct told *other = listen_to(engine, &params);
    CHECK(strcmp(other->calls[0].id, whole->calls[0].id) != 0);
    // Without the flag, all output is text.
    params.flags = 0;
    struct told *plain = listen_to(engine, &params);
    CHECK_EQ(plain->calls_count, 0);
    CHECK_CONTAINS(plain->text, "Both. <tool_call>{\"name\": \"get_weather\"");
    free(plain), free(other), free(whole), free(streamed);
    stop(engine);
}

TEST(reasoning_is_told_apart) {
    bn_engine *engine = start_echo();
    bn_request_params params = chat_of("{\"messages\": [{\"role\": \"<think>\\nhm\\n</think>\\n\\nYes\", \"content\": \"a\"}], "
                                       "\"reasoning_format\": \"think\", \"add_generation_prompt\": false}");
    struct told *told = listen_to(engine, &params);
    CHECK_TEXT(told->reasoning, strlen(told->reasoning), "hm");
    CHECK_TEXT(told->text, strlen(told->text), "Yes: a\n");
    // A stop string ends the answer anywhere.
    params.stop_strings = &BN_TEXT("m\n");
    params.stop_strings_count = 1;
    struct told *stopped = listen_to(engine, &params);
    CHECK_TEXT(stopped->reasoning, strlen(stopped->reasoning), "h");
    CHECK_EQ(stopped->reason, BN_FINISH_STOP_STRING);
    free(stopped), free(told);
    stop(engine);
}

TEST(a_required_call_is_made) {
    bn_engine *engine = start_echo();
    bn_request_params params =
        chat_of("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tool_choice\": \"required\", \"parallel_tool_calls\": "
                "false, " TOOLS "}");
    for (uint64_t seed = 0; seed < 20; seed++) {
        params.sampling.temperature = 1;
        params.sampling.seed = seed;
        params.max_new_tokens = 500;
        struct told *told = listen_to(engine, &params);
        CHECK_EQ(told->reason, BN_FINISH_STOP);
        CHECK_EQ(told->calls_count, 1);
        CHECK_EQ(strlen(told->text), 0);
        CHECK(strcmp(told->calls[0].name, "get_weather") == 0);
        CHECK(strcmp(told->calls[0].arguments, "{\"unit\": \"C\"}") == 0 ||
              strcmp(told->calls[0].arguments, "{\"unit\": \"F\"}") == 0);
        free(told);
    }
    stop(engine);
}

static bn_status format(const bn_model *model, bn_string json, char *text, size_t capacity, size_t *length, bn_error *error) {
    bn_chat chat = {.json = json};
    return bn_model_chat_format(model, &chat, text, capacity, length, error);
}

TEST(chats_in_json_are_formatted) {
    bn_model *model = open_model("builtin:echo");
    const char *chat = "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
                       "\"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", \"content\": \"go on\"}]";
    char json[512], text[512];
    size_t length = 0;
    snprintf(json, sizeof json, "%s}", chat);
    CHECK_OK(format(model, BN_TEXT(json), text, sizeof text, &length, NULL));
    CHECK_TEXT(text, length, "user: ab\nassistant: go on\nassistant: ");
    snprintf(json, sizeof json, "%s, \"continue_final_message\": true}", chat);
    CHECK_OK(format(model, BN_TEXT(json), text, sizeof text, &length, NULL));
    CHECK_TEXT(text, length, "user: ab\nassistant: go on");
    CHECK_STATUS(format(model, BN_TEXT(json), text, 5, &length, NULL), BN_ERR_BUFFER_TOO_SMALL);
    uint32_t tokens[64];
    size_t count = 0;
    bn_request_params params = chat_of(json);
    CHECK_OK(bn_model_chat_tokenize(model, &params.chat, tokens, 64, &count, NULL));
    CHECK_EQ(count, length + 1);
    CHECK_OK(bn_model_free(model));
}

// A schema that cannot be compiled is left out, unless its tool is strict.
TEST(schemas_of_tools_are_advice) {
    bn_engine *engine = start_echo();
    for (int strict = 0; strict < 2; strict++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tool_choice\": \"required\", \"tools\": [{\"type\": "
                 "\"function\", \"function\": {\"name\": \"f\", \"strict\": %s, \"parameters\": {\"properties\": {\"a\": {\"type\": "
                 "\"string\", \"pattern\": \"(?=b)\\\\b\"}}}}}]}",
                 strict ? "true" : "false");
        bn_request_params params = chat_of(json);
        params.max_new_tokens = 100;
        bn_request request = 0;
        bn_error error = {0};
        CHECK_STATUS(bn_submit(engine, &params, &request, &error), strict ? BN_ERR_INVALID_ARGUMENT : BN_OK);
        if (!strict) CHECK_OK(bn_request_free(engine, request, NULL));
    }
    stop(engine);
}

TEST(mistakes_in_chats_are_named) {
    static const struct {
        const char *json, *message;
        bn_status status;
    } wrong[] = {
        {"{", "chat.json: EOF", BN_ERR_INVALID_ARGUMENT},
        {"{\"messages\": [{\"role\": \"user\"}, {}]}", "chat.json: messages[1].role: is missing", BN_ERR_INVALID_ARGUMENT},
        {"{\"messages\": [], \"tool_format\": \"x\"}", "chat.json: tool_format: x is none of", BN_ERR_INVALID_ARGUMENT},
        {"{\"messages\": [], \"tool_choice\": \"required\"}", "chat.json: tool_choice", BN_ERR_INVALID_ARGUMENT},
        {"{\"messages\": [], \"tool_format\": \"none\", \"tool_choice\": \"required\", " TOOLS "}", "set tool_format",
         BN_ERR_UNSUPPORTED},
        {"\xff", "UTF-8", BN_ERR_INVALID_ARGUMENT},
    };
    bn_engine *engine = start_echo();
    bn_model *model = model_of(engine);
    bn_error error = {0};
    bn_request request = 0;
    bn_request_params params;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        params = chat_of(wrong[i].json);
        CHECK_STATUS(bn_submit(engine, &params, &request, &error), wrong[i].status);
        CHECK_CONTAINS(error.message, wrong[i].message);
    }
    size_t length = 0;
    CHECK_STATUS(format(model, BN_TEXT("[]"), NULL, 0, &length, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(format(model, (bn_string){NULL, 0}, NULL, 0, &length, &error), BN_ERR_INVALID_ARGUMENT);
    params = chat_of("{\"messages\": []}");
    params.prompt = BN_TEXT("x");
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "more than one of");
    params.chat.json = (bn_string){NULL, 0};
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "BN_REQUEST_PARSE_OUTPUT");
    // A constraint in addition to that of a required call.
    params = chat_of("{\"messages\": [], \"tool_choice\": \"required\", " TOOLS "}");
    params.constraint.kind = BN_CONSTRAINT_JSON_OBJECT;
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "constraint");
    CHECK_OK(bn_model_free(model));
    stop(engine);
}
