//! A request's body, which must arrive within its time limit.
use super::link::Link;
use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt as _;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::error::Error;
use std::future::Future as _;
use std::io::{self, ErrorKind::TimedOut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::time::{Sleep, sleep_until};

/// Whether the whole body has arrived.
#[derive(Clone)]
pub struct Arrival(Arc<AtomicBool>);

impl Arrival {
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Receiving {
    inner: Incoming,
    link: Arc<Link>,
    late: Pin<Box<Sleep>>,
    arrival: Arrival,
}

/// The body that arrives over a connection until the time limit.
pub fn body(inner: Incoming, link: &Arc<Link>, until: Instant) -> (Body, Arrival) {
    let arrival = Arrival(Arc::new(AtomicBool::new(inner.is_end_stream())));
    if arrival.is_whole() {
        link.answer();
        return (Body::empty(), arrival);
    }
    let late = Box::pin(sleep_until(until.into()));
    let receiving = Receiving { inner, link: link.clone(), late, arrival: arrival.clone() };
    (Body::new(receiving), arrival)
}

/// Reads at most `most` bytes of an unused body, so that the connection can be reused.
pub async fn skip(body: Body, most: usize) {
    let mut data = body.into_data_stream();
    let mut skipped = 0;
    while skipped <= most
        && let Some(Ok(data)) = data.next().await
    {
        skipped += data.len();
    }
}

impl Receiving {
    fn end(&self) {
        self.arrival.0.store(true, Ordering::Relaxed);
        self.link.answer();
    }
}

impl HttpBody for Receiving {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Pending => {
                this.late.as_mut().poll(context).map(|()| Some(Err(io::Error::from(TimedOut).into())))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(frame) => {
                if frame.is_none() || this.inner.is_end_stream() {
                    this.end();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
