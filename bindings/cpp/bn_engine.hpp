// bn_engine for C++17: move-only handles, exceptions, futures and ranges of events over bn_engine.h, which says what
// the fields and constants mean. Every error is a bn::Error. Every function may be called from any thread, but an
// object may be moved or destroyed only when no other thread uses it, and one thread at a time reads a Stream.
#ifndef BN_ENGINE_HPP
#define BN_ENGINE_HPP

#include <bn_engine.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>
#if __has_include(<stop_token>)
#include <stop_token>
#endif

namespace bn {

// A call or a request failed: a BN_ERR_* and what was wrong.
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

using Log = std::function<void(int32_t level, std::string_view line)>;

namespace detail {

inline std::string_view view(bn_string text) { return {text.data, text.length}; }
inline bn_string text(std::string_view text) { return {text.data(), text.size()}; }
// For fields where a text of no bytes would be another thing than none.
inline bn_string text_or_none(std::string_view given) { return given.empty() ? bn_string{nullptr, 0} : text(given); }

// Calls with a bn_error, and throws what failed.
template <typename Call>
void check(Call call) {
    bn_error error;
    error.struct_size = sizeof error;
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
inline void log(int32_t level, bn_string message, void *context) noexcept {
    try {
        (*static_cast<const Log *>(context))(level, view(message));
    } catch (...) {
    }
}

} // namespace detail

struct Message {
    std::string role, content;
};

// The C struct with its defaults, and texts that it owns in place of those of the same name.
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

struct Request : bn_request_params {
    explicit Request(std::string_view text = {}) : bn_request_params{}, prompt(text) {
        bn_request_params_init(this, sizeof(bn_request_params));
    }
    static Request chat(std::vector<Message> messages) {
        Request request;
        request.messages = std::move(messages);
        return request;
    }

    std::string prompt; // one of these three
    std::vector<uint32_t> prompt_tokens;
    std::vector<Message> messages;
    std::vector<uint32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    std::string session;
};

namespace detail {

inline std::vector<bn_chat_message> c_messages(const std::vector<Message> &messages) {
    std::vector<bn_chat_message> list;
    for (const Message &m : messages) list.push_back({text(m.role), text(m.content)});
    return list;
}

// What bn_submit takes. It points into the request.
struct Params : bn_request_params {
    explicit Params(const Request &r) : bn_request_params(r), messages_(c_messages(r.messages)) {
        for (const std::string &s : r.stop_strings) stops_.push_back(text(s));
        prompt = text_or_none(r.prompt);
        session = text_or_none(r.session);
        prompt_tokens = r.prompt_tokens.data();
        prompt_tokens_count = r.prompt_tokens.size();
        messages = messages_.data();
        messages_count = messages_.size();
        stop_tokens = r.stop_tokens.data();
        stop_tokens_count = r.stop_tokens.size();
        stop_strings = stops_.data();
        stop_strings_count = stops_.size();
    }
    Params(const Params &) = delete;
    Params &operator=(const Params &) = delete;

private:
    std::vector<bn_chat_message> messages_;
    std::vector<bn_string> stops_;
};

} // namespace detail

// What is new of a request, or all of it. The last event has a finish_reason and what follows it.
struct Event {
    std::string text; // whole UTF-8 characters
    std::vector<uint32_t> tokens;
    std::vector<bn_logprob> logprobs; // with BN_REQUEST_LOGPROBS: logprobs_per_token for each token
    uint32_t logprobs_per_token = 0;
    int32_t finish_reason = BN_FINISH_NONE;
    bn_status status = BN_OK; // of a request that was cancelled or timed out
    std::string message;
    int32_t stop_index = -1;
    std::vector<float> embedding;
    uint32_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;
    std::chrono::nanoseconds queued{}, prefill{}, first_token{}, decode{}, total{};

    bool last() const noexcept { return finish_reason != BN_FINISH_NONE; }

