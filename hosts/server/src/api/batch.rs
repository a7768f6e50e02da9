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
use serde::Deserialize;
use serde_json::{Value, json};

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

/// An answer, or its next part. The last one has the tokens and the times, in milliseconds.
fn part(index: usize, text: &str, finish: Option<&bn::Finish>) -> Value {
    let mut part = json!({"index": index, "text": text, "finish_reason": finish_name(finish)});
    let Some(finish) = finish else { return part };
    if let Some(error) = &finish.error {
        part["message"] = error.message().into();
    }
    let (usage, times) = (&finish.usage, &finish.times);
    part["prompt_tokens"] = usage.prompt_tokens.into();
    part["generated_tokens"] = usage.generated_tokens.into();
    part["cached_tokens"] = usage.cached_tokens.into();
    for (name, time) in [
        ("queued_ms", times.queued),
        ("prefill_ms", times.prefill),
        ("first_token_ms", times.first_token),
        ("decode_ms", times.decode),
        ("total_ms", times.total),
    ] {
        part[name] = ((time.as_secs_f64() * 1e6).round() / 1e3).into();
    }
    part
}

pub struct Batch;

impl Api for Batch {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Own = fields.take()?;
        let value = own.prompts.ok_or_else(|| Failure::invalid("'prompts' is missing"))?;
        let prompts = prompts::read("prompts", &value)?;
        let prompts = prompts.into_iter().map(|prompt| prompts::begun(held, prompt)).collect();
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
            line(out, &part(at, &event.text, event.finish.as_ref()));
        }
    }

    fn failed(&mut self, out: &mut String, at: usize, failure: &Failure) {
        let message = &failure.message;
        line(out, &json!({"index": at, "text": "", "finish_reason": "error", "message": message}));
    }

    fn end(&mut self, out: &mut String, totals: &Totals, _failed: bool) {
        line(out, &json!({"usage": usage(totals)}));
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, totals: &Totals) -> Result<String> {
        let parts = answers.iter().enumerate();
        let results = parts.map(|(at, answer)| part(at, &answer.text, Some(&answer.finish)));
        Ok(json!({"results": results.collect::<Vec<_>>(), "usage": usage(totals)}).to_string())
    }
}
