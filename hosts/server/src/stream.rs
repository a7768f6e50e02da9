//! The body of an answer that streams: events of the engine become the API's text as they come, and hanging up cancels.
use crate::models::Held;
use crate::run::{Api, Call, Generation, Totals, failure_of};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_core::Stream as _;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Events of a request that are written before others get their turn.
const TURN: usize = 64;

struct Streaming<A> {
    call: Call,
    /// None once all is generated: the client may take long to read the rest.
    held: Option<Held>,
    api: A,
    samples: usize,
    /// None: ended.
    streams: Vec<Option<bn::Stream>>,
    totals: Totals,
    out: String,
    begun: bool,
    failed: bool,
    ended: bool,
}

pub fn response<A: Api>(
    call: Call,
    held: Held,
    generation: Generation,
    api: A,
    streams: Vec<bn::Stream>,
) -> Response<Body> {
    let kind = api.stream_type();
    let app = call.app.clone();
    let body = Streaming {
        call,
        held: Some(held),
        api,
        samples: generation.samples,
        streams: streams.into_iter().map(Some).collect(),
        totals: Totals::default(),
        out: String::new(),
        begun: false,
        failed: false,
        ended: false,
    };
    let mut response = Response::new(crate::body::eager(body, &app));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl<A: Api + Unpin> Streaming<A> {
    /// Writes what has come of request `at`.
    fn advance(&mut self, at: usize, context: &mut Context<'_>) {
        for _ in 0..TURN {
            let Some(stream) = self.streams[at].as_mut() else { return };
            match Pin::new(stream).poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(None) => {
                    self.streams[at] = None;
                    return;
                }
                Poll::Ready(Some(event)) => self.write(at, &event),
            }
        }
        context.waker().wake_by_ref();
    }

    fn write(&mut self, at: usize, event: &bn::Event) {
        let failure = event.finish.as_ref().and_then(failure_of);
        match &failure {
            Some(failure) => self.api.failed(&mut self.out, at, failure),
            None => self.api.event(&mut self.out, at, event),
        }
        self.failed |= failure.is_some();
        if let Some(finish) = &event.finish {
            self.totals.add(&finish.usage, at.is_multiple_of(self.samples));
            self.streams[at] = None;
        }
    }
}

impl<A: Api + Unpin> http_body::Body for Streaming<A> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if !this.begun {
            this.begun = true;
            this.api.begin(&mut this.out);
        }
        for at in 0..this.streams.len() {
            this.advance(at, context);
        }
        if !this.ended && this.streams.iter().all(Option::is_none) {
            this.ended = true;
            this.api.end(&mut this.out, &this.totals, this.failed);
            this.call.traced(&this.totals);
            this.held = None;
        }
        if !this.out.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(std::mem::take(&mut this.out))))));
        }
        if this.ended { Poll::Ready(None) } else { Poll::Pending }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
