//! Objects that completions and chats share.
use super::{Common, logprobs, usage};
use crate::api::write;
use crate::failure::{Failure, Result, Shape};
use crate::models::Held;
use crate::run::{Call, Totals};
use serde::Serialize;
use serde_json::Value;

/// Maximum number of entries of `prompt_logprobs`, each some 80 bytes of the answer.
const MOST_PROMPT_ENTRIES: usize = 400_000;

/// The fields that each object of an answer begins with.
#[derive(Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

#[derive(Debug, Serialize)]
struct Answer<'a, C> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Value>,
    /// In a stream with usage: null, and the usage at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

/// Writes an answer's objects.
pub struct Writer {
    head: Head,
    pub model: bn::Model,
    include_usage: bool,
}

impl Writer {
    pub fn new(call: &Call, held: &Held, common: &Common, prefix: &str, object: &'static str) -> Self {
        let id = format!("{prefix}-{:016x}", call.id);
        let head = Head { id, object, created: call.created, model: held.shown().to_owned() };
        Self { head, model: held.model.clone(), include_usage: common.include_usage() }
    }

    fn answer<'a, C>(&'a self, choices: &'a [C], usage: Option<Value>) -> Answer<'a, C> {
        Answer { head: &self.head, choices, prompt_logprobs: None, usage }
    }

    /// Writes the next part of a choice.
    pub fn part(&self, out: &mut String, choice: impl Serialize) {
        write::data(out, &self.answer(&[choice], self.include_usage.then_some(Value::Null)));
    }

    pub fn failed(&self, out: &mut String, failure: &Failure) {
        write::data(out, &failure.object(Shape::OpenAi));
    }

    pub fn end(&self, out: &mut String, totals: &Totals) {
        if self.include_usage {
            write::data(out, &self.answer::<()>(&[], Some(usage(totals))));
        }
        out.push_str("data: [DONE]\n\n");
    }

    pub fn whole(
        &self,
        choices: &[impl Serialize],
        prompt_logprobs: Option<Value>,
        totals: &Totals,
    ) -> String {
        write::json(&Answer { prompt_logprobs, ..self.answer(choices, Some(usage(totals))) })
    }

    /// The log probabilities of prompts that were scored. More than an answer may have are refused.
    pub fn prompt_logprobs(&self, scores: &[bn::Answer]) -> Result<Vec<Value>> {
        if scores.iter().map(|score| score.logprobs.len()).sum::<usize>() > MOST_PROMPT_ENTRIES {
            let words = format!("'prompt_logprobs' would have more than {MOST_PROMPT_ENTRIES} entries");
            return Err(Failure::invalid(words));
        }
        let one =
            |score: &bn::Answer| logprobs::of_prompt(&self.model, &score.logprobs, score.logprobs_per_token);
        Ok(scores.iter().map(one).collect())
    }
}
