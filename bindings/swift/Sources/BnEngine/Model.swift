import CBnEngine
import Dispatch
import Foundation

public enum LogLevel: UInt32, Sendable {
    case error = 1, warn, info, debug
}

/// Receives lines of the log, on any thread, possibly on several at once.
public typealias Log = @Sendable (LogLevel, String) -> Void

/// The state of the library's callbacks. C gets an unretained pointer to it.
final class Hooks: @unchecked Sendable {
    private let log: Log?
    private let lock = NSLock()
    private var stopped = false

    init(_ log: Log?) { self.log = log }
    var context: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }
    func stop() { lock.withLock { stopped = true } }

    private static func at(_ context: UnsafeMutableRawPointer?) -> Hooks {
        Unmanaged<Hooks>.fromOpaque(context!).takeUnretainedValue()
    }
    var logger: bn_log_callback? {
        if log == nil { return nil }
        return { level, message, context in
            Hooks.at(context).log?(LogLevel(rawValue: level) ?? .debug, String(message))
        }
    }
    let progress: bn_progress_callback = { _, _, context in
        let hooks = Hooks.at(context)
        return hooks.lock.withLock { hooks.stopped ? 1 : 0 }
    }
}

/// A loaded model. Any number of engines may share it, and they keep it.
public final class Model: @unchecked Sendable {
    /// Facts about a model.
    public struct Info: Sendable {
        public let architecture, name: String
        public let hasTokenizer, hasChatTemplate: Bool
        public let vocabularySize, contextLength, layers, hiddenSize, heads, kvHeads, headSize, feedForwardSize: Int
        /// Elements of an embedding; 0: it makes none.
        public let embeddingSize: Int
        /// The model has a head for `rerank`.
        public let scoresPairs: Bool
        /// The model is an encoder: it embeds, and generates nothing.
        public let encodes: Bool
        /// The model sees pictures (`Request.pictures`).
        public let sees: Bool
        public let parameters, weightBytes: UInt64
        public let endTokens: [UInt32]
        public let bosToken: UInt32?
        public let pooling: Request.Pooling
        public let recommended: Sampling
    }
    /// The sampling values that a model's authors recommend, in its files. Values that they do not give are
    /// nil.
    public struct Sampling: Sendable {
        public let temperature, topP, minP, repetitionPenalty: Float?
        public let topK: UInt32?

        init(_ info: bn_model_info) {
            func field<T>(_ bit: UInt32, _ value: T) -> T? { info.sampling_fields & bit == 0 ? nil : value }
            temperature = field(BN_SAMPLING_FIELD_TEMPERATURE, info.temperature)
            topK = field(BN_SAMPLING_FIELD_TOP_K, info.top_k)
            topP = field(BN_SAMPLING_FIELD_TOP_P, info.top_p)
            minP = field(BN_SAMPLING_FIELD_MIN_P, info.min_p)
            repetitionPenalty = field(BN_SAMPLING_FIELD_REPETITION_PENALTY, info.repetition_penalty)
        }
    }
    /// The type that weights are converted to while a model is loaded.
    public enum WeightType: UInt32, Sendable {
        case keep = 0, q8_0, q4_0, ternary, int8
    }
    /// The types of attention and feed-forward weights, the embedding and the output head.
    public struct Weights: Sendable {
        public var layers, embedding, head: WeightType
        public init(layers: WeightType = .keep, embedding: WeightType = .keep, head: WeightType = .keep) {
            (self.layers, self.embedding, self.head) = (layers, embedding, head)
        }
    }

    let handle: OpaquePointer

    init(owned: OpaquePointer) { handle = owned }
    deinit { bn_model_free(handle) }