    // Copies what the library has written. Strings and vectors keep their room.
    void assign(const bn_event &e) {
        text.assign(e.text.data, e.text.length);
        tokens.assign(e.tokens, e.tokens + e.tokens_count);
        logprobs.assign(e.logprobs, e.logprobs + e.logprobs_count);
        logprobs_per_token = e.logprobs_per_token;
        finish_reason = e.finish_reason;
        status = e.status;
        message.assign(e.message.data, e.message.length);
        stop_index = e.stop_index;
        embedding.assign(e.embedding, e.embedding + e.embedding_count);
        prompt_tokens = e.prompt_tokens;
        generated_tokens = e.generated_tokens;
        cached_tokens = e.cached_tokens;
        const auto ns = [](uint64_t n) { return std::chrono::nanoseconds(n); };
        queued = ns(e.queued_ns), prefill = ns(e.prefill_ns), first_token = ns(e.first_token_ns);
        decode = ns(e.decode_ns), total = ns(e.total_ns);
    }
};

using Completion = Event; // a whole answer

// A loaded model. Engines that are made of it keep it.
class Model {
public:
    explicit Model(const ModelConfig &config = ModelConfig()) {
        detail::check_abi();
        bn_model_config c = config;
        c.path = detail::text_or_none(config.path);
        if (config.log) c.log = detail::log, c.log_context = const_cast<Log *>(&config.log);
        bn_model *model = nullptr;
        detail::check([&](bn_error *error) { return bn_model_open(&c, &model, error); });
        handle_.reset(model);
    }
    explicit Model(std::string_view path) : Model(ModelConfig(path)) {}
    explicit Model(bn_model *owned) : handle_(owned) {}

    // Its pointers are valid as long as the model.
    bn_model_info info() const {
        bn_model_info info;
        bn_model_info_init(&info, sizeof info);
        detail::check([&](bn_error *error) { return bn_model_get_info(handle(), &info, error); });
        return info;
    }
    // `flags`: BN_TOKENIZE_*.
    std::vector<uint32_t> tokenize(std::string_view text, uint32_t flags = 0) const {
        return detail::sized<std::vector<uint32_t>>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_tokenize(handle(), detail::text(text), flags, data, room, size, error);
        });
    }
    std::string detokenize(const std::vector<uint32_t> &tokens) const {
        return detail::sized<std::string>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_detokenize(handle(), tokens.data(), tokens.size(), data, room, size, error);
        });
    }
    // The tokens of a conversation, as submitting it makes them.
    std::vector<uint32_t> chat_tokens(const std::vector<Message> &messages,
                                      uint32_t flags = BN_CHAT_ADD_GENERATION_PROMPT) const {
        const auto list = detail::c_messages(messages);
        return detail::sized<std::vector<uint32_t>>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_chat_tokenize(handle(), list.data(), list.size(), sizeof(bn_chat_message), flags, data, room,
                                          size, error);
        });
    }
    // For calls that are not here. It stays the model's. NULL after a move.
    bn_model *handle() const noexcept { return handle_.get(); }

private:
    struct Free {
        void operator()(bn_model *model) const noexcept { bn_model_free(model); }
    };
    std::unique_ptr<bn_model, Free> handle_;
};

namespace detail {

// An engine, and the thread that keeps the promises of its futures once there are any. Engine and its streams share it.
class Core {
public:
    explicit Core(const EngineConfig &config) : log_(config.log) {
        check_abi();
        bn_engine_config c = config;
        c.model_path = text_or_none(config.model_path);
        if (log_) c.log = log, c.log_context = &log_;
        check([&](bn_error *error) { return bn_engine_create(&c, &engine, error); });
    }
    ~Core() { // the Engine has cancelled every request
        if (collector_.joinable()) collector_.join();
        bn_engine_destroy(engine);
    }
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    void stop(int32_t mode) const noexcept { bn_engine_shutdown(engine, mode, nullptr); }

    bn_request submit(const Request &request, uint32_t flags, uint64_t user_data) const {
        Params params(request);
        params.flags |= flags;
        params.user_data = user_data;
        bn_request id = 0;
        check([&](bn_error *error) { return bn_submit(engine, &params, &id, error); });
        return id;
    }

    std::future<Completion> promise(const Request &request) {
        std::promise<Completion> promise;
        std::future<Completion> future = promise.get_future();
        uint64_t key = 0;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!collector_.joinable()) collector_ = std::thread([this] { collect(); });
            key = ++last_;
            promises_.emplace(key, std::move(promise)); // before its event comes
        }
        try {
            submit(request, BN_REQUEST_NO_STREAM, key);
        } catch (...) {
            take(key);
            throw;
        }
        return future;
    }

    bn_engine *engine = nullptr;

