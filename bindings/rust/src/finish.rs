//! The ends of requests.
use crate::decision::Decision;
use crate::error::{Error, static_text};
use crate::request::Pooling;
use crate::sys;
use std::fmt;
use std::time::Duration;

/// The reason why a request ended. `Display` gives the library's word for it, like `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end token of the model, or one of the request's stop tokens.
    Stop,
    /// One of the request's stop strings.
    StopString,
    /// The maximum length of the request or of the engine.
    Length,
    /// It was cancelled, or the engine shut down.
    Cancelled,
    /// Its timeout passed, or could not be met.
    TimedOut,
    /// [`Finish::error`] says why.
    Failed,
    /// The embedding or the relevance is done.
    Embedding,
    /// A reason that this package does not know.
    Unknown(u32),
}

const REASONS: [(FinishReason, u32); 7] = [
    (FinishReason::Stop, sys::BN_FINISH_STOP),
    (FinishReason::StopString, sys::BN_FINISH_STOP_STRING),
    (FinishReason::Length, sys::BN_FINISH_LENGTH),
    (FinishReason::Cancelled, sys::BN_FINISH_CANCELLED),
    (FinishReason::TimedOut, sys::BN_FINISH_TIMED_OUT),
    (FinishReason::Failed, sys::BN_FINISH_FAILED),
    (FinishReason::Embedding, sys::BN_FINISH_EMBEDDING),
];

impl FinishReason {
    pub(crate) fn of(reason: u32) -> Self {
        REASONS
            .iter()
            .find(|(_, number)| *number == reason)
            .map_or(Self::Unknown(reason), |(reason, _)| *reason)
    }

    fn number(self) -> u32 {
        match self {
            Self::Unknown(number) => number,
            _ => REASONS.iter().find(|(reason, _)| *reason == self).map_or(0, |(_, number)| *number),
        }
    }

    /// The library's word, like `stop`, or `unknown`.
    pub fn name(self) -> &'static str {
        // SAFETY: any number is allowed, and the text is static.
        unsafe { static_text(sys::bn_finish_reason_name(self.number())) }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Generated tokens, an end token included.
    pub generated_tokens: u32,
    /// Generated tokens of reasoning, its end marker included.
    pub reasoning_tokens: u32,
    /// Prompt tokens that the prefix cache had.
    pub cached_tokens: u32,
    /// Tokens drafted and verified.
    pub drafted_tokens: u32,
    /// Drafted tokens that the output has.
    pub accepted_tokens: u32,
}

/// Times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Times {
    /// From submit to admission.
    pub queued: Duration,
    /// From admission to the end of the prompt.
    pub prefill: Duration,
    /// From submit to the first generated token.
    pub first_token: Duration,
    /// From the first generated token to the last.
    pub decode: Duration,
    /// From submit to the end.
    pub total: Duration,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The reason.
    pub reason: FinishReason,
    /// The reason why it failed, was cancelled or timed out.
    pub error: Option<Error>,
    /// Index of the stop token or stop string that ended it.
    pub stop_index: Option<usize>,
    /// The vector of an embedding, or the one number of a relevance.
    pub embedding: Option<Vec<f32>>,
    /// The answers to the questions of [`Task::Decide`](crate::Task::Decide).
    pub decisions: Option<Vec<Decision>>,
    /// How the embedding was pooled.
    pub pooling: Option<Pooling>,
    /// Calls of tools in the whole answer. After [`FinishReason::Stop`] the model waits for their results.
    pub tool_calls_total: u32,
    /// Tokens.
    pub usage: Usage,
    /// Times.
    pub times: Times,
}

impl Finish {
    /// The end of a request whose real end cannot be awaited.
    pub(crate) fn failure(error: Error) -> Self {
        Self {
            reason: FinishReason::Failed,
            error: Some(error),
            stop_index: None,
            embedding: None,
            decisions: None,
            pooling: None,
            tool_calls_total: 0,
            usage: Usage::default(),
            times: Times::default(),
        }
    }
}
