// The tests that bindings/README.md lists, and tests of Swift's own features. Arguments: the library's version,
// demo_prompts.json, a model without a tokenizer, the folder of its adapters.
import BnEngine
import Foundation

func check(_ holds: Bool, _ what: String = "", line: Int = #line) {
    if holds { return }
    print("main.swift:\(line): does not hold. \(what)")
    exit(1)
}

/// The error of a call, which must be a BnError.
func thrown<T>(line: Int = #line, _ call: () async throws -> T) async -> BnError {
    do {
        _ = try await call()
    } catch let error as BnError {
        return error
    } catch {
        print("main.swift:\(line): threw \(error)")
        exit(1)
    }
    print("main.swift:\(line): threw nothing")
    exit(1)
}

func text(_ stream: BnEngine.Stream) async throws -> (String, Ending) {
    var text = "", ending: Ending?
    for try await event in stream {
        text += event.text
        ending = event.ending
    }
    return (text, ending!)
}

/// An engine whose requests do not end by themselves while a test runs.
func slow(queueCapacity: UInt32 = 64) async throws -> Engine {
    var configuration = Engine.Configuration()
    configuration.queueCapacity = queueCapacity
    return try Engine(try await Model.open("builtin:echo?us_per_token=2000"), configuration)
}
func endless() -> Request {
    var request = Request("wait", maxTokens: 0)
    request.options = .ignoreEndTokens
    return request
}

func version() { // 1
    check(libraryVersion == CommandLine.arguments[1])
}

func golden() async throws { // 2
    let data = try Data(contentsOf: URL(fileURLWithPath: CommandLine.arguments[2]))
    let all = try JSONSerialization.jsonObject(with: data) as! [[String: Any]]
    let engine = try Engine()
    for kind in ["sum", "recall"] {
        for prompt in all.filter({ $0["kind"] as! String == kind }).prefix(8) {
            let answer = try await engine.generate(Request(prompt["prompt"] as? String, maxTokens: 8))
            check(answer.text == prompt["answer"] as! String, answer.text)
            check(answer.ending!.reason == .stop && answer.ending!.stopIndex == -1)
        }
    }
}

func concurrentStreams() async throws { // 3
    var configuration = Engine.Configuration()
    configuration.maxBatchSize = 8
    let engine = try Engine(nil, configuration)
    @Sendable func sample(_ seed: UInt64) -> Request {
        var request = Request("One day", maxTokens: 24)
        (request.temperature, request.topK, request.seed) = (0.9, 40, seed)
        return request
    }
    let texts = try await withThrowingTaskGroup(of: (UInt64, String).self) { group in
        for seed in UInt64(0)..<32 {
            group.addTask { (seed, try await text(engine.stream(sample(seed))).0) }
        }
        return try await group.reduce(into: [:]) { $0[$1.0] = $1.1 }
    }
    for (seed, text) in texts {
        let alone = try await engine.generate(sample(seed)).text
        check(text == alone, "\(seed): \(text), alone \(alone)")
    }
    check(texts.count == 32 && Set(texts.values).count > 16)
}

func cancel() async throws { // 4
    let engine = try await slow(queueCapacity: 2)
    let other = try engine.stream(Request("goes on to its end"))
    let stream = try engine.stream(endless())
    let task = Task { try await text(stream) }
    while try engine.statistics().generated_tokens < 30 { await Task.yield() }
    task.cancel()
    let ending = try await task.value.1
    check(ending.reason == .cancelled && ending.generatedTokens > 0)
    do { // in its place
        let early = try engine.stream(endless())
        for try await event in early {
            check(event.ending == nil)
            break
        }
    } // dropped
    while try engine.statistics().completed_cancelled < 2 { await Task.yield() }
    try await check(text(other).0 == "goes on to its end")
    let whole = Task { try await engine.generate(endless()) }
    whole.cancel()
    do {
        _ = try await whole.value
        check(false)
    } catch is CancellationError {}
    try check(engine.statistics().unreleased == 0)
}

