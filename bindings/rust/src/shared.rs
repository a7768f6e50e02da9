//! The state of a request that the library's delivery thread and a stream share.
use crate::error::{Error, ErrorKind};
use crate::event::{EventContent, Logprob, ToolCallPart};
use crate::finish::{Finish, FinishReason, Times, Usage};
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::logits::OnLogits;
use crate::request::{Pooling, Request};
use crate::{callback, decision, sys, text};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The state of a request. It has two owners: the stream, and the library, whose reference is the request's `user_data`
/// until its last event.
pub(crate) struct Shared {
    pub inbox: Inbox,
    pub user_data: u64,
    pub on_logits: Option<OnLogits>,
    max_unread_bytes: Option<usize>,
    panicked: AtomicBool,
    engine: Handle<sys::bn_engine>,
}

impl Shared {
    pub fn new(engine: Handle<sys::bn_engine>, request: &Request) -> Arc<Self> {
        Arc::new(Self {
            inbox: Inbox::new(request.user_data, request.max_unread_bytes),
            user_data: request.user_data,
            on_logits: request.on_logits.clone(),
            max_unread_bytes: request.max_unread_bytes,
            panicked: AtomicBool::new(false),
            engine,
        })
    }

    /// The request's closure panicked.
    pub fn panicked(&self) {
        self.panicked.store(true, Ordering::Relaxed);
    }

    fn deliver(&self, event: &sys::bn_event) {
        let last = event.kind == sys::BN_EVENT_COMPLETED;
        // SAFETY: what an event points to is valid until its callback returns.
        let (text, reasoning, tokens, logprobs, calls) = unsafe {
            (
                text::text(event.text),
                text::text(event.reasoning),
                text::slice(event.tokens, event.tokens_count),
                text::slice(event.logprobs, event.logprobs_count),
                text::slice(event.tool_calls, event.tool_calls_count),
            )
        };
        let pushed = self.inbox.push(EventContent {
            text: &text,
            reasoning: &reasoning,
            tool_calls: calls.iter().map(call_of).collect(),
            tokens,
            logprobs: &logprobs.iter().map(logprob).collect::<Vec<_>>(),
            logprobs_per_token: event.logprobs_per_token as usize,
            finish: last.then(|| self.finish(event)),
        });
        if pushed.too_much {
            // SAFETY: any handle and id may be passed, in callbacks too.
            unsafe { sys::bn_cancel(self.engine.raw(), event.request, ptr::null_mut()) };
        }
        if let Some(waker) = pushed.waker {
            waker.wake();
        }
    }

    fn finish(&self, event: &sys::bn_event) -> Finish {
        // SAFETY: as in `deliver`.
        let embedding = unsafe { text::slice(event.embedding, event.embedding_count) };
        let reason = FinishReason::of(event.finish_reason);
        Finish {
            reason,
            error: (event.status != sys::BN_OK).then(|| self.error(event, reason)),
            stop_index: usize::try_from(event.stop_index).ok(),
            embedding: (!embedding.is_empty()).then(|| embedding.to_vec()),
            // SAFETY: as above.
            decisions: unsafe { decision::decisions(event) },
            pooling: (event.pooling != 0).then(|| Pooling::of(event.pooling)),
            tool_calls_total: event.tool_calls_total,
            usage: Usage {
                prompt_tokens: event.prompt_tokens,
                generated_tokens: event.generated_tokens,
                reasoning_tokens: event.reasoning_tokens,
                cached_tokens: event.cached_tokens,
                drafted_tokens: event.drafted_tokens,
                accepted_tokens: event.accepted_tokens,
            },
            times: Times {
                queued: Duration::from_nanos(event.queued_ns),
                prefill: Duration::from_nanos(event.prefill_ns),
                first_token: Duration::from_nanos(event.first_token_ns),
                decode: Duration::from_nanos(event.decode_ns),
                total: Duration::from_nanos(event.total_ns),
            },
        }
    }

    /// The library's error, or one for a reason that only this package knows.
    fn error(&self, event: &sys::bn_event, reason: FinishReason) -> Error {
        let kind = ErrorKind::of(event.status);
        match (reason, self.max_unread_bytes) {
            (FinishReason::Failed, _) if self.panicked.load(Ordering::Relaxed) => {
                Error::new(kind, "on_logits panicked")
            }
            (FinishReason::Cancelled, Some(limit)) if self.inbox.overflowed() => Error::new(
                kind,
                format!("cancelled: more than max_unread_bytes = {limit} of its output were unread"),
            ),
            // SAFETY: as in `deliver`.
            _ => Error::new(kind, unsafe { text::text(event.message) }),
        }
    }
}

fn call_of(call: &sys::bn_tool_call) -> ToolCallPart {
    // SAFETY: as in `deliver`.
    let (id, name, arguments) =
        unsafe { (text::text(call.id), text::text(call.name), text::text(call.arguments)) };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ToolCallPart {
        index: call.index,
        id: some(&id),
        name: some(&name),
        arguments: arguments.into_owned(),
        text_before: call.text_before as usize,
    }
}

fn logprob(raw: &sys::bn_logprob) -> Logprob {
    Logprob { token: raw.token, logprob: raw.logprob }
}

/// The library's callback for events, on its delivery thread.
pub(crate) unsafe extern "C" fn on_event(event: *const sys::bn_event, _: *mut c_void) {
    callback::run(|| {
        // SAFETY: the event is valid during the call.
        let event = unsafe { &*event };
        let shared: *const Shared = ptr::with_exposed_provenance(event.user_data as usize);
        // SAFETY: the library's reference, which submitting made.
        let owned = unsafe { Arc::from_raw(shared) };
        if event.kind == sys::BN_EVENT_COMPLETED {
            owned.deliver(event); // and no callback for it follows
        } else {
            std::mem::ManuallyDrop::new(owned).deliver(event);
        }
    });
}
