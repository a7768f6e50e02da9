// A conversation to a prompt: builtin:echo's template writes `role: content` lines; the embedded model has none.
#include "harness.h"

static bn_chat_message message_of(const char *role, const char *content) {
    bn_chat_message message = {BN_TEXT(role), BN_TEXT(content)};
    return message;
}

static bn_request_params params_of(const bn_chat_message *messages, size_t n, size_t size) {
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.messages = messages;
    params.messages_count = n;
    params.message_size = size;
    return params;
}

// bn_model_chat_format with its most common arguments.
static bn_status format(const bn_model *model, const bn_chat_message *messages, size_t n, char *text, size_t capacity,
                        size_t *length) {
    bn_request_params params = params_of(messages, n, sizeof *messages);
    return bn_model_chat_format(model, &params, text, capacity, length, NULL);
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
    CHECK_OK(bn_model_free(model));
}

TEST(messages_are_answered) {
    bn_engine *engine = start_echo();
    bn_chat_message messages[] = {message_of("user", "hello")};
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    params.messages = messages;
    params.messages_count = 1;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "user: hello\nassistant: ");
    free(a);
    stop(engine);
}

// Passes messages of a newer header, which have more fields than this library's.
TEST(longer_messages_are_served_until_they_use_what_we_lack) {
    struct {
        bn_chat_message message;
        uint64_t later;
    } newer[2] = {{message_of("user", "one"), 0}, {message_of("user", "two"), 0}};
    bn_engine *engine = start_echo();
    bn_model *model = model_of(engine);
    bn_error error = {0};
    char text[64];
    size_t length = 0;
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    CHECK_EQ(params.message_size, sizeof(bn_chat_message));
    params = params_of(&newer[0].message, 2, sizeof newer[0]);
    CHECK_OK(bn_model_chat_format(model, &params, text, 64, &length, NULL));
    CHECK_TEXT(text, length, "user: one\nuser: two\nassistant: ");
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "user: one\nuser: two\nassistant: ");
    free(a);
    newer[1].later = 1;
    bn_request request = 0;
    CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "bn_chat_message");
    CHECK_STATUS(bn_model_chat_format(model, &params, text, 64, &length, &error), BN_ERR_UNSUPPORTED);
    const size_t wrong[] = {0, 8, sizeof(bn_chat_message) - 1, sizeof(bn_chat_message) + 1, (size_t)-8};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        params.message_size = wrong[i];
        CHECK_STATUS(bn_submit(engine, &params, &request, &error), BN_ERR_INVALID_ARGUMENT);
        CHECK_STATUS(bn_model_chat_format(model, &params, text, 64, &length, &error), BN_ERR_INVALID_ARGUMENT);
    }
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
    bn_request_params params;
    CHECK_OK(bn_request_params_init(&params, sizeof params));
    CHECK_STATUS(bn_model_chat_format(model, &params, text, 64, &length, NULL), BN_ERR_INVALID_ARGUMENT);
    bn_error error;
    params.prompt = BN_STRING("no conversation");
    CHECK_STATUS(bn_model_chat_format(model, &params, text, 64, &length, &error), BN_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(error.message, "set messages or chat_json");
    CHECK_OK(bn_model_free(model));
    CHECK_STATUS(format(model, &message, 1, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
}

TEST(chat_needs_a_template) {
    bn_model *model = open_model(BN_GOLDEN_MODELS "/bitnet-silu-i2_s.gguf");
    bn_chat_message message = message_of("user", "fine");
    bn_error error = {0};
    size_t length = 77;
    bn_request_params params = params_of(&message, 1, sizeof message);
    CHECK_STATUS(bn_model_chat_format(model, &params, NULL, 0, &length, &error), BN_ERR_UNSUPPORTED);
    CHECK_CONTAINS(error.message, "template");
    CHECK_STATUS(bn_model_chat_tokenize(model, &params, NULL, 0, &length, &error), BN_ERR_UNSUPPORTED);
    CHECK_EQ(length, 77);
    CHECK_EQ(info_of(model).has_chat_template, 0);
    CHECK_OK(bn_model_free(model));
}
