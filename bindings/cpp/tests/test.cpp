// The tests that bindings/README.md lists, and moves and exceptions. Arguments: the library's version,
// demo_prompts.json.
#include <bn_engine.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <set>
#include <type_traits>

#define CHECK(what) (what) ? void() : fail(#what, __LINE__)

namespace {

[[noreturn]] void fail(const char *what, int line) {
    std::cerr << "test.cpp:" << line << ": " << what << "\n";
    std::exit(1);
}

// The exception of a call, which must be a bn::Error.
template <typename Call>
bn::Error thrown(Call call) {
    try {
        call();
    } catch (const bn::Error &error) {
        return error;
    }
    return bn::Error(BN_OK, "nothing was thrown");
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// A model whose requests do not end by themselves while a test runs.
bn::EngineConfig slow() { return bn::EngineConfig("builtin:echo?us_per_token=2000"); }
bn::Request endless() {
    bn::Request request("wait");
    request.max_new_tokens = 0;
    request.flags = BN_REQUEST_IGNORE_EOS;
    return request;
}

void version(const std::string &expected) { // 1
    CHECK(bn_version() == expected);
    CHECK(bn_abi_version() == BN_ABI_VERSION);
}

// The prompts of a kind, and their answers. The file has one on each line, and those of these kinds have no escapes.
std::vector<std::pair<std::string, std::string>> golden(const std::string &path, const std::string &kind) {
    std::ifstream file(path);
    std::vector<std::pair<std::string, std::string>> list;
    const auto field = [](const std::string &line, const std::string &name) {
        const std::size_t begin = line.find("\"" + name + "\": \"") + name.size() + 5;
        return line.substr(begin, line.find('"', begin) - begin);
    };
    for (std::string line; std::getline(file, line);)
        if (contains(line, "\"kind\": \"" + kind)) list.emplace_back(field(line, "prompt"), field(line, "answer"));
    return list;
}

void golden_texts(const std::string &path) { // 2
    bn::Engine engine;
    for (const char *kind : {"sum", "recall"}) {
        const auto prompts = golden(path, kind);
        CHECK(prompts.size() == 60);
        for (std::size_t i = 0; i < 8; i++) {
            const bn::Completion answer = engine.generate(bn::Request(prompts[i].first));
            CHECK(answer.text == prompts[i].second);
            CHECK(answer.finish_reason == BN_FINISH_STOP && answer.stop_index == -1);
        }
    }
}

bn::Request sample(uint64_t seed) {
    bn::Request request("One day");
    request.max_new_tokens = 24;
    request.sampling.temperature = 0.9f;
    request.sampling.top_k = 40;
    request.sampling.seed = seed;
    return request;
}

void concurrent_streams() { // 3
    bn::EngineConfig config;
    config.max_batch_size = 8;
    bn::Engine engine(config);
    std::vector<bn::Stream> streams;
    std::vector<std::future<bn::Completion>> futures;
    for (uint64_t seed = 0; seed < 32; seed++) streams.push_back(engine.stream(sample(seed)));
    for (uint64_t seed = 0; seed < 32; seed++) futures.push_back(engine.async(sample(seed)));
    std::set<std::string> texts;
    for (uint64_t seed = 0; seed < 32; seed++) {
        std::string text;
        for (const bn::Event &event : streams[seed]) text += event.text;
        CHECK(text == futures[seed].get().text);
        CHECK(text == engine.generate(sample(seed)).text);
        CHECK(streams[seed].event().generated_tokens > 0);
        texts.insert(text);
    }
    CHECK(texts.size() > 16);
    CHECK(engine.stats().unreleased == 0);
}

void cancel() { // 4
    bn::EngineConfig config = slow();
    config.queue_capacity = 2;
    bn::Engine engine(config);
    bn::Stream other = engine.stream(bn::Request("goes on to its end"));
    bn::Stream stream = engine.stream(endless());
    CHECK(stream.next() != nullptr);
    std::thread canceller([&] { stream.cancel(); });
    const bn::Completion end = stream.finish();
    canceller.join();
    CHECK(end.finish_reason == BN_FINISH_CANCELLED && end.status == BN_ERR_CANCELLED && end.generated_tokens > 0);
    CHECK(stream.next() == nullptr);
    stream.cancel();
    {
        bn::Stream dropped = engine.stream(endless()); // in its place
        CHECK(dropped.next() != nullptr);
    }
    CHECK(other.finish().text == "goes on to its end");
    while (engine.stats().unreleased != 0) std::this_thread::yield();
    CHECK(engine.stats().completed_cancelled == 2);
#ifdef __cpp_lib_jthread
    std::stop_source stop;
    std::thread stopper([&] { stop.request_stop(); });
    CHECK(engine.generate(endless(), stop.get_token()).finish_reason == BN_FINISH_CANCELLED);
    stopper.join();
#endif
}

void errors() { // 5
    const bn::Error path = thrown([] { bn::Model("/nowhere/model.gguf"); });
    CHECK(path.code() == BN_ERR_IO && contains(path.message(), "/nowhere/model.gguf"));
    CHECK(contains(path.what(), "BN_ERR_IO: "));
    CHECK(thrown([] { bn::Engine(bn::EngineConfig("/nowhere/model.gguf")); }).code() == BN_ERR_IO);
    const std::string nowhere = "/nowhere/model.gguf";
    CHECK(contains(thrown([&] { bn::Engine engine(nowhere); }).message(), nowhere));
    CHECK(thrown([] { bn::Engine engine("/nowhere/model.gguf"); }).code() == BN_ERR_IO);
    bn::EngineConfig config = slow();
    config.queue_capacity = 1;
    bn::Engine engine(config);
    bn::Request wrong("x");
    wrong.sampling.temperature = -1;
    const bn::Error parameter = thrown([&] { engine.generate(wrong); });
    CHECK(parameter.code() == BN_ERR_INVALID_ARGUMENT && contains(parameter.message(), "temperature"));
    CHECK(thrown([&] { engine.async(wrong); }).code() == BN_ERR_INVALID_ARGUMENT);
    CHECK(thrown([&] { engine.generate(bn::Request()); }).code() == BN_ERR_INVALID_ARGUMENT);
    bn::Stream stream = engine.stream(endless());
    const bn::Error full = thrown([&] { engine.stream(endless()); });
    CHECK(full.code() == BN_ERR_QUEUE_FULL && !full.message().empty());
}

void chat() { // 6
    bn::Engine engine(bn::EngineConfig("builtin:echo"));
    CHECK(engine.generate(bn::Request::conversation({{"user", "hi"}})).text == "user: hi\nassistant: ");
    const std::vector<bn::Message> messages{{"system", "Echo."}, {"user", "hello"}};
    const std::string expected = "system: Echo.\nuser: hello\nassistant: ";
    CHECK(engine.generate(bn::Request::conversation(messages)).text == expected);
    bn::Request tokens;
    tokens.prompt_tokens = engine.model().chat_tokens(messages);
    CHECK(engine.generate(tokens).text == expected);
    CHECK(engine.model().detokenize(tokens.prompt_tokens) == expected);
    CHECK(engine.model().token_bytes(tokens.prompt_tokens[0]) == "s");
    CHECK(bn::Engine().model().info().has_chat_template != 0); // the model inside the library
}

void embeddings() { // 7
    bn::Engine engine;
    const std::vector<float> one = engine.embed("a red ball"), other = engine.embed("12+30=");
    const auto product = [](const auto &a, const auto &b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
    CHECK(one.size() == engine.model().info().embedding_size && one == engine.embed("a red ball"));
    CHECK(std::abs(product(one, one) - 1) < 1e-3 && product(one, other) < 0.999);
    bn::Request request("a red ball");
    request.embedding.pooling = BN_POOLING_MEAN;
    CHECK(engine.embed(request) != one);
    request.embedding.normalization = BN_NORMALIZATION_NONE;
    const std::vector<float> raw = engine.embed(request);
    CHECK(std::abs(product(raw, raw) - 1) > 1e-3);
    request.sampling.temperature = 1;
    CHECK(thrown([&] { engine.embed(request); }).code() == BN_ERR_INVALID_ARGUMENT);
}

void close() { // 8
    bn::Engine engine(slow());
    std::vector<std::thread> threads;
    std::vector<std::future<bn::Completion>> futures;
    bn::Stream late = engine.stream(endless());
    for (int i = 0; i < 8; i++) {
        futures.push_back(engine.async(endless()));
        threads.emplace_back([&] {
            try {
                CHECK(engine.generate(endless()).finish_reason == BN_FINISH_CANCELLED);
            } catch (const bn::Error &error) {
                CHECK(error.code() == BN_ERR_SHUTDOWN); // it came after close()
            }
        });
    }
    CHECK(late.next() != nullptr);
    engine.close();
    engine.close();
    for (std::thread &thread : threads) thread.join();
    for (auto &future : futures) CHECK(future.get().finish_reason == BN_FINISH_CANCELLED);
    CHECK(thrown([&] { engine.generate("x"); }).code() == BN_ERR_SHUTDOWN);
    CHECK(thrown([&] { engine.async(endless()); }).code() == BN_ERR_SHUTDOWN);
    {
        const bn::Engine destroyed = std::move(engine);
        futures.clear();
    }
    CHECK(late.finish().finish_reason == BN_FINISH_CANCELLED); // it has kept the engine
    CHECK(thrown([&] { engine.generate("x"); }).code() == BN_ERR_INVALID_ARGUMENT);
    std::future<bn::Completion> future = bn::Engine(slow()).async(endless()); // destroyed at once
    CHECK(future.get().finish_reason == BN_FINISH_CANCELLED);
    bn::Stream orphan = bn::Engine(slow()).stream(endless());
    CHECK(orphan.finish().finish_reason == BN_FINISH_CANCELLED);
}

void pausing() { // 17
    bn::EngineConfig config;
    config.threads = 2;
    bn::Engine engine(config);
    engine.pause();
    bn::Stream stream = engine.stream("17+25=");
    bn::Request late("17+25=");
    late.timeout_ms = 1;
    CHECK(engine.generate(late).finish_reason == BN_FINISH_TIMED_OUT);
    const bn_stats stats = engine.stats();
    CHECK(stats.engine_paused == 1 && stats.queued == 1 && stats.steps == 0 && stats.threads == 2);
    engine.set_threads(1);
    CHECK(contains(thrown([&] { engine.set_threads(3); }).message(), "threads = 3"));
    engine.resume();
    CHECK(stream.finish().text == "42" && engine.stats().threads == 1 && engine.stats().engine_paused == 0);
}

void statistics() { // 9
    bn::EngineConfig config("builtin:echo");
    config.queue_capacity = 7;
    bn::Engine engine(config);
    const bn::Completion answer = engine.generate(bn::Request("count this"));
    CHECK(answer.total.count() > 0 && answer.total >= answer.first_token);
    const bn_stats stats = engine.stats();
    CHECK(stats.accepted == 1 && stats.completed_stop == 1 && stats.running + stats.queued + stats.unreleased == 0);
    CHECK(stats.generated_tokens == answer.generated_tokens && stats.queue_capacity == 7 && stats.end_to_end.count == 1);
    CHECK(contains(engine.metrics(), "\n") && contains(engine.metrics(), "bn_") && !engine.report().empty());
}

// The thread of the futures does not know the request whose event it takes.
void requests_of_the_handle() {
    bn::Engine engine(bn::EngineConfig("builtin:echo"));
    CHECK(engine.async(bn::Request("x")).get().text == "x");
    bn_request_params params;
    bn_request_params_init(&params, sizeof params);
    params.prompt = {"foreign", 7};
    params.user_data = 1u << 20;
    bn_request id = 0;
    CHECK(bn_submit(engine.handle(), &params, &id, nullptr) == BN_OK);
    while (engine.stats().completed_stop < 2) std::this_thread::yield();
    CHECK(engine.async(bn::Request("y")).get().text == "y"); // its event is behind the other's
    CHECK(bn_request_free(engine.handle(), id, nullptr) == BN_OK);
}

void moves() {
    static_assert(!std::is_copy_constructible_v<bn::Model> && std::is_nothrow_move_constructible_v<bn::Model>);
    static_assert(!std::is_copy_constructible_v<bn::Engine> && std::is_nothrow_move_constructible_v<bn::Engine>);
    static_assert(!std::is_copy_constructible_v<bn::Stream> && std::is_nothrow_move_assignable_v<bn::Stream>);
    static_assert(std::is_base_of_v<std::exception, bn::Error> && std::is_nothrow_copy_constructible_v<bn::Error>);
    bn::Model model("builtin:echo");
    bn::Engine engine(model), second(model);
    bn::Model taken = std::move(model);
    CHECK(thrown([&] { bn::Engine none(model); }).code() == BN_ERR_INVALID_ARGUMENT);
    CHECK(thrown([&] { model.info(); }).code() == BN_ERR_INVALID_ARGUMENT);
    CHECK(taken.info().vocab_size > 0 && !taken.tokenize("abc").empty() && taken.tokenize("").empty());
    bn::Stream stream = engine.stream(bn::Request("first"));
    stream = second.stream(bn::Request("second")); // the first is cancelled
    bn::Stream moved = std::move(stream);
    CHECK(stream.next() == nullptr);
    stream.cancel();
    CHECK(moved.finish().text == "second");
    engine = std::move(second); // the one it was is closed
    CHECK(engine.generate("x").text == "x");
    bn::Engine busy(slow());
    bn::Stream left = busy.stream(endless());
    busy = bn::Engine(bn::EngineConfig("builtin:echo"));
    CHECK(left.finish().finish_reason == BN_FINISH_CANCELLED);
    bn::Engine other(bn::EngineConfig("builtin:echo"));
    bn::Stream kept = other.stream(bn::Request("an algorithm"));
    const auto count = std::count_if(kept.begin(), kept.end(), [](const bn::Event &event) { return event.last(); });
    CHECK(count == 1);
}

void paths_and_prompts() {
    static_assert(!std::is_convertible_v<const char *, bn::Engine>);
    bn::Engine engine("builtin:echo");
    const bn::Completion answer = engine.generate("abc");
    CHECK(answer.text == "abc" && !answer.tokens.empty());
    CHECK(engine.stream("abc").finish().text == "abc" && engine.async("abc").get().text == "abc");
    bn::EngineConfig config;
    config.context_length = 7;
    const bn::Engine narrow("builtin:echo", config);
    CHECK(thrown([&] { narrow.generate("more than seven tokens"); }).code() == BN_ERR_TOO_LONG);
}

void logs_and_probabilities() {
    std::mutex mutex;
    int lines = 0;
    bn::ModelConfig config;
    config.log_level = BN_LOG_DEBUG;
    config.log = [&](uint32_t, std::string_view line) {
        const std::lock_guard<std::mutex> lock(mutex);
        lines += line.empty() ? 0 : 1;
        throw std::runtime_error("stays here");
    };
    const bn::Model model(config);
    CHECK(lines > 0);
    bn::Request request("17+25=");
    request.flags = BN_REQUEST_LOGPROBS;
    request.top_logprobs = 2;
    request.stop_strings = {"2"};
    const bn::Completion answer = bn::Engine(model).generate(request);
    CHECK(answer.text == "4" && answer.finish_reason == BN_FINISH_STOP_STRING && answer.stop_index == 0);
    CHECK(answer.logprobs_per_token == 3 && answer.logprobs.size() == 3 * answer.tokens.size());
    CHECK(answer.logprobs[0].token == answer.tokens[0]);
}

void timeouts() {
    bn::Engine engine(slow());
    bn::Request request = endless();
    request.timeout_ms = 1;
    CHECK(engine.generate(request).finish_reason == BN_FINISH_TIMED_OUT);
    CHECK(engine.async(request).get().status == BN_ERR_TIMED_OUT);
}

void sessions() {
    bn::EngineConfig config;
    config.kv_events_capacity = 1, config.kv_block_size = 16;
    bn::Engine engine(config);
    bn::Request request("One day there was a day like no other day, and that day had a night like no other night.");
    request.session = "s";
    engine.generate(request);
    const std::vector<bn_kv_event> events = engine.kv_events();
    CHECK(events.size() > 1 && events[0].kind == BN_KV_EVENT_STORED && events[1].parent_hash == events[0].hash);
    CHECK(thrown([] { bn::Engine("builtin:echo").kv_events(); }).code() == BN_ERR_WRONG_MODE);
    std::string saved = engine.save_session("s");
    engine.free_session("s");
    CHECK(thrown([&] { engine.free_session("s"); }).code() == BN_ERR_NOT_FOUND);
    engine.restore_session("s", saved);
    saved[saved.size() / 2] ^= 1;
    CHECK(thrown([&] { engine.restore_session("s", saved); }).code() == BN_ERR_INVALID_ARGUMENT);
    engine.clear_cache();
    engine.drain();
    CHECK(thrown([&] { engine.generate("x"); }).code() == BN_ERR_SHUTDOWN);
    while (engine.state() != BN_STATE_DRAINED) std::this_thread::yield();
}

bn::Request sampled() {
    bn::Request request("Once upon a time");
    request.max_new_tokens = 16;
    request.sampling.temperature = 1.5f;
    return request;
}

void sampling() {
    bn::Engine engine;
    const bn::Completion plain = engine.generate(sampled());
    const std::string word = engine.model().detokenize({plain.tokens[0]});
    const std::function<void(bn::Sampling &)> changes[] = {
        [](auto &s) { s.typical_p = 0.3f; },
        [](auto &s) { s.dry_multiplier = 5, s.dry_allowed_length = 1, s.dry_breakers.emplace(); },
        [](auto &s) { s.mirostat_tau = 0.5f, s.mirostat_eta = 1; },
        [&](auto &s) { s.logit_bias = {{plain.tokens[0], -100}}; },
        [&](auto &s) { s.bad_words = {word}; },
        [](auto &s) { s.temperature = 3, s.top_p = 0.5f, s.samplers = {BN_SAMPLER_TOP_P, BN_SAMPLER_TEMPERATURE}; },
        [](auto &s) { s.temperature = 3, s.top_p = 0.5f, s.samplers = {BN_SAMPLER_TEMPERATURE, BN_SAMPLER_TOP_P}; },
    };
    std::vector<std::string> texts;
    for (const auto &change : changes) {
        bn::Request request = sampled();
        change(request.sampling);
        texts.push_back(engine.generate(request).text);
        CHECK(texts.back() != plain.text);
    }
    CHECK(texts[texts.size() - 1] != texts[texts.size() - 2]); // the order of samplers
    bn::Request request = sampled();
    request.sampling.samplers = {99};
    CHECK(contains(thrown([&] { engine.generate(request); }).message(), "sampler is 99"));
    request = sampled();
    request.flags = BN_REQUEST_LOGPROBS;
    request.logprob_tokens = {5, 6};
    const bn::Completion known = engine.generate(request);
    CHECK(known.logprobs_per_token == 3 && known.logprobs[1].token == 5 && known.logprobs[2].token == 6);
}

const std::string schema = R"({"type":"object","properties":{"size":{"enum":["small","large"]}},"required":["size"],)"
                           R"("additionalProperties":false,"x-guidance":{"whitespace_flexible":false}})";

void constraints() {
    bn::Engine engine;
    engine.check_constraint({BN_CONSTRAINT_JSON_SCHEMA, schema});
    bn::Request request = sampled();
    request.constraint = {BN_CONSTRAINT_JSON_SCHEMA, schema};
    const std::string text = engine.generate(request).text;
    CHECK(text == R"({"size":"small"})" || text == R"({"size":"large"})");
    CHECK(engine.stats().grammars_compiled == 1 && engine.stats().grammars_reused == 1);
    bn::Constraint compact = BN_CONSTRAINT_JSON_OBJECT;
    compact.json_flags = BN_JSON_COMPACT;
    engine.check_constraint(compact);
    request.constraint = compact;
    request.max_new_tokens = 1;
    engine.generate(request);
    CHECK(engine.stats().grammars_compiled == 2 && engine.stats().grammars_reused == 2);
    const bn::Error wrong = thrown([&] { engine.check_constraint({BN_CONSTRAINT_REGEX, "a("}); });
    CHECK(wrong.code() == BN_ERR_INVALID_ARGUMENT && contains(wrong.message(), "constraint"));
    engine.check_constraint(BN_CONSTRAINT_JSON_OBJECT);
}

// The echo model answers with its prompt: reasoning, two calls and text.
void tools() {
    bn::Engine engine(bn::EngineConfig("builtin:echo?us_per_token=20"));
    const std::string call = R"(<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>)";
    const std::string rest = R"("add_generation_prompt": false, "tool_format": "hermes", "reasoning_format": "think")";
    bn::Request request;
    request.chat.json = R"({"messages": [{"role": "Both", "content": ")" + call + call + R"(done"}], )" + rest +
                        R"(, "tools": [{"type": "function", "function": {"name": "f"}}]})";
    request.flags = BN_REQUEST_PARSE_OUTPUT;
    request.max_new_tokens = 0;
    const bn::Completion whole = engine.generate(request);
    CHECK(whole.tool_calls_total == 2 && whole.tool_calls.size() == 2 && contains(whole.text, "Both: done"));
    for (const bn::ToolCall &made : whole.tool_calls) CHECK(made.name == "f" && made.arguments == R"({"a": 1})");
    CHECK(whole.tool_calls[0].id != whole.tool_calls[1].id);
    bn::Stream stream = engine.stream(request);
    std::array<std::string, 2> arguments;
    std::string text;
    for (const bn::Event &event : stream) {
        text += event.text;
        for (const bn::ToolCall &part : event.tool_calls) arguments.at(part.index) += part.arguments;
    }
    CHECK(text == whole.text && arguments[0] == R"({"a": 1})" && arguments[1] == arguments[0]);
    const bn::Completion finished = engine.stream(request).finish();
    CHECK(finished.tool_calls.size() == 2 && finished.tool_calls[1].arguments == R"({"a": 1})");
    CHECK(finished.tool_calls[1].id == whole.tool_calls[1].id && finished.text == text);
    request.chat.json = R"({"messages": [{"role": "<think>\nhm\n</think>\n\nYes", "content": "a"}], )" + rest + "}";
    const bn::Completion thought = engine.stream(request).finish();
    CHECK(thought.reasoning == "hm" && thought.text == "Yes: a\n");
    request.chat.json = R"({"messages": [{"role": "user", "content": "xxxxxxxx"}, {"role": "assistant", "content": "<think>\n"}],
                           "continue_final_message": true, "reasoning_format": "think"})";
    request.max_reasoning_tokens = 5;
    request.max_new_tokens = 40;
    request.flags |= BN_REQUEST_IGNORE_EOS;
    const bn::Completion bounded = engine.generate(request);
    CHECK(bounded.reasoning == "user:" && bounded.reasoning_tokens == 5 + 8 && !bounded.text.empty());
    const bn::Model model = engine.model();
    const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}]})";
    CHECK(model.chat_json_text(chat) == "user: hi\nassistant: ");
    CHECK(model.chat_json_tokens(chat) == model.chat_tokens({{"user", "hi"}}));
    CHECK(contains(thrown([&] { model.chat_json_text(R"({"messages": [{}]})"); }).message(), "messages[0].role"));
}

