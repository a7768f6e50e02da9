// bn_engine for C++17: move-only handles, exceptions, futures and ranges of events over bn_engine.h, which says what
// the fields and constants mean. Every error is a bn::Error. Every function may be called from any thread, but an
// object may be moved or destroyed only when no other thread uses it, and one thread at a time reads a Stream.
#ifndef BN_ENGINE_HPP
#define BN_ENGINE_HPP

#include "bn_engine_values.hpp"

#include <algorithm>
#include <cmath>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>
#include <unordered_map>
#if __has_include(<stop_token>)
#include <stop_token>
#endif

namespace bn {

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
    // The exact bytes, which may be part of a character; of a control token its name.
    std::string token_bytes(uint32_t token) const {
        return detail::sized<std::string>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_token_bytes(handle(), token, data, room, size, error);
        });
    }
    // The tokens of a conversation, as submitting it makes them.
    std::vector<uint32_t> chat_tokens(const std::vector<Message> &messages) const {
        return tokens_of(Chat(messages));
    }
    // The same for a conversation with tools, as in Chat::json; and as text, for display.
    std::vector<uint32_t> chat_json_tokens(std::string_view json) const {
        return tokens_of(Chat({}, json));
    }
    std::string chat_json_text(std::string_view json) const {
        const Chat owner({}, json);
        const detail::ChatParams chat(owner);
        return detail::sized<std::string>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_chat_format(handle(), &chat, data, room, size, error);
        });
    }
    // For calls that this header lacks. The model still owns it. NULL after a move.
    bn_model *handle() const noexcept { return handle_.get(); }

private:
    std::vector<uint32_t> tokens_of(const Chat &owner) const {
        const detail::ChatParams chat(owner);
        return detail::sized<std::vector<uint32_t>>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_model_chat_tokenize(handle(), &chat, data, room, size, error);
        });
    }
    struct Free {
        void operator()(bn_model *model) const noexcept { bn_model_free(model); }
    };
    std::unique_ptr<bn_model, Free> handle_;
};

namespace detail {

// Waits after a poll lacked memory, since there may be some later.
inline bool wait_for_memory(bn_status status) {
    if (status != BN_ERR_MEMORY_LIMIT && status != BN_ERR_OUT_OF_MEMORY) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return true;
}

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
        bn_engine_free(engine);
    }
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    void stop(uint32_t mode) const noexcept { bn_engine_shutdown(engine, mode, nullptr); }

    // The hook, or NULL, stays where it is until the request's last event.
    bn_request submit(const Request &request, uint32_t flags, uint64_t user_data, Hook *hook) const {
        Params params(request);
        params.flags |= flags;
        params.user_data = user_data;
        if (hook != nullptr) hook->set(params);
        bn_request id = 0;
        check([&](bn_error *error) { return bn_submit(engine, &params, &id, error); });
        return id;
    }

    std::future<Completion> promise(const Request &request) {
        Pending pending{{}, hook_of(request)};
        Hook *const hook = pending.hook.get();
        std::future<Completion> future = pending.promise.get_future();
        uint64_t key = 0;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!collector_.joinable()) collector_ = std::thread([this] { collect(); });
            key = ++last_;
            pending_.emplace(key, std::move(pending)); // before its event comes
        }
        try {
            submit(request, BN_REQUEST_NO_STREAM, key, hook);
        } catch (...) {
            take(key);
            throw;
        }
        return future;
    }

    // Keeps a hook that the engine may still call, until the engine is freed.
    void keep(std::unique_ptr<Hook> hook) noexcept {
        const std::lock_guard<std::mutex> lock(mutex_);
        try {
            hooks_.push_back(std::move(hook));
        } catch (const std::bad_alloc &) {
            static_cast<void>(hook.release()); // for good
        }
    }

    bn_engine *engine = nullptr;

