//! `bn_event` and `bn_completion`: what the engine says of a request.

use super::types::{bn_logprob, bn_request, bn_usage};
use crate::engine::api::{Embedding, Event, FinishReason, Logprob, Usage};
use std::ffi::c_char;
use std::mem::offset_of;

/// `bn_event.kind`: tokens and text came; the request goes on. What comes before it is polled is joined
/// into one event.
pub const BN_EVENT_TOKENS: i32 = 1;
/// `bn_event.kind`: the request's last event, the only one with a finish reason and usage. It brings the
/// tokens and text that have not come yet.
pub const BN_EVENT_COMPLETED: i32 = 2;

/// Not finished (`BN_EVENT_TOKENS`).
pub const BN_FINISH_NONE: i32 = 0;
/// The model's end token, or one of `stop_tokens`.
pub const BN_FINISH_STOP: i32 = 1;
/// One of `stop_strings`.
pub const BN_FINISH_STOP_STRING: i32 = 2;
/// `max_new_tokens` or the engine's `max_sequence_length`.
pub const BN_FINISH_LENGTH: i32 = 3;
/// Cancelled by the caller, a shutdown, or destroy.
pub const BN_FINISH_CANCELLED: i32 = 4;
/// Its timeout passed.
pub const BN_FINISH_TIMED_OUT: i32 = 5;
/// It failed: `status` and `message` say why.
pub const BN_FINISH_FAILED: i32 = 6;
/// A request with `BN_REQUEST_EMBED` has its vector.
pub const BN_FINISH_EMBEDDING: i32 = 7;

/// A prompt's embedding. It belongs to the event that points to it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_embedding {
    /// Bytes of this struct that the library wrote: fields of a newer header beyond it are not there.
    pub struct_size: u32,
    /// How it was made: `BN_POOLING_LAST`, `BN_POOLING_MEAN` or `BN_POOLING_FIRST`.
    pub pooling: i32,
    /// The vector. Never NULL.
    pub values: *const f32,
    /// Elements of `values`: `bn_model_facts.embedding_size`.
    pub count: usize,
}

/// What happened to a request. The pointers belong to the library and live until the next `bn_poll` that
/// returns an event of the same request, or its `bn_release`, or `bn_engine_destroy`; in a callback,
/// until it returns. One poll returns at most one event of a request: all that it returns are valid together. The struct is frozen at 128 bytes: later versions use the reserved tail.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_event {
    /// Whose event it is.
    pub request: bn_request,
    /// `bn_request_params.user_data`.
    pub user_data: u64,
    /// `BN_EVENT_TOKENS` or `BN_EVENT_COMPLETED`. Ignore kinds that you don't know.
    pub kind: i32,
    /// `BN_FINISH_*`.
    pub finish_reason: i32,
    /// `BN_OK`, or why the request failed, was cancelled or timed out.
    pub status: i32,
    /// Entries of `logprobs` for each of `tokens`: 0, or 1 + `top_logprobs`.
    pub logprobs_per_token: u32,
    /// UTF-8 that became certain with this event, not NUL-terminated; never cut within a character.
    /// Never NULL, may be empty.
    pub text: *const c_char,
    /// Bytes of `text`.
    pub text_length: usize,
    /// Ids generated since the last event, an end token included; with `BN_REQUEST_ECHO_PROMPT` the prompt's
    /// come first. NULL where there are none.
    pub tokens: *const u32,
    /// Ids in `tokens`.
    pub tokens_count: usize,
    /// For each of `tokens`, the token's own log probability and then `top_logprobs` more, most likely
    /// first (NaN for the prompt's). NULL unless `BN_REQUEST_LOGPROBS`.
    pub logprobs: *const bn_logprob,
    /// Entries in `logprobs`: `tokens_count * logprobs_per_token`.
    pub logprobs_count: usize,
    /// UTF-8, not NUL-terminated: why the request failed, was cancelled or timed out. Never NULL, empty otherwise.
    pub message: *const c_char,
    /// Bytes of `message`.
    pub message_length: usize,
    /// Counts and times, in `BN_EVENT_COMPLETED`; NULL otherwise.
    pub usage: *const bn_usage,
    /// Bytes of `*usage` that this library wrote: fields of a newer header beyond it are not there.
    pub usage_size: u64,
    /// The vector of a request with `BN_REQUEST_EMBED`, in its `BN_EVENT_COMPLETED` where `finish_reason` is
    /// `BN_FINISH_EMBEDDING`; NULL otherwise.
    pub embedding: *const bn_embedding,
    /// 0.
    pub reserved: u64,
}

const _: () = assert!(size_of::<bn_event>() == 128, "bn_event goes in arrays and is frozen");

