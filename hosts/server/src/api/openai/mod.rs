//! OpenAI's completions and chat completions.
mod answer;
mod chat;
mod completion;
mod logprobs;
mod usage;

pub use chat::{Chat, Reasoning, conversation, effort, thinks};
pub use completion::Completion;
pub use logprobs::{Texts, TokenLogprob, token_logprobs};
pub use usage::{prompt_usage, usage};

use crate::fields::{U32, Whole};
use answer::Writer;
use serde::Deserialize;

/// Maximum number of alternatives of a token.
pub const MOST_ALTERNATIVES: i64 = 32;

/// OpenAI's name of a finish reason; null while there is more.
pub fn finish_name(event: Option<&bn::Finish>) -> Option<&'static str> {
    use bn::FinishReason::{Cancelled, Length, Stop, StopString, TimedOut};
    let finish = event?;
    Some(match finish.reason {
        Stop if finish.tool_calls_total > 0 => "tool_calls",
        Stop | StopString => "stop",
        Length => "length",
        Cancelled => "cancelled",
        TimedOut => "timed_out",
        _ => "error",
    })
}

/// The fields that completions and chats share besides sampling.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Common {
    n: Option<Whole<1, 128>>,
    stop: Option<serde_json::Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    prompt_logprobs: Option<Whole<0, MOST_ALTERNATIVES>>,
    max_new_tokens: Option<Whole<0, U32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Common {
    fn include_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }
}
