import CBnEngine
import Foundation

/// The logits from which a token is about to be sampled, with the request's tokens. They are copies.
public struct Logits: Sendable {
    public let promptTokens: [UInt32]
    /// The tokens generated so far.
    public let outputTokens: [UInt32]
    /// The logit of each token of the vocabulary, to be changed in place; -infinity forbids one.
    public var logits: [Float]
}

/// Changes a request's logits before each of its tokens. An error that it throws ends the request, and is thrown to
/// the task that waits for it.
///
/// It is called on threads of the engine, for several requests at a time, and all requests wait for it. The output is
/// the same in every batch only if the hook depends on its argument alone. It must not wait for the engine.
public typealias LogitsHook = @Sendable (inout Logits) throws -> Void

/// The hook of a request, and the error that it threw. C gets an unretained pointer to it.
final class Hook: @unchecked Sendable {
    private let call: LogitsHook
    private let lock = NSLock()
    private var thrown: Error?

    init(_ call: @escaping LogitsHook) { self.call = call }
    var failure: Error? { lock.withLock { thrown } }

    func set(_ p: inout bn_request_params) {
        p.sampling.on_logits = { row, context in
            Unmanaged<Hook>.fromOpaque(context!).takeUnretainedValue().run(row!.pointee)
        }
        p.sampling.on_logits_context = Unmanaged.passUnretained(self).toOpaque()
    }

    private func run(_ row: bn_logits) -> Int32 {
        let count = Int(row.vocab_size)
        var logits = Logits(
            promptTokens: Array(UnsafeBufferPointer(start: row.prompt_tokens, count: row.prompt_tokens_count)),
            outputTokens: Array(UnsafeBufferPointer(start: row.output_tokens, count: row.output_tokens_count)),
            logits: Array(UnsafeBufferPointer(start: row.logits, count: count)))
        do {
            try call(&logits)
            if logits.logits.count != count {
                throw BnError(code: .invalidArgument, message: "onLogits has made \(logits.logits.count) logits of \(count)")
            }
            row.logits.update(from: logits.logits, count: count)
            return 0
        } catch {
            lock.withLock { thrown = error }
            return 1
        }
    }
}