private:
    struct Pending {
        std::promise<Completion> promise;
        std::unique_ptr<Hook> hook;
    };
    std::unordered_map<uint64_t, Pending>::node_type take(uint64_t key) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return pending_.extract(key);
    }

    // Takes the events of BN_ANY, which belong to futures: streams are polled by their ids.
    void collect() noexcept {
        for (;;) {
            bn_event e;
            std::size_t count = 0;
            const bn_status status = bn_poll(engine, BN_ANY, &e, sizeof e, 1, BN_NO_LIMIT, &count, nullptr);
            if (wait_for_memory(status)) continue;
            if (status != BN_OK) return; // every request has had its last event
            if (e.kind == BN_EVENT_COMPLETED) keep(e);
        }
    }

    void keep(const bn_event &e) noexcept {
        auto node = take(e.user_data);
        if (node.empty()) return; // of a request that was submitted through handle()
        auto &[promise, hook] = node.mapped();
        try {
            Completion completion;
            completion.assign(e);
            bn_request_free(engine, e.request, nullptr); // a waiting thread finds its place free
            if (e.finish_reason == BN_FINISH_FAILED) fail(completion, hook.get());
            promise.set_value(std::move(completion));
        } catch (...) {
            bn_request_free(engine, e.request, nullptr);
            promise.set_exception(std::current_exception());
        }
    }

    Log log_;
    std::mutex mutex_;
    std::thread collector_;
    std::unordered_map<uint64_t, Pending> pending_;
    std::vector<std::unique_ptr<Hook>> hooks_;
    uint64_t last_ = 0;
};

} // namespace detail

// A request whose events are read as they come. It keeps its engine. Destroying it cancels the request, and waits for
// its end if it has a hook: at most a step of the model. In a callback it cannot wait, and the engine keeps the hook.
class Stream {
public:
    Stream(std::shared_ptr<detail::Core> core, const Request &request, uint32_t flags = 0)
        : core_(std::move(core)), hook_(detail::hook_of(request)),
          id_(core_->submit(request, flags | BN_REQUEST_POLL_BY_ID, request.user_data, hook_.get())) {}
    Stream(Stream &&other) noexcept
        : core_(std::move(other.core_)), hook_(std::move(other.hook_)), id_(other.id_),
          over_(std::exchange(other.over_, true)), event_(std::move(other.event_)) {}
    Stream &operator=(Stream &&other) noexcept {
        Stream moved(std::move(other));
        std::swap(core_, moved.core_), std::swap(hook_, moved.hook_), std::swap(id_, moved.id_);
        std::swap(over_, moved.over_), std::swap(event_, moved.event_);
        return *this;
    }
    ~Stream() {
        if (hook_ != nullptr && !over_ && !wait_for_end()) core_->keep(std::move(hook_));
        release();
    }

    // Waits for an event, up to `timeout_ms`. NULL: none came in time, or the last one was returned before. The event
    // is valid until the next call. Throws if the request failed; event() then has what came with the failure.
    const Event *next(uint32_t timeout_ms = BN_NO_LIMIT) {
        return !over_ && read(timeout_ms, &Event::assign) ? &event_ : nullptr;
    }

    // Waits for the end, and returns it with all that was not read before.
    Completion finish() {
        if (next() != nullptr)
            while (!over_) read(BN_NO_LIMIT, &Event::add);
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
    // Waits for an event and takes it to event_. False: none came in time.
    bool read(uint32_t timeout_ms, void (Event::*take)(const bn_event &)) {
        bn_event e;
        std::size_t count = 0;
        detail::check([&](bn_error *error) {
            return bn_poll(core_->engine, id_, &e, sizeof e, 1, timeout_ms, &count, error);
        });
        if (count == 0) return false;
        (event_.*take)(e);
        if (e.kind == BN_EVENT_COMPLETED) {
            release();
            if (event_.finish_reason == BN_FINISH_FAILED) detail::fail(event_, hook_.get());
        } else {
            bn_events_free(&e, sizeof e, 1);
        }
        return true;
    }
    // Waits for the request's end, until which the engine may call the hook. False: this is a callback, and
    // the request may go on.
    bool wait_for_end() const noexcept {
        cancel();
        for (;;) {
            bn_event e;
            std::size_t count = 0;
            const bn_status status = bn_poll(core_->engine, id_, &e, sizeof e, 1, BN_NO_LIMIT, &count, nullptr);
            const bool last = count == 1 && e.kind == BN_EVENT_COMPLETED;
            bn_events_free(&e, sizeof e, count);
            if (last) return true;
            if (status != BN_OK && !detail::wait_for_memory(status))
                return status == BN_ERR_FINISHED || status == BN_ERR_SHUTDOWN || status == BN_ERR_ENGINE_DEAD ||
                       status == BN_ERR_FORKED;
        }
    }
    void release() noexcept {
        if (!std::exchange(over_, true)) bn_request_free(core_->engine, id_, nullptr);
    }
    std::shared_ptr<detail::Core> core_;
    std::unique_ptr<detail::Hook> hook_;
    bn_request id_ = 0;
    bool over_ = false;
    Event event_;
};

// The likelihood of a text after a prompt.
struct Score {
    double logprob = 0;     // the sum of its tokens' log probabilities
    std::size_t tokens = 0; // number of them; a text's very first token has none
    bool greedy = true;     // each of these tokens is the most likely one at its place