func errors() async throws { // 5
    let path = await thrown { try await Model.open("/nowhere/model.gguf") }
    check(path.code == .io && path.message.contains("/nowhere/model.gguf") && path.description.hasPrefix("BN_ERR_IO"))
    let engine = try await slow(queueCapacity: 1)
    var wrong = Request("x")
    wrong.temperature = -1
    let parameter = await thrown { try await engine.generate(wrong) }
    check(parameter.code == .invalidArgument && parameter.message.contains("temperature"))
    let nothing = await thrown { try engine.stream(Request()) }
    check(nothing.code == .invalidArgument)
    let stream = try engine.stream(endless())
    let full = await thrown { try engine.stream(endless()) }
    check(full.code == .queueFull && !full.message.isEmpty)
    stream.cancel()
}

func chat() async throws { // 6
    let model = try await Model.open("builtin:echo")
    let engine = try Engine(model)
    let messages = [Message(role: "system", content: "Echo."), Message(role: "user", content: "hello")]
    let expected = "system: Echo.\nuser: hello\nassistant: "
    try await check(engine.generate(Request(messages: messages)).text == expected)
    var tokens = Request()
    tokens.promptTokens = try model.chatTokens(messages)
    try await check(engine.generate(tokens).text == expected)
    try check(model.detokenize(tokens.promptTokens!) == expected && model.chatText(messages) == expected)
    try check(model.tokenize("") == [] && model.info().hasChatTemplate)
    try check(Engine().model().info().hasChatTemplate) // the model inside the library
}

func embeddings() async throws { // 7
    let engine = try Engine()
    func product(_ a: [Float], _ b: [Float]) -> Float { zip(a, b).map(*).reduce(0, +) }
    let one = try await engine.embed(Request("a red ball")), again = try await engine.embed(Request("a red ball"))
    let other = try await engine.embed(Request("12+30="))
    try check(one.count == engine.model().info().embeddingSize && one == again)
    check(abs(product(one, one) - 1) < 1e-3 && product(one, other) < 0.999)
    var request = Request("a red ball")
    request.pooling = .mean
    try await check(engine.embed(request) != one)
    request.normalization = .none
    let raw = try await engine.embed(request)
    check(abs(product(raw, raw) - 1) > 1e-3)
    request.temperature = 1
    let wrong = request
    let refused = await thrown { try await engine.embed(wrong) }
    check(refused.code == .invalidArgument)
}

func closing() async throws { // 8
    var engine: Engine? = try await slow()
    let late = try engine!.stream(endless())
    let streams = try (0..<16).map { _ in try engine!.stream(endless()) }
    let tasks = streams.map { stream in Task { try await text(stream).1.reason } }
    engine!.close()
    engine!.close()
    for task in tasks { try await check(task.value == .cancelled) }
    let closed = engine!
    let refused = await thrown { try await closed.generate(Request("x")) }
    check(refused.code == .shutdown)
    engine = nil
    try await check(text(late).1.reason == .cancelled) // it has kept the engine
    let draining = try Engine(await Model.open("builtin:echo"))
    let stream = try draining.stream(Request("is finished before the engine"))
    await draining.drain()
    await draining.drain()
    try await check(text(stream).0 == "is finished before the engine")
}

func pausing() async throws { // 17
    var configuration = Engine.Configuration()
    configuration.threads = 2
    let engine = try Engine(nil, configuration)
    try engine.pause()
    let stream = try engine.stream(Request("17+25="))
    var late = Request("17+25=")
    late.timeoutMilliseconds = 1
    try await check(engine.generate(late).ending!.reason == .timedOut)
    let stats = try engine.statistics()
    check(stats.engine_paused == 1 && stats.queued == 1 && stats.steps == 0 && stats.threads == 2)
    try engine.setThreads(1)
    let refused = await thrown { try engine.setThreads(3) }
    check(refused.code == .invalidArgument)
    try engine.resume()
    try await check(text(stream).0 == "42" && engine.statistics().threads == 1)
}

