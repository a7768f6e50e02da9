//! POST /v1/messages and /v1/messages/count_tokens, Anthropic's API.
mod answer;
mod conversation;
mod fields;
#[cfg(test)]
mod tests;

use super::direct;
use super::pieces::{Kind, Piece, Pieces, Step};
use crate::api::write;
use crate::app::App;
use crate::failure::{Failure, Result, Shape};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::conversation::{Conversation, Role};
use crate::request::engine::generating;
use crate::request::forms::Told;
use crate::request::length::context;
use crate::request::prompts;
use crate::run::{Api, Call, Generation, Totals};
use answer::{block, delta, stop, usage};
use axum::body::Body;
use axum::http::{Response, request::Parts};
use fields::{Asked, Generating};
use serde_json::{Value, json};
use std::sync::Arc;

/// The field that makes the answer continue the last message.
const CONTINUE: &str = "continue_final_message";

pub struct Messages {
    pieces: Pieces,
    writer: Writer,
}

struct Writer {
    id: String,
    model: String,
    stops: Vec<String>,
    prompt_tokens: u32,
    hides_thinking: bool,
    /// The request only fills the cache, so its one token is left out.
    fills: bool,
}

impl Api for Messages {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let own: Generating = fields.take()?;
        let asked = Asked::take(fields)?;
        if let Some(budget) = asked.budget {
            // Anthropic's own field takes precedence.
            fields.insert("max_reasoning_tokens", budget.into());
        }
        let most = own.max_tokens.ok_or_else(|| Failure::invalid("'max_tokens' is missing"))?.0;
        let fills = most == 0;
        let mut request = generating(call, held, fields, asked.format, Some(&asked.conversation))?;
        request.max_new_tokens = if fills { 1 } else { u32::try_from(most).unwrap_or(0) };
        request.stop_strings = prompts::stops("stop_sequences", own.stop_sequences.as_ref())?;
        let (told, tokens) = prompt(held, asked.conversation)?;
        let prompt_tokens = fits(held, tokens)?;
        told.put(&mut request);
        let writer = Writer {
            id: format!("msg_{:016x}", call.id),
            model: held.shown().to_owned(),
            stops: request.stop_strings.clone(),
            prompt_tokens,
            hides_thinking: asked.hides_thinking,
            fills,
        };
        let generation = Generation::one(request, own.stream == Some(true));
        Ok((generation, Self { pieces: Pieces::default(), writer }))
    }

    fn begin(&mut self, out: &mut String) {
        // The number of cached tokens is known only at the end.
        let tokens = bn::Usage { prompt_tokens: self.writer.prompt_tokens, ..bn::Usage::default() };
        let message = self.writer.message(Vec::new(), &Value::Null, &usage(&tokens));
        write::event(out, "message_start", &json!({"message": message}));
    }

    fn event(&mut self, out: &mut String, _at: usize, event: &bn::Event) {
        if !self.writer.fills {
            self.pieces.event(event, &mut |step| self.writer.step(out, step));
        }
        if let Some(finish) = &event.finish {
            if !self.writer.fills {
                self.pieces.finish(&mut |step| self.writer.step(out, step));
            }
            let (delta, usage) = self.writer.end(finish);
            let fields = json!({"delta": delta, "usage": usage});
            write::event(out, "message_delta", &fields);
        }
    }

    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        write::event(out, "error", &json!({"error": failure.object(Shape::Anthropic)["error"]}));
    }

    fn end(&mut self, out: &mut String, _totals: &Totals, failed: bool) {
        if !failed {
            write::event(out, "message_stop", &json!({}));
        }
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, _totals: &Totals) -> Result<String> {
        let Some(answer) = answers.into_iter().next() else { return Ok(String::new()) };
        let (stop, usage) = self.writer.end(&answer.finish);
        let mut pieces = Pieces::of(answer.text, answer.reasoning, answer.tool_calls);
        pieces.retain(|_| !self.writer.fills);
        let blocks = pieces.into_iter().map(|piece| self.writer.block(piece)).collect();
        Ok(write::json(&self.writer.message(blocks, &stop, &usage)))
    }
}

impl Writer {
    fn message(&self, content: Vec<Value>, stop: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop["stop_reason"],
            "stop_sequence": stop["stop_sequence"],
            "usage": usage,
        })
    }

    /// The reason of the answer's end, and its usage.
    fn end(&self, finish: &bn::Finish) -> (Value, Value) {
        let (mut stop, mut usage) = (stop(finish, &self.stops), usage(&finish.usage));
        if self.fills {
            stop = json!({"stop_reason": "max_tokens", "stop_sequence": null});
            usage["output_tokens"] = 0.into();
        }
        (stop, usage)
    }

    fn hides(&self, piece: &Piece) -> bool {
        self.hides_thinking && piece.kind == Kind::Reasoning
    }

    fn block(&self, mut piece: Piece) -> Value {
        if self.hides(&piece) {
            piece.text.clear();
        }
        block(&piece)
    }

    fn step(&self, out: &mut String, step: Step) {
        match step {
            Step::Begin(piece) => {
                let fields = json!({"index": piece.index, "content_block": block(piece)});
                write::event(out, "content_block_start", &fields);
            }
            Step::More(piece, text) if !self.hides(piece) => {
                let fields = json!({"index": piece.index, "delta": delta(&piece.kind, text)});
                write::event(out, "content_block_delta", &fields);
            }
            Step::More(..) => {}
            Step::End(piece) => write::event(out, "content_block_stop", &json!({"index": piece.index})),
        }
    }
}

/// The conversation for the engine, and its number of tokens. If the last message is the assistant's, the answer
/// continues it, unless the template does not support that.
fn prompt(held: &Held, conversation: Conversation) -> Result<(Told, usize)> {
    let count = |conversation: Conversation| {
        let told = held.told(conversation)?;
        let tokens = held.length(&told)?;
        Ok((told, tokens))
    };
    let last = conversation.messages.last();
    let begun = last.is_some_and(|message| {
        message.role == Role::Assistant
            && message.calls.is_empty()
            && message.content.as_deref().is_some_and(|text| !text.is_empty())
    });
    let explicit = conversation.more.contains_key(CONTINUE);
    if begun && !explicit && !conversation.calls_only() {
        let mut going_on = conversation.clone();
        going_on.more.insert(CONTINUE.to_owned(), true.into());
        if let Ok(counted) = count(going_on) {
            return Ok(counted);
        }
    }
    count(conversation)
}

/// Refuses a prompt that leaves no room for a token, in the words on which Anthropic's clients shorten it.
fn fits(held: &Held, tokens: usize) -> Result<u32> {
    let most = context(held)?.saturating_sub(1);
    u32::try_from(tokens)
        .ok()
        .filter(|_| tokens <= most)
        .ok_or_else(|| Failure::invalid(format!("prompt is too long: {tokens} tokens > {most} maximum")))
}

/// Answers with the number of tokens that a message's prompt has.
pub async fn count_tokens(app: Arc<App>, parts: Parts, body: Body) -> Response<Body> {
    direct::answer(app, parts, body, count).await
}

fn count(call: &mut Call, held: &Held, mut fields: Fields) -> Result<String> {
    fields.take::<Generating>()?;
    let asked = Asked::take(&mut fields)?;
    call.app.unknown_fields(&fields)?;
    let (_, tokens) = prompt(held, asked.conversation)?;
    Ok(json!({ "input_tokens": tokens }).to_string())
}