    // The score of a BN_TASK_SCORE request with top_logprobs = 1.
    static Score of(const Completion &end) {
        if (end.status != BN_OK) throw Error(end.status, end.message);
        Score score;
        for (std::size_t i = 0; i < end.logprobs.size(); i += end.logprobs_per_token) {
            if (std::isnan(end.logprobs[i].logprob)) continue;
            score.tokens++;
            score.logprob += end.logprobs[i].logprob;
            score.greedy = score.greedy && end.logprobs[i].token == end.logprobs[i + 1].token;
        }
        return score;
    }
};

// An engine. Destroying it cancels what runs: streams and futures that are left get their ends.
class Engine {
public:
    explicit Engine(const EngineConfig &config = EngineConfig()) : core_(std::make_shared<detail::Core>(config)) {}
    // Loads a GGUF file, a Hugging Face folder or builtin:echo.
    explicit Engine(std::string_view path, EngineConfig config = EngineConfig()) : Engine(at(path, config)) {}
    explicit Engine(const Model &model, EngineConfig config = EngineConfig()) : Engine(with(model, config)) {}
    Engine(Engine &&) noexcept = default;
    Engine &operator=(Engine &&other) noexcept {
        close();
        core_ = std::move(other.core_);
        return *this;
    }
    ~Engine() { close(); }

    // Cancels every request, refuses further ones, and returns at once. Any thread may call it, more than
    // once.
    void close() const noexcept {
        if (core_ != nullptr) core_->stop(BN_SHUTDOWN_CANCEL);
    }
    // Refuses further requests and finishes those that were accepted. state() says when that is done.
    void drain() const { core().stop(BN_SHUTDOWN_DRAIN); }
    uint32_t state() const { // BN_STATE_*
        uint32_t state = 0;
        detail::check([&](bn_error *) { return bn_engine_state(handle(), &state); });
        return state;
    }

    // Waits for the running step, and none begins until resume() or the engine's end. Requests may wait meanwhile.
    void pause() const {
        detail::check([&](bn_error *error) { return bn_engine_pause(handle(), error); });
    }
    void resume() const {
        detail::check([&](bn_error *error) { return bn_engine_resume(handle(), error); });
    }
    // Computes on `threads` threads from the next step on: 1 to EngineConfig::threads, or 0 for all of them.
    void set_threads(uint32_t threads) const {
        detail::check([&](bn_error *error) { return bn_engine_set_threads(handle(), threads, error); });
    }

    Stream stream(const Request &request) const { return Stream(shared(), request); }
    Stream stream(std::string_view prompt) const { return stream(Request(prompt)); }
    // Waits for the whole answer. If it was cancelled or timed out, its finish_reason says so.
    Completion generate(const Request &request) const { return Stream(shared(), request, BN_REQUEST_NO_STREAM).finish(); }
    Completion generate(std::string_view prompt) const { return generate(Request(prompt)); }
#ifdef __cpp_lib_jthread
    // The same, with a token that cancels the request.
    Completion generate(const Request &request, std::stop_token stop) const {
        Stream stream(shared(), request, BN_REQUEST_NO_STREAM);
        const std::stop_callback cancel(std::move(stop), [&] { stream.cancel(); });
        return stream.finish();
    }
#endif
    // A future of the whole answer. One thread of the engine serves all futures.
    std::future<Completion> async(const Request &request) const { return core().promise(request); }
    std::future<Completion> async(std::string_view prompt) const { return async(Request(prompt)); }

    // The vector of the request's prompt. A request that was cancelled or timed out is an error here.
    std::vector<float> embed(Request request) const {
        request.task = BN_TASK_EMBED;
        Completion completion = Stream(shared(), request).finish();
        if (completion.status != BN_OK) throw Error(completion.status, completion.message);
        return std::move(completion.embedding);
    }
    std::vector<float> embed(std::string_view text) const { return embed(Request(text)); }

    // The number of positions that a picture takes in a prompt.
    uint64_t picture_positions(const Picture &picture) const {
        uint64_t positions = 0;
        const bn_picture c = detail::c_picture(picture);
        detail::check([&](bn_error *error) { return bn_picture_positions(handle(), &c, &positions, error); });
        return positions;
    }

