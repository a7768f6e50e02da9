import CBnEngine

/// A question about a prompt.
public struct Question: Sendable {
    public enum Kind: UInt32, Sendable {
        /// One of the options.
        case choice = 0
        /// A level: the options are its levels, and the first is level 0.
        case score
        /// Yes or no: two options, the first for yes. Without options: "Yes" and "No".
        case yesNo
    }
    public var kind: Kind
    /// Follows the prompt. After a conversation it ends the last message, or is a user's own.
    public var text: String
    public var options: [String]
    /// Its name in messages of errors.
    public var name: String
    public init(_ kind: Kind, _ text: String, options: [String] = [], name: String = "") {
        (self.kind, self.text, self.options, self.name) = (kind, text, options, name)
    }

    /// The C struct, which points into the arena.
    func parameters(_ arena: Arena) -> bn_question {
        var q = bn_question()
        (q.kind, q.name, q.text) = (kind.rawValue, arena.text(name), arena.text(text))
        (q.options, q.options_count) = (arena.array(options.map(arena.text)), options.count)
        return q
    }
}

/// The answer to a question.
public struct Decision: Sendable {
    public struct Option: Sendable {
        /// The sum of the log probabilities of its tokens.
        public let logprob: Double
        /// Its share among the question's options.
        public let probability: Double
    }
    /// Index of the most likely option.
    public let best: Int
    /// The probability of the best option; of a score the expected level; of yes or no the probability of yes.
    public let value: Double
    /// 0, if all options are equally likely, to 1; bn_engine.h says how it is computed.
    public let confidence: Double
    public let options: [Option]

    static func all(_ e: bn_event) -> [Decision] {
        let options = UnsafeBufferPointer(start: e.decision_options, count: e.decision_options_count)
        return UnsafeBufferPointer(start: e.decisions, count: e.decisions_count).map { answer in
            let own = options[Int(answer.first_option)..<Int(answer.first_option + answer.options_count)]
            return Decision(
                best: Int(answer.best), value: answer.value, confidence: answer.confidence,
                options: own.map { Option(logprob: $0.logprob, probability: $0.probability) })
        }
    }
}

extension Engine {
    /// The answers to questions about the request's prompt, which is computed once. Nothing is generated.
    public func decide(_ request: Request, _ questions: [Question]) async throws -> [Decision] {
        var decide = request
        (decide.questions, decide.task) = (questions, BN_TASK_DECIDE)
        let ending = try await last(of: stream(decide)).ending!
        if let failure = ending.failure { throw failure }
        return ending.decisions
    }
}