void adapters(const std::string &golden) {
    const std::string folder = golden.substr(0, golden.rfind('/'));
    bn::EngineConfig config(folder + "/models/llama-llama3");
    config.context_length = 128;
    config.adapter_bytes = 1 << 20;
    bn::Engine engine(config);
    bn::Request request = sampled();
    request.prompt.clear();
    for (uint32_t i = 0; i < 40; i++) request.prompt_tokens.push_back(3 + i * 7 % 60);
    request.flags = BN_REQUEST_IGNORE_EOS;
    const auto with = [&](const bn::Adapter *adapter, float scale) {
        request.adapter = adapter == nullptr ? nullptr : adapter->handle();
        request.adapter_scale = scale;
        return engine.generate(request).tokens;
    };
    const std::vector<uint32_t> plain = with(nullptr, 1);
    bn::Adapter adapter(engine, folder + "/adapters/llama");
    const bn::Adapter file(engine, folder + "/adapters/llama.gguf");
    const std::vector<uint32_t> adapted = with(&adapter, 1);
    CHECK(adapter.fingerprint() == bn::Adapter(engine, folder + "/adapters/llama").fingerprint());
    CHECK(adapted != plain && with(&file, 1) == adapted && with(&file, -2) != adapted && with(nullptr, 1) == plain);
    request.adapter = adapter.handle();
    bn::Stream stream = engine.stream(request);
    { const bn::Adapter freed = std::move(adapter); }
    CHECK(!stream.finish().tokens.empty()); // it has kept it
    CHECK(adapter.handle() == nullptr);
    CHECK(contains(thrown([&] { engine.generate(request); }).message(), "not a live"));
    CHECK(thrown([&] { bn::Adapter(engine, "/nowhere"); }).code() == BN_ERR_IO);
    CHECK(thrown([&] { bn::Adapter(engine, folder + "/adapters/qwen3"); }).code() == BN_ERR_BAD_MODEL);
}

