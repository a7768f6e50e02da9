//! Traces of requests: reads W3C's `traceparent`, and makes spans.
use super::collector::TIMEOUT;
use super::endpoint;
use super::export::{self, Counts};
use axum::http::Method;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The status of requests whose clients hung up, as in nginx.
const GONE: u16 = 499;

/// Begins traces, and sends their spans to the collector of `--otlp-endpoint`. Without one it does nothing.
pub struct Tracer {
    to: Option<(SdkTracerProvider, SdkTracer)>,
    counts: Arc<Counts>,
}

/// The span of an HTTP request, which ends when the last clone is dropped.
#[derive(Clone)]
pub struct Trace(Arc<Request>);

struct Request {
    span: Mutex<Span>,
    status: OnceLock<u16>,
}

impl Tracer {
    /// Must be called in a runtime. Err: why `endpoint` is invalid.
    pub fn new(endpoint: Option<&str>) -> Result<Self, String> {
        let counts = Arc::default();
        let scope = InstrumentationScope::builder("bn_engine").with_version(bn::version()).build();
        let to = endpoint.map(|endpoint| {
            let provider = export::provider(&endpoint::parse(endpoint)?, &counts)?;
            let tracer = provider.tracer_with_scope(scope);
            Ok::<_, String>((provider, tracer))
        });
        Ok(Self { to: to.transpose()?, counts })
    }

    /// Sends waiting spans, for some seconds at most. For the end of the server, once all requests are over.
    pub async fn finish(&self) {
        if let Some((provider, _)) = self.to.clone() {
            let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(TIMEOUT)).await;
        }
    }

    /// The span of a request. None: there is no collector, or the client wants no trace.
    pub fn begin(&self, method: &Method, path: &str, traceparent: Option<&str>) -> Option<Trace> {
        let (_, tracer) = self.to.as_ref()?;
        let place = |parent| Context::new().with_remote_span_context(parent);
        let parent = traceparent.and_then(parent).map(place).unwrap_or_default();
        let about =
            SpanBuilder::from_name(format!("{method} {path}")).with_kind(SpanKind::Server).with_attributes([
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("url.path", path.to_owned()),
            ]);
        let span = tracer.build_with_context(about, &parent);
        let sampled = span.is_recording();
        sampled.then(|| Trace(Arc::new(Request { span: Mutex::new(span), status: OnceLock::new() })))
    }

    /// The callback for the phases of requests in engines.
    pub fn on_span(&self) -> Option<bn::OnSpan> {
        let (_, tracer) = self.to.clone()?;
        Some(Arc::new(move |span: &bn::Span| phase(&tracer, span)))
    }

    /// Numbers of spans that the collector accepted, and of lost ones.
    pub fn counts(&self) -> (u64, u64) {
        let Counts { exported, dropped, .. } = &*self.counts;
        (exported.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed))
    }
}

/// The span of a phase of a request in an engine.
fn phase(tracer: &SdkTracer, span: &bn::Span) {
    let name = match span.kind {
        bn::SpanKind::Queued => "queued",
        bn::SpanKind::Prefill => "prefill",
        bn::SpanKind::Decode => "decode",
        _ => return, // a newer library may have more kinds
    };
    let (trace, id) = (TraceId::from_bytes(span.trace.trace_id), SpanId::from_bytes(span.trace.parent_id));
    let parent = SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default());
    let about = SpanBuilder::from_name(name).with_start_time(span.start).with_attributes([
        KeyValue::new("bn.tokens", i64::from(span.tokens)),
        KeyValue::new("bn.cached_tokens", i64::from(span.cached_tokens)),
        KeyValue::new("bn.finish_reason", span.finish_reason.name()),
    ]);
    let mut phase = tracer.build_with_context(about, &Context::new().with_remote_span_context(parent));
    if span.finish_reason == bn::FinishReason::Failed {
        phase.set_status(Status::error(""));
    }
    phase.end_with_timestamp(span.end);
}

impl Trace {
    /// The trace context for the engine's phases, which are below this span.
    pub fn of_engine(&self) -> bn::Trace {
        let span = self.span();
        let place = span.span_context();
        bn::Trace { trace_id: place.trace_id().to_bytes(), parent_id: place.span_id().to_bytes() }
    }

    /// Sets the model that answers.
    pub fn model(&self, name: &str) {
        self.span().set_attribute(KeyValue::new("gen_ai.request.model", name.to_owned()));
    }

    pub fn tokens(&self, input: u64, output: u64) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut span = self.span();
        span.set_attribute(KeyValue::new("gen_ai.usage.input_tokens", number(input)));
        span.set_attribute(KeyValue::new("gen_ai.usage.output_tokens", number(output)));
    }

    /// Sets the status of the complete answer. Without a call, the client is gone.
    pub fn answered(&self, status: u16) {
        let _ = self.0.status.set(status);
    }

    fn span(&self) -> MutexGuard<'_, Span> {
        self.0.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let status = *self.status.get_or_init(|| GONE);
        let span = self.span.get_mut().unwrap_or_else(PoisonError::into_inner);
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error(""));
        }
    }
}

/// The context of a client's `traceparent`. None: it is invalid, and is ignored.
fn parent(text: &str) -> Option<SpanContext> {
    let parts: Vec<_> = text.split('-').collect();
    let [version, trace, span, flags, ref others @ ..] = parts[..] else { return None };
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let lengths = [version, trace, span, flags].map(str::len);
    // Later versions may have more fields after another dash.
    let known = version != "ff" && (version != "00" || others.is_empty());
    if !known || lengths != [2, 32, 16, 2] || ![version, trace, span, flags].into_iter().all(is_hex) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}
