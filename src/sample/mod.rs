//! The sampler chain, log probabilities and stop rules. This layer handles one request at a time.

mod adjust;
mod edits;
mod filters;
mod kept;
mod left;
mod params;
mod pattern;
mod philox;
#[cfg(test)]
mod reference;
mod sampler;
mod search;
mod state;
mod stop;

pub use edits::Edits;
pub use filters::Filter;
pub use params::{Dry, MAX_BIASES, MAX_LISTED, MAX_TOP_LOGPROBS, SamplingParams};
pub use philox::philox4x32;
pub use sampler::{Sampler, drawn};
pub use state::SamplerState;
pub use stop::StopMatcher;

/// The tokens of a request so far, the tokens that end it, the tokens that may come next, and their texts.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    /// Tokens that are forbidden before `min_new_tokens`.
    pub ends: &'a [u32],
    /// `None`: all tokens.
    pub allowed: Option<Allowed<'a>>,
    /// Returns a token's text. None: tokens have no texts.
    pub text: Option<TextOf<'a>>,
    /// The host's `on_logits` has changed the logits.
    pub hooked: bool,
}

/// The bytes of a token's text.
pub type TextOf<'a> = &'a dyn Fn(u32) -> &'a [u8];

/// The tokens that a grammar allows.
#[derive(Clone, Copy)]
pub struct Allowed<'a> {
    /// One bit per token of the vocabulary, lowest token and lowest bit first.
    pub bits: &'a [u32],
    /// Whether the output is complete, so that only an end is allowed.
    pub complete: bool,
}

impl Allowed<'_> {
    pub fn has(&self, token: u32) -> bool {
        self.bits.get(token as usize / 32).is_some_and(|bits| bits >> (token % 32) & 1 == 1)
    }
}

impl<'a> Known<'a> {
    pub fn len(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of the prompt and the part of the output among the latest `window` tokens; 0: all tokens.
    fn latest(&self, window: u32) -> (&'a [u32], &'a [u32]) {
        let from = if window == 0 { 0 } else { self.len().saturating_sub(window as usize) };
        let of_prompt = from.min(self.prompt.len());
        (&self.prompt[of_prompt..], &self.output[from - of_prompt..])
    }

    fn ends_with(&self, tokens: &[u32]) -> bool {
        let (prompt, output) = self.latest(tokens.len() as u32);
        tokens.is_empty() || prompt.iter().chain(output).eq(tokens)
    }
}

/// In C's layout, because an event hands out its array of these directly.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Logprob {
    pub token: u32,
    /// A natural logarithm.
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
