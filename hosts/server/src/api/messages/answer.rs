//! The objects of Anthropic's messages and of their streams.
use crate::api::pieces::{Kind, Piece};
use serde_json::{Map, Value, json};

/// A block of an answer. The arguments of a call that was cut off are not valid JSON.
pub fn block(piece: &Piece) -> Value {
    match &piece.kind {
        Kind::Text => json!({"type": "text", "text": piece.text}),
        Kind::Reasoning => json!({"type": "thinking", "thinking": piece.text, "signature": ""}),
        Kind::Call { id, name } => {
            let input: Map<String, Value> = serde_json::from_str(&piece.text).unwrap_or_default();
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
    }
}

/// New text of a block.
pub fn delta(kind: &Kind, text: &str) -> Value {
    match kind {
        Kind::Text => json!({"type": "text_delta", "text": text}),
        Kind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
        Kind::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
    }
}

/// How an answer ended. `sequences`: the request's own.
pub fn stop(finish: &bn::Finish, sequences: &[String]) -> Value {
    let reason = match finish.reason {
        bn::FinishReason::Stop if finish.tool_calls_total > 0 => "tool_use",
        bn::FinishReason::Stop => "end_turn",
        bn::FinishReason::StopString => "stop_sequence",
        _ => "max_tokens", // or another limit
    };
    let stopped = finish.stop_index.filter(|_| finish.reason == bn::FinishReason::StopString);
    json!({"stop_reason": reason, "stop_sequence": stopped.and_then(|at| sequences.get(at))})
}

/// Cached tokens are counted separately from the others.
pub fn usage(usage: &bn::Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.generated_tokens,
    })
}