void scores() {
    bn::Engine engine;
    const std::vector<bn::Score> list = engine.score(bn::Request("17+25="), {"42", "43", "the ball"});
    CHECK(list.size() == 3 && list[0].greedy && !list[1].greedy && list[0].logprob > -0.5);
    CHECK(list[0].logprob > list[1].logprob && list[0].logprob > list[2].logprob);
    bn::Request request("Once upon a time");
    request.flags = BN_REQUEST_LOGPROBS;
    request.max_new_tokens = 8;
    const bn::Completion answer = engine.generate(request);
    double sum = 0;
    for (const bn_logprob &entry : answer.logprobs) sum += entry.logprob;
    const bn::Score same = engine.score(bn::Request("Once upon a time"), {answer.text}).at(0);
    CHECK(same.tokens == 8 && same.greedy && std::abs(same.logprob - sum) < 1e-4);
    // The tokens are the bytes and an end. The very first one has no log probability.
    const bn::Score whole = bn::Engine(bn::EngineConfig("builtin:echo")).score(bn::Request(), {"abc"}).at(0);
    CHECK(whole.tokens == 3 && whole.logprob < 0);
    CHECK(contains(thrown([&] { engine.score(bn::Request("x"), {"y", ""}); }).message(), "logprobs_from"));
    bn::Engine busy(slow());
    request.flags = 0;
    request.timeout_ms = 1;
    CHECK(thrown([&] { busy.score(request, {std::string(500, 'y')}); }).code() == BN_ERR_TIMED_OUT);
}

