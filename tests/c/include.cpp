// The header in C++17: it stands alone, its functions link unmangled, and handles are unique_ptrs.
#include "bn_engine.h"

#include <array>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

static_assert(std::is_standard_layout_v<bn_event> && std::is_trivially_copyable_v<bn_event>);
static_assert(sizeof(bn_error) == 512, "bn_error never grows");

namespace {

struct Free {
    void operator()(bn_model *model) const { bn_model_free(model); }
    void operator()(bn_engine *engine) const { bn_engine_free(engine); }
};
using Model = std::unique_ptr<bn_model, Free>;
using Engine = std::unique_ptr<bn_engine, Free>;

class Error : public bn_error {
public:
    Error() : bn_error{} {}
    void check(bn_status result) const {
        if (result != BN_OK) throw std::runtime_error(std::string(bn_status_name(result)) + ": " + message);
    }
};

std::string_view view(bn_string text) {
    return {text.data, text.length};
}

Model open(bn_string path) {
    Error error;
    bn_model_config config;
    error.check(bn_model_config_init(&config, sizeof config));
    config.path = path;
    bn_model *model = nullptr;
    error.check(bn_model_open(&config, &model, &error));
    return Model(model);
}

Engine engine_of(const Model &model) {
    Error error;
    bn_engine_config config;
    error.check(bn_engine_config_init(&config, sizeof config));
    config.model = model.get();
    bn_engine *engine = nullptr;
    error.check(bn_engine_create(&config, &engine, &error));
    return Engine(engine);
}

bn_request_params parameters() {
    bn_request_params params;
    Error().check(bn_request_params_init(&params, sizeof params));
    return params;
}

std::string generate(const Engine &engine, const std::string &prompt) {
    Error error;
    auto params = parameters();
    params.prompt = BN_TEXT(prompt.c_str());
    bn_event event{};
    error.check(bn_generate(engine.get(), &params, &event, sizeof event, &error));
    std::string text(view(event.text));
    error.check(bn_events_free(&event, sizeof event, 1));
    return text;
}

std::string stream(const Engine &engine) {
    Error error;
    const std::array<bn_chat_message, 2> messages{{{BN_STRING("system"), BN_STRING("Echo.")},
                                                   {BN_STRING("user"), BN_STRING("hello")}}};
    auto params = parameters();
    params.chat.messages = messages.data();
    params.chat.messages_count = messages.size();
    bn_request request = 0;
    error.check(bn_submit(engine.get(), &params, &request, &error));
    std::string text;
    for (bool done = false; !done;) {
        std::array<bn_event, 8> events;
        std::size_t count = 0;
        error.check(bn_poll(engine.get(), BN_ANY, events.data(), sizeof events[0], events.size(), BN_NO_LIMIT, &count, &error));
        for (std::size_t i = 0; i < count; i++) {
            text += view(events[i].text);
            done = done || events[i].kind == BN_EVENT_COMPLETED;
        }
        error.check(bn_events_free(events.data(), sizeof events[0], count));
    }
    error.check(bn_request_free(engine.get(), request, &error));
    return text;
}

bool refuses() {
    try {
        open(BN_STRING("/nonexistent.gguf"));
    } catch (const std::runtime_error &error) {
        return std::string_view(error.what()).find("/nonexistent.gguf") != std::string_view::npos;
    }
    return false;
}

} // namespace

int main() {
    const bn_string path = BN_STRING_INIT("builtin:echo");
    Engine engine = engine_of(open(path)); // which keeps the model
    const std::string echoed = generate(engine, "C++17"), streamed = stream(engine);
    if (echoed == "C++17" && streamed == "system: Echo.\nuser: hello\nassistant: " && refuses()) return 0;
    std::cerr << "got \"" << echoed << "\" and \"" << streamed << "\"\n";
    return 1;
}
