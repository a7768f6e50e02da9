//! `bn_span`: a phase of a request, for the host's traces.

use super::callbacks::bn_span_callback;
use super::trace::bn_trace;
use super::types::*;
use crate::engine::api::{Span, SpanKind, SpanSink};
use std::ffi::c_void;
use std::sync::Arc;

/// From submit to admission. `tokens` are the prompt's.
pub const BN_SPAN_QUEUED: u32 = 1;
/// From admission to the end of the prompt. `tokens` are the prompt tokens that were not cached.
pub const BN_SPAN_PREFILL: u32 = 2;
/// From the first generated token to the last. `tokens` are the generated ones.
pub const BN_SPAN_DECODE: u32 = 3;

const _: () = {
    assert!(BN_SPAN_QUEUED == SpanKind::Queued as u32);
    assert!(BN_SPAN_PREFILL == SpanKind::Prefill as u32);
    assert!(BN_SPAN_DECODE == SpanKind::Decode as u32);
};

/// A phase of a traced request that has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_span {
    pub struct_size: u32,
    /// `BN_SPAN_*`.
    pub kind: u32,
    /// The request.
    pub request: bn_request,
    /// As in `bn_request_params`.
    pub user_data: u64,
    /// How the request ended, `BN_FINISH_*`.
    pub finish_reason: u32,
    /// As in `bn_request_params`.
    pub trace: bn_trace,
    /// When the phase began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When it ended, at the latest with the request.
    pub end_ns: u64,
    /// Tokens of the phase.
    pub tokens: u32,
    /// Prompt tokens that were in the prefix cache.
    pub cached_tokens: u32,
}

impl bn_span {
    fn new(span: &Span) -> Self {
        Self {
            struct_size: size_of::<Self>() as u32,
            kind: span.kind as u32,
            request: span.request.0,
            user_data: span.user_data,
            trace: bn_trace { trace_id: span.context.trace, parent_id: span.context.parent },
            start_ns: span.start_ns,
            end_ns: span.end_ns,
            tokens: span.tokens,
            cached_tokens: span.cached_tokens,
            finish_reason: span.finish as u32,
        }
    }
}

pub(super) fn span_sink(call: bn_span_callback, context: *mut c_void) -> Option<SpanSink> {
    let call = call?;
    let context = Context::new(context);
    Some(Arc::new(move |span| {
        let span = bn_span::new(span);
        // SAFETY: the header's contract for `on_span`; `span` outlives the call.
        unsafe { call(&span, context.get()) }
    }))
}