func statistics() async throws { // 9
    var configuration = Engine.Configuration()
    configuration.queueCapacity = 7
    let engine = try Engine(await Model.open("builtin:echo"), configuration)
    let answer = try await engine.generate(Request("count this"))
    let stats = try engine.statistics()
    check(stats.accepted == 1 && stats.completed_stop == 1 && stats.running + stats.queued + stats.unreleased == 0)
    check(stats.generated_tokens == answer.ending!.generatedTokens && stats.queue_capacity == 7 && stats.end_to_end.count == 1)
    try check(engine.metrics().contains("bn_") && answer.ending!.totalNanoseconds > 0)
    configuration.modelName = "parrot"
    let named = try Engine(nil, configuration)
    try check(named.metrics().contains("\"parrot\"") && !named.report().isEmpty)
}

func models() async throws {
    let model = try await Model.open(), info = try model.info()
    check(info.heads > 0 && info.kvHeads > 0 && info.headSize > 0 && info.feedForwardSize > 0 && info.pooling != .model)
    check(info.recommended.temperature == nil && info.recommended.topK == nil)
    try check(model.tokenBytes(model.tokenize("a").last!).last == UInt8(ascii: "a"))
    let f32 = CommandLine.arguments[3]
    let small = try await Model.open(f32, weights: .init(layers: .q8_0)).info(), whole = try await Model.open(f32).info()
    check(small.weightBytes < whole.weightBytes)
    let refused = await thrown { try await Model.open(f32, weights: .init(embedding: .ternary)) }
    check(refused.message.contains("embedding_type"))
}

func sessionsAndPrefixes() async throws {
    var configuration = Engine.Configuration()
    (configuration.kvEventsCapacity, configuration.kvBlockSize) = (16, 16)
    let engine = try Engine(nil, configuration)
    var request = Request(String(repeating: "One day ", count: 20))
    request.session = "s"
    _ = try await engine.generate(request)
    let events = try engine.kvEvents()
    check(events.count > 1 && events[0].kind == .stored && events[1].parentHash == events[0].hash)
    var saved = try engine.saveSession("s")
    try engine.freeSession("s")
    let missing = await thrown { try engine.freeSession("s") }
    check(missing.code == .notFound)
    try engine.restoreSession("s", saved)
    saved[saved.count / 2] ^= 1
    let damaged = await thrown { try engine.restoreSession("s", saved) }
    check(damaged.code == .invalidArgument)
    try engine.clearCache()
    try check(engine.kvEvents().contains { $0.kind == .cleared })
}

struct Third: Error {}

func hooks() async throws {
    let engine = try Engine()
    try await withThrowingTaskGroup(of: Void.self) { group in
        for token in 20..<36 {
            group.addTask {
                var request = Request("Once upon a time", maxTokens: 3)
                request.options = .ignoreEndTokens
                request.onLogits = { $0.logits[token + $0.outputTokens.count] = 1e6 }
                let answer = try await engine.generate(request)
                check(answer.tokens == (token..<token + 3).map { UInt32($0) })
            }
        }
        try await group.waitForAll()
    }
    var request = Request("Once upon a time")
    request.onLogits = { if $0.outputTokens.count == 2 { throw Third() } }
    do {
        _ = try await engine.generate(request)
        check(false)
    } catch is Third {}
    request.onLogits = { $0.logits = [] }
    let shortened = request
    let refused = await thrown { try await engine.generate(shortened) }
    check(refused.message.contains("onLogits"))
    try await check(engine.generate(Request("17+25=", maxTokens: 8)).text == "42") // others go on
}