void reranks(const std::string &golden) { // 16
    const bn::Engine engine(bn::EngineConfig(golden.substr(0, golden.rfind('/')) + "/models/bert-reranker"));
    CHECK(engine.model().info().scores_pairs == 1);
    const std::vector<float> list = engine.rerank(bn::Request("who runs?"), {"a dog runs", "", "a dog runs"});
    // The expected values are in texts.json.
    CHECK(list.size() == 3 && std::abs(list[0] - 0.398199f) < 1e-3f && list[0] == list[2] && list[1] != list[0]);
    CHECK(thrown([&] { bn::Engine().rerank(bn::Request("x"), {"y"}); }).code() == BN_ERR_UNSUPPORTED);
}

void decides() { // 18
    const bn::Engine engine;
    bn::Request request("Once upon a time there was a small machine.");
    request.questions = {bn::Question(BN_QUESTION_YES_NO, "Was it small?", {" yes", " no"}),
                         bn::Question(BN_QUESTION_CHOICE, "It met", {" a dog", " a cat", " the moon"})};
    const bn::Completion answer = engine.decide(request);
    CHECK(answer.decisions.size() == 2 && answer.decision_options.size() == 5);
    for (const bn_decision &one : answer.decisions) {
        double sum = 0, total = 0;
        const bn_decision_option *options = &answer.decision_options[one.first_option];
        for (uint32_t i = 0; i < one.options_count; i++) sum += options[i].probability, total += std::exp(options[i].logprob);
        CHECK(std::abs(sum - 1) < 1e-9 && one.value > 0);
        CHECK(std::abs(options[one.best].probability - std::exp(options[one.best].logprob) / total) < 1e-9);
    }
    CHECK(answer.decisions[0].value == answer.decision_options[0].probability);
    request.questions[1].options.clear();
    request.questions[1].name = "empty";
    const bn::Error error = thrown([&] { engine.decide(request); });
    CHECK(error.code() == BN_ERR_INVALID_ARGUMENT && error.message().find("empty") != std::string::npos);
}

