import CBnEngine

/// A message of a conversation. `content` never becomes a control token.
public struct Message: Sendable {
    public var role, content: String
    public init(role: String, content: String) { (self.role, self.content) = (role, content) }
}

/// A prompt, and what to do with it. What is nil has the default that bn_engine.h says.
public struct Request: Sendable {
    /// One of these three.
    public var prompt: String?
    public var promptTokens: [UInt32]?
    public var messages: [Message]?

    /// 0: as many as the engine's longest sequence leaves.
    public var maxTokens: UInt32?
    public var stopStrings: [String] = []
    public var stopTokens: [UInt32] = []
    /// The same seed, prompt and parameters give the same output.
    public var seed: UInt64 = 0
    public var temperature, topP, minP, repetitionPenalty, frequencyPenalty, presencePenalty: Float?
    public var topK: UInt32?
    public var timeoutMilliseconds, queueTimeoutMilliseconds: UInt32?
    /// 0 to 255, the most urgent.
    public var priority: UInt8?
    /// BN_REQUEST_* bits of the output and the cache.
    public var options: Options = []
    /// With `.logprobs`: for how many of the most likely tokens.
    public var topLogprobs: UInt32 = 0
    public var cacheSalt: UInt64 = 0
    /// Keeps the conversation's keys and values under this name for its next turn.
    public var session: String?
    /// For `embed`.
    public var pooling: Pooling = .model

    public init(_ prompt: String? = nil, maxTokens: UInt32? = nil) { (self.prompt, self.maxTokens) = (prompt, maxTokens) }
    public init(messages: [Message]) { self.messages = messages }

    public struct Options: OptionSet, Sendable {
        public let rawValue: UInt32
        public init(rawValue: UInt32) { self.rawValue = rawValue }
        public static let echoPrompt = Options(rawValue: BN_REQUEST_ECHO_PROMPT)
        public static let ignoreEndTokens = Options(rawValue: BN_REQUEST_IGNORE_EOS)
        public static let logprobs = Options(rawValue: BN_REQUEST_LOGPROBS)
        /// Control tokens spelled out in `prompt` become those tokens. Not for text from outside.
        public static let parseSpecial = Options(rawValue: BN_REQUEST_PARSE_SPECIAL)
        public static let noCache = Options(rawValue: BN_REQUEST_NO_CACHE)
        /// End it as soon as `queueTimeoutMilliseconds` is predicted to pass.
        public static let dropLate = Options(rawValue: BN_REQUEST_DROP_LATE)
        /// For `embed`: do not divide the vector by its length.
        public static let unnormalized = Options(rawValue: BN_REQUEST_EMBED_RAW)
    }
    public enum Pooling: Int32, Sendable {
        case model = 0, last, mean, first
    }

    /// The C struct, which points into the arena.
    func parameters(_ arena: Arena) -> bn_request_params {
        var p = bn_request_params()
        bn_request_params_init(&p, size(of: bn_request_params.self))
        p.prompt = arena.optional(prompt)
        (p.prompt_tokens, p.prompt_tokens_count) = (arena.array(promptTokens ?? []), promptTokens?.count ?? 0)
        (p.messages, p.messages_count) = (arena.messages(messages ?? []), messages?.count ?? 0)
        (p.stop_tokens, p.stop_tokens_count) = (arena.array(stopTokens), stopTokens.count)
        (p.stop_strings, p.stop_strings_count) = (arena.array(stopStrings.map(arena.text)), stopStrings.count)
        p.session = arena.optional(session)
        (p.flags, p.seed, p.cache_salt) = (options.rawValue, seed, cacheSalt)
        (p.top_logprobs, p.pooling) = (topLogprobs, pooling.rawValue)
        func set<T>(_ field: WritableKeyPath<bn_request_params, T>, _ value: T?) {
            if let value { p[keyPath: field] = value }
        }
        set(\.max_new_tokens, maxTokens)
        set(\.temperature, temperature)
        set(\.top_k, topK)
        set(\.top_p, topP)
        set(\.min_p, minP)
        set(\.repetition_penalty, repetitionPenalty)
        set(\.frequency_penalty, frequencyPenalty)
        set(\.presence_penalty, presencePenalty)
        set(\.timeout_ms, timeoutMilliseconds)
        set(\.queue_timeout_ms, queueTimeoutMilliseconds)
        set(\.priority, priority.map(UInt32.init))
        return p
    }
}
