import CBnEngine

/// A message of a conversation. `content` never becomes a control token.
public struct Message: Sendable {
    public var role, content: String
    public init(role: String, content: String) { (self.role, self.content) = (role, content) }
}

/// A prompt, and what to do with it. What is nil has the default that bn_engine.h says.
public struct Request: Sendable {
    /// One of these four.
    public var prompt: String?
    public var promptTokens: [UInt32]?
    public var messages: [Message]?
    /// A conversation with tools, as JSON.
    public var chatJSON: String?

    /// With `.parseOutput`: tokens of reasoning, after which its end marker comes; nil: no bound.
    public var maxReasoningTokens: UInt32?
    /// 0: as many as the engine's context leaves.
    public var maxTokens: UInt32?
    /// That come before an end token may.
    public var minTokens: UInt32 = 0
    public var stopStrings: [String] = []
    public var stopTokens: [UInt32] = []
    /// What the output must match.
    public var constraint: Constraint?
    /// How JSON of constraints and of calls of tools is written.
    public var json: JSON = []
    /// The same seed, prompt and parameters give the same output.
    public var seed: UInt64 = 0
    public var temperature, temperatureRange, temperatureExponent: Float?
    public var topNSigma, typicalP, topP, minP, xtcProbability, xtcThreshold, mirostatTau, mirostatEta: Float?
    public var topK: UInt32?
    /// Their order; empty: that of their numbers.
    public var samplers: [Sampler] = []
    public var repetitionPenalty, frequencyPenalty, presencePenalty, dryMultiplier, dryBase: Float?
    public var penaltyWindow, dryAllowedLength, dryWindow: UInt32?
    public var dryBreakers: [String]?
    /// What is added to the logits of tokens.
    public var logitBias: [UInt32: Float] = [:]
    public var badWords: [String] = []
    /// Changes the logits before each token.
    public var onLogits: LogitsHook?
    public var timeoutMilliseconds, queueTimeoutMilliseconds: UInt32?
    /// 0 to 255, the most urgent.
    public var priority: UInt8?
    /// BN_REQUEST_* bits of the output and the cache.
    public var options: Options = []
    /// With `.logprobs`: for how many of the most likely tokens.
    public var topLogprobs: UInt32 = 0
    /// And for these tokens.
    public var logprobTokens: [UInt32] = []
    /// With `.promptLogprobs` and `.score`: from this position of the prompt on.
    public var logprobsFrom: UInt32 = 0
    public var adapter: Adapter?
    public var adapterScale: Float?
    /// What drafts tokens; it changes no output.
    public var speculation: Speculation = .unset
    public var draftTokens: UInt32?
    public var cacheSalt: UInt64 = 0
    /// Keeps the conversation's keys and values under this name for its next turn.
    public var session: String?
    /// For `rerank`.
    var document: String?
    /// For `embed`.
    public var pooling: Pooling = .model
    public var normalization: Normalization = .model

    public init(_ prompt: String? = nil, maxTokens: UInt32? = nil) { (self.prompt, self.maxTokens) = (prompt, maxTokens) }
    public init(messages: [Message]) { self.messages = messages }
    public init(chatJSON: String) { self.chatJSON = chatJSON }

