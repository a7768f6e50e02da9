import CBnEngine

/// A message of a conversation. `content` never becomes a control token.
public struct Message: Sendable {
    public var role, content: String
    public init(role: String, content: String) { (self.role, self.content) = (role, content) }
}

/// A prompt, and the options of the request. Values that are nil have the defaults of bn_engine.h.
public struct Request: Sendable {
    /// The prompt, as one of these four.
    public var prompt: String?
    public var promptTokens: [UInt32]?
    public var messages: [Message]?
    /// A conversation with tools, as JSON.
    public var chatJSON: String?
    /// Pictures, for models that see (`Model.Info.sees`): one for each part `{"type": "image"}` of `chatJSON`, or each
    /// token that stands for a picture.
    public var pictures: [Picture] = []

    /// With `.parseOutput`: number of tokens of reasoning after which its end marker is forced; nil: no
    /// limit.
    public var maxReasoningTokens: UInt32?
    /// 0: as many as the engine's context leaves.
    public var maxTokens: UInt32?
    /// Number of tokens before an end token is allowed.
    public var minTokens: UInt32 = 0
    public var stopStrings: [String] = []
    public var stopTokens: [UInt32] = []
    /// The grammar that the output must match.
    public var constraint: Constraint?
    /// The style of JSON in constraints and calls of tools.
    public var json: JSON = []
    /// The same seed, prompt and parameters give the same output.
    public var seed: UInt64 = 0
    public var temperature, temperatureRange, temperatureExponent: Float?
    public var topNSigma, typicalP, topP, minP, xtcProbability, xtcThreshold, mirostatTau, mirostatEta: Float?
    public var topK: UInt32?
    /// The samplers in their order; empty: all, in the order of their numbers.
    public var samplers: [Sampler] = []
    public var repetitionPenalty, frequencyPenalty, presencePenalty, dryMultiplier, dryBase: Float?
    public var penaltyWindow, dryAllowedLength, dryWindow: UInt32?
    public var dryBreakers: [String]?
    /// The numbers that are added to the logits of tokens.
    public var logitBias: [UInt32: Float] = [:]
    public var badWords: [String] = []
    /// Changes the logits before each token.
    public var onLogits: LogitsHook?
    public var timeoutMilliseconds, queueTimeoutMilliseconds: UInt32?
    /// Priority, 0 to 255, which is the most urgent.
    public var priority: UInt8?
    /// BN_REQUEST_* bits of the output and the cache.
    public var options: Options = []
    /// With `.logprobs`: the number of most likely tokens to report.
    public var topLogprobs: UInt32 = 0
    /// Further tokens to report.
    public var logprobTokens: [UInt32] = []
    /// With `.promptLogprobs` and `.score`: the first position of the prompt to report.
    public var logprobsFrom: UInt32 = 0
    public var adapter: Adapter?
    public var adapterScale: Float?
    /// The source of drafts, which change no output.
    public var speculation: Speculation = .unset
    public var draftTokens: UInt32?
    public var cacheSalt: UInt64 = 0
    /// Keeps the conversation's keys and values under this name for its next turn.
    public var session: String?
    /// The document, for `rerank`.
    var document: String?
    /// The questions, for `decide`.
    var questions: [Question] = []
    /// The pooling, for `embed`.
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
        /// With `chatJSON`: separate reasoning and calls of tools from text.
        public static let parseOutput = Options(rawValue: BN_REQUEST_PARSE_OUTPUT)
        /// With `.logprobs`: those of the distribution that the token is drawn from.
        public static let chainLogprobs = Options(rawValue: BN_REQUEST_CHAIN_LOGPROBS)
        /// With `.echoPrompt` and `.logprobs`: those of the prompt's tokens too.
        public static let promptLogprobs = Options(rawValue: BN_REQUEST_PROMPT_LOGPROBS)
    }
    public struct JSON: OptionSet, Sendable {
        public let rawValue: UInt32
        public init(rawValue: UInt32) { self.rawValue = rawValue }
        /// No white space between tokens.
        public static let compact = JSON(rawValue: BN_JSON_COMPACT)
        /// Up to 32 characters of white space.
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
        (p.questions, p.questions_count) = (arena.array(questions.map { $0.parameters(arena) }), questions.count)
        (p.pictures, p.pictures_count) = (arena.array(pictures.map { $0.parameters(arena) }), pictures.count)
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

    /// Sets the sampling parameters.
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
        if let dryBreakers { // one more, because an empty list differs from one that is not set
            p.dry_breakers = arena.array(dryBreakers.map(arena.text) + [bn_string()])
            p.dry_breakers_count = dryBreakers.count
        }
    }
}

/// The grammar that an output must match. bn_engine.h describes each kind.
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

/// The source of drafted tokens, of which the model verifies several in one step.
public enum Speculation: UInt32, Sendable {
    /// For a request: the engine's. For an engine: its `draftModel`, or else none.
    case unset = 0
    case off
    /// The request's own text.
    case lookup
    /// The engine's `draftModel`.
    case draft
}
