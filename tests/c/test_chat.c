// A conversation to a prompt: builtin:echo's template writes `role: content` lines; the embedded model has none.
#include "harness.h"

static bn_string string_of(const char *text) {
    bn_string string = {text, strlen(text)};
    return string;
}

static bn_chat_message message_of(const char *role, const char *content) {
    bn_chat_message message = {string_of(role), string_of(content)};
    return message;
}

TEST(chat_is_formatted_by_the_template) {
    bn_engine *engine = start_echo();
    bn_chat_message messages[] = {
        message_of("system", "Be brief."), message_of("user", "Grüße, 世界! 🦀"), message_of("user", "")};
    const char *whole = "system: Be brief.\nuser: Grüße, 世界! 🦀\nuser: \n";
    char text[256];
    size_t length = 0;
    CHECK_OK(bn_chat_format(engine, messages, 3, 0, text, sizeof text, &length));
    CHECK_TEXT(text, length, whole);
    CHECK_OK(bn_chat_format(engine, messages, 3, BN_CHAT_ADD_GENERATION_PROMPT, text, sizeof text, &length));
    CHECK_EQ(length, strlen(whole) + strlen("assistant: "));
    CHECK_TEXT(text + strlen(whole), length - strlen(whole), "assistant: ");
    // No messages are a conversation too.
    CHECK_OK(bn_chat_format(engine, NULL, 0, 0, NULL, 0, &length));
    CHECK_EQ(length, 0);
    stop(engine);
}

TEST(chat_is_answered) {
    bn_engine *engine = start_echo();
    bn_chat_message messages[] = {message_of("user", "hello")};
    char text[64];
    size_t length = 0;
    CHECK_OK(bn_chat_format(engine, messages, 1, BN_CHAT_ADD_GENERATION_PROMPT, text, sizeof text, &length));
    bn_request_params params = ask("");
    params.prompt = text;
    params.prompt_length = length;
    params.flags |= BN_REQUEST_PARSE_SPECIAL;
    answer *a = run(engine, &params);
    CHECK_TEXT(a->text, a->text_length, "user: hello\nassistant: ");
    free(a);
    stop(engine);
}

TEST(chat_tells_its_length) {
    bn_engine *engine = start_echo();
    bn_chat_message message = message_of("user", "hello");
    char text[13];
    size_t length = 0;
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, NULL, 0, &length), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(length, 12);
    memset(text, 'x', sizeof text);
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 11, &length), BN_ERR_BUFFER_TOO_SMALL);
    CHECK_EQ(text[0], 'x');
    CHECK_OK(bn_chat_format(engine, &message, 1, 0, text, 12, &length));
    CHECK_TEXT(text, length, "user: hello\n");
    CHECK_EQ(text[12], 'x');
    stop(engine);
}

TEST(chat_refuses_wrong_arguments) {
    bn_engine *engine = start_echo();
    bn_chat_message message = message_of("user", "hello");
    char text[64];
    size_t length = 77;
    CHECK_STATUS(bn_chat_format(NULL, &message, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_chat_format(engine, NULL, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 64, NULL), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, NULL, 64, &length), BN_ERR_INVALID_ARGUMENT);
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 4, text, 64, &length), BN_ERR_UNSUPPORTED);
    CHECK_STATUS(bn_chat_format(engine, &message, 1 << 20, 0, text, 64, &length), BN_ERR_TOO_LONG);
    message.content.data = NULL;
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    message.content = string_of("\xff");
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    message = message_of("\xc3", "x");
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
    stop(engine);
    CHECK_STATUS(bn_chat_format(engine, &message, 1, 0, text, 64, &length), BN_ERR_INVALID_ARGUMENT);
}

TEST(chat_needs_a_template_and_may_refuse_special_tokens) {
    bn_engine_config config = demo_config();
    bn_engine *engine = start(&config);
    bn_chat_message messages[] = {message_of("user", "fine"), message_of("user", "<|bos|> and more")};
    size_t length = 77;
    CHECK_STATUS(bn_chat_format(engine, messages, 2, 0, NULL, 0, &length), BN_ERR_UNSUPPORTED);
    CHECK_STATUS(bn_chat_format(engine, messages, 1, BN_CHAT_REFUSE_SPECIAL, NULL, 0, &length), BN_ERR_UNSUPPORTED);
    CHECK_STATUS(bn_chat_format(engine, messages, 2, BN_CHAT_REFUSE_SPECIAL, NULL, 0, &length),
                 BN_ERR_INVALID_ARGUMENT);
    messages[1] = message_of("<|bos|>", "x");
    CHECK_STATUS(bn_chat_format(engine, messages, 2, BN_CHAT_REFUSE_SPECIAL, NULL, 0, &length),
                 BN_ERR_INVALID_ARGUMENT);
    CHECK_EQ(length, 77);
    stop(engine);
}
