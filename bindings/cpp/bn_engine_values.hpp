// The values of bn_engine.hpp: errors, configurations, requests, events.
#ifndef BN_ENGINE_VALUES_HPP
#define BN_ENGINE_VALUES_HPP

#include <bn_engine.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bn {

// A call or a request failed: a BN_ERR_* and the reason.
class Error : public std::runtime_error {
public:
    Error(bn_status code, std::string_view message)
        : std::runtime_error(std::string(bn_status_name(code)).append(": ").append(message)), code_(code) {}
    bn_status code() const noexcept { return code_; }
    std::string_view message() const noexcept {
        const std::string_view all = what();
        return all.substr(all.find(": ") + 2);
    }

private:
    bn_status code_;
};

using Log = std::function<void(uint32_t level, std::string_view line)>;
// Changes the logits of a row, in place. An exception ends the request, and is thrown again to the thread that waits
// for it. It is called on threads of the engine, for several requests at a time, and all requests wait for it: it must
// neither wait for the engine nor destroy streams. No call follows the request's end, or the destruction of its stream
// unless a log or span callback destroys it.
using LogitsHook = std::function<void(const bn_logits &row)>;

namespace detail {

inline std::string_view view(bn_string text) { return {text.data, text.length}; }
inline bn_string text(std::string_view text) { return {text.data(), text.size()}; }
// For fields in which an empty text differs from none.
inline bn_string text_or_none(std::string_view given) { return given.empty() ? bn_string{nullptr, 0} : text(given); }

// Makes a call with a bn_error, and throws if it failed.
template <typename Call>
void check(Call call) {
    bn_error error;
    error.message[0] = 0;
    const bn_status status = call(&error);
    if (status != BN_OK) throw Error(status, error.message[0] != 0 ? error.message : bn_status_message(status));
}

// Asks for the size of a result, then for the result, until it has room.
template <typename Result, typename Call>
Result sized(Call call) {
    Result result;
    for (;;) {
        std::size_t size = 0;
        bn_status status = BN_OK;
        check([&](bn_error *error) {
            status = call(result.empty() ? nullptr : result.data(), result.size(), &size, error);
            return status == BN_ERR_BUFFER_TOO_SMALL ? BN_OK : status;
        });
        result.resize(size);
        if (status == BN_OK) return result;
    }
}

inline void check_abi() {
    if (bn_abi_version() != BN_ABI_VERSION) throw Error(BN_ERR_UNSUPPORTED, "the library's ABI is not the header's");
}

// Exceptions must not pass through the library.
inline void log(uint32_t level, bn_string message, void *context) noexcept {
    try {
        (*static_cast<const Log *>(context))(level, view(message));
    } catch (...) {
    }
}

} // namespace detail

struct Message {
    std::string role, content;
};

// These are the C structs with their defaults. Texts and lists of C++ replace the fields of the same name.
struct ModelConfig : bn_model_config {
    explicit ModelConfig(std::string_view from = {}) : bn_model_config{}, path(from) {
        bn_model_config_init(this, sizeof(bn_model_config));
    }
    std::string path; // empty: the model embedded in the library
    Log log;
};

struct EngineConfig : bn_engine_config {
    explicit EngineConfig(std::string_view from = {}) : bn_engine_config{}, model_path(from) {
        bn_engine_config_init(this, sizeof(bn_engine_config));
    }
    std::string model_path;
    Log log;
};

struct Chat : bn_chat {
    explicit Chat(std::vector<Message> list = {}, std::string_view from = {})
        : bn_chat{}, messages(std::move(list)), json(from) {}
    std::vector<Message> messages; // one of these two
    std::string json;
};

struct Constraint : bn_constraint {
    // BN_CONSTRAINT_*, and the schema, expression or grammar.
    Constraint(uint32_t of = BN_CONSTRAINT_NONE, std::string_view from = {}) : bn_constraint{}, text(from) { kind = of; }
    std::string text;
};

namespace detail {

inline bn_request_params params() {
    bn_request_params params;
    bn_request_params_init(&params, sizeof params);
    return params;
}

} // namespace detail

struct Sampling : bn_sampling {
    Sampling() : bn_sampling(detail::params().sampling) {}
    std::vector<uint32_t> samplers;
    std::optional<std::vector<std::string>> dry_breakers; // not set: the library's
    std::vector<bn_logit_bias> logit_bias;
    std::vector<std::string> bad_words;
    LogitsHook on_logits;
};

// A question about a prompt. The options of BN_QUESTION_YES_NO may be left out.
struct Question : bn_question {
    explicit Question(uint32_t of = BN_QUESTION_CHOICE, std::string_view from = {}, std::vector<std::string> list = {})
        : bn_question{}, text(from), options(std::move(list)) { kind = of; }
    std::string name, text;
    std::vector<std::string> options;
};

