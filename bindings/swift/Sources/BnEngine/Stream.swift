import CBnEngine

/// The end of a request.
public struct Ending: Sendable {
    public enum Reason: UInt32, Sendable {
        case unknown = 0, stop, stopString, length, cancelled, timedOut, failed, embedding
    }
    public let reason: Reason
    /// Index of the stop token or stop string that ended the request, or -1.
    public let stopIndex: Int
    public let promptTokens, generatedTokens, cachedTokens: Int
    /// Tokens that were drafted and verified, and those of them that the output has.
    public let draftedTokens, acceptedTokens: Int
    /// Tokens of reasoning, with `Request.Options.parseOutput`.
    public let reasoningTokens: Int
    /// Calls of tools in the whole answer.
    public let toolCallsTotal: Int
    public let queuedNanoseconds, prefillNanoseconds, firstTokenNanoseconds, decodeNanoseconds, totalNanoseconds: UInt64
    let vector: [Float]
    let decisions: [Decision]
    let failure: BnError?

    init(_ e: bn_event) {
        reason = Reason(rawValue: e.finish_reason) ?? .unknown
        stopIndex = Int(e.stop_index)
        (promptTokens, generatedTokens, cachedTokens) = (Int(e.prompt_tokens), Int(e.generated_tokens), Int(e.cached_tokens))
        (draftedTokens, acceptedTokens) = (Int(e.drafted_tokens), Int(e.accepted_tokens))
        (toolCallsTotal, reasoningTokens) = (Int(e.tool_calls_total), Int(e.reasoning_tokens))
        (queuedNanoseconds, prefillNanoseconds, firstTokenNanoseconds) = (e.queued_ns, e.prefill_ns, e.first_token_ns)
        (decodeNanoseconds, totalNanoseconds) = (e.decode_ns, e.total_ns)
        vector = Array(UnsafeBufferPointer(start: e.embedding, count: e.embedding_count))
        decisions = Decision.all(e)
        failure = e.status == BN_OK ? nil : BnError(code: .init(rawValue: e.status), message: String(e.message))
    }
}

/// A token and the natural logarithm of its probability.
public struct Logprob: Sendable {
    public let token: UInt32
    public let logprob: Float
}

/// A call of a tool, or a part of one: the first part has an id and a name.
public struct ToolCall: Sendable {
    /// Index of the call in the answer, from 0.
    public let index: Int
    public let id, name: String
    /// JSON, or a part of it.
    public internal(set) var arguments: String
    /// Bytes of the event's text, in UTF-8, that the model wrote before it.
    public let textBefore: Int
}

/// A part of an output, or all of it.
public struct Event: Sendable {
    /// Whole characters of Unicode.
    public internal(set) var text = ""
    public internal(set) var tokens: [UInt32] = []
    /// With `Request.Options.logprobs`, for each token: its own, then `topLogprobs` and `logprobTokens`.
    public internal(set) var logprobs: [[Logprob]] = []
    /// With `Request.Options.parseOutput`, as are calls.
    public internal(set) var reasoning = ""
    /// In a stream they come in parts. Parts that waited together are one.
    public internal(set) var toolCalls: [ToolCall] = []
    /// In the last event.
    public internal(set) var ending: Ending?

    mutating func add(_ e: bn_event) {
        let before = text.utf8.count
        for part in UnsafeBufferPointer(start: e.tool_calls, count: e.tool_calls_count) { add(part, before) }
        text += String(e.text)
        reasoning += String(e.reasoning)
        tokens += UnsafeBufferPointer(start: e.tokens, count: e.tokens_count)
        let each = Int(e.logprobs_per_token)
        for i in 0..<(each == 0 ? 0 : e.tokens_count) {
            logprobs.append((i * each..<(i + 1) * each).map { Logprob(token: e.logprobs[$0].token, logprob: e.logprobs[$0].logprob) })
        }
        if e.kind == BN_EVENT_COMPLETED { ending = Ending(e) }
    }

    private mutating func add(_ part: bn_tool_call, _ before: Int) {
        let arguments = String(part.arguments)
        if let last = toolCalls.indices.last, toolCalls[last].index == Int(part.index) {
            toolCalls[last].arguments += arguments
        } else {
            let (index, id, name) = (Int(part.index), String(part.id), String(part.name))
            let textBefore = before + Int(part.text_before)
            toolCalls.append(
                ToolCall(index: index, id: id, name: name, arguments: arguments, textBefore: textBefore))
        }
    }
}

/// The unread events of a request, or the task that waits for one. The core's lock guards it.
final class Inbox {
    /// The engine may call it until the request's last event.
    let hook: Hook?
    var pending: Event?
    var reader: CheckedContinuation<Void, Never>?
    var over = false
    init(_ hook: Hook?) { self.hook = hook }
}

/// The events of a request as they arrive, for one loop. Cancelling the task of the loop cancels the request, and its
/// last event says so. Leaving the loop, or dropping the stream, cancels it too. It keeps its engine.
public final class Stream: AsyncSequence, @unchecked Sendable {
    public typealias Element = Event
    let engine: Engine
    let inbox: Inbox
    let id: bn_request

    init(_ engine: Engine, _ inbox: Inbox, _ id: bn_request) { (self.engine, self.inbox, self.id) = (engine, inbox, id) }
    deinit { cancel() }

    /// Asks the engine to end the request. Its last event says so.
    public func cancel() { bn_cancel(engine.core.handle, id, nil) } // "not found" if it has ended

    public struct AsyncIterator: AsyncIteratorProtocol {
        let stream: Stream
        public func next() async throws -> Event? { try await stream.next() }
    }
    public func makeAsyncIterator() -> AsyncIterator { AsyncIterator(stream: self) }

    func next() async throws -> Event? {
        let core = engine.core
        await withTaskCancellationHandler {
            await withCheckedContinuation { core.wait(inbox, $0) }
        } onCancel: {
            cancel()
        }
        guard let event = core.take(inbox) else { return nil }
        if event.ending?.reason == .failed, let failure = event.ending?.failure { throw inbox.hook?.failure ?? failure }
        return event
    }
}
