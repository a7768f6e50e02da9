//! `bn_event`: an engine's report on a request.

use super::growth::grown;
use super::question::{bn_decision, bn_decision_option};
use super::status::bn_status;
use super::string::bn_string;
use super::tool_call::bn_tool_call;
use super::types::{bn_engine, bn_request};
use crate::engine::api::{Event, FinishReason, Logprob};
use std::mem::offset_of;

/// All new tokens and text since the last poll.
pub const BN_EVENT_TOKENS: u32 = 1;
/// The last event: a finish reason, usage, and tokens and text not returned before.
pub const BN_EVENT_COMPLETED: u32 = 2;

/// Not finished (`BN_EVENT_TOKENS`).
pub const BN_FINISH_NONE: u32 = 0;
/// An end token of the model, or one of `stop_tokens`.
pub const BN_FINISH_STOP: u32 = 1;
/// One of `stop_strings`.
pub const BN_FINISH_STOP_STRING: u32 = 2;
/// `max_new_tokens` or the engine's `context_length`.
pub const BN_FINISH_LENGTH: u32 = 3;
/// By `bn_cancel`, a shutdown or `bn_engine_free`, or `BN_REQUEST_END_UNREAD`.
pub const BN_FINISH_CANCELLED: u32 = 4;
/// Its timeout passed, or could not be met (`BN_REQUEST_DROP_LATE`).
pub const BN_FINISH_TIMED_OUT: u32 = 5;
/// `status` and `message` say why.
pub const BN_FINISH_FAILED: u32 = 6;
/// `BN_TASK_EMBED` or `BN_TASK_RERANK` is done.
pub const BN_FINISH_EMBEDDING: u32 = 7;

/// A token and its log probability.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_logprob {
    /// Its id.
    pub token: u32,
    /// Natural logarithm of its probability by the model, before penalties, temperature and
    /// samplers, or with `BN_REQUEST_CHAIN_LOGPROBS` after them.
    pub logprob: f32,
}

/// News of a request. The data that a polled event points to stays valid and unchanged until
/// `bn_events_free` of it, `bn_request_free` of its request, or `bn_engine_free`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_event {
    pub struct_size: u32,
    /// `BN_EVENT_*`.
    pub kind: u32,
    /// The request.
    pub request: bn_request,
    /// As in `bn_request_params`.
    pub user_data: u64,
    /// This and `lease` are its name for `bn_events_free`. NULL unless it was polled.
    pub engine: *mut bn_engine,
    /// 0 in a callback.
    pub lease: u64,
    /// New text: whole UTF-8 characters.
    pub text: bn_string,
    /// New reasoning (`BN_REQUEST_PARSE_OUTPUT`): whole UTF-8 characters.
    pub reasoning: bn_string,
    /// New calls, and more of the last one (`BN_REQUEST_PARSE_OUTPUT`), or NULL.
    pub tool_calls: *const bn_tool_call,
    pub tool_calls_count: usize,
    /// New tokens, an end token included, or NULL. With `BN_REQUEST_ECHO_PROMPT` the prompt's come
    /// first; with `BN_TASK_SCORE` they are the prompt's from `logprobs_from` on.
    pub tokens: *const u32,
    pub tokens_count: usize,
    /// For each of `tokens` its own entry, then `top_logprobs` more, the most likely first, then
    /// those of `logprob_tokens`. NaN for prompt tokens that are first, before `logprobs_from`, or
    /// not asked for. NULL without a flag that asks for any.
    pub logprobs: *const bn_logprob,
    pub logprobs_count: usize,
    /// 0, or 1 + `top_logprobs` + `logprob_tokens_count`: `logprobs` for each of `tokens`.
    pub logprobs_per_token: u32,
    /// `BN_FINISH_*`.
    pub finish_reason: u32,
    /// `BN_OK`, or why the request failed, was cancelled or timed out.
    pub status: bn_status,
    /// Index of the stop token or stop string that ended the request; -1 for other ends, the
    /// model's own end token too.
    pub stop_index: i32,
    /// `status` in words; empty with `BN_OK`.
    pub message: bn_string,
    /// The vector of `BN_FINISH_EMBEDDING`; otherwise NULL.
    pub embedding: *const f32,
    pub embedding_count: usize,
    /// The `BN_POOLING_*` that made it, or 0.
    pub pooling: u32,
    /// Calls in the whole answer; after `BN_FINISH_STOP` the model waits for their results. This
    /// and all below are 0 before `BN_EVENT_COMPLETED`.
    pub tool_calls_total: u32,
    /// Tokens of the prompt; with `BN_TASK_DECIDE` also those of the questions and their options,
    /// what they have in common counted once.
    pub prompt_tokens: u32,
    /// Generated tokens, an end token included.
    pub generated_tokens: u32,
    /// Generated tokens of reasoning, its end marker included (`BN_REQUEST_PARSE_OUTPUT`).
    pub reasoning_tokens: u32,
    /// Prompt tokens that the prefix cache had at admission.
    pub cached_tokens: u32,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u32,
    /// Drafted tokens that the output has.
    pub accepted_tokens: u32,
    /// From submit to the first admission. These five are in nanoseconds.
    pub queued_ns: u64,
    /// From admission to the end of the prompt.
    pub prefill_ns: u64,
    /// From submit to the first generated token.
    pub first_token_ns: u64,
    /// From the first generated token to the last.
    pub decode_ns: u64,
    /// From submit to this event.
    pub total_ns: u64,
    /// With `BN_TASK_DECIDE`: the answer to each question, in order, or NULL.
    pub decisions: *const bn_decision,
    pub decisions_count: usize,
    /// The options of all questions, in order, or NULL.
    pub decision_options: *const bn_decision_option,
    pub decision_options_count: usize,
}

