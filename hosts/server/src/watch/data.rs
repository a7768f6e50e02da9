//! Spans as OpenTelemetry has them.
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::SystemTime;

static SCOPE: LazyLock<InstrumentationScope> =
    LazyLock::new(|| InstrumentationScope::builder("bn_engine").with_version(bn::version()).build());

/// An id that no other trace has.
pub fn new_trace() -> [u8; 16] {
    RandomIdGenerator::default().new_trace_id().to_bytes()
}

/// The same of a span.
pub fn new_span() -> [u8; 8] {
    RandomIdGenerator::default().new_span_id().to_bytes()
}

/// The part that differs between requests and phases.
pub struct Own {
    pub id: [u8; 8],
    pub kind: SpanKind,
    pub name: Cow<'static, str>,
    pub times: (SystemTime, SystemTime),
    pub attributes: Vec<KeyValue>,
    pub failed: bool,
}

/// A span that has ended, below the one that `place` names.
pub fn span(place: &bn::Trace, own: Own) -> SpanData {
    let (trace, id) = (TraceId::from_bytes(place.trace_id), SpanId::from_bytes(own.id));
    let parent_span_id = SpanId::from_bytes(place.parent_id);
    SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id,
        parent_span_is_remote: own.kind == SpanKind::Server && parent_span_id != SpanId::INVALID,
        span_kind: own.kind,
        name: own.name,
        start_time: own.times.0,
        end_time: own.times.1,
        attributes: own.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if own.failed { Status::error("") } else { Status::Unset },
        instrumentation_scope: SCOPE.clone(),
    }
}

/// A phase of a request in an engine. None: the library is newer than this server, and knows more of them.
pub fn phase(span: &bn::Span) -> Option<SpanData> {
    let name = match span.kind {
        bn::SpanKind::Queued => "queued",
        bn::SpanKind::Prefill => "prefill",
        bn::SpanKind::Decode => "decode",
        _ => return None,
    };
    let attributes = vec![
        KeyValue::new("bn.tokens", i64::from(span.tokens)),
        KeyValue::new("bn.cached_tokens", i64::from(span.cached_tokens)),
        KeyValue::new("bn.finish_reason", span.finish_reason.name()),
    ];
    let failed = span.finish_reason == bn::FinishReason::Failed;
    let times = (span.start, span.end);
    let own = Own { id: new_span(), kind: SpanKind::Internal, name: name.into(), times, attributes, failed };
    Some(self::span(&span.trace, own))
}