/// The number of open descriptors, one of which each engine adds or two.
func descriptors() throws -> Int { try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").count }

func droppedEnginesAreFreed() async throws {
    _ = try await Engine().generate(Request("1+1=")) // everything that opens descriptors only once has done so
    while try descriptors() > 200 { await Task.yield() }
    for _ in 0..<300 {
        let engine = try Engine(await Model.open("builtin:echo"))
        try await check(engine.generate(Request("x")).text == "x")
    }
    while try descriptors() > 100 { await Task.yield() }
}

final class Lines: @unchecked Sendable {
    private let lock = NSLock()
    private var lines = 0
    func add() { lock.withLock { lines += 1 } }
    var count: Int { lock.withLock { lines } }
}

func logsTimeoutsAndProbabilities() async throws {
    let lines = Lines()
    let model = try await Model.open(log: { _, _ in lines.add() }, logLevel: .debug)
    check(lines.count > 0)
    var request = Request("17+25=")
    request.options = .logprobs
    request.topLogprobs = 2
    request.stopStrings = ["2"]
    let answer = try await Engine(model).generate(request)
    check(answer.text == "4" && answer.ending!.reason == .stopString && answer.ending!.stopIndex == 0)
    check(answer.logprobs.count == answer.tokens.count && answer.logprobs[0].count == 3)
    check(answer.logprobs[0][0].token == answer.tokens[0])
    var late = endless()
    late.timeoutMilliseconds = 1
    try await check(slow().generate(late).ending!.reason == .timedOut)
}

func sampled() -> Request {
    var request = Request("Once upon a time", maxTokens: 16)
    request.temperature = 1.5
    return request
}

func sampling() async throws { // 10
    let engine = try Engine()
    let plain = try await engine.generate(sampled())
    let word = try engine.model().detokenize([plain.tokens[0]])
    let changes: [(inout Request) -> Void] = [
        { $0.typicalP = 0.3 },
        { ($0.dryMultiplier, $0.dryAllowedLength, $0.dryBreakers) = (5, 1, []) },
        { ($0.mirostatTau, $0.mirostatEta) = (0.5, 1) },
        { $0.logitBias = [plain.tokens[0]: -100] },
        { $0.badWords = [word] },
        { ($0.temperature, $0.topP, $0.samplers) = (3, 0.5, [.topP, .temperature]) },
        { ($0.temperature, $0.topP, $0.samplers) = (3, 0.5, [.temperature, .topP]) },
    ]
    var texts: [String] = []
    for change in changes {
        var request = sampled()
        change(&request)
        texts.append(try await engine.generate(request).text)
        check(texts.last! != plain.text)
    }
    check(texts[texts.count - 1] != texts[texts.count - 2]) // the order of samplers
    var wrong = sampled()
    wrong.topNSigma = -1
    let negative = wrong
    let refused = await thrown { try await engine.generate(negative) }
    check(refused.message.contains("top_n_sigma"))
}

func constraints() async throws { // 11
    let schema = """
        {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"],
         "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}
        """
    let engine = try Engine()
    try engine.checkConstraint(.jsonSchema(schema))
    let kinds: [(Constraint, [String])] = [
        (.jsonSchema(schema), ["{\"size\":\"small\"}", "{\"size\":\"large\"}"]), (.regex("aa|bb"), ["aa", "bb"]),
        (.lark("start: \"x\""), ["x"]), (.gbnf("root ::= \"y\""), ["y"]),
    ]
    for (constraint, expected) in kinds {
        var request = sampled()
        request.constraint = constraint
        let answer = try await engine.generate(request).text
        check(expected.contains(answer), answer)
    }
    try check(engine.statistics().grammars_reused == 1)
    try engine.checkConstraint(.jsonObject, json: .compact)
    var compact = Request("x", maxTokens: 1)
    (compact.constraint, compact.json) = (.jsonObject, .compact)
    _ = try await engine.generate(compact)
    try check(engine.statistics().grammars_reused == 2)
    let refused = await thrown { try engine.checkConstraint(.regex("a(")) }
    check(refused.code == .invalidArgument && refused.message.contains("constraint"))
}

/// The echo model answers with its prompt: reasoning, two calls and text.
func tools() async throws { // 12
    let engine = try Engine(await Model.open("builtin:echo?us_per_token=20"))
    let call = "<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}</tool_call>"
    let rest = "\"add_generation_prompt\": false, \"tool_format\": \"hermes\", \"reasoning_format\": \"think\""
    var request = Request(nil, maxTokens: 0)
    request.chatJSON = "{\"messages\": [{\"role\": \"Both\", \"content\": \"\(call)\(call)done\"}], \(rest), "
        + "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}"
    request.options = .parseOutput
    let whole = try await engine.generate(request)
    check(whole.toolCalls.count == 2 && whole.ending!.toolCallsTotal == 2 && whole.text.contains("Both: done"))
    check(whole.toolCalls.allSatisfy { $0.name == "f" && $0.arguments == "{}" })
    check(whole.toolCalls[0].id != whole.toolCalls[1].id)
    var arguments = ["", ""], streamed = ""
    for try await event in try engine.stream(request) {
        streamed += event.text
        for part in event.toolCalls { arguments[part.index] += part.arguments }
    }
    check(streamed == whole.text && arguments == ["{}", "{}"])
    request.chatJSON = "{\"messages\": [{\"role\": \"<think>\\nhm\\n</think>\\n\\nYes\", \"content\": \"a\"}], \(rest)}"
    let thought = try await engine.generate(request)
    check(thought.reasoning == "hm" && thought.text == "Yes: a\n")
    let thinking = "{\"messages\": [{\"role\": \"user\", \"content\": \"xxxxxxxx\"}, {\"role\": \"assistant\", \"content\": \"<think>\\n\"}],"
    var bounded = Request(chatJSON: thinking + "\"continue_final_message\": true, \"reasoning_format\": \"think\"}")
    (bounded.options, bounded.maxReasoningTokens, bounded.maxTokens) = ([.parseOutput, .ignoreEndTokens], 5, 40)
    let short = try await engine.generate(bounded)
    check(short.reasoning == "user:" && short.ending!.reasoningTokens == 5 + 8)
    let model = try engine.model(), chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"
    try check(model.chatJSONText(chat) == "user: hi\nassistant: ")
    try check(model.chatJSONTokens(chat) == model.chatTokens([Message(role: "user", content: "hi")]))
    let refused = await thrown { try model.chatJSONText("{\"messages\": [{}]}") }
    check(refused.message.contains("messages[0].role"))
}

func adapters() async throws { // 13
    var configuration = Engine.Configuration()
    (configuration.contextLength, configuration.adapterBytes) = (128, 1_048_576)
    let engine = try Engine(await Model.open(CommandLine.arguments[3]), configuration)
    let folder = CommandLine.arguments[4]
    func with(_ adapter: Adapter?, _ scale: Float? = nil) -> Request {
        var request = sampled()
        request.prompt = nil
        request.promptTokens = (UInt32(0)..<40).map { 3 + $0 * 7 % 60 }
        (request.options, request.adapter, request.adapterScale) = (.ignoreEndTokens, adapter, scale)
        return request
    }
    let plain = try await engine.generate(with(nil)).tokens
    var adapter: Adapter? = try Adapter(engine, folder + "/llama")
    try check(adapter!.fingerprint() == Adapter(engine, folder + "/llama").fingerprint())
    let adapted = try await engine.generate(with(adapter)).tokens
    check(adapted != plain)
    try await check(engine.generate(with(Adapter(engine, folder + "/llama.gguf"))).tokens == adapted)
    try await check(engine.generate(with(adapter, -2)).tokens != adapted)
    let stream = try engine.stream(with(adapter))
    adapter = nil
    try await check(text(stream).1.reason == .length) // it has kept it
    let refused = await thrown { try Adapter(engine, folder + "/qwen3") }
    check(refused.code == .badModel)
}

func scores() async throws { // 14
    let engine = try Engine()
    let list = try await engine.score(Request("17+25="), ["42", "43"])
    check(list[0].greedy && !list[1].greedy && list[0].logprob > -0.5 && list[0].logprob > list[1].logprob)
    let answer = try await engine.generate(Request("Once upon a time", maxTokens: 8))
    try await check(engine.score(Request("Once upon a time"), [answer.text])[0].tokens == 8)
    // The tokens are the bytes and an end. The very first one has no log probability.
    let whole = try await Engine(await Model.open("builtin:echo")).score(Request(""), ["abc"])[0]
    check(whole.tokens == 3 && whole.logprob < 0)
    let refused = await thrown { try await engine.score(Request("x"), ["y", ""]) }
    check(refused.message.contains("logprobs_from"))
}

func reranks() async throws { // 16
    let golden = URL(fileURLWithPath: CommandLine.arguments[3]).deletingLastPathComponent()
    let engine = try Engine(await Model.open(golden.appendingPathComponent("bert-reranker").path))
    try check(engine.model().info().scoresPairs)
    let list = try await engine.rerank(Request("who runs?"), ["a dog runs", "", "a dog runs"])
    // The expected values are in texts.json.
    check(abs(list[0] - 0.398199) < 1e-3 && list[0] == list[2] && list[1] != list[0])
    let refused = await thrown { try await Engine().rerank(Request("x"), ["y"]) }
    check(refused.code == .unsupported)
}

func decides() async throws { // 18
    let engine = try Engine()
    let story = Request("Once upon a time there was a small machine.")
    let questions = [
        Question(.yesNo, "Was it small?", options: [" yes", " no"]), Question(.choice, "It met", options: [" a dog", " a cat"]),
    ]
    let answers = try await engine.decide(story, questions)
    check(answers.count == 2 && answers[0].value == answers[0].options[0].probability)
    for answer in answers {
        check(abs(answer.options.map(\.probability).reduce(0, +) - 1) < 1e-9)
        check(answer.options[answer.best].probability >= 0.5)
    }
    let refused = await thrown { try await engine.decide(story, [Question(.choice, "x", name: "empty")]) }
    check(refused.message.contains("empty"))
}

func pictures() async throws { // 19
    let engine = try Engine()
    try check(!engine.model().info().sees)
    let whole = Picture(width: 2, height: 1, rgb: [UInt8](repeating: 0, count: 6))
    var request = Request("a")
    for (second, code, words) in [
        (Picture([0x89, 0x50, 0x4e, 0x47]), BnError.Code.unsupported, "sees none"),
        (Picture([]), .invalidArgument, "pictures[1].data is empty"),
        (Picture(width: 2, height: 1, rgb: [0]), .invalidArgument, "pictures[1]: 1 bytes for 2 x 1 pixels"),
    ] {
        request.pictures = [whole, second]
        let refused = await thrown { [request] in try await engine.generate(request) }
        check(refused.code == code && refused.message.contains(words))
    }
    let unseen = await thrown { try engine.picturePositions(whole) }
    check(unseen.code == .unsupported)
    check((try? Picture(path: "/nowhere/a.png")) == nil)
}

func speculation() async throws { // 15
    var configuration = Engine.Configuration()
    (configuration.speculation, configuration.draftTokens) = (.lookup, 1)
    let engine = try Engine(await Model.open("builtin:echo"), configuration)
    var request = Request("one two three one two three one two three one two three ") // which the answer repeats
    let drafted = try await engine.generate(request)
    request.speculation = .off
    let plain = try await engine.generate(request)
    check(drafted.tokens == plain.tokens && drafted.ending!.acceptedTokens > 0 && plain.ending!.draftedTokens == 0)
    try check(Int(engine.statistics().drafted_tokens) == drafted.ending!.draftedTokens)
}

func draftModel() async throws { // 15
    var configuration = Engine.Configuration()
    let model = try await Model.open()
    configuration.draftModel = model // it drafts for itself
    let engine = try Engine(model, configuration)
    var request = Request("Once upon a time", maxTokens: 40)
    request.speculation = .draft
    let drafted = try await engine.generate(request)
    request.speculation = .off
    let plain = try await engine.generate(request)
    check(drafted.tokens == plain.tokens && drafted.ending!.acceptedTokens == drafted.ending!.draftedTokens)
    try check((engine.statistics().drafting_ns > 0) == (drafted.ending!.acceptedTokens > 0))
    request.speculation = .draft
    let refused = await thrown { try await Engine().generate(request) }
    check(refused.message.contains("draft_model"))
}

version()
try await golden()
try await concurrentStreams()
try await cancel()
try await errors()
try await chat()
try await embeddings()
try await closing()
try await pausing()
try await statistics()
try await models()
try await sessionsAndPrefixes()
try await hooks()
try await droppedEnginesAreFreed()
try await logsTimeoutsAndProbabilities()
try await sampling()
try await constraints()
try await tools()
try await adapters()
try await scores()
try await reranks()
try await decides()
try await pictures()
try await speculation()
try await draftModel()
print("Swift: ok")
