//! Spans of traced requests.
use crate::finish::FinishReason;
use crate::request::Trace;
use crate::{callback, sys};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// From submit to admission. Its tokens are the prompt's.
    Queued,
    /// From admission to the end of the prompt. Its tokens are those of the prompt that were not cached.
    Prefill,
    /// From the first generated token to the last. Its tokens are the generated ones.
    Decode,
    /// A phase that this package does not know.
    Unknown(u32),
}

/// A phase of a traced request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The phase.
    pub kind: SpanKind,
    /// The request, as [`Stream::id`](crate::Stream::id) names it.
    pub request: u64,
    /// The reason of the request's end.
    pub finish_reason: FinishReason,
    /// The request's own.
    pub trace: Trace,
    /// When the phase began.
    pub start: SystemTime,
    /// When it ended, at the latest with the request.
    pub end: SystemTime,
    /// Tokens of the phase.
    pub tokens: u32,
    /// Prompt tokens that were in the prefix cache.
    pub cached_tokens: u32,
}

/// Receives the spans of an ended request that has a trace: one for each phase that it reached, in order, before or after
/// its last event. It runs on a thread of the engine, whose requests wait for it. A panic in it is ignored.
pub type OnSpan = Arc<dyn Fn(&Span) + Send + Sync>;

fn kind_of(kind: u32) -> SpanKind {
    match kind {
        sys::BN_SPAN_QUEUED => SpanKind::Queued,
        sys::BN_SPAN_PREFILL => SpanKind::Prefill,
        sys::BN_SPAN_DECODE => SpanKind::Decode,
        other => SpanKind::Unknown(other),
    }
}

fn since_1970(nanoseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

/// The library's callback and its context. The closure must stay where it is until the engine is freed.
pub(crate) fn hook(on_span: Option<&OnSpan>) -> (sys::bn_span_callback, *mut c_void) {
    match on_span {
        Some(closure) => (Some(on_span_callback), ptr::from_ref(closure).cast_mut().cast()),
        None => (None, ptr::null_mut()),
    }
}

unsafe extern "C" fn on_span_callback(span: *const sys::bn_span, context: *mut c_void) {
    callback::run(|| {
        // SAFETY: the context is an `OnSpan` that outlives the engine, and the span is valid during the call.
        let (closure, raw) = unsafe { (&*context.cast::<OnSpan>(), &*span) };
        closure(&Span {
            kind: kind_of(raw.kind),
            request: raw.request,
            finish_reason: FinishReason::of(raw.finish_reason),
            trace: Trace { trace_id: raw.trace.trace_id, parent_id: raw.trace.parent_id },
            start: since_1970(raw.start_ns),
            end: since_1970(raw.end_ns),
            tokens: raw.tokens,
            cached_tokens: raw.cached_tokens,
        });
    });
}