void pictures() { // 19
    const bn::Engine engine;
    CHECK(engine.model().info().sees == 0);
    bn::Request request("a");
    request.pictures = {bn::Picture(2, 1, std::vector<uint8_t>(6)), bn::Picture({0x89, 'P', 'N', 'G'})};
    CHECK(thrown([&] { engine.generate(request); }).code() == BN_ERR_UNSUPPORTED);
    CHECK(thrown([&] { engine.picture_positions(request.pictures[0]); }).code() == BN_ERR_UNSUPPORTED);
    const std::pair<bn::Picture, const char *> wrong[] = {
        {bn::Picture(std::vector<uint8_t>()), "pictures[1].data is empty"},
        {bn::Picture(2, 1, std::vector<uint8_t>(5)), "pictures[1]: 5 bytes for 2 x 1 pixels"}};
    for (const auto &[picture, words] : wrong) {
        request.pictures[1] = picture;
        const bn::Error error = thrown([&] { engine.generate(request); });
        CHECK(error.code() == BN_ERR_INVALID_ARGUMENT && error.message().find(words) != std::string::npos);
    }
    CHECK(thrown([] { bn::Picture::open("/nowhere/a.png"); }).code() == BN_ERR_IO);
    request.pictures.clear();
    CHECK(engine.generate(request).finish_reason != BN_FINISH_FAILED);
}