// A picture: the bytes of a PNG, a JPEG, a WebP or a GIF, whose first frame counts, or pixels.
struct Picture {
    explicit Picture(std::vector<uint8_t> file) : data(std::move(file)) {}
    // Red, green and blue for each pixel, line by line from the top.
    Picture(uint32_t columns, uint32_t rows, std::vector<uint8_t> rgb)
        : data(std::move(rgb)), width(columns), height(rows) {}
    // Reads a file. Throws BN_ERR_IO if it cannot.
    static Picture open(const std::string &path) {
        std::ifstream file(path, std::ios::binary);
        std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        if (!file.is_open() || file.bad()) throw Error(BN_ERR_IO, path + " cannot be read");
        return Picture(std::move(bytes));
    }
    std::vector<uint8_t> data;
    uint32_t width = 0, height = 0; // 0: data is a file
};

struct Request : bn_request_params {
    explicit Request(std::string_view text = {}) : bn_request_params(detail::params()), prompt(text) {}
    static Request conversation(std::vector<Message> messages) {
        Request request;
        request.chat.messages = std::move(messages);
        return request;
    }

    std::string prompt; // one of these three
    std::vector<uint32_t> prompt_tokens;
    Chat chat;
    std::optional<std::string> document; // with BN_TASK_RERANK
    std::vector<Question> questions;     // with BN_TASK_DECIDE
    std::vector<Picture> pictures;       // for models that see: those of the prompt's places, in order
    std::vector<uint32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    Sampling sampling;
    Constraint constraint;
    std::vector<uint32_t> logprob_tokens;
    std::string session;
};

namespace detail {

// A conversation as a bn_chat, which points into the Chat.
struct ChatParams : bn_chat {
    explicit ChatParams(const Chat &c) : bn_chat(c) {
        for (const Message &m : c.messages) list_.push_back({text(m.role), text(m.content)});
        messages = list_.data(), messages_count = list_.size();
        json = text_or_none(c.json);
    }
    ChatParams(const ChatParams &) = delete;
    ChatParams &operator=(const ChatParams &) = delete;

private:
    std::vector<bn_chat_message> list_;
};

inline bn_constraint c_constraint(const Constraint &constraint) {
    bn_constraint c = constraint;
    c.text = text_or_none(constraint.text);
    return c;
}

inline std::vector<bn_string> c_texts(const std::vector<std::string> &texts) {
    std::vector<bn_string> list;
    for (const std::string &t : texts) list.push_back(text(t));
    return list;
}

// The struct of a picture, which points into it.
inline bn_picture c_picture(const Picture &p) {
    bn_picture c{};
    c.data = p.data.data(), c.data_len = p.data.size();
    c.width = p.width, c.height = p.height;
    return c;
}

// The parameters for bn_submit, which point into the request.
struct Params : bn_request_params {
    explicit Params(const Request &r)
        : bn_request_params(r), chat_(r.chat), stops_(c_texts(r.stop_strings)), bad_words_(c_texts(r.sampling.bad_words)) {
        prompt = text_or_none(r.prompt);
        document = r.document ? text(*r.document) : bn_string{};
        session = text_or_none(r.session);
        chat = chat_;
        constraint = c_constraint(r.constraint);
        prompt_tokens = r.prompt_tokens.data(), prompt_tokens_count = r.prompt_tokens.size();
        stop_tokens = r.stop_tokens.data(), stop_tokens_count = r.stop_tokens.size();
        stop_strings = stops_.data(), stop_strings_count = stops_.size();
        logprob_tokens = r.logprob_tokens.data(), logprob_tokens_count = r.logprob_tokens.size();
        set(r.sampling);
        set(r.questions);
        for (const Picture &p : r.pictures) pictures_.push_back(c_picture(p));
        pictures = pictures_.data(), pictures_count = pictures_.size();
    }
    Params(const Params &) = delete;
    Params &operator=(const Params &) = delete;

private:
    void set(const std::vector<Question> &list) {
        for (const Question &q : list) options_.push_back(c_texts(q.options));
        for (std::size_t i = 0; i < list.size(); i++) {
            bn_question c = list[i];
            c.name = text_or_none(list[i].name), c.text = text_or_none(list[i].text);
            c.options = options_[i].data(), c.options_count = options_[i].size();
            questions_.push_back(c);
        }
        questions = questions_.data(), questions_count = questions_.size();
    }
    void set(const Sampling &s) {
        sampling = s;
        sampling.samplers = s.samplers.data(), sampling.samplers_count = s.samplers.size();
        sampling.logit_bias = s.logit_bias.data(), sampling.logit_bias_count = s.logit_bias.size();
        sampling.bad_words = bad_words_.data(), sampling.bad_words_count = bad_words_.size();
        if (s.dry_breakers) {
            breakers_ = c_texts(*s.dry_breakers);
            breakers_.reserve(1); // so that an empty list is set
            sampling.dry_breakers = breakers_.data(), sampling.dry_breakers_count = breakers_.size();
        }
    }
    ChatParams chat_;
    std::vector<bn_string> stops_, bad_words_, breakers_;
    std::vector<std::vector<bn_string>> options_;
    std::vector<bn_question> questions_;
    std::vector<bn_picture> pictures_;
};

// The hook of a request, and the exception that it threw.
struct Hook {
    explicit Hook(LogitsHook call) : call_(std::move(call)) {}
    void set(Params &params) noexcept { params.sampling.on_logits = run, params.sampling.on_logits_context = this; }
    void rethrow() const {
        if (thrown_) std::rethrow_exception(thrown_);
    }

private:
    static int32_t run(const bn_logits *row, void *context) noexcept {
        Hook &hook = *static_cast<Hook *>(context);
        try {
            hook.call_(*row);
            return 0;
        } catch (...) {
            hook.thrown_ = std::current_exception();
            return 1;
        }
    }
    LogitsHook call_;
    std::exception_ptr thrown_;
};

inline std::unique_ptr<Hook> hook_of(const Request &r) {
    return r.sampling.on_logits ? std::make_unique<Hook>(r.sampling.on_logits) : nullptr;
}

} // namespace detail

