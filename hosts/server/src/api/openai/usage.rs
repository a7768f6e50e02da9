//! OpenAI's usage object.
use crate::run::Totals;
use serde_json::{Value, json};

pub fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt,
        "completion_tokens": totals.generated,
        "total_tokens": totals.prompt + totals.generated,
        "prompt_tokens_details": {"cached_tokens": totals.cached},
        "completion_tokens_details": {
            "reasoning_tokens": totals.reasoning,
            "accepted_prediction_tokens": totals.accepted,
            "rejected_prediction_tokens": totals.drafted.saturating_sub(totals.accepted),
        },
    })
}

/// The usage of requests that generate nothing.
pub fn prompt_usage(totals: &Totals) -> Value {
    json!({"prompt_tokens": totals.prompt, "total_tokens": totals.prompt})
}
