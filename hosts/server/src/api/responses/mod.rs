//! POST /v1/responses, GET and DELETE /v1/responses/ID: OpenAI's newer API, for text and tools.
mod answer;
mod fields;
mod items;
mod references;
#[cfg(test)]
mod tests;
mod tools;

use super::pieces::{Kind, Piece, Pieces, Step};
use crate::api::write;
use crate::app::App;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::engine::generating;
use crate::run::{Api, Call, Generation, Totals, json, shape_of};
use crate::store::Kept;
use answer::{COMPLETED, FAILED, IN_PROGRESS, INCOMPLETE, item, part, status, text_names, usage};
use axum::body::Body;
use axum::http::{Response, StatusCode, request::Parts};
use fields::{Own, echo};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tools::Namespaces;

pub struct Responses {
    pieces: Pieces,
    writer: Writer,
}

struct Writer {
    app: Arc<App>,
    id: String,
    /// The response so far.
    response: Value,
    namespaces: Namespaces,
    /// Number of events sent.
    sent: u64,
    /// The conversation before the answer, as JSON without the last bracket. None: it is not kept.
    kept: Option<String>,
}

impl Api for Responses {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let asked = echo(fields);
        let mut own = Own::take(fields)?;
        let mut lease = call.app.memory.lease();
        if let Some(Value::Array(items)) = &mut own.input {
            references::resolve(items, &call.app.store, &mut lease)?;
        }
        let earlier = earlier(&call.app, own.previous_response_id.as_deref())?;
        let (conversation, namespaces) = own.conversation(fields, earlier.as_ref(), &mut lease)?;
        let mut request = generating(call, held, fields, own.format()?, Some(&conversation))?;
        request.max_new_tokens = own.max_output_tokens.unwrap_or_default().0;
        held.told(conversation)?.put(&mut request);
        let keeps = call.app.store.keeps() && own.store != Some(false);
        let id = call.app.store.id(call.id);
        let mut response = json!({
            "id": id,
            "object": "response",
            "created_at": call.created,
            "status": IN_PROGRESS,
            "background": false,
            "model": held.shown(),
            "error": null,
            "incomplete_details": null,
            "output": [],
            "temperature": decimal(request.sampling.temperature),
            "top_p": decimal(request.sampling.top_p),
            "store": keeps,
            "usage": null,
        });
        if let Value::Object(response) = &mut response {
            response.extend(asked);
        }
        let writer = Writer {
            app: call.app.clone(),
            id,
            response,
            namespaces,
            sent: 0,
            kept: keeps.then(|| items_before(earlier.as_deref(), own.input.as_ref())),
        };
        let generation = Generation::one(request, own.stream == Some(true));
        Ok((generation, Self { pieces: Pieces::default(), writer }))
    }

    fn begin(&mut self, out: &mut String) {
        self.writer.send_response(out, "created");
        self.writer.send_response(out, IN_PROGRESS);
    }

    fn event(&mut self, out: &mut String, _at: usize, event: &bn::Event) {
        let Self { pieces, writer } = self;
        pieces.event(event, &mut |step| writer.step(out, step, COMPLETED));
        if let Some(finish) = &event.finish {
            let status = status(finish);
            pieces.finish(&mut |step| writer.step(out, step, status));
            writer.finish(finish);
            writer.send_response(out, status);
        }
    }

    /// Clients look for one or the other event.
    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        let writer = &mut self.writer;
        let mut error = json!({"code": failure.code, "message": failure.message});
        writer.response["error"] = error.clone();
        writer.response["status"] = FAILED.into();
        error["param"] = Value::Null;
        writer.send(out, "error", &error);
        writer.send_response(out, FAILED);
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, _totals: &Totals) -> Result<String> {
        let Some(answer) = answers.into_iter().next() else { return Ok(String::new()) };
        let pieces = Pieces::of(answer.text, answer.reasoning, answer.tool_calls);
        let end = status(&answer.finish);
        for piece in &pieces {
            let status = if piece.index + 1 == pieces.len() { end } else { COMPLETED };
            let item = self.writer.item(piece, status);
            self.writer.output().push(item);
        }
        self.writer.finish(&answer.finish);
        Ok(write::json(&self.writer.response))
    }
}

/// The value of the number's shortest decimal form.
fn decimal(number: f32) -> Value {
    serde_json::from_str(&write::json(&number)).unwrap_or_default()
}

/// The response that a conversation continues.
fn earlier(app: &App, id: Option<&str>) -> Result<Option<Arc<Kept>>> {
    let Some(id) = id else { return Ok(None) };
    if !app.store.keeps() {
        let words = "'previous_response_id' is not supported: this server keeps no answers, so send the whole conversation";
        return Err(Failure::invalid(words));
    }
    let gone = || {
        let words = format!("there is no response '{}' here any more", shortened(id));
        Failure::new(StatusCode::BAD_REQUEST, "previous_response_not_found", words)
    };
    app.store.get(id).map(Some).ok_or_else(gone)
}