// A call of a tool, or a part of one: the first part has an id and a name.
struct ToolCall {
    uint32_t index;
    std::string id, name, arguments;
    std::size_t text_before; // bytes of the event's text that the model wrote before it
};

// A new part of a request's output, or the whole output. The last event has a finish_reason and the fields
// after it.
struct Event {
    std::string text; // whole UTF-8 characters
    std::vector<uint32_t> tokens;
    std::vector<bn_logprob> logprobs; // with BN_REQUEST_LOGPROBS: logprobs_per_token for each token
    uint32_t logprobs_per_token = 0;
    uint32_t finish_reason = BN_FINISH_NONE;
    bn_status status = BN_OK; // of a request that was cancelled or timed out
    std::string message;
    int32_t stop_index = -1;
    std::vector<float> embedding;
    std::vector<bn_decision> decisions; // with BN_TASK_DECIDE, as are their options
    std::vector<bn_decision_option> decision_options;
    std::string reasoning; // with BN_REQUEST_PARSE_OUTPUT, as are calls
    std::vector<ToolCall> tool_calls;
    uint32_t tool_calls_total = 0;
    uint32_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
    uint32_t reasoning_tokens = 0; // generated, with BN_REQUEST_PARSE_OUTPUT
    uint32_t pooling = 0;          // BN_POOLING_* of an embedding
    std::chrono::nanoseconds queued{}, prefill{}, first_token{}, decode{}, total{};

    bool last() const noexcept { return finish_reason != BN_FINISH_NONE; }

    // Copies an event of the library. Strings and vectors keep their capacity.
    void assign(const bn_event &e) {
        text.clear(), tokens.clear(), logprobs.clear(), reasoning.clear(), tool_calls.clear();
        add(e);
    }
    // Appends an event of the library. The parts of a call become one.
    void add(const bn_event &e) {
        const std::size_t before = text.size();
        text.append(e.text.data, e.text.length);
        reasoning.append(e.reasoning.data, e.reasoning.length);
        tokens.insert(tokens.end(), e.tokens, e.tokens + e.tokens_count);
        logprobs.insert(logprobs.end(), e.logprobs, e.logprobs + e.logprobs_count);
        for (std::size_t i = 0; i < e.tool_calls_count; i++) add(e.tool_calls[i], before);
        logprobs_per_token = e.logprobs_per_token;
        finish_reason = e.finish_reason;
        status = e.status;
        message.assign(e.message.data, e.message.length);
        stop_index = e.stop_index;
        embedding.assign(e.embedding, e.embedding + e.embedding_count);
        decisions.assign(e.decisions, e.decisions + e.decisions_count);
        decision_options.assign(e.decision_options, e.decision_options + e.decision_options_count);
        tool_calls_total = e.tool_calls_total;
        prompt_tokens = e.prompt_tokens, generated_tokens = e.generated_tokens, cached_tokens = e.cached_tokens;
        drafted_tokens = e.drafted_tokens, accepted_tokens = e.accepted_tokens;
        reasoning_tokens = e.reasoning_tokens, pooling = e.pooling;
        const auto ns = [](uint64_t n) { return std::chrono::nanoseconds(n); };
        queued = ns(e.queued_ns), prefill = ns(e.prefill_ns), first_token = ns(e.first_token_ns);
        decode = ns(e.decode_ns), total = ns(e.total_ns);
    }

private:
    void add(const bn_tool_call &part, std::size_t before) {
        const std::string_view arguments = detail::view(part.arguments);
        if (!tool_calls.empty() && tool_calls.back().index == part.index) tool_calls.back().arguments += arguments;
        else
            tool_calls.push_back({part.index, std::string(detail::view(part.id)), std::string(detail::view(part.name)),
                                  std::string(arguments), before + part.text_before});
    }
};

using Completion = Event; // a whole answer

namespace detail {

// Throws the error of a failed request.
[[noreturn]] inline void fail(const Event &end, const Hook *hook) {
    if (hook != nullptr) hook->rethrow();
    throw Error(end.status, end.message);
}

} // namespace detail

} // namespace bn

#endif
