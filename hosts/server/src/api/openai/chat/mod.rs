//! POST /v1/chat/completions.
mod answer;
mod conversation;

pub use conversation::{Reasoning, conversation, effort, thinks};

use super::completion::scoring;
use super::{Common, MOST_ALTERNATIVES, Writer, finish_name, token_logprobs};
use crate::failure::{Failure, Result};
use crate::fields::{Fields, Whole};
use crate::models::Held;
use crate::request::constraint::Format;
use crate::request::engine::generating;
use crate::request::length::NewTokens;
use crate::request::prompts;
use crate::run::{Api, Call, Generation, Totals};
use answer::{CallPart, Chunk, Delta, message};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    max_tokens: Option<NewTokens>,
    max_completion_tokens: Option<NewTokens>,
    logprobs: Option<bool>,
    top_logprobs: Option<Whole<0, MOST_ALTERNATIVES>>,
}

pub struct Chat {
    writer: Writer,
    samples: usize,
}

impl Api for Chat {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Own = fields.take()?;
        let common: Common = fields.take()?;
        if fields.get("messages").is_none() {
            return Err(Failure::invalid("'messages' is missing"));
        }
        let conversation = conversation(fields)?;
        let mut request = generating(call, held, fields, Format::default(), Some(&conversation))?;
        // Names of one bound; the smallest value counts.
        let most = [
            own.max_tokens,
            own.max_completion_tokens,
            common.max_new_tokens.map(|most| NewTokens(most.u32())),
        ];
        let most = most.into_iter().flatten().map(|most| most.0).filter(|most| *most > 0);
        request.max_new_tokens = most.min().unwrap_or(0);
        request.stop_strings = prompts::stops("stop", common.stop.as_ref())?;
        request.logprobs = own.logprobs == Some(true);
        request.top_logprobs = own.top_logprobs.map_or(0, Whole::u32);
        if request.top_logprobs > 0 && !request.logprobs {
            return Err(Failure::invalid("'top_logprobs' needs 'logprobs' to be true"));
        }
        let stream = common.stream == Some(true);
        if common.prompt_logprobs.is_some() && stream {
            return Err(Failure::invalid("'prompt_logprobs' cannot be streamed"));
        }
        held.told(conversation)?.put(&mut request);
        let prompt = request.prompt.clone();
        let samples = common.n.map_or(1, |n| n.u32() as usize);
        let mut generation = Generation::samples(&request, vec![prompt.clone()], samples, stream);
        if let (Some(top), bn::Prompt::Chat(chat)) = (common.prompt_logprobs, &prompt) {
            let prompt =
                bn::Prompt::Tokens(held.model.chat_tokenize(chat).map_err(|error| held.failure(&error))?);
            generation.requests.push(bn::Request { prompt, ..scoring(&request, top.u32()) });
            generation.scores = 1;
        }
        let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
        let writer = Writer::new(call, held, &common, "chatcmpl", object);
        Ok((generation, Self { writer, samples }))
    }

    fn begin(&mut self, out: &mut String) {
        for index in 0..self.samples {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            self.writer.part(out, Chunk { index, delta, logprobs: None, finish_reason: None });
        }
    }

    /// As in OpenAI's API, the end is a separate event, at which clients take a call as complete.
    fn event(&mut self, out: &mut String, at: usize, event: &bn::Event) {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let delta = Delta {
            role: None,
            content: some(&event.text),
            reasoning_content: some(&event.reasoning),
            tool_calls: event.tool_calls.iter().map(CallPart::new).collect(),
        };
        let logprobs = self.logprobs_of(&event.logprobs, event.logprobs_per_token);
        let news =
            delta.content.is_some() || delta.reasoning_content.is_some() || !delta.tool_calls.is_empty();
        if news || logprobs.is_some() {
            self.writer.part(out, Chunk { index: at, delta, logprobs, finish_reason: None });
        }
        if event.finish.is_some() {
            let finish_reason = finish_name(event.finish.as_ref());
            self.writer
                .part(out, Chunk { index: at, delta: Delta::default(), logprobs: None, finish_reason });
        }
    }

    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        self.writer.failed(out, failure);
    }

    fn end(&mut self, out: &mut String, totals: &Totals, _failed: bool) {
        self.writer.end(out, totals);
    }

    fn whole(&mut self, mut answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let scores = answers.split_off(self.samples);
        let prompt_logprobs = self.writer.prompt_logprobs(&scores)?.pop();
        let choice = |(index, answer): (usize, bn::Answer)| {
            json!({
                "index": index,
                "logprobs": self.logprobs_of(&answer.logprobs, answer.logprobs_per_token),
                "finish_reason": finish_name(Some(&answer.finish)),
                "message": message(answer),
            })
        };
        let choices: Vec<_> = answers.into_iter().enumerate().map(choice).collect();
        Ok(self.writer.whole(&choices, prompt_logprobs, totals))
    }
}

impl Chat {
    fn logprobs_of(&self, entries: &[bn::Logprob], per_token: usize) -> Option<Value> {
        let content =
            (!entries.is_empty()).then(|| token_logprobs(&self.writer.model, entries, per_token))?;
        Some(json!({"content": content, "refusal": null}))
    }
}