    var task = BN_TASK_GENERATE

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
        /// With `chatJSON`: tell reasoning and calls of tools from text.
        public static let parseOutput = Options(rawValue: BN_REQUEST_PARSE_OUTPUT)
        /// With `.logprobs`: of what the token is drawn from.
        public static let chainLogprobs = Options(rawValue: BN_REQUEST_CHAIN_LOGPROBS)
        /// With `.echoPrompt` and `.logprobs`: of the prompt's tokens too.
        public static let promptLogprobs = Options(rawValue: BN_REQUEST_PROMPT_LOGPROBS)
    }
    public struct JSON: OptionSet, Sendable {
        public let rawValue: UInt32
        public init(rawValue: UInt32) { self.rawValue = rawValue }
        /// No white space between tokens.
        public static let compact = JSON(rawValue: BN_JSON_COMPACT)
        /// Up to 32 characters of it.
        public static let flexible = JSON(rawValue: BN_JSON_FLEXIBLE)
        /// Unknown formats of a schema are refused.
        public static let knownFormats = JSON(rawValue: BN_JSON_KNOWN_FORMATS)
        /// Objects have only the keys that the schema declares, unless it says otherwise.
        public static let closed = JSON(rawValue: BN_JSON_CLOSED)
    }
    public enum Sampler: UInt32, Sendable {
        case temperature = 0, topNSigma, topK, typicalP, topP, minP, xtc
    }
    public enum Pooling: UInt32, Sendable {
        case model = 0, last, mean, first
    }
    /// Whether an embedding is divided by its length.
    public enum Normalization: UInt32, Sendable {
        /// As the model's files say; if they do not, as `unit`.
        case model = 0
        case none, unit
    }

    /// The C struct, which points into the arena.
    func parameters(_ arena: Arena) -> bn_request_params {
        var p = bn_request_params()
        bn_request_params_init(&p, size(of: bn_request_params.self))
        (p.prompt, p.chat) = (arena.optional(prompt), arena.chat(messages, chatJSON))
        (p.prompt_tokens, p.prompt_tokens_count) = (arena.array(promptTokens ?? []), promptTokens?.count ?? 0)
        (p.stop_tokens, p.stop_tokens_count) = (arena.array(stopTokens), stopTokens.count)
        (p.stop_strings, p.stop_strings_count) = (arena.array(stopStrings.map(arena.text)), stopStrings.count)
        (p.session, p.document) = (arena.optional(session), arena.optional(document))
        (p.task, p.flags, p.cache_salt) = (task, options.rawValue, cacheSalt)
        (p.top_logprobs, p.logprobs_from) = (topLogprobs, logprobsFrom)
        (p.embedding.pooling, p.embedding.normalization) = (pooling.rawValue, normalization.rawValue)
        (p.logprob_tokens, p.logprob_tokens_count) = (arena.array(logprobTokens), logprobTokens.count)
        p.constraint = constraint?.parameters(arena) ?? bn_constraint()
        p.constraint.json_flags = json.rawValue
        (p.adapter, p.speculation, p.min_new_tokens) = (adapter?.handle, speculation.rawValue, minTokens)
        sampling(&p.sampling, arena)
        func set<T>(_ field: WritableKeyPath<bn_request_params, T>, _ value: T?) {
            if let value { p[keyPath: field] = value }
        }
        set(\.max_new_tokens, maxTokens)
        set(\.max_reasoning_tokens, maxReasoningTokens)
        set(\.adapter_scale, adapterScale)
        set(\.draft_tokens, draftTokens)
        set(\.timeout_ms, timeoutMilliseconds)
        set(\.queue_timeout_ms, queueTimeoutMilliseconds)
        set(\.priority, priority.map(UInt32.init))
        return p
    }

    /// What says how tokens are drawn.
    private func sampling(_ p: inout bn_sampling, _ arena: Arena) {
        func set<T>(_ field: WritableKeyPath<bn_sampling, T>, _ value: T?) {
            if let value { p[keyPath: field] = value }
        }
        p.seed = seed
        set(\.temperature, temperature)
        set(\.temperature_range, temperatureRange)
        set(\.temperature_exponent, temperatureExponent)
        set(\.top_n_sigma, topNSigma)
        set(\.top_k, topK)
        set(\.typical_p, typicalP)
        set(\.top_p, topP)
        set(\.min_p, minP)
        set(\.xtc_probability, xtcProbability)
        set(\.xtc_threshold, xtcThreshold)
        set(\.mirostat_tau, mirostatTau)
        set(\.mirostat_eta, mirostatEta)
        set(\.repetition_penalty, repetitionPenalty)
        set(\.frequency_penalty, frequencyPenalty)
        set(\.presence_penalty, presencePenalty)
        set(\.penalty_window, penaltyWindow)
        set(\.dry_multiplier, dryMultiplier)
        set(\.dry_base, dryBase)
        set(\.dry_allowed_length, dryAllowedLength)
        set(\.dry_window, dryWindow)
        (p.samplers, p.samplers_count) = (arena.array(samplers.map { $0.rawValue }), samplers.count)
        let biases = logitBias.map { bn_logit_bias(token: $0.key, bias: $0.value) }
        (p.logit_bias, p.logit_bias_count) = (arena.array(biases), biases.count)
        (p.bad_words, p.bad_words_count) = (arena.array(badWords.map(arena.text)), badWords.count)
        if let dryBreakers { // one more, as no elements are not the same as none set
            p.dry_breakers = arena.array(dryBreakers.map(arena.text) + [bn_string()])
            p.dry_breakers_count = dryBreakers.count
        }
    }
}

/// What an output must match. bn_engine.h describes each kind.
public enum Constraint: Sendable {
    /// A JSON schema, as JSON.
    case jsonSchema(String)
    case jsonObject
    case regex(String)
    case lark(String)
    case gbnf(String)

    /// The C struct, whose text is in the arena.
    func parameters(_ arena: Arena) -> bn_constraint {
        var c = bn_constraint()
        switch self {
        case .jsonSchema(let schema): (c.kind, c.text) = (BN_CONSTRAINT_JSON_SCHEMA, arena.text(schema))
        case .jsonObject: c.kind = BN_CONSTRAINT_JSON_OBJECT
        case .regex(let expression): (c.kind, c.text) = (BN_CONSTRAINT_REGEX, arena.text(expression))
        case .lark(let grammar): (c.kind, c.text) = (BN_CONSTRAINT_LARK, arena.text(grammar))
        case .gbnf(let grammar): (c.kind, c.text) = (BN_CONSTRAINT_GBNF, arena.text(grammar))
        }
        return c
    }
}

/// Who drafts tokens, for the model to verify several in one step.
public enum Speculation: UInt32, Sendable {
    /// A request's: as the engine's. An engine's: its `draftModel`, else nobody.
    case unset = 0
    case off
    /// The request's own text.
    case lookup
    /// The engine's `draftModel`.
    case draft
}
