//! What requests with conversations share, whatever their API: sampling, the engine's fields, a bound on reasoning.
use crate::failure::Result;
use crate::fields::{EXACT, Fields, Whole};
use crate::models::Held;
use crate::request::engine::generating;
use crate::request::sampling::Habit;
use crate::run::Call;
use serde::Deserialize;

/// Bounds on reasoning, under vLLM's, DashScope's and llama.cpp's names too; -1 is none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reasoning {
    max_reasoning_tokens: Option<Whole<-1, EXACT>>,
    thinking_token_budget: Option<Whole<-1, EXACT>>,
    thinking_budget: Option<Whole<-1, EXACT>>,
    reasoning_budget: Option<Whole<-1, EXACT>>,
}

impl Reasoning {
    /// None: no bound.
    pub fn bound(&self, held: &Held) -> Option<u32> {
        let all = [
            self.max_reasoning_tokens,
            self.thinking_token_budget,
            self.thinking_budget,
            self.reasoning_budget,
        ];
        match all.into_iter().flatten().next() {
            Some(tokens) => u32::try_from(tokens.0).ok(),
            None => held.options.reasoning_budget.and_then(|tokens| u32::try_from(tokens).ok()),
        }
    }
}

/// A chat's request to the engine, without its prompt: what APIs with conversations share.
pub fn template(call: &Call, held: &Held, fields: &mut Fields) -> Result<bn::Request> {
    let mut request = generating(call, held, fields, Habit::Chat)?;
    request.max_reasoning_tokens = fields.take::<Reasoning>()?.bound(held);
    request.parse_output = true;
    request.max_new_tokens = 0; // as many as the context leaves
    Ok(request)
}
