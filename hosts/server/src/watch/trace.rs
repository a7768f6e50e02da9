//! A request's place in the traces of its client: W3C's `traceparent` in, spans out.
use super::data::{Own, new_span, new_trace, phase, span};
use super::endpoint::Endpoint;
use super::export;
use super::spans::Queue;
use axum::http::Method;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};
use tokio::task::JoinHandle;

/// The status of requests whose clients hung up, as nginx has it.
const GONE: u16 = 499;

/// Begins traces, and sends their spans to the collector of `--otlp-endpoint`. Without one it does nothing.
pub struct Tracer {
    to: Option<(Endpoint, Arc<Queue>)>,
    sending: Mutex<Option<JoinHandle<()>>>,
}

/// The span of a request over HTTP. It ends when the last clone is dropped.
#[derive(Clone)]
pub struct Trace(Arc<Span>);

struct Span {
    queue: Arc<Queue>,
    place: bn::Trace,
    id: [u8; 8],
    method: Method,
    path: String,
    began: Instant,
    start: SystemTime,
    told: Mutex<Told>,
}

/// Learned while the request is answered.
#[derive(Default)]
struct Told {
    model: String,
    status: Option<u16>,
    input_tokens: u64,
    output_tokens: u64,
}

impl Tracer {
    /// Err: why `endpoint` cannot be one.
    pub fn new(endpoint: Option<&str>) -> Result<Self, String> {
        let endpoint = endpoint.map(Endpoint::parse).transpose()?;
        Ok(Self { to: endpoint.map(|endpoint| (endpoint, Arc::default())), sending: Mutex::default() })
    }

    /// Begins to send spans, in a runtime.
    pub fn start(&self) {
        if let Some((endpoint, queue)) = &self.to {
            let task = tokio::spawn(export::run(queue.clone(), endpoint.clone()));
            *self.sending.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
    }

    /// Sends what waits, for some seconds at most. For the server's end, once all requests are over.
    pub async fn finish(&self) {
        let task = self.sending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some((_, queue)), Some(task)) = (&self.to, task) {
            queue.end();
            let _ = task.await;
        }
    }

    /// The span of a request. None: there is no collector, or the client wants no trace.
    pub fn begin(&self, method: &Method, path: &str, traceparent: Option<&str>) -> Option<Trace> {
        let (_, queue) = self.to.as_ref()?;
        let new = || Parent { place: bn::Trace { trace_id: new_trace(), parent_id: [0; 8] }, sampled: true };
        let parent = traceparent.and_then(Parent::read).unwrap_or_else(new);
        parent.sampled.then(|| {
            let began = Instant::now(); // before `start`, so that the span's end is behind its phases'
            Trace(Arc::new(Span {
                queue: queue.clone(),
                place: parent.place,
                id: new_span(),
                method: method.clone(),
                path: path.to_owned(),
                began,
                start: SystemTime::now(),
                told: Mutex::default(),
            }))
        })
    }

    /// Receives the phases of requests from engines.
    pub fn on_span(&self) -> Option<bn::OnSpan> {
        let queue = self.to.as_ref()?.1.clone();
        Some(Arc::new(move |span: &bn::Span| {
            if let Some(phase) = phase(span) {
                queue.put(phase);
            }
        }))
    }

    /// Spans that the collector took, and those that were lost.
    pub fn counts(&self) -> (u64, u64) {
        self.to.as_ref().map_or((0, 0), |(_, queue)| (queue.exported(), queue.dropped()))
    }
}

impl Trace {
    /// The place of the engine's phases: below this span.
    pub fn of_engine(&self) -> bn::Trace {
        bn::Trace { trace_id: self.0.place.trace_id, parent_id: self.0.id }
    }

    /// The model that answers.
    pub fn model(&self, name: &str) {
        name.clone_into(&mut self.told().model);
    }

    pub fn tokens(&self, input: u64, output: u64) {
        let mut told = self.told();
        (told.input_tokens, told.output_tokens) = (input, output);
    }

    /// The answer is there as a whole, with this status. Without it, the client is gone.
    pub fn answered(&self, status: u16) {
        self.told().status = Some(status);
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let told = std::mem::take(self.told.get_mut().unwrap_or_else(PoisonError::into_inner));
        let status = told.status.unwrap_or(GONE);
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut attributes = vec![
            KeyValue::new("http.request.method", self.method.to_string()),
            KeyValue::new("url.path", self.path.clone()),
            KeyValue::new("http.response.status_code", i64::from(status)),
            KeyValue::new("gen_ai.usage.input_tokens", number(told.input_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", number(told.output_tokens)),
        ];
        if !told.model.is_empty() {
            attributes.push(KeyValue::new("gen_ai.request.model", told.model));
        }
        let name = format!("{} {}", self.method, self.path).into();
        let times = (self.start, self.start + self.began.elapsed());
        let own = Own { id: self.id, kind: SpanKind::Server, name, times, attributes, failed: status >= 500 };
        self.queue.put(span(&self.place, own));
    }
}

/// A client's `traceparent`.
#[derive(Debug, PartialEq)]
struct Parent {
    place: bn::Trace,
    sampled: bool,
}

impl Parent {
    /// None: it is not valid, and is passed over.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let version = hex::<1>(parts.next()?)?[0];
        let (trace_id, parent_id) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
        let flags = hex::<1>(parts.next()?)?[0];
        // Later versions may have more behind another dash.
        let right = version != 0xff && (version != 0 || parts.next().is_none());
        let zero = trace_id == [0; 16] || parent_id == [0; 8];
        (right && !zero).then_some(Self { place: bn::Trace { trace_id, parent_id }, sampled: flags & 1 != 0 })
    }
}

/// Bytes of two lower-case digits each.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (to, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *to = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    #[test]
    fn traceparents_are_read_as_w3c_has_them() {
        let sampled = |text: &str| Parent::read(text).map(|parent| parent.sampled);
        for (text, expected) in [
            (format!("00-{TRACE}-{PARENT}-01"), Some(true)),
            (format!("00-{TRACE}-{PARENT}-00"), Some(false)),
            (format!("01-{TRACE}-{PARENT}-03-more-and-more"), Some(true)),
            (format!("00-{TRACE}-{PARENT}-01-"), None),
            (format!("00-{TRACE}-{PARENT}"), None),
            (format!("ff-{TRACE}-{PARENT}-01"), None),
            (format!("00-{}-{PARENT}-01", TRACE.to_uppercase()), None),
            (format!("00-{}-{PARENT}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("01-{TRACE}-{PARENT}-01more"), None),
            (format!("00-{TRACE}-{PARENT}-1"), None),
            (String::new(), None),
        ] {
            assert_eq!(sampled(&text), expected, "{text}");
        }
        let parent = Parent::read(&format!("00-{TRACE}-{PARENT}-01")).unwrap();
        assert_eq!((parent.place.trace_id[0], parent.place.parent_id[7]), (0x0a, 0x31));
    }

    #[test]
    fn a_request_without_a_traceparent_has_a_trace_of_its_own() {
        let tracer = Tracer::new(Some("http://127.0.0.1:4318")).unwrap();
        let begin = |parent| tracer.begin(&Method::POST, "/x", parent);
        let (one, other) = (begin(None).unwrap().of_engine(), begin(Some("wrong")).unwrap().of_engine());
        assert_ne!(one.trace_id, other.trace_id);
        assert_ne!(one.parent_id, [0; 8]);
        assert!(begin(Some(&format!("00-{TRACE}-{PARENT}-00"))).is_none());
        assert!(Tracer::new(None).unwrap().begin(&Method::POST, "/x", None).is_none());
    }
}