grown!(
    bn_event {
        struct_size, kind, request, user_data, engine, lease, text, reasoning, tool_calls,
        tool_calls_count, tokens, tokens_count, logprobs, logprobs_count, logprobs_per_token,
        finish_reason, status, stop_index, message, embedding, embedding_count, pooling,
        tool_calls_total, prompt_tokens, generated_tokens, reasoning_tokens, cached_tokens,
        drafted_tokens, accepted_tokens, queued_ns, prefill_ns, first_token_ns, decode_ns, total_ns,
        decisions, decisions_count, decision_options, decision_options_count,
    };
    // `bn_events_free` needs these fields.
    LEAST = offset_of!(bn_event, text)
);

// Log probabilities are handed out without a copy, so the layouts must match.
const _: () = {
    assert!(size_of::<bn_logprob>() == size_of::<Logprob>());
    assert!(offset_of!(bn_logprob, token) == offset_of!(Logprob, token));
    assert!(offset_of!(bn_logprob, logprob) == offset_of!(Logprob, logprob));
    assert!(BN_FINISH_NONE == FinishReason::None as u32);
    assert!(BN_FINISH_STOP == FinishReason::Stop as u32);
    assert!(BN_FINISH_STOP_STRING == FinishReason::StopString as u32);
    assert!(BN_FINISH_LENGTH == FinishReason::Length as u32);
    assert!(BN_FINISH_CANCELLED == FinishReason::Cancelled as u32);
    assert!(BN_FINISH_TIMED_OUT == FinishReason::TimedOut as u32);
    assert!(BN_FINISH_FAILED == FinishReason::Failed as u32);
    assert!(BN_FINISH_EMBEDDING == FinishReason::Embedding as u32);
};

fn array<T, U>(of: &[T]) -> *const U {
    if of.is_empty() { std::ptr::null() } else { of.as_ptr().cast() }
}

impl bn_event {
    /// A view of `event`, valid as long as that neither moves nor changes.
    pub(super) fn new(event: &Event, engine: *mut bn_engine, lease: u64) -> Self {
        let embedding = event.embedding.as_ref();
        let usage = &event.usage;
        Self {
            struct_size: size_of::<Self>() as u32,
            kind: if event.finish == FinishReason::None { BN_EVENT_TOKENS } else { BN_EVENT_COMPLETED },
            request: event.request.0,
            user_data: event.user_data,
            engine,
            lease,
            text: bn_string::of(&event.text),
            tokens: array(&event.tokens),
            tokens_count: event.tokens.len(),
            logprobs: array(&event.logprobs),
            logprobs_count: event.logprobs.len(),
            logprobs_per_token: event.logprobs_per_token,
            finish_reason: event.finish as u32,
            status: event.status as i32,
            stop_index: event.stop.map_or(-1, |stop| stop as i32),
            message: bn_string::of(&event.message),
            embedding: embedding.map_or(std::ptr::null(), |e| array(&e.values)),
            embedding_count: embedding.map_or(0, |e| e.values.len()),
            pooling: embedding.map_or(0, |e| e.pooling as u32),
            prompt_tokens: usage.prompt_tokens,
            generated_tokens: usage.generated_tokens,
            cached_tokens: usage.cached_tokens,
            queued_ns: usage.queued_ns,
            prefill_ns: usage.prefill_ns,
            first_token_ns: usage.first_token_ns,
            decode_ns: usage.decode_ns,
            total_ns: usage.total_ns,
            reasoning_tokens: event.reasoning_tokens.try_into().unwrap_or(u32::MAX),
            drafted_tokens: usage.drafted_tokens,
            accepted_tokens: usage.accepted_tokens,
            reasoning: bn_string::of(&event.reasoning),
            tool_calls: array(event.calls.views()),
            tool_calls_count: event.calls.views().len(),
            tool_calls_total: event.calls_made,
            decisions: array(&event.decisions.answers),
            decisions_count: event.decisions.answers.len(),
            decision_options: array(&event.decisions.options),
            decision_options_count: event.decisions.options.len(),
        }
    }
}

pub(super) fn finish_name(reason: u32) -> &'static std::ffi::CStr {
    match reason {
        BN_FINISH_NONE => c"none",
        BN_FINISH_STOP => c"stop",
        BN_FINISH_STOP_STRING => c"stop_string",
        BN_FINISH_LENGTH => c"length",
        BN_FINISH_CANCELLED => c"cancelled",
        BN_FINISH_TIMED_OUT => c"timed_out",
        BN_FINISH_FAILED => c"failed",
        BN_FINISH_EMBEDDING => c"embedding",
        _ => c"unknown",
    }
}
