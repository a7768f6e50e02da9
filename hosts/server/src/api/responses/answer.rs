//! The objects of a response and of its stream.
use super::tools::Namespaces;
use crate::api::pieces::{Kind, Piece};
use serde_json::{Value, json};

/// Status of a response or an item.
pub const IN_PROGRESS: &str = "in_progress";
pub const COMPLETED: &str = "completed";
pub const INCOMPLETE: &str = "incomplete";
pub const FAILED: &str = "failed";

pub fn status(finish: &bn::Finish) -> &'static str {
    match finish.reason {
        bn::FinishReason::Stop | bn::FinishReason::StopString => COMPLETED,
        _ => INCOMPLETE,
    }
}

/// The content part of an item. None: a call has no parts.
pub fn part(kind: &Kind, text: &str) -> Option<Value> {
    match kind {
        Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
        Kind::Text => Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})),
        Kind::Call { .. } => None,
    }
}

/// An item of the output.
pub fn item(id: &str, piece: &Piece, status: &str, namespaces: &Namespaces) -> Value {
    let parts = part(&piece.kind, &piece.text).filter(|_| status != IN_PROGRESS);
    let content: Vec<_> = parts.into_iter().collect();
    match &piece.kind {
        Kind::Reasoning => {
            json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
        }
        Kind::Text => {
            json!({"type": "message", "id": id, "role": "assistant", "content": content, "status": status})
        }
        Kind::Call { id: call_id, name } => {
            let found = namespaces.find(name);
            let mut item = json!({
                "type": "function_call",
                "id": id,
                "call_id": call_id,
                "name": found.map_or(name.as_str(), |(_, name)| name),
                "arguments": piece.text,
                "status": status,
            });
            if let Some((space, _)) = found {
                item["namespace"] = space.into();
            }
            item
        }
    }
}

/// Tokens of a response.
pub fn usage(usage: &bn::Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.generated_tokens),
    })
}

/// The names of the events with an item's text, and of the field with the whole text.
pub fn text_names(kind: &Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Reasoning => ("response.reasoning_text", "text"),
        Kind::Text => ("response.output_text", "text"),
        Kind::Call { .. } => ("response.function_call_arguments", "arguments"),
    }
}
