//! One request's events: what they carry and how two become one.

use super::hub::Merge;
use super::ids::RequestId;
use super::tool_calls::ToolCalls;
use crate::base::Status;
use crate::model::Pooling;
pub use crate::sample::Logprob;

/// The C API's numbers; also the index of the counter in `hub::Usage::outcomes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinishReason {
    /// Not finished (in token events).
    #[default]
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

/// Counts and times of a request; times in nanoseconds, 0 where a phase was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub generated_tokens: u32,
    /// Of the prompt's, those that the prefix cache had.
    pub cached_tokens: u32,
    /// Tokens that were drafted and verified, and those of them that stood.
    pub drafted_tokens: u32,
    pub accepted_tokens: u32,
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

/// A prompt's hidden states, pooled.
#[derive(Clone, Debug)]
pub struct Embedding {
    pub values: Vec<f32>,
    pub pooling: Pooling,
}

/// Tokens and text of one request, in order; the terminal event (`finish != None`) is the last.
#[derive(Clone, Debug, Default)]
pub struct Event {
    pub request: RequestId,
    pub user_data: u64,
    /// None in a token event; anything else makes this the terminal event.
    pub finish: FinishReason,
    /// `Status::Ok` unless finish is Failed, Cancelled or TimedOut.
    pub status: Status,
    /// Where finish is Stop or StopString: which of the request's stop tokens or stop strings it was; None for the
    /// model's own end token.
    pub stop: Option<u32>,
    /// Whole UTF-8 that became certain since the last event; may be empty.
    pub text: String,
    /// With `parse_output`, the reasoning that is not in `text`, and calls of tools.
    pub reasoning: String,
    pub calls: ToolCalls,
    /// In the terminal event: calls in all.
    pub calls_made: u32,
    /// Ids since the last event, the end token included; with echo_prompt the prompt's come first.
    pub tokens: Vec<u32>,
    /// For each of `tokens` its own logprob and then `top_logprobs` more, most likely first (NaN for an echoed
    /// prompt token); empty unless asked for.
    pub logprobs: Vec<Logprob>,
    /// Entries of `logprobs` per token: 0, or 1 + top_logprobs.
    pub logprobs_per_token: u32,
    /// Why it failed, was cancelled or timed out; empty otherwise.
    pub message: String,
    /// Zeros before the terminal event.
    pub usage: Usage,
    /// Some where finish is Embedding.
    pub embedding: Option<Embedding>,
    /// Bytes of the request's grants that are free again once the event is.
    pub granted: u64,
}

/// Empty events to be used again; each is a box, as it moves on to a slot and a poller while its address stays.
#[allow(clippy::vec_box)]
pub type Spare = Vec<Box<Event>>;

impl Merge for Event {
    const KEPT: usize = 512;

    fn merge(&mut self, next: &mut Self) {
        self.text.push_str(&next.text);
        self.reasoning.push_str(&next.reasoning);
        self.calls.merge(&mut next.calls);
        self.calls_made = next.calls_made;
        self.tokens.extend_from_slice(&next.tokens);
        self.logprobs.extend_from_slice(&next.logprobs);
        (self.finish, self.status, self.stop, self.usage) = (next.finish, next.status, next.stop, next.usage);
        std::mem::swap(&mut self.message, &mut next.message);
        self.embedding = next.embedding.take();
        self.granted += next.granted;
    }

    fn outcome(&self) -> usize {
        self.finish as usize
    }

    fn granted(&self) -> u64 {
        self.granted
    }

    fn empty(&mut self) -> bool {
        let Self { mut text, mut tokens, mut logprobs, .. } = std::mem::take(self);
        if text.capacity() + 4 * tokens.capacity() + 8 * logprobs.capacity() > Self::KEPT {
            return false;
        }
        text.clear();
        tokens.clear();
        logprobs.clear();
        *self = Self { text, tokens, logprobs, ..Self::default() };
        true
    }
}
