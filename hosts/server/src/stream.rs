//! A streamed answer: events of the engine become the API's text as they arrive. If the client hangs up, the
//! request is cancelled.
use crate::body::{self, Writer};
use crate::models::Held;
use crate::run::{Api, Call, Generation, Totals, failure_of};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use tokio::task::yield_now;

/// Maximum number of events that are written together.
const TURN: usize = 64;

pub fn response<A: Api>(
    call: Call,
    held: Held,
    generation: Generation,
    api: A,
    streams: Vec<bn::Stream>,
) -> Response<Body> {
    let kind = api.stream_type();
    let app = call.app.clone();
    let write = |to| write(call, held, generation.samples, api, streams, to);
    let mut response = Response::new(body::eager(&app, write));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn write<A: Api>(
    call: Call,
    held: Held,
    samples: usize,
    mut api: A,
    streams: Vec<bn::Stream>,
    to: Writer,
) {
    let mut totals = Totals::default();
    let mut failed = false;
    let mut out = String::new();
    let numbered = streams.into_iter().enumerate().map(|(at, stream)| stream.map(move |event| (at, event)));
    let mut all = select_all(numbered).ready_chunks(TURN);
    api.begin(&mut out);
    loop {
        if !to.put(out.as_bytes()) {
            return;
        }
        out.clear();
        yield_now().await; // a fast model always has more events
        let Some(events) = all.next().await else { break };
        for (at, event) in &events {
            let failure = event.finish.as_ref().and_then(failure_of);
            match &failure {
                Some(failure) => api.failed(&mut out, *at, failure),
                None => api.event(&mut out, *at, event),
            }
            failed |= failure.is_some();
            if let Some(finish) = &event.finish {
                totals.add(&finish.usage, at.is_multiple_of(samples));
            }
        }
    }
    api.end(&mut out, &totals, failed);
    call.traced(&totals);
    drop(held); // the client may take long to read the rest
    if to.put(out.as_bytes()) {
        to.end();
    }
}
