//! The sampler chain, log probabilities and stop rules. Knows one request at a time.

mod philox;
mod sampler;
mod softmax;
mod stop;

pub use philox::philox4x32;
pub use sampler::Sampler;
pub use stop::StopMatcher;

use crate::base::{Error, Result};

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

/// The most `top_logprobs` that a request may ask for.
pub const MAX_TOP_LOGPROBS: u32 = 32;

impl SamplingParams {
    /// `InvalidArgument` with the field, its range and its value; NaN lies in no range.
    pub fn validate(&self) -> Result<()> {
        let above_0 = f32::from_bits(1);
        for (name, value, low, high, range) in [
            ("temperature", self.temperature, 0.0, 100.0, "0 to 100"),
            ("top_p", self.top_p, above_0, 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, above_0, 100.0, "above 0 and at most 100"),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0, "-100 to 100"),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0, "-100 to 100"),
        ] {
            if !(low..=high).contains(&value) {
                return Err(Error::invalid(format!("{name} must be {range}, not {value}")));
            }
        }
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            let n = self.top_logprobs;
            return Err(Error::invalid(format!("top_logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {n}")));
        }
        Ok(())
    }

    /// Entries that `Sampler::sample` reports per token: 0, or the chosen token's and `top_logprobs` more.
    pub fn logprobs_per_token(&self) -> u32 {
        match self.logprobs || self.top_logprobs > 0 {
            true => 1 + self.top_logprobs,
            false => 0,
        }
    }

    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// In C's layout: an event hands out its array of these as it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Logprob {
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        type Set = fn(&mut SamplingParams, f32);
        let fields: [(&str, Set, &[f32], &[f32]); 6] = [
            ("temperature", |p, x| p.temperature = x, &[0.0, 100.0], &[-0.1, 100.1, f32::INFINITY]),
            ("top_p", |p, x| p.top_p = x, &[1e-30, 1.0], &[0.0, -1.0, 1.1]),
            ("min_p", |p, x| p.min_p = x, &[0.0, 1.0], &[-0.1, 1.1]),
            ("repetition_penalty", |p, x| p.repetition_penalty = x, &[0.1, 100.0], &[0.0, -1.0, 101.0]),
            ("frequency_penalty", |p, x| p.frequency_penalty = x, &[-100.0, 100.0], &[-101.0, 101.0]),
            ("presence_penalty", |p, x| p.presence_penalty = x, &[-100.0, 100.0], &[-101.0, 101.0]),
        ];
        for (name, set, good, bad) in fields {
            for &x in good {
                let mut params = SamplingParams::default();
                set(&mut params, x);
                params.validate().unwrap();
            }
            for &x in bad.iter().chain(&[f32::NAN]) {
                let mut params = SamplingParams::default();
                set(&mut params, x);
                let message = params.validate().unwrap_err().message;
                assert!(message.starts_with(name), "{message}");
            }
        }
        let params = SamplingParams { top_logprobs: 33, ..Default::default() };
        assert!(params.validate().unwrap_err().message.contains("0 to 32"));
    }
}