void speculation() {
    bn::EngineConfig config("builtin:echo");
    config.speculation = BN_SPECULATION_LOOKUP;
    config.draft_tokens = 1;
    bn::Engine engine(config);
    bn::Request request("one two three one two three one two three one two three "); // which the answer repeats
    const bn::Completion drafted = engine.generate(request);
    request.speculation = BN_SPECULATION_OFF;
    const bn::Completion plain = engine.generate(request);
    CHECK(drafted.text == plain.text && drafted.accepted_tokens > 0 && plain.drafted_tokens == 0);
    CHECK(engine.stats().drafted_tokens == drafted.drafted_tokens);
}

void draft_model() {
    bn::EngineConfig config;
    std::optional<bn::Model> model(std::in_place);
    config.draft_model = model->handle();
    bn::Engine engine(*model, config); // it drafts for itself
    model.reset();
    bn::Request request("Once upon a time");
    request.max_new_tokens = 40;
    request.sampling.temperature = 0.8f;
    request.speculation = BN_SPECULATION_DRAFT;
    const bn::Completion drafted = engine.generate(request);
    request.speculation = BN_SPECULATION_OFF;
    const bn::Completion plain = engine.generate(request);
    CHECK(drafted.text == plain.text && drafted.accepted_tokens == drafted.drafted_tokens && plain.drafted_tokens == 0);
    const bn_stats stats = engine.stats();
    CHECK((stats.drafting_ns > 0) == (stats.accepted_tokens > 0));
    request.speculation = BN_SPECULATION_DRAFT;
    CHECK(thrown([&] { bn::Engine().generate(request); }).code() == BN_ERR_INVALID_ARGUMENT);
}