private:
    std::unordered_map<uint64_t, std::promise<Completion>>::node_type take(uint64_t key) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return promises_.extract(key);
    }

    // The events of BN_ANY are the futures': streams are polled by their ids.
    void collect() noexcept {
        for (;;) {
            bn_event e;
            std::size_t count = 0;
            const bn_status status = bn_poll(engine, BN_ANY, &e, sizeof e, 1, BN_WAIT_FOREVER, &count, nullptr);
            if (status == BN_ERR_MEMORY_LIMIT || status == BN_ERR_OUT_OF_MEMORY) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1)); // there may be some later
                continue;
            }
            if (status != BN_OK) return; // every request has had its last event
            if (e.kind == BN_EVENT_COMPLETED) keep(e);
        }
    }

    void keep(const bn_event &e) noexcept {
        auto node = take(e.user_data);
        if (node.empty()) return; // of a request that was submitted through handle()
        std::promise<Completion> &promise = node.mapped();
        try {
            Completion completion;
            completion.assign(e);
            bn_release(engine, e.request, nullptr); // who waits finds its place free
            if (e.finish_reason == BN_FINISH_FAILED) throw Error(e.status, completion.message);
            promise.set_value(std::move(completion));
        } catch (...) {
            bn_release(engine, e.request, nullptr);
            promise.set_exception(std::current_exception());
        }
    }

    Log log_;
    std::mutex mutex_;
    std::thread collector_;
    std::unordered_map<uint64_t, std::promise<Completion>> promises_;
    uint64_t last_ = 0;
};

} // namespace detail

// A request whose events are read as they come. It keeps its engine. Destroying it cancels the request.
class Stream {
public:
    Stream(std::shared_ptr<detail::Core> core, const Request &request, uint32_t flags = 0)
        : core_(std::move(core)), id_(core_->submit(request, flags | BN_REQUEST_POLL_BY_ID, request.user_data)) {}
    Stream(Stream &&other) noexcept
        : core_(std::move(other.core_)), id_(other.id_), over_(std::exchange(other.over_, true)),
          event_(std::move(other.event_)) {}
    Stream &operator=(Stream &&other) noexcept {
        Stream moved(std::move(other));
        std::swap(core_, moved.core_), std::swap(id_, moved.id_);
        std::swap(over_, moved.over_), std::swap(event_, moved.event_);
        return *this;
    }
    ~Stream() { release(); }

    // Waits for an event, up to `timeout_ms`. NULL: none came in time, or the last one was returned before. The event
    // is valid until the next call. Throws if the request failed; event() then has what came with the failure.
    const Event *next(int32_t timeout_ms = BN_WAIT_FOREVER) {
        if (over_) return nullptr;
        bn_event e;
        std::size_t count = 0;
        detail::check([&](bn_error *error) {
            return bn_poll(core_->engine, id_, &e, sizeof e, 1, timeout_ms, &count, error);
        });
        if (count == 0) return nullptr;
        event_.assign(e);
        if (e.kind == BN_EVENT_COMPLETED) {
            release();
            if (event_.finish_reason == BN_FINISH_FAILED) throw Error(event_.status, event_.message);
        } else {
            bn_events_free(core_->engine, &e, sizeof e, 1);
        }
        return &event_;
    }

    // Waits for the end, and returns it with the text and tokens that were not read before.
    Completion finish() {
        std::string text;
        std::vector<uint32_t> tokens;
        std::vector<bn_logprob> logprobs;
        while (next() != nullptr && !over_) {
            text += event_.text;
            tokens.insert(tokens.end(), event_.tokens.begin(), event_.tokens.end());
            logprobs.insert(logprobs.end(), event_.logprobs.begin(), event_.logprobs.end());
        }
        event_.text.insert(0, text);
        event_.tokens.insert(event_.tokens.begin(), tokens.begin(), tokens.end());
        event_.logprobs.insert(event_.logprobs.begin(), logprobs.begin(), logprobs.end());
        return std::move(event_);
    }

    // Asks the engine to end the request. Its last event says so. Any thread may call it while another reads.
    void cancel() const noexcept {
        if (core_ != nullptr) bn_cancel(core_->engine, id_, nullptr);
    }
    const Event &event() const noexcept { return event_; }

    // An input iterator over the events: `for (const bn::Event &event : stream)`.
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Event;
        using difference_type = std::ptrdiff_t;
        using pointer = const Event *;
        using reference = const Event &;
        iterator() = default;
        explicit iterator(Stream *stream) : stream_(stream) { ++*this; }
        reference operator*() const { return stream_->event_; }
        pointer operator->() const { return &stream_->event_; }
        iterator &operator++() {
            if (stream_->next() == nullptr) stream_ = nullptr;
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator &a, const iterator &b) { return a.stream_ == b.stream_; }
        friend bool operator!=(const iterator &a, const iterator &b) { return !(a == b); }

    private:
        Stream *stream_ = nullptr;
    };
    iterator begin() { return iterator(this); }
    iterator end() { return {}; }