    // The likelihood of each text after the request's prompt, which is computed once. Nothing is generated. A text
    // begins with the first token that is not the prompt's. All are submitted at once.
    std::vector<Score> score(Request request, const std::vector<std::string> &texts) const {
        const Model model = this->model();
        const std::string prompt = std::exchange(request.prompt, {});
        const std::vector<uint32_t> before = model.tokenize(prompt, BN_TOKENIZE_ADD_SPECIAL);
        request.task = BN_TASK_SCORE;
        request.top_logprobs = 1;
        std::vector<Stream> streams;
        for (const std::string &text : texts) {
            std::vector<uint32_t> &tokens = request.prompt_tokens;
            tokens = model.tokenize(prompt + text, BN_TOKENIZE_ADD_SPECIAL);
            const auto ends = std::mismatch(before.begin(), before.end(), tokens.begin(), tokens.end());
            request.logprobs_from = static_cast<uint32_t>(ends.first - before.begin());
            streams.emplace_back(shared(), request);
        }
        std::vector<Score> scores;
        for (Stream &stream : streams) scores.push_back(Score::of(stream.finish()));
        return scores;
    }

    // The relevance of each document to the request's prompt, from 0 to 1, by a model with a head for that
    // (bn_model_info.scores_pairs). All are submitted at once.
    std::vector<float> rerank(Request request, const std::vector<std::string> &documents) const {
        request.task = BN_TASK_RERANK;
        std::vector<Stream> streams;
        for (const std::string &document : documents) {
            request.document = document;
            streams.emplace_back(shared(), request);
        }
        std::vector<float> scores;
        for (Stream &stream : streams) {
            const Completion end = stream.finish();
            if (end.status != BN_OK) throw Error(end.status, end.message);
            scores.push_back(end.embedding.at(0));
        }
        return scores;
    }

    // The answers to the request's questions about its prompt, which is computed once: `decisions` and
    // `decision_options` of the result. A request that was cancelled or timed out is an error here.
    Completion decide(Request request) const {
        request.task = BN_TASK_DECIDE;
        Completion completion = Stream(shared(), request).finish();
        if (completion.status != BN_OK) throw Error(completion.status, completion.message);
        return completion;
    }

    // Compiles a constraint as a request does, and keeps it compiled for later requests.
    void check_constraint(const Constraint &constraint) const {
        const bn_constraint c = detail::c_constraint(constraint);
        detail::check([&](bn_error *error) { return bn_engine_check_constraint(handle(), &c, error); });
    }

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
    std::string report() const { // for people, on how efficiently it runs
        return detail::sized<std::string>([&](auto *data, auto room, auto *size, auto *error) {
            return bn_engine_report(handle(), data, room, size, error);
        });
    }
    // Changes of the prefix cache since the last call. Needs EngineConfig::kv_events_capacity.
    std::vector<bn_kv_event> kv_events() const {
        std::vector<bn_kv_event> all;
        bn_kv_event events[256];
        std::size_t count = std::size(events);
        while (count == std::size(events)) {
            detail::check([&](bn_error *error) {
                return bn_kv_events(handle(), events, sizeof *events, std::size(events), &count, error);
            });
            all.insert(all.end(), events, events + count);
        }
        return all;
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
    void free_session(std::string_view name) const {
        detail::check([&](bn_error *error) { return bn_session_free(handle(), detail::text(name), error); });
    }
    void clear_cache() const {
        detail::check([&](bn_error *error) { return bn_cache_clear(handle(), error); });
    }

    // For calls that this header lacks. The engine still owns it. Leave events of BN_ANY to async().
    bn_engine *handle() const { return core().engine; }

private:
    static EngineConfig &at(std::string_view path, EngineConfig &config) {
        config.model_path = path;
        return config;
    }
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

// A LoRA adapter of an engine: `request.adapter = adapter.handle()`. Requests that have it keep it.
class Adapter {
public:
    // Opens a PEFT folder, or a GGUF file of llama.cpp.
    Adapter(const Engine &engine, std::string_view path) {
        bn_adapter *adapter = nullptr;
        detail::check([&](bn_error *error) {
            return bn_adapter_open(engine.handle(), detail::text(path), &adapter, error);
        });
        handle_.reset(adapter);
    }
    // NULL after a move.
    bn_adapter *handle() const noexcept { return handle_.get(); }
    // A hash of its contents, the same in each engine that opens them.
    uint64_t fingerprint() const {
        uint64_t hash = 0;
        detail::check([&](bn_error *) { return bn_adapter_fingerprint(handle(), &hash); });
        return hash;
    }

private:
    struct Free {
        void operator()(bn_adapter *adapter) const noexcept { bn_adapter_free(adapter); }
    };
    std::unique_ptr<bn_adapter, Free> handle_;
};

} // namespace bn

#endif