// An event's arrays are handed out as they lie in `Event`.
const _: () = {
    assert!(size_of::<bn_logprob>() == size_of::<Logprob>());
    assert!(offset_of!(bn_logprob, token) == offset_of!(Logprob, token));
    assert!(offset_of!(bn_logprob, logprob) == offset_of!(Logprob, logprob));
    assert!(size_of::<bn_usage>() == size_of::<Usage>() && align_of::<bn_usage>() == align_of::<Usage>());
    assert!(offset_of!(bn_usage, prompt_tokens) == offset_of!(Usage, prompt_tokens));
    assert!(offset_of!(bn_usage, generated_tokens) == offset_of!(Usage, generated_tokens));
    assert!(offset_of!(bn_usage, queued_ns) == offset_of!(Usage, queued_ns));
    assert!(offset_of!(bn_usage, prefill_ns) == offset_of!(Usage, prefill_ns));
    assert!(offset_of!(bn_usage, first_token_ns) == offset_of!(Usage, first_token_ns));
    assert!(offset_of!(bn_usage, decode_ns) == offset_of!(Usage, decode_ns));
    assert!(offset_of!(bn_usage, total_ns) == offset_of!(Usage, total_ns));
    // A Box of Embedding is a pointer to what C sees, and tells its size by itself.
    assert!(size_of::<bn_embedding>() == size_of::<Embedding>());
    assert!(align_of::<bn_embedding>() == align_of::<Embedding>());
    assert!(Embedding::OFFSETS[0] == offset_of!(bn_embedding, struct_size));
    assert!(Embedding::OFFSETS[1] == offset_of!(bn_embedding, pooling));
    assert!(Embedding::OFFSETS[2] == offset_of!(bn_embedding, values));
    assert!(Embedding::OFFSETS[3] == offset_of!(bn_embedding, count));
    assert!(BN_FINISH_NONE == FinishReason::None as i32);
    assert!(BN_FINISH_STOP == FinishReason::Stop as i32);
    assert!(BN_FINISH_STOP_STRING == FinishReason::StopString as i32);
    assert!(BN_FINISH_LENGTH == FinishReason::Length as i32);
    assert!(BN_FINISH_CANCELLED == FinishReason::Cancelled as i32);
    assert!(BN_FINISH_TIMED_OUT == FinishReason::TimedOut as i32);
    assert!(BN_FINISH_FAILED == FinishReason::Failed as i32);
    assert!(BN_FINISH_EMBEDDING == FinishReason::Embedding as i32);
};

/// Never NULL and never dangling, so that C may print it whatever the length.
fn text(of: &str) -> *const c_char {
    if of.is_empty() { c"".as_ptr() } else { of.as_ptr().cast() }
}

fn array<T, U>(of: &[T]) -> *const U {
    if of.is_empty() { std::ptr::null() } else { of.as_ptr().cast() }
}

impl bn_event {
    /// A view: good as long as `event` stays where it is, unchanged.
    pub(super) fn new(event: &Event) -> Self {
        let usage = event.usage.as_deref();
        Self {
            request: event.request.0,
            user_data: event.user_data,
            kind: if event.finish == FinishReason::None { BN_EVENT_TOKENS } else { BN_EVENT_COMPLETED },
            finish_reason: event.finish as i32,
            status: event.status as i32,
            logprobs_per_token: event.logprobs_per_token,
            text: text(&event.text),
            text_length: event.text.len(),
            tokens: array(&event.tokens),
            tokens_count: event.tokens.len(),
            logprobs: array(&event.logprobs),
            logprobs_count: event.logprobs.len(),
            message: text(&event.message),
            message_length: event.message.len(),
            usage: usage.map_or(std::ptr::null(), |usage| (usage as *const Usage).cast()),
            usage_size: usage.map_or(0, |_| size_of::<bn_usage>() as u64),
            embedding: event
                .embedding
                .as_deref()
                .map_or(std::ptr::null(), |e| (e as *const Embedding).cast()),
            reserved: 0,
        }
    }
}

/// What `bn_generate` returns: a completed request. Made by the library, freed by `bn_completion_free`
/// together with everything that it points to; it does not need its engine any more.
#[repr(C)]
pub struct bn_completion {
    /// The request's terminal event, with the whole text and all ids. Its `request` is retired already.
    pub event: bn_event,
}

/// A completion and the event that it points into.
#[repr(C)]
pub(super) struct Completion {
    /// First: its address is the caller's handle.
    view: bn_completion,
    owner: Box<Event>,
}

impl Completion {
    pub(super) fn hand_out(event: Event) -> *mut bn_completion {
        let owner = Box::new(event);
        let view = bn_completion { event: bn_event::new(&owner) };
        Box::into_raw(Box::new(Self { view, owner })).cast()
    }

    /// # Safety
    /// `completion` is NULL or came from [`Completion::hand_out`], and is freed once.
    pub(super) unsafe fn free(completion: *mut bn_completion) {
        if !completion.is_null() {
            // SAFETY: the caller's promise; `view` lies first.
            let Self { view: _, owner } = *unsafe { Box::from_raw(completion.cast::<Self>()) };
            drop(owner);
        }
    }
}

pub(super) fn finish_name(reason: i32) -> &'static std::ffi::CStr {
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