    /// Loads a GGUF file, a Hugging Face folder or `builtin:echo`; without a path, the model embedded in the library.
    /// `kernelConfigPath` is the kernel_config.ini of a GGUF file with TL1 or TL2 tensors, if it is not beside the
    /// file. `mtp` also loads the model's block of multi-token prediction, which drafts tokens. `drafterPath` is
    /// a GGUF file of such a block alone, which then drafts. `picturesPath` is a GGUF file of the part that sees pictures ("mmproj"). `skipZeros` keeps a copy of weights with which BitNet b1.58 2B-4T skips those that are multiplied by zeros; it takes more memory. It
    /// blocks a thread that is not one of Swift's tasks. Cancelling the task stops it.
    public static func open(_ path: String? = nil, memoryLimit: UInt64 = 0, threads: UInt32 = 0, weights: Weights = Weights(),
                            mtp: Bool = false, drafterPath: String? = nil, picturesPath: String? = nil, skipZeros: Bool = false, kernelConfigPath: String? = nil, log: Log? = nil, logLevel: LogLevel = .warn) async throws -> Model {
        try checkABI()
        let hooks = Hooks(log)
        let load: @Sendable () throws -> Model = {
            let arena = Arena()
            var config = bn_model_config()
            bn_model_config_init(&config, size(of: bn_model_config.self))
            (config.path, config.kernel_config_path) = (arena.optional(path), arena.optional(kernelConfigPath))
            (config.drafter_path, config.pictures_path) = (arena.optional(drafterPath), arena.optional(picturesPath))
            (config.weight_type, config.embedding_type) = (weights.layers.rawValue, weights.embedding.rawValue)
            config.head_type = weights.head.rawValue
            config.flags = (mtp ? BN_MODEL_MTP : 0) | (skipZeros ? BN_MODEL_SKIP_ZEROS : 0)
            config.memory_limit_bytes = memoryLimit
            config.threads = threads
            (config.log, config.log_context, config.log_level) = (hooks.logger, hooks.context, logLevel.rawValue)
            (config.progress, config.progress_context) = (hooks.progress, hooks.context)
            var model: OpaquePointer?
            try withExtendedLifetime((arena, hooks)) { try check { bn_model_open(&config, &model, $0) } }
            return Model(owned: model!)
        }
        do {
            return try await withTaskCancellationHandler {
                try await withCheckedThrowingContinuation { continuation in
                    DispatchQueue.global().async { continuation.resume(with: Result(catching: load)) }
                }
            } onCancel: {
                hooks.stop()
            }
        } catch let error as BnError where error.code == .cancelled {
            throw CancellationError()
        }
    }

    public func info() throws -> Info {
        var info = bn_model_info()
        bn_model_info_init(&info, size(of: bn_model_info.self))
        try check { bn_model_get_info(handle, &info, $0) }
        return Info(
            architecture: String(info.architecture), name: String(info.name), hasTokenizer: info.has_tokenizer != 0,
            hasChatTemplate: info.has_chat_template != 0, vocabularySize: Int(info.vocab_size),
            contextLength: Int(info.context_length), layers: Int(info.layers), hiddenSize: Int(info.hidden_size),
            heads: Int(info.heads), kvHeads: Int(info.kv_heads), headSize: Int(info.head_dim),
            feedForwardSize: Int(info.ffn_size), embeddingSize: Int(info.embedding_size),
            scoresPairs: info.scores_pairs != 0, encodes: info.encodes != 0, sees: info.sees != 0, parameters: info.parameters, weightBytes: info.weight_bytes,
            endTokens: Array(UnsafeBufferPointer(start: info.end_tokens, count: info.end_tokens_count)),
            bosToken: info.bos_token < 0 ? nil : UInt32(info.bos_token),
            pooling: Request.Pooling(rawValue: info.pooling) ?? .model, recommended: Sampling(info))
    }

    /// The tokens of a text; with `special`, those that submitting it puts in front (BOS) too.
    public func tokenize(_ text: String, special: Bool = false) throws -> [UInt32] {
        let arena = Arena()
        let c = arena.text(text)
        return try withExtendedLifetime(arena) {
            try sized(UInt32(0)) { bn_model_tokenize(handle, c, special ? BN_TOKENIZE_ADD_SPECIAL : 0, $0, $1, &$2, $3) }
        }
    }
    public func detokenize(_ tokens: [UInt32]) throws -> String {
        try sizedText { bn_model_detokenize(handle, tokens, tokens.count, $0, $1, &$2, $3) }
    }
    /// The exact bytes of a token, which may be part of a character; of a control token its name.
    public func tokenBytes(_ token: UInt32) throws -> [UInt8] {
        try sized(CChar(0)) { bn_model_token_bytes(handle, token, $0, $1, &$2, $3) }.map(UInt8.init(bitPattern:))
    }
    /// The tokens of a conversation, as submitting it makes them: the answer is begun.
    public func chatTokens(_ messages: [Message]) throws -> [UInt32] { try tokens(messages, nil) }
    /// The same as text, for display.
    public func chatText(_ messages: [Message]) throws -> String { try text(messages, nil) }
    /// The tokens of a conversation with tools, in the form of `Request.chatJSON`.
    public func chatJSONTokens(_ json: String) throws -> [UInt32] { try tokens(nil, json) }
    /// The same as text, for display.
    public func chatJSONText(_ json: String) throws -> String { try text(nil, json) }

    private func tokens(_ messages: [Message]?, _ json: String?) throws -> [UInt32] {
        let arena = Arena()
        var chat = arena.chat(messages, json)
        return try withExtendedLifetime(arena) {
            try sized(UInt32(0)) { bn_model_chat_tokenize(handle, &chat, $0, $1, &$2, $3) }
        }
    }
    private func text(_ messages: [Message]?, _ json: String?) throws -> String {
        let arena = Arena()
        var chat = arena.chat(messages, json)
        return try withExtendedLifetime(arena) {
            try sizedText { bn_model_chat_format(handle, &chat, $0, $1, &$2, $3) }
        }
    }
}
