//! The sampler's state of a request, kept from token to token.

use super::SamplingParams;
use super::pattern::Pattern;
use crate::base::{Result, reserve};

pub struct SamplerState {
    /// Mirostat's bound on a token's surprise, in bits.
    pub(super) mirostat: f32,
    breakers: Vec<Pattern>,
    /// Number of tokens whose text the breakers have seen, and number of tokens since the last one that completed a
    /// breaker.
    seen: usize,
    pub(super) unbroken: usize,
}

impl SamplerState {
    /// `InvalidArgument` for a breaker that is empty or too long.
    pub fn new(params: &SamplingParams) -> Result<Self> {
        let mut breakers = Vec::new();
        if params.dry.multiplier > 0.0 {
            let texts = &params.dry.breakers;
            reserve(&mut breakers, texts.len(), "DRY's breakers")?;
            for (i, text) in texts.iter().enumerate() {
                breakers.push(Pattern::new(text, &format_args!("dry_breakers[{i}]"))?);
            }
        }
        Ok(Self { mirostat: 2.0 * params.mirostat_tau, breakers, seen: 0, unbroken: 0 })
    }

    /// Returns whether a text contains a breaker.
    pub(super) fn breaks(&self, text: &[u8]) -> bool {
        self.breakers.iter().any(|breaker| breaker.is_in(text))
    }

    /// Searches the tokens since the last call for breakers. `text` gives a token's bytes.
    pub fn read<'t>(&mut self, prompt: &[u32], output: &[u32], text: &dyn Fn(u32) -> &'t [u8]) {
        if self.breakers.is_empty() {
            self.unbroken = prompt.len() + output.len();
            return;
        }
        for &token in prompt.iter().chain(output).skip(self.seen) {
            self.seen += 1;
            self.unbroken += 1;
            for byte in text(token) {
                for breaker in &mut self.breakers {
                    if breaker.advance(*byte) {
                        self.unbroken = 0;
                    }
                }
            }
        }
    }
}
