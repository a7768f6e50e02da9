//! One request's events: what they carry and how two become one.

use super::embedding::Embedding;
use super::hub::Merge;
use super::ids::RequestId;
use crate::base::Status;
pub use crate::sample::Logprob;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FinishReason {
    /// Not finished (in token events).
    None = 0,
    /// An end token or a stop token.
    Stop = 1,
    /// A stop string.
    StopString = 2,
    /// `max_new_tokens` or `max_sequence_length`.
    Length = 3,
    Cancelled = 4,
    TimedOut = 5,
    /// `Event::status` and `Event::message` say why.
    Failed = 6,
    /// A request for an embedding has it.
    Embedding = 7,
}

/// Counts and times of a finished request; times in nanoseconds, 0 where a phase was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub generated_tokens: u32,
    /// Submit to admission.
    pub queued_ns: u64,
    /// Admission to the end of the prompt.
    pub prefill_ns: u64,
    /// Submit to the first token.
    pub first_token_ns: u64,
    /// First token to last.
    pub decode_ns: u64,
    /// Submit to the terminal event.
    pub total_ns: u64,
}

/// Tokens and text of one request, in order; the terminal event (`finish != None`) is the last.
#[derive(Clone, Debug)]
pub struct Event {
    pub request: RequestId,
    pub user_data: u64,
    /// None in a token event; anything else makes this the terminal event.
    pub finish: FinishReason,
    /// `Status::Ok` unless finish is Failed, Cancelled or TimedOut.
    pub status: Status,
    /// Whole UTF-8 that became certain since the last event; may be empty.
    pub text: String,
    /// Ids since the last event, the end token included; with echo_prompt the prompt's come first.
    pub tokens: Vec<u32>,
    /// For each of `tokens` its own logprob and then `top_logprobs` more, most likely first (NaN for an echoed
    /// prompt token); empty unless asked for.
    pub logprobs: Vec<Logprob>,
    /// Entries of `logprobs` per token: 0, or 1 + top_logprobs.
    pub logprobs_per_token: u32,
    /// Why it failed, was cancelled or timed out; empty otherwise.
    pub message: String,
    /// Some in the terminal event.
    pub usage: Option<Box<Usage>>,
    /// Some where finish is Embedding.
    pub embedding: Option<Box<Embedding>>,
}

impl Event {
    pub fn new(request: RequestId, user_data: u64, logprobs_per_token: u32) -> Self {
        Self {
            request,
            user_data,
            finish: FinishReason::None,
            status: Status::Ok,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            logprobs_per_token,
            message: String::new(),
            usage: None,
            embedding: None,
        }
    }
}

impl Merge for Event {
    fn merge(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.tokens.extend_from_slice(&next.tokens);
        self.logprobs.extend_from_slice(&next.logprobs);
        (self.finish, self.status, self.usage) = (next.finish, next.status, next.usage);
        self.message = next.message;
        self.embedding = next.embedding;
    }

    fn is_terminal(&self) -> bool {
        self.finish != FinishReason::None
    }
}