bn::Request forced(uint32_t token) {
    bn::Request request("Once upon a time");
    request.max_new_tokens = 3;
    request.flags = BN_REQUEST_IGNORE_EOS;
    request.sampling.on_logits = [token](const bn_logits &row) { row.logits[token + row.output_tokens_count] = 1e6f; };
    return request;
}

void hooks() {
    bn::Engine engine;
    std::vector<bn::Stream> streams;
    std::vector<std::future<bn::Completion>> futures;
    for (uint32_t token = 20; token < 36; token++) {
        streams.push_back(engine.stream(forced(token)));
        futures.push_back(engine.async(forced(token)));
    }
    for (uint32_t i = 0; i < 16; i++) {
        const std::vector<uint32_t> expected{20 + i, 21 + i, 22 + i};
        CHECK(streams[i].finish().tokens == expected);
        CHECK(futures[i].get().tokens == expected);
    }
    bn::Request request = forced(20);
    request.sampling.on_logits = [](const bn_logits &row) {
        if (row.output_tokens_count == 2) throw std::out_of_range("the third token");
    };
    const auto third = [](auto call) {
        try {
            call();
        } catch (const std::out_of_range &error) {
            return contains(error.what(), "third");
        }
        return false;
    };
    CHECK(third([&] { engine.generate(request); }));
    CHECK(third([&] { engine.async(request).get(); }));
    CHECK(engine.generate("17+25=").text == "42");
    request.sampling.temperature = -1;
    CHECK(thrown([&] { engine.async(request); }).code() == BN_ERR_INVALID_ARGUMENT);
}

