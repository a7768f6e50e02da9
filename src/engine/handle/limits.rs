//! A request's prompt as tokens, and the extra state of a conversation with tools.

use super::answer::Answer;
use crate::base::{Error, Result};
use crate::engine::api::RequestParams;
use crate::engine::handle::config::RequestLimits;
use crate::text::Chat;
use crate::text::chat::no_template;
use crate::text::reply::{Parts, Reply, grammar};
use xxhash_rust::xxh64::Xxh64;

/// A prompt as tokens, with the parser and the grammar of its output.
#[derive(Default)]
pub struct Prompted {
    pub ids: Vec<u32>,
    /// Some: the output is parsed.
    pub answer: Option<Answer>,
    /// Grammar that the output must match, in Lark.
    pub grammar: Option<String>,
}

impl RequestLimits<'_> {
    /// Renders a conversation with the model's chat template, and tokenizes it.
    pub fn chat(&self, source: &str, params: &RequestParams) -> Result<Prompted> {
        let template = self.chat.ok_or_else(no_template)?;
        let chat = Chat::parse(source)?;
        let made = template.render_chat(&chat)?;
        let tokenizer = self.tokenizer()?;
        let ids = tokenizer.encode_chat(&made)?;
        let mut parts = Parts::of(&chat, template, &made.text)?;
        parts.seed = seed(&ids, params.sampling.seed);
        let control = |mark: &str| tokenizer.control_token(mark);
        let grammar = grammar(&chat, &parts, &control)?;
        if grammar.is_some() && params.constraint.is_some() {
            return Err(Error::invalid("constraint is set, and chat_json asks for calls: a request has one"));
        }
        if params.parse_output {
            parts.check(&chat)?;
        }
        let reply = params.parse_output.then(|| Reply::new(parts, &|mark| control(mark).is_some()));
        Ok(Prompted { ids, answer: reply.map(Answer::new), grammar })
    }
}

/// Seed for the ids of calls: the same prompt and seed give the same ids.
fn seed(prompt: &[u32], seed: u64) -> u64 {
    let mut hash = Xxh64::new(seed);
    prompt.iter().for_each(|id| hash.update(&id.to_le_bytes()));
    hash.digest()
}

#[cfg(test)]
mod tests;
