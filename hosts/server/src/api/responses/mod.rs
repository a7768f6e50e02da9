//! POST /v1/responses, GET and DELETE /v1/responses/ID: OpenAI's newer API, for text and tools.
mod answer;
mod fields;
mod items;
#[cfg(test)]
mod tests;
mod tools;

use super::openai::template;
use super::pieces::{Kind, Piece, Pieces, Step};
use crate::api::write;
use crate::app::App;
use crate::failure::{Failure, Result};
use crate::fields::Fields;
use crate::models::Held;
use crate::request::constraint::Formats;
use crate::run::{Api, Call, Generation, Totals, json, shape_of};
use crate::store::Kept;
use answer::{Error, Event, Incomplete, Item, Part, Status, Text, Usage, text_events};
use axum::body::Body;
use axum::http::{Response, StatusCode, request::Parts};
use fields::{Own, echo};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tools::Namespaces;

pub struct Responses {
    pieces: Pieces,
    writer: Writer,
}

/// What all of an answer's objects need, and the items that are done.
struct Writer {
    app: Arc<App>,
    number: u64,
    id: String,
    model: String,
    created: u64,
    temperature: f32,
    top_p: f32,
    asked: Map<String, Value>,
    namespaces: Namespaces,
    output: Vec<Item>,
    /// Events that were sent.
    sent: u64,
    /// The conversation before the answer, as JSON without the last bracket. None: it is not kept.
    kept: Option<String>,
}

impl Api for Responses {
    fn read(call: &Call, held: &Held, fields: &mut Fields) -> Result<(Generation, Self)> {
        let asked = echo(fields);
        let own = Own::take(fields)?;
        let earlier = earlier(&call.app, own.previous_response_id.as_deref())?;
        let mut request = template(call, held, fields)?;
        request.max_new_tokens = own.most()?;
        let format = own.format()?;
        let (conversation, namespaces) =
            own.conversation(fields, earlier.as_ref(), &mut call.app.memory.lease())?;
        let (tools, calls_only) = (!conversation.tools.is_empty(), conversation.calls_only());
        request.constraint = fields.take::<Formats>()?.finish(held, format, tools, calls_only)?;
        request.prompt = bn::Prompt::Chat(bn::Chat::Json(conversation.into_json(held.manners)?));
        let keeps = call.app.store.keeps() && own.store != Some(false);
        let writer = Writer {
            app: call.app.clone(),
            number: call.id,
            id: call.app.store.id(call.id),
            model: held.shown().to_owned(),
            created: call.created,
            temperature: request.sampling.temperature,
            top_p: request.sampling.top_p,
            asked,
            namespaces,
            output: Vec::new(),
            sent: 0,
            kept: keeps.then(|| items_before(earlier.as_deref(), own.input.as_ref())),
        };
        let mut generation = Generation::one(request, own.stream == Some(true));
        generation.in_order = tools;
        Ok((generation, Self { pieces: Pieces::default(), writer }))
    }

    fn begin(&mut self, out: &mut String) {
        self.writer.send_response(out, "response.created", None);
        self.writer.send_response(out, "response.in_progress", None);
    }

    fn event(&mut self, out: &mut String, _at: usize, event: &bn::Event) {
        let Self { pieces, writer } = self;
        pieces.event(event, &mut |step| writer.step(out, step, Status::Completed));
        if let Some(finish) = &event.finish {
            let status = Status::of(finish);
            pieces.finish(&mut |step| writer.step(out, step, status));
            writer.keep(finish);
            writer.send_response(out, status.event(), Some(finish));
        }
    }

    /// Clients look for either event.
    fn failed(&mut self, out: &mut String, _at: usize, failure: &Failure) {
        let error = Error { code: failure.code, message: &failure.message };
        let number = self.writer.next();
        let told = Event::Error { code: failure.code, param: None, message: &failure.message };
        send(out, "error", number, &told);
        let number = self.writer.next();
        let mut response = self.writer.response(None);
        (response.status, response.error) = (Status::Failed, Some(error));
        send(out, Status::Failed.event(), number, &Event::Response { response });
    }

    fn whole(&mut self, answers: Vec<bn::Answer>, _totals: &Totals) -> Result<String> {
        let Some(answer) = answers.first() else { return Ok(String::new()) };
        let (pieces, end) = (Pieces::of(answer), Status::of(&answer.finish));
        for piece in &pieces {
            let status = if piece.index + 1 == pieces.len() { end } else { Status::Completed };
            let item = self.writer.item(piece, status);
            self.writer.output.push(item);
        }
        self.writer.keep(&answer.finish);
        Ok(self.writer.text(Some(&answer.finish)))
    }
}