// No hook runs once its stream is destroyed.
void dropped_hooks() {
    bn::Engine engine;
    std::atomic<bool> inside{false};
    for (int i = 0; i < 8; i++) {
        bn::Request request = endless();
        request.sampling.on_logits = [&](const bn_logits &) {
            inside = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            inside = false;
        };
        bn::Stream stream = engine.stream(request);
        while (!inside) std::this_thread::yield();
        if (i % 4 == 3) engine.close(), engine = bn::Engine();
        stream = engine.stream(bn::Request("17+25=")); // the first is destroyed
        CHECK(!inside);
        CHECK(stream.finish().text == "42");
    }
}

// A callback cannot wait for the end of a stream that it destroys: the engine keeps the hook.
void hooks_of_streams_destroyed_in_a_callback() {
    std::unique_ptr<bn::Stream> stream;
    bn::EngineConfig config = slow();
    config.on_span = [](const bn_span *, void *context) { static_cast<std::unique_ptr<bn::Stream> *>(context)->reset(); };
    config.on_span_context = &stream;
    auto life = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = life;
    {
        const bn::Engine engine(config);
        bn::Request request = endless();
        request.sampling.on_logits = [life = std::move(life)](const bn_logits &) { ++*life; };
        stream = std::make_unique<bn::Stream>(engine.stream(request));
        request.sampling.on_logits = nullptr;
        CHECK(stream->next() != nullptr);
        bn::Request traced("x");
        traced.trace.trace_id[0] = 1;
        engine.generate(traced);
        engine.generate(traced); // the first one's spans were sent
        CHECK(stream == nullptr && !alive.expired());
    }
    CHECK(alive.expired());
}

} // namespace

int main(int, char **arguments) {
    version(arguments[1]);
    golden_texts(arguments[2]);
    concurrent_streams();
    cancel();
    errors();
    chat();
    embeddings();
    close();
    pausing();
    statistics();
    requests_of_the_handle();
    moves();
    paths_and_prompts();
    logs_and_probabilities();
    timeouts();
    sessions();
    sampling();
    constraints();
    tools();
    adapters(arguments[2]);
    scores();
    reranks(arguments[2]);
    decides();
    pictures();
    speculation();
    draft_model();
    hooks();
    dropped_hooks();
    hooks_of_streams_destroyed_in_a_callback();
}
