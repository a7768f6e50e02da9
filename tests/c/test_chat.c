// A conversation to a prompt: builtin:echo's template writes `role: content` lines; the embedded model has none.
#include "harness.h"

static bn_chat_message message_of(const char *role, const char *content) {
    bn_chat_message message = {BN_TEXT(role), BN_TEXT(content)};
    return message;
}

// bn_model_chat_format with its most common arguments.
static bn_status format(const bn_model *model, const bn_chat_message *messages, size_t n, char *text, size_t capacity,
                        size_t *length) {
    bn_chat chat = {.messages = messages, .messages_count = n};
    return bn_model_chat_format(model, &chat, text, capacity, length, NULL);
}

TEST(chat_is_formatted_by_the_template) {
    bn_model *model = open_model("builtin:echo");
    bn_chat_message messages[] = {
        message_of("system", "Be brief."), message_of("user", "Grüße, 世界! 🦀"), message_of("user", "")};
    const char *whole = "system: Be brief.\nuser: Grüße, 世界! 🦀\nuser: \nassistant: ";
    char text[256];
    size_t length = 0;
    CHECK_OK(format(model, messages, 3, text, sizeof text, &length));
    CHECK_TEXT(text, length, whole);
    // A conversation may have no messages.
    CHECK_OK(format(model, messages, 0, text, sizeof text, &length));
    CHECK_TEXT(text, length, "assistant: ");
    messages[1].role = (bn_string){0};
    CHECK_STATUS(format(model, messages, 3, text, sizeof text, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_OK(bn_model_free(model));
}

TEST(messages_are_answered) {
    bn_engine *engine = start_echo();
    bn_chat_message messages[] = {message_of("user", "hello")};
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.chat.messages = messages;
    params.chat.messages_count = 1;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "user: hello\nassistant: ");
    free(a);
    stop(engine);
}

// Passes structs of a newer header, with fields where this one has room.
TEST(reserved_room_is_refused_once_it_is_used) {
    bn_engine *engine = start_echo();
    bn_model *model = model_of(engine);
    bn_error error = {0};
    bn_request request = 0;
    bn_request_params params = ask("hello");
    const struct {
        uint64_t *room;
        const char *says;
    } all[] = {
        {&params.chat.reserved[1], "chat.reserved is not 0"},
        {&params.sampling.reserved[3], "sampling.reserved is not 0"},
        {&params.constraint.reserved[0], "constraint.reserved is not 0"},
        {&params.embedding.reserved[1], "embedding.reserved is not 0"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].room = 1;
        CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_UNSUPPORTED);
        CHECK_CONTAINS(error.message, all[i].says);
        *all[i].room = 0;
    }
    free(run(engine, &params));
    bn_chat_message message = message_of("user", "hello");
    bn_chat chat = {.messages = &message, .messages_count = 1, .reserved = {1, 0}};
    size_t length = 0;
    CHECK_STATUS(bn_model_chat_format(model, &chat, NULL, 0, &length, &error), BN_ERR_UNSUPPORTED);
    bn_constraint constraint = {.kind = BN_CONSTRAINT_JSON_OBJECT, .reserved = {0, 1}};
    CHECK_STATUS(bn_engine_check_constraint(engine, &constraint, &error), BN_ERR_UNSUPPORTED);
    CHECK_OK(bn_model_free(model));
    stop(engine);
}

TEST(chat_tells_its_length) {
    bn_model *model = open_model("builtin:echo");
    bn_chat_message message = message_of("user", "hello");
    char text[24];
    size_t length = 0;
    CHECK_STATUS(format(model, &message, 1, NULL, 0, &length), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(length, 23);
    memset(text, 'x', sizeof text);
    CHECK_STATUS(format(model, &message, 1, text, 22, &length), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(text[0], 'x');
    CHECK_OK(format(model, &message, 1, text, 23, &length));
    CHECK_TEXT(text, length, "user: hello\nassistant: ");
    CHECK_EQ(text[23], 'x');
    CHECK_OK(bn_model_free(model));
}

TEST(chat_refuses_wrong_arguments) {
    bn_model *model = open_model("builtin:echo");
    bn_chat_message message = message_of("user", "hello");
    char text[64];
    size_t length = 77;
    CHECK_STATUS(format(NULL, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(format(model, NULL, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(format(model, &message, 1, text, 64, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(format(model, &message, 1, NULL, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(format(model, &message, 1 << 20, text, 64, &length), BN_ERR_TOO_LONG);
    message.content.data = NULL;
    CHECK_STATUS(format(model, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    message.content = BN_TEXT("\xff");
    CHECK_STATUS(format(model, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    message = message_of("\xc3", "x");
    CHECK_STATUS(format(model, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    bn_chat chat = {0};
    bn_error error;
    CHECK_STATUS(bn_model_chat_format(model, NULL, text, 64, &length, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_model_chat_format(model, &chat, text, 64, &length, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "set messages or json");
    message = message_of("user", "hello");
    chat = (bn_chat){.messages = &message, .messages_count = 1, .json = BN_STRING("{}")};
    CHECK_STATUS(bn_model_chat_format(model, &chat, text, 64, &length, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "both set");
    CHECK_OK(bn_model_free(model));
    CHECK_STATUS(format(model, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
}

TEST(chat_needs_a_template) {
    bn_model *model = open_model(BN_GOLDEN_MODELS "/bitnet-silu-i2_s.gguf");
    bn_chat_message message = message_of("user", "fine");
    bn_error error = {0};
    size_t length = 77;
    bn_chat chat = {.messages = &message, .messages_count = 1};
    CHECK_STATUS(bn_model_chat_format(model, &chat, NULL, 0, &length, &error), BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "template");
    CHECK_STATUS(bn_model_chat_tokenize(model, &chat, NULL, 0, &length, &error), BN_ERR_UNSUPPORTED);
    CHECK_EQ(length, 77);
    CHECK_EQ(info_of(model).has_chat_template, 0);
    CHECK_OK(bn_model_free(model));
}
