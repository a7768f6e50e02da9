//! The sampler chain, log probabilities and stop rules. Knows one request at a time.

/// Sampling parameters of one request. Defaults: greedy, no penalty.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off; over prompt and output tokens (Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// 0 is off; times a token's count in the output.
    pub frequency_penalty: f32,
    /// 0 is off; once for a token in the output.
    pub presence_penalty: f32,
    pub seed: u64,
    /// Also report the log probabilities of this many most likely tokens.
    pub top_logprobs: u32,
    /// Report the chosen token's log probability.
    pub logprobs: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            top_logprobs: 0,
            logprobs: false,
        }
    }
}