/// The response that a conversation goes on with.
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
    fn next(&mut self) -> u64 {
        self.sent += 1;
        self.sent - 1
    }

    fn item_id(&self, piece: &Piece) -> String {
        let prefix = match piece.kind {
            Kind::Reasoning => "rs",
            Kind::Text => "msg",
            Kind::Call { .. } => "fc",
        };
        format!("{prefix}_{:016x}{:02x}", self.number, piece.index)
    }

    fn item(&self, piece: &Piece, status: Status) -> Item {
        Item::new(self.item_id(piece), piece, status, &self.namespaces)
    }

    /// The response so far; with `finish` it is done.
    fn response(&self, finish: Option<&bn::Finish>) -> answer::Response<'_> {
        let status = finish.map_or(Status::InProgress, Status::of);
        answer::Response {
            id: &self.id,
            object: "response",
            created_at: self.created,
            status,
            background: false,
            model: &self.model,
            error: None,
            incomplete_details: (status == Status::Incomplete)
                .then_some(Incomplete { reason: "max_output_tokens" }),
            output: &self.output,
            temperature: self.temperature,
            top_p: self.top_p,
            asked: &self.asked,
            store: self.kept.is_some(),
            usage: finish.map(|finish| Usage::from(&finish.usage)),
        }
    }

    fn text(&self, finish: Option<&bn::Finish>) -> String {
        write::json(&self.response(finish))
    }

    /// Keeps the response. One that is too large for that says so.
    fn keep(&mut self, finish: &bn::Finish) {
        let Some(mut items) = self.kept.clone() else { return };
        add_items(&mut items, &self.output);
        items.push(']');
        let kept = Kept { response: self.text(Some(finish)), items };
        if !self.app.store.put(&self.id, kept) {
            self.kept = None;
        }
    }

    fn send_response(&mut self, out: &mut String, name: &str, finish: Option<&bn::Finish>) {
        let number = self.next();
        send(out, name, number, &Event::Response { response: self.response(finish) });
    }

    /// Tells of an item. `status`: how it ends.
    fn step(&mut self, out: &mut String, step: Step, status: Status) {
        match step {
            Step::Begin(piece) => {
                let item = self.item(piece, Status::InProgress);
                self.send_item(out, "response.output_item.added", piece.index, &item);
                self.send_part(out, "response.content_part.added", piece);
            }
            Step::More(piece, text) => self.send_text(out, piece, Some(text)),
            Step::End(piece) => {
                let item = self.item(&piece, status);
                self.send_text(out, &piece, None);
                self.send_part(out, "response.content_part.done", &piece);
                self.send_item(out, "response.output_item.done", piece.index, &item);
                self.output.push(item);
            }
        }
    }

    fn send_item(&mut self, out: &mut String, name: &str, output_index: usize, item: &Item) {
        let number = self.next();
        send(out, name, number, &Event::Item { output_index, item });
    }

    fn send_part(&mut self, out: &mut String, name: &str, piece: &Piece) {
        let Some(part) = Part::new(&piece.kind, &piece.text) else { return };
        let (number, id) = (self.next(), self.item_id(piece));
        let event = Event::Part { item_id: &id, output_index: piece.index, content_index: 0, part };
        send(out, name, number, &event);
    }

    /// New text of an item; None: all is there.
    fn send_text(&mut self, out: &mut String, piece: &Piece, new: Option<&str>) {
        let (number, id) = (self.next(), self.item_id(piece));
        let call = matches!(piece.kind, Kind::Call { .. });
        let whole = new.is_none().then_some(piece.text.as_str());
        let text = Text {
            item_id: &id,
            output_index: piece.index,
            content_index: (!call).then_some(0),
            logprobs: (piece.kind == Kind::Text).then_some([]),
            delta: new,
            text: whole.filter(|_| !call),
            arguments: whole.filter(|_| call),
        };
        let name = format!("{}.{}", text_events(&piece.kind), if new.is_some() { "delta" } else { "done" });
        send(out, &name, number, &Event::Text(text));
    }
}

/// Writes a numbered event.
fn send(out: &mut String, name: &str, number: u64, event: &Event) {
    #[derive(Serialize)]
    struct Data<'a> {
        #[serde(rename = "type")]
        name: &'a str,
        sequence_number: u64,
        #[serde(flatten)]
        event: &'a Event<'a>,
    }
    write::event(out, name, &Data { name, sequence_number: number, event });
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

/// A response that is kept.
pub async fn get(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let id = id_of(&parts);
    match app.store.get(&id) {
        Some(kept) => json(kept.response.clone(), Call::new(&app, &parts)),
        None => not_there(&app, &id).response(shape_of(parts.uri.path())),
    }
}

/// Lets a response go.
pub async fn delete(app: Arc<App>, parts: Parts, _body: Body) -> Response<Body> {
    let id = id_of(&parts);
    if !app.store.remove(&id) {
        return not_there(&app, &id).response(shape_of(parts.uri.path()));
    }
    let text = json!({"id": id, "object": "response", "deleted": true}).to_string();
    json(text, Call::new(&app, &parts))
}
