import CBnEngine

/// The likelihood of a text after a prompt.
public struct Score: Sendable {
    /// The sum of its tokens' log probabilities.
    public let logprob: Double
    /// Number of these tokens. A text's very first token has no log probability.
    public let tokens: Int
    /// Each of these tokens is the most likely one at its place.
    public let greedy: Bool

    /// `logprobs`: for each token its own log probability, and that of the most likely one.
    init(_ logprobs: [[Logprob]]) {
        let known = logprobs.filter { !$0[0].logprob.isNaN }
        logprob = known.reduce(0) { $0 + Double($1[0].logprob) }
        tokens = known.count
        greedy = known.allSatisfy { $0[0].token == $0[1].token }
    }
}

extension Engine {
    /// The likelihood of each text after the request's prompt, which is computed once. Nothing is generated. A text
    /// begins with the first token that is not the prompt's. All are submitted at once.
    public func score(_ request: Request, _ texts: [String]) async throws -> [Score] {
        let tokenizer = try model()
        let prompt = request.prompt ?? ""
        let before = try tokenizer.tokenize(prompt, special: true)
        let streams = try texts.map { text -> Stream in
            let tokens = try tokenizer.tokenize(prompt + text, special: true)
            var each = request
            (each.prompt, each.promptTokens, each.topLogprobs) = (nil, tokens, 1)
            each.logprobsFrom = UInt32(zip(before, tokens).prefix { $0.0 == $0.1 }.count)
            each.task = BN_TASK_SCORE
            return try stream(each)
        }
        var scores: [Score] = []
        for stream in streams {
            let event = try await last(of: stream)
            if let failure = event.ending?.failure { throw failure }
            scores.append(Score(event.logprobs))
        }
        return scores
    }
}
