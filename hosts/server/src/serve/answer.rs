//! An answer that is being sent. It ends once the connection has taken all of it, or is gone.
use super::access::Record;
use super::link::Active;
use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

pub struct Answer {
    body: Body,
    /// Dropped before `active`, because the server may end with the last request.
    record: Option<Record>,
    active: Active,
    /// More of it is ready than the connection has taken.
    held: bool,
}

impl Answer {
    pub fn new(body: Body, active: Active, record: Option<Record>) -> Self {
        Self { body, record, active, held: false }
    }

    fn taken(&mut self, polled: &Poll<Option<Result<Frame<Bytes>, axum::Error>>>) {
        let link = &self.active.0;
        link.paused.store(polled.is_pending(), Ordering::Relaxed);
        let bytes = match polled {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        link.taken.fetch_add(bytes, Ordering::Relaxed);
        self.hold(bytes > 0);
        if let Some(record) = &mut self.record {
            record.bytes += bytes as u64;
        }
    }

    fn hold(&mut self, held: bool) {
        match (self.held, held) {
            (false, true) => _ = self.active.0.held.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.active.0.held.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        self.held = held;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.hold(false);
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.taken(&polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
