//! A request and its answer, on any connection.
use super::access::Record;
use super::answer::Answer;
use super::life::State;
use super::link::Link;
use super::receive::{self, Arrival};
use super::router::{self, Way};
use super::{guard, head};
use crate::failure::{Failure, Result, too_large};
use crate::run::{Peer, shape_of};
use axum::body::{Body, HttpBody as _};
use axum::http::header::{CONNECTION, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, Version, request::Parts};
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub async fn answer(link: Arc<Link>, request: Request<Incoming>) -> Response<Answer> {
    let options = &link.app.options;
    let (mut parts, incoming) = request.into_parts();
    let (active, until) = link.begin();
    let mut record = options.access_log.then(|| Record::begin(link.peer, &mut parts));
    let (body, arrival) = receive::body(incoming, &link, until);
    let origin = guard::listed_origin(options.cors.as_deref(), &parts.headers).cloned();
    // hyper accepts chunks that the standard forbids, so a proxy might see another end of this request.
    let single = parts.headers.contains_key(TRANSFER_ENCODING) || parts.version == Version::HTTP_10;
    let version = parts.version;
    let shape = shape_of(parts.uri.path());
    let answered = paused(&link, caught(pass(&link, parts, body))).await;
    let invalid = answered.as_ref().is_err_and(|failure| failure.code == head::INVALID);
    let mut response = answered.unwrap_or_else(|failure| failure.response(shape));
    if let Some(origin) = &origin {
        router::open_to(origin, response.headers_mut());
    }
    if version < Version::HTTP_2 && (single || invalid || closes(&link, &arrival)) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(record) = &mut record {
        record.status = response.status().as_u16();
    }
    link.answer();
    response.map(|body| Answer::new(body, active, record))
}

async fn pass(link: &Link, mut parts: Parts, body: Body) -> Result<Response<Body>> {
    let app = &link.app;
    head::check(&parts, app.options.max_header)?;
    let route = match router::find(app, &mut parts, link.entry.extra)? {
        Way::To(route) => route,
        Way::Answered(response) => return Ok(response),
    };
    let most = app.options.max_body;
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let body = match parts.method {
        Method::POST => body,
        _ => {
            receive::skip(body, most).await;
            Body::empty()
        }
    };
    parts.extensions.insert(Peer(link.peer));
    Ok((route.handle)(app.clone(), parts, body).await)
}

/// Marks the connection while its client waits for `answer`.
async fn paused<T>(link: &Link, answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    std::future::poll_fn(|context| {
        let polled = answer.as_mut().poll(context);
        link.paused.store(polled.is_pending(), Ordering::Relaxed);
        polled
    })
    .await
}

/// A panic fails only its own request.
async fn caught<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let words = "the server failed to answer this request";
    let broken = || Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", words);
    AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| Err(broken()))
}

/// Whether the connection ends with this answer, because later bytes may not be a request, or other clients
/// wait for a connection.
fn closes(link: &Link, arrival: &Arrival) -> bool {
    !arrival.is_whole() || link.entry.extra || link.app.life.state() > State::Serving
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let failure = caught::<()>(async { panic!("of a handler") }).await.unwrap_err();
        assert_eq!(failure.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(caught(async { Ok(1) }).await.is_ok());
    }
}
