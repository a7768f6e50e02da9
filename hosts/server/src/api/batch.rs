//! POST /generate/batch: prompts in, results with their times out; with `stream`, a line of JSON for each event.
use super::openai::{finish_name, usage};
use crate::api::write::line;
use crate::failure::{Failure, Result};
use crate::fields::{Fields, U32, Whole};
use crate::models::Held;
use crate::request::constraint::Format;
use crate::request::engine::generating;
use crate::request::prompts;
use crate::run::{Api, Call, Generation, Totals};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    prompts: Option<Value>,
    max_tokens: Option<Whole<1, U32>>,
    max_new_tokens: Option<Whole<0, U32>>,
    n: Option<Whole<1, 128>>,
    stop: Option<Value>,
    stream: Option<bool>,
}

/// An answer, or its next part.
#[derive(Debug, Serialize)]
struct Part<'a> {
    index: usize,
    text: &'a str,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(flatten)]
    end: Option<End>,
}

/// Tokens and times of an answer, in milliseconds.
#[derive(Debug, Serialize)]
struct End {
    prompt_tokens: u32,
    generated_tokens: u32,
    cached_tokens: u32,
    queued_ms: f64,
    prefill_ms: f64,
    first_token_ms: f64,
    decode_ms: f64,
    total_ms: f64,
}

impl End {
    fn of(finish: &bn::Finish) -> Self {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let (usage, times) = (&finish.usage, &finish.times);
        Self {
            prompt_tokens: usage.prompt_tokens,
            generated_tokens: usage.generated_tokens,
            cached_tokens: usage.cached_tokens,
            queued_ms: ms(times.queued),
            prefill_ms: ms(times.prefill),
            first_token_ms: ms(times.first_token),
            decode_ms: ms(times.decode),
            total_ms: ms(times.total),
        }
    }
}

impl<'a> Part<'a> {
    fn new(index: usize, text: &'a str, finish: Option<&'a bn::Finish>) -> Self {
        Self {
            index,
            text,
            finish_reason: finish_name(finish),
            message: finish.and_then(|finish| finish.error.as_ref()).map(bn::Error::message),
            end: finish.map(End::of),
        }
    }
}

pub struct Batch;

impl Api for Batch {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Own = fields.take()?;
        let value = own.prompts.ok_or_else(|| Failure::invalid("'prompts' is missing"))?;
        let prompts = prompts::read("prompts", &value)?;
        let mut request = generating(call, held, fields, Format::default(), None)?;
        request.stop_strings = prompts::stops("stop", own.stop.as_ref())?;
        if let Some(most) = own.max_tokens.map(Whole::u32).or(own.max_new_tokens.map(Whole::u32)) {
            request.max_new_tokens = most;
        }
        let samples = own.n.map_or(1, |n| n.u32() as usize);
        Ok((Generation::samples(&request, prompts, samples, own.stream == Some(true)), Self))
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn event(&mut self, out: &mut String, at: usize, event: &bn::Event) {
        if !event.text.is_empty() || event.finish.is_some() {
            line(out, &Part::new(at, &event.text, event.finish.as_ref()));
        }
    }

    fn failed(&mut self, out: &mut String, at: usize, failure: &Failure) {
        let message = Some(failure.message.as_str());
        line(out, &Part { finish_reason: Some("error"), message, ..Part::new(at, "", None) });
    }

    fn end(&mut self, out: &mut String, totals: &Totals, _failed: bool) {
        line(out, &json!({"usage": usage(totals)}));
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let parts = answers.iter().enumerate();
        let results = parts.map(|(at, answer)| Part::new(at, &answer.text, Some(&answer.finish)));
        Ok(json!({"results": results.collect::<Vec<_>>(), "usage": usage(totals)}).to_string())
    }
}
