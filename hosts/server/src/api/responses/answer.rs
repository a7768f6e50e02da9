//! The objects of a response and of its stream.
use super::tools::Namespaces;
use crate::api::pieces::{Kind, Piece};
use serde::Serialize;
use serde_json::{Map, Value};

/// How far a response or an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    pub fn of(finish: &bn::Finish) -> Self {
        match finish.reason {
            bn::FinishReason::Stop | bn::FinishReason::StopString => Self::Completed,
            _ => Self::Incomplete,
        }
    }

    /// The event that ends a stream so.
    pub fn event(self) -> &'static str {
        match self {
            Self::InProgress => "response.in_progress",
            Self::Completed => "response.completed",
            Self::Incomplete => "response.incomplete",
            Self::Failed => "response.failed",
        }
    }
}

/// A part of an item's content.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    ReasoningText { text: String },
    OutputText { text: String, annotations: [(); 0], logprobs: [(); 0] },
}

impl Part {
    /// None: a call has no parts.
    pub fn new(kind: &Kind, text: &str) -> Option<Self> {
        let text = text.to_owned();
        match kind {
            Kind::Reasoning => Some(Self::ReasoningText { text }),
            Kind::Text => Some(Self::OutputText { text, annotations: [], logprobs: [] }),
            Kind::Call { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Body {
    Reasoning {
        id: String,
        summary: [(); 0],
        content: Vec<Part>,
    },
    Message {
        id: String,
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        arguments: String,
    },
}

/// An item of the output.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    #[serde(flatten)]
    body: Body,
    status: Status,
}

impl Item {
    pub fn new(id: String, piece: &Piece, status: Status, namespaces: &Namespaces) -> Self {
        let parts = || match status {
            Status::InProgress => Vec::new(),
            _ => Part::new(&piece.kind, &piece.text).into_iter().collect(),
        };
        let body = match &piece.kind {
            Kind::Reasoning => Body::Reasoning { id, summary: [], content: parts() },
            Kind::Text => Body::Message { id, role: "assistant", content: parts() },
            Kind::Call { id: call_id, name } => {
                let found = namespaces.find(name);
                Body::FunctionCall {
                    id,
                    call_id: call_id.clone(),
                    namespace: found.map(|(space, _)| space.to_owned()),
                    name: found.map_or(name.as_str(), |(_, name)| name).to_owned(),
                    arguments: piece.text.clone(),
                }
            }
        };
        Self { body, status }
    }
}

/// Tokens of a response.
#[derive(Debug, Serialize)]
pub struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Serialize)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<&bn::Usage> for Usage {
    fn from(usage: &bn::Usage) -> Self {
        let (input, output) = (u64::from(usage.prompt_tokens), u64::from(usage.generated_tokens));
        let cached_tokens = u64::from(usage.cached_tokens);
        Self {
            input_tokens: input,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: output,
            output_tokens_details: OutputDetails { reasoning_tokens: u64::from(usage.reasoning_tokens) },
            total_tokens: input + output,
        }
    }
}

/// Why a response is less than it might be.
#[derive(Debug, Serialize)]
pub struct Incomplete {
    pub reason: &'static str,
}

/// Why there is no response.
#[derive(Debug, Serialize)]
pub struct Error<'a> {
    pub code: &'a str,
    pub message: &'a str,
}

#[derive(Debug, Serialize)]
pub struct Response<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created_at: u64,
    pub status: Status,
    pub background: bool,
    pub model: &'a str,
    pub error: Option<Error<'a>>,
    pub incomplete_details: Option<Incomplete>,
    pub output: &'a [Item],
    pub temperature: f32,
    pub top_p: f32,
    /// What was asked.
    #[serde(flatten)]
    pub asked: &'a Map<String, Value>,
    pub store: bool,
    pub usage: Option<Usage>,
}

/// An event of a stream, without its type and number.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Event<'a> {
    Response { response: Response<'a> },
    Item { output_index: usize, item: &'a Item },
    Part { item_id: &'a str, output_index: usize, content_index: usize, part: Part },
    Text(Text<'a>),
    Error { code: &'a str, param: Option<&'a str>, message: &'a str },
}

/// News of an item's text, or all of it.
#[derive(Debug, Serialize)]
pub struct Text<'a> {
    pub item_id: &'a str,
    pub output_index: usize,
    /// Calls have no parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<[(); 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a str>,
}

/// The name of the events with an item's text.
pub fn text_events(kind: &Kind) -> &'static str {
    match kind {
        Kind::Reasoning => "response.reasoning_text",
        Kind::Text => "response.output_text",
        Kind::Call { .. } => "response.function_call_arguments",
    }
}
