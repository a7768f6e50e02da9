//! The objects of Anthropic's messages and of their streams.
use crate::api::pieces::{Kind, Piece};
use crate::api::write;
use serde::Serialize;
use serde_json::{Map, Value};

/// A block of an answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text { text: String },
    Thinking { thinking: String, signature: &'static str },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

impl Block {
    /// `hides`: thinking has no text. The arguments of a call that was cut off are no JSON.
    pub fn new(piece: Piece, hides: bool) -> Self {
        match piece.kind {
            Kind::Text => Self::Text { text: piece.text },
            Kind::Reasoning => {
                Self::Thinking { thinking: if hides { String::new() } else { piece.text }, signature: "" }
            }
            Kind::Call { id, name } => {
                Self::ToolUse { id, name, input: serde_json::from_str(&piece.text).unwrap_or_default() }
            }
        }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct Stop<'a> {
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<&'a str>,
}

impl<'a> Stop<'a> {
    /// `sequences`: the request's own.
    pub fn new(finish: &bn::Finish, sequences: &'a [String]) -> Self {
        let reason = match finish.reason {
            bn::FinishReason::Stop if finish.tool_calls_total > 0 => "tool_use",
            bn::FinishReason::Stop => "end_turn",
            bn::FinishReason::StopString => "stop_sequence",
            _ => "max_tokens", // or another limit
        };
        let stopped = finish.stop_index.filter(|_| finish.reason == bn::FinishReason::StopString);
        let sequence = stopped.and_then(|at| sequences.get(at)).map(String::as_str);
        Self { stop_reason: Some(reason), stop_sequence: sequence }
    }
}

/// Cached tokens are apart from the others.
#[derive(Debug, Serialize)]
pub struct Usage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

impl Usage {
    /// Before the answer: which tokens are cached is known at its end.
    pub fn begin(prompt: u32) -> Self {
        Self {
            input_tokens: prompt,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
        }
    }
}

impl From<&bn::Usage> for Usage {
    fn from(usage: &bn::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.generated_tokens,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Message<'a> {
    pub id: &'a str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub role: &'static str,
    pub model: &'a str,
    pub content: Vec<Block>,
    #[serde(flatten)]
    pub stop: Stop<'a>,
    pub usage: Usage,
}

/// What a block gets more of.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

impl<'a> Delta<'a> {
    pub fn new(kind: &Kind, text: &'a str) -> Self {
        match kind {
            Kind::Text => Self::Text { text },
            Kind::Reasoning => Self::Thinking { thinking: text },
            Kind::Call { .. } => Self::Input { partial_json: text },
        }
    }
}

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Stop<'a>, usage: Usage },
    MessageStop {},
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        }
    }

    pub fn send(&self, out: &mut String) {
        write::event(out, self.name(), self);
    }
}
