use crate::run::Totals;
use serde::Serialize;

/// OpenAI's count of tokens.
#[derive(Debug, Serialize)]
pub struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

/// Drafts that stood, and those that did not.
#[derive(Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl From<&Totals> for Usage {
    fn from(totals: &Totals) -> Self {
        Self {
            prompt_tokens: totals.prompt,
            completion_tokens: totals.generated,
            total_tokens: totals.prompt + totals.generated,
            prompt_tokens_details: PromptDetails { cached_tokens: totals.cached },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: totals.reasoning,
                accepted_prediction_tokens: totals.accepted,
                rejected_prediction_tokens: totals.drafted.saturating_sub(totals.accepted),
            },
        }
    }
}

/// The count of requests that generate nothing.
#[derive(Debug, Serialize)]
pub struct PromptUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl From<&Totals> for PromptUsage {
    fn from(totals: &Totals) -> Self {
        Self { prompt_tokens: totals.prompt, total_tokens: totals.prompt }
    }
}
