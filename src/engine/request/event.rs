//! Events of a request: their contents, and how two become one.

use super::decision::Decisions;
use super::tool_calls::ToolCalls;
use crate::base::Status;
use crate::engine::hub::Merge;
use crate::engine::hub::ids::RequestId;
use crate::model::Pooling;
pub use crate::sample::Logprob;

/// Numbered as in the C API; also the index of the counter in `hub::Usage::outcomes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FinishReason {
    /// Not finished (in token events).
    #[default]
    None = 0,
    /// An end token or a stop token.
    Stop = 1,
    /// A stop string.
    StopString = 2,
    /// `max_new_tokens` or `context_length`.
    Length = 3,
    Cancelled = 4,
    TimedOut = 5,
    /// `Event::status` and `Event::message` say why.
    Failed = 6,
    /// The embedding is complete.
    Embedding = 7,
}

/// Counts and times of a request; times in nanoseconds, 0 if a phase was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub generated_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Drafted tokens that were verified, and those that were accepted.
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
    /// If finish is Stop or StopString: index of the stop token or stop string; None for the model's own end
    /// token.
    pub stop: Option<u32>,
    /// Complete UTF-8 text that became certain since the last event; may be empty.
    pub text: String,
    /// With `parse_output`: the reasoning, which is not in `text`, and the tool calls.
    pub reasoning: String,
    pub calls: ToolCalls,
    /// In the terminal event: total number of calls.
    pub calls_made: u32,
    /// In the terminal event: total number of tokens of reasoning.
    pub reasoning_tokens: u64,
    /// Ids since the last event, including the end token; with echo_prompt the prompt's ids come first.
    pub tokens: Vec<u32>,
    /// For each of `tokens`, its own log probability and then `top_logprobs` more, most likely first (NaN for an
    /// echoed prompt token). Empty unless asked for.
    pub logprobs: Vec<Logprob>,
    /// Entries of `logprobs` per token: 0, or 1 + top_logprobs.
    pub logprobs_per_token: u32,
    /// Reason of a failure, cancellation or timeout; empty otherwise.
    pub message: String,
    /// Zeros before the terminal event.
    pub usage: Usage,
    /// Some if finish is Embedding.
    pub embedding: Option<Embedding>,
    /// The answers to the request's questions, in the terminal event.
    pub decisions: Decisions,
    /// Bytes of the request's grants that are returned when the event is freed.
    pub granted: u64,
}

/// Empty events for reuse. Each is a box, because it moves to a slot and a poller while its address stays the
/// same.
#[allow(clippy::vec_box)]
pub(crate) type Spare = Vec<Box<Event>>;

impl Merge for Event {
    const KEPT: usize = 512;

    fn merge(&mut self, next: &mut Self) {
        self.calls.merge(&mut next.calls, self.text.len());
        self.text.push_str(&next.text);
        self.reasoning.push_str(&next.reasoning);
        self.calls_made = next.calls_made;
        self.reasoning_tokens = next.reasoning_tokens;
        self.tokens.extend_from_slice(&next.tokens);
        self.logprobs.extend_from_slice(&next.logprobs);
        (self.finish, self.status, self.stop, self.usage) = (next.finish, next.status, next.stop, next.usage);
        std::mem::swap(&mut self.message, &mut next.message);
        self.embedding = next.embedding.take();
        self.decisions = std::mem::take(&mut next.decisions);
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
