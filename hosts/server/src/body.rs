//! Bodies of requests and answers, whose bytes are counted while they are held.
mod eager;
mod json;

pub use eager::{Writer, eager};
pub use json::without_nul;

use crate::failure::{Failure, Result, too_large};
use crate::fields::Fields;
use crate::memory::Lease;
use crate::run::Call;
use crate::work::{Cost, WorkQueue};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use futures_util::stream;
use std::borrow::Cow;
use std::convert::Infallible;
use std::io;

/// Bytes of a whole answer that are passed to the connection at once. Bytes that it has not taken stay
/// counted.
const PIECE: usize = 64 << 10;
/// Minimum capacity for a body's bytes.
const LEAST: usize = 4 << 10;

/// Reads the fields of a request, and its length. The bytes are counted as they arrive.
pub async fn read(call: &mut Call, body: Body) -> Result<(Fields, usize)> {
    let bytes = receive(call, body).await?;
    let length = bytes.len();
    let limits = json::Limits { depth: call.app.options.max_depth, items: call.app.options.max_items };
    let mut lease = std::mem::replace(&mut call.lease, call.app.memory.lease());
    let cost = Cost { peer: call.peer, bytes: length };
    let parse = move || (parse(bytes, limits, &mut lease), lease);
    let app = call.app.clone();
    let (fields, lease) = app.work.run(WorkQueue::of(length), cost, parse).await;
    call.lease = lease;
    Ok((fields?, length))
}

/// Reads the fields of a request that needs no body.
pub async fn read_if_any(call: &mut Call, body: Body) -> Result<Fields> {
    if body.size_hint().exact() == Some(0) {
        return Ok(Fields::default());
    }
    read(call, body).await.map(|(fields, _)| fields)
}

fn parse(mut bytes: Vec<u8>, limits: json::Limits, lease: &mut Lease) -> Result<Fields> {
    let values = json::check(&bytes, limits)?;
    lease.take(json::cost(values, bytes.len()))?;
    let fields = match without_nul(&bytes) {
        Cow::Borrowed(_) => json::object(&mut bytes)?,
        Cow::Owned(mut mended) => json::object(&mut mended)?,
    };
    lease.give(bytes.capacity());
    Ok(Fields::new(fields))
}

/// Reads the body's bytes. The buffer grows up to the length in the request's head, if there is one.
async fn receive(call: &mut Call, body: Body) -> Result<Vec<u8>> {
    let most = call.app.options.max_body;
    let length = body.size_hint().exact().map_or(most, |length| most.min(length as usize));
    let mut bytes = Vec::new();
    let mut data = body.into_data_stream();
    while let Some(data) = data.next().await {
        let data = data.map_err(refused)?;
        let needed = bytes.len() + data.len();
        if needed > most {
            return Err(too_large(most));
        }
        if needed > bytes.capacity() {
            let room = needed.max((bytes.capacity() * 2).max(LEAST).min(length));
            call.lease.take(room - bytes.capacity())?;
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn refused(error: axum::Error) -> Failure {
    let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    if error.into_inner().downcast_ref().is_some_and(is_late) {
        let words = "the request did not arrive in time";
        return Failure::new(StatusCode::REQUEST_TIMEOUT, "timed_out", words);
    }
    Failure::new(StatusCode::BAD_REQUEST, "invalid_http", "the request's body is not valid HTTP/1.1")
}

/// The body of a whole answer. `call` lives until the connection has taken it.
pub fn counted(text: String, call: Call) -> Body {
    Body::from_stream(stream::unfold((Bytes::from(text), call), |(mut text, call)| async move {
        let piece = text.split_to(text.len().min(PIECE));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (text, call)))
    }))
}