private:
    void release() noexcept {
        if (!std::exchange(over_, true)) bn_release(core_->engine, id_, nullptr);
    }
    std::shared_ptr<detail::Core> core_;
    bn_request id_ = 0;
    bool over_ = false;
    Event event_;
};

// An engine. Destroying it cancels what runs: streams and futures that are left get their ends.
class Engine {
public:
    explicit Engine(const EngineConfig &config = EngineConfig()) : core_(std::make_shared<detail::Core>(config)) {}
    explicit Engine(const Model &model, EngineConfig config = EngineConfig()) : Engine(with(model, config)) {}
    Engine(Engine &&) noexcept = default;
    Engine &operator=(Engine &&other) noexcept {
        close();
        core_ = std::move(other.core_);
        return *this;
    }
    ~Engine() { close(); }

    // Cancels every request and refuses further ones, and returns at once. Any thread may call it, and again.
    void close() const noexcept {
        if (core_ != nullptr) core_->stop(BN_SHUTDOWN_CANCEL);
    }
    // Refuses further requests and finishes those that were accepted. state() says when that is done.
    void drain() const { core().stop(BN_SHUTDOWN_DRAIN); }
    int32_t state() const { return bn_engine_state(handle()); } // BN_STATE_*

    Stream stream(const Request &request) const { return Stream(shared(), request); }
    // Waits for the whole answer. If it was cancelled or timed out, its finish_reason says so.
    Completion generate(const Request &request) const { return Stream(shared(), request, BN_REQUEST_NO_STREAM).finish(); }
    std::string generate(std::string_view prompt) const { return generate(Request(prompt)).text; }
#ifdef __cpp_lib_jthread
    // The same. The token cancels the request.
    Completion generate(const Request &request, std::stop_token stop) const {
        Stream stream(shared(), request, BN_REQUEST_NO_STREAM);
        const std::stop_callback cancel(std::move(stop), [&] { stream.cancel(); });
        return stream.finish();
    }
#endif
    // The whole answer later. One thread of the engine serves all futures.
    std::future<Completion> async(const Request &request) const { return core().promise(request); }

    // The vector of the request's prompt. A request that was cancelled or timed out is an error here.
    std::vector<float> embed(const Request &request) const {
        Completion completion = Stream(shared(), request, BN_REQUEST_EMBED).finish();
        if (completion.status != BN_OK) throw Error(completion.status, completion.message);
        return std::move(completion.embedding);
    }
    std::vector<float> embed(std::string_view text) const { return embed(Request(text)); }

    Model model() const {
        bn_model *model = nullptr;
        detail::check([&](bn_error *error) { return bn_engine_model(handle(), &model, error); });
        return Model(model);
    }
    bn_stats stats() const {
        bn_stats stats;
        bn_stats_init(&stats, sizeof stats);
        detail::check([&](bn_error *error) { return bn_engine_stats(handle(), &stats, error); });
        return stats;
    }
    std::string metrics() const { // as Prometheus text
        return detail::sized<std::string>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_engine_metrics(handle(), data, room, size, error);
        });
    }

    std::string save_session(std::string_view name) const {
        return detail::sized<std::string>([&](char *data, auto room, auto *size, auto *error) {
            return bn_session_save(handle(), detail::text(name), reinterpret_cast<uint8_t *>(data), room, size, error);
        });
    }
    void restore_session(std::string_view name, std::string_view saved) const {
        detail::check([&](bn_error *error) {
            return bn_session_restore(handle(), detail::text(name), reinterpret_cast<const uint8_t *>(saved.data()),
                                      saved.size(), error);
        });
    }
    void drop_session(std::string_view name) const {
        detail::check([&](bn_error *error) { return bn_session_drop(handle(), detail::text(name), error); });
    }
    void clear_cache() const {
        detail::check([&](bn_error *error) { return bn_cache_clear(handle(), error); });
    }

    // For calls that are not here. It stays the engine's. Leave events of BN_ANY to async().
    bn_engine *handle() const { return core().engine; }

private:
    static EngineConfig &with(const Model &model, EngineConfig &config) {
        if (model.handle() == nullptr) throw Error(BN_ERR_INVALID_ARGUMENT, "the model was moved from");
        config.model = model.handle();
        return config;
    }
    detail::Core &core() const {
        if (core_ == nullptr) throw Error(BN_ERR_INVALID_ARGUMENT, "the engine was moved from");
        return *core_;
    }
    const std::shared_ptr<detail::Core> &shared() const { return core(), core_; }

    std::shared_ptr<detail::Core> core_;
};

} // namespace bn

#endif