/// The items of a conversation before its answer, as JSON without the last bracket.
fn items_before(earlier: Option<&Kept>, input: Option<&Value>) -> String {
    let mut items = earlier.map_or("[", |kept| kept.items.trim_end_matches(']')).to_owned();
    let new = match input {
        Some(Value::Array(items)) => items.clone(),
        Some(text) => vec![json!({"role": "user", "content": text})],
        None => Vec::new(),
    };
    add_items(&mut items, &new);
    items
}

fn add_items(to: &mut String, items: &[impl Serialize]) {
    for item in items {
        if !to.ends_with('[') {
            to.push(',');
        }
        to.push_str(&write::json(item));
    }
}

impl Writer {
    fn item_id(&self, piece: &Piece) -> String {
        let prefix = match piece.kind {
            Kind::Reasoning => "rs",
            Kind::Text => "msg",
            Kind::Call { .. } => "fc",
        };
        references::item_id(prefix, &self.id, piece.index)
    }

    fn item(&self, piece: &Piece, status: &str) -> Value {
        item(&self.item_id(piece), piece, status, &self.namespaces)
    }

    /// The finished items.
    fn output(&mut self) -> &mut Vec<Value> {
        self.response["output"].as_array_mut().expect("the output is a list")
    }

    /// Ends the response, and stores it. If it is too large for that, it says so.
    fn finish(&mut self, finish: &bn::Finish) {
        let status = status(finish);
        self.response["status"] = status.into();
        self.response["usage"] = usage(&finish.usage);
        if status == INCOMPLETE {
            self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(mut items) = self.kept.take() {
            add_items(&mut items, self.output());
            items.push(']');
            let kept = Kept { response: write::json(&self.response), items };
            self.response["store"] = self.app.store.put(&self.id, kept).into();
        }
    }

    /// Writes the events of an item. `status`: its final status.
    fn step(&mut self, out: &mut String, step: Step, status: &str) {
        match step {
            Step::Begin(piece) => {
                let item = self.item(piece, IN_PROGRESS);
                self.send_item(out, "response.output_item.added", piece.index, &item);
                self.send_part(out, "response.content_part.added", piece);
            }
            Step::More(piece, text) => self.send_text(out, piece, "delta", ("delta", text)),
            Step::End(piece) => {
                let item = self.item(&piece, status);
                let (_, name) = text_names(&piece.kind);
                self.send_text(out, &piece, "done", (name, &piece.text));
                self.send_part(out, "response.content_part.done", &piece);
                self.send_item(out, "response.output_item.done", piece.index, &item);
                self.output().push(item);
            }
        }
    }

    /// Writes a numbered event.
    fn send(&mut self, out: &mut String, name: &str, fields: &impl Serialize) {
        #[derive(Serialize)]
        struct Numbered<'a, T> {
            sequence_number: u64,
            #[serde(flatten)]
            fields: &'a T,
        }
        write::event(out, name, &Numbered { sequence_number: self.sent, fields });
        self.sent += 1;
    }

    fn send_response(&mut self, out: &mut String, news: &str) {
        let response = std::mem::take(&mut self.response);
        self.send(out, &format!("response.{news}"), &BTreeMap::from([("response", &response)]));
        self.response = response;
    }

    fn send_item(&mut self, out: &mut String, name: &str, index: usize, item: &Value) {
        self.send(out, name, &json!({"output_index": index, "item": item}));
    }

    fn send_part(&mut self, out: &mut String, name: &str, piece: &Piece) {
        let Some(part) = part(&piece.kind, &piece.text) else { return };
        let id = self.item_id(piece);
        let fields = json!({"item_id": id, "output_index": piece.index, "content_index": 0, "part": part});
        self.send(out, name, &fields);
    }

    /// Writes an event with an item's text, or with its new part.
    fn send_text(&mut self, out: &mut String, piece: &Piece, news: &str, (name, text): (&str, &str)) {
        let mut fields = json!({"item_id": self.item_id(piece), "output_index": piece.index, name: text});
        if !matches!(piece.kind, Kind::Call { .. }) {
            fields["content_index"] = 0.into();
        }
        if piece.kind == Kind::Text {
            fields["logprobs"] = json!([]);
        }
        self.send(out, &format!("{}.{news}", text_names(&piece.kind).0), &fields);
    }
}

fn shortened(id: &str) -> String {
    id.chars().take(64).collect()
}

fn id_of(parts: &Parts) -> String {
    parts.uri.path().trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

fn not_there(app: &App, id: &str) -> Failure {
    let why = if app.store.keeps() { " any more" } else { ": this server keeps no answers" };
    let words = format!("there is no response '{}' here{why}", shortened(id));
    Failure::new(StatusCode::NOT_FOUND, "not_found", words)
}

/// Returns a stored response.
pub async fn get(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let id = id_of(&parts);
    match app.store.get(&id) {
        Some(kept) => json(kept.response.clone(), Call::new(&app, &parts)),
        None => not_there(&app, &id).response(shape_of(parts.uri.path())),
    }
}

/// Deletes a stored response.
pub async fn delete(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let id = id_of(&parts);
    if !app.store.remove(&id) {
        return not_there(&app, &id).response(shape_of(parts.uri.path()));
    }
    let text = json!({"id": id, "object": "response", "deleted": true}).to_string();
    json(text, Call::new(&app, &parts))
}
