//! An answer that is made whether or not its client reads it. What waits for the client is counted, and bounded.
use super::PIECE;
use crate::app::App;
use crate::memory::Lease;
use axum::body::{Body, Bytes, HttpBody};
use http_body::Frame;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::task::{JoinHandle, yield_now};

/// More is unread than may be, or no memory is left for it. The connection is closed.
#[derive(Debug)]
pub struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client left too much of the answer unread")
    }
}

impl std::error::Error for Unread {}

/// Runs `body` in a task of its own.
pub fn eager(body: impl HttpBody<Data = Bytes, Error: Send> + Send + 'static, app: &App) -> Body {
    let inbox = Inbox::new(app.memory.lease());
    let task = tokio::spawn(make(Box::pin(body), Writer(inbox.clone()), app.options.max_unread));
    Body::new(Reader { inbox, task })
}

#[derive(Clone)]
struct Inbox(Arc<Mutex<Waiting>>);

struct Waiting {
    lease: Lease,
    /// Each of `PIECE` bytes at most.
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    end: End,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Whole,
    Cut,
}

impl Waiting {
    fn add(&mut self, mut data: &[u8]) {
        self.bytes += data.len();
        while !data.is_empty() {
            let mut last = match self.pieces.pop_back() {
                Some(last) if last.len() < PIECE => last,
                full => {
                    self.pieces.extend(full);
                    Vec::new()
                }
            };
            let (now, later) = data.split_at(data.len().min(PIECE - last.len()));
            last.extend_from_slice(now);
            self.pieces.push_back(last);
            data = later;
        }
    }
}

impl Inbox {
    fn new(lease: Lease) -> Self {
        let pieces = VecDeque::new();
        Self(Arc::new(Mutex::new(Waiting { lease, pieces, bytes: 0, end: End::Open, waker: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's end of it. Without a word of the end, the answer is cut.
struct Writer(Inbox);

impl Writer {
    fn end(&self, end: End) {
        let mut waiting = self.0.lock();
        if waiting.end == End::Open {
            waiting.end = end;
        }
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }

    /// False: it is too much.
    fn put(&self, data: &[u8], most: usize) -> bool {
        let mut waiting = self.0.lock();
        if waiting.bytes + data.len() > most || waiting.lease.take(data.len()).is_err() {
            return false;
        }
        waiting.add(data);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(End::Cut);
    }
}

async fn make<B: HttpBody<Data = Bytes, Error: Send>>(mut body: Pin<Box<B>>, to: Writer, most: usize) {
    loop {
        match poll_fn(|context| body.as_mut().poll_frame(context)).await {
            None => return to.end(End::Whole),
            Some(Err(_)) => return,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !to.put(&data, most)
                {
                    return;
                }
                yield_now().await; // a fast model always has more
            }
        }
    }
}

struct Reader {
    inbox: Inbox,
    task: JoinHandle<()>,
}

impl HttpBody for Reader {
    type Data = Bytes;
    type Error = Unread;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unread>>> {
        let mut waiting = self.inbox.lock();
        match waiting.end {
            End::Cut => return Poll::Ready(Some(Err(Unread))),
            End::Whole if waiting.pieces.is_empty() => return Poll::Ready(None),
            _ => {}
        }
        let Some(piece) = waiting.pieces.pop_front() else {
            waiting.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        waiting.bytes -= piece.len();
        waiting.lease.give(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn pair(memory: &Memory) -> (Writer, Reader) {
        let inbox = Inbox::new(memory.lease());
        let task = tokio::spawn(async {});
        (Writer(inbox.clone()), Reader { inbox, task })
    }

    async fn next(reader: &mut Reader) -> Option<Result<usize, ()>> {
        let frame = poll_fn(|context| Pin::new(&mut *reader).poll_frame(context)).await?;
        Some(frame.map(|frame| frame.into_data().unwrap().len()).map_err(|Unread| ()))
    }

    #[tokio::test]
    async fn what_waits_comes_together_and_is_counted() {
        let memory = Memory::new(1 << 20);
        let (writer, mut reader) = pair(&memory);
        assert!(writer.put(&[0; 10], PIECE * 2));
        assert!(writer.put(&vec![0; PIECE], PIECE * 2));
        assert_eq!(memory.used(), PIECE + 10);
        assert!(!writer.put(&vec![0; PIECE], PIECE * 2));
        writer.end(End::Whole);
        drop(writer);
        assert_eq!(next(&mut reader).await, Some(Ok(PIECE)));
        assert_eq!(memory.used(), 10);
        assert_eq!(next(&mut reader).await, Some(Ok(10)));
        assert_eq!(next(&mut reader).await, None);
    }

    #[tokio::test]
    async fn without_an_end_it_is_cut() {
        let memory = Memory::new(100);
        let (writer, mut reader) = pair(&memory);
        assert!(!writer.put(&[0; 101], PIECE));
        assert!(writer.put(&[0; 100], PIECE));
        drop(writer);
        assert_eq!(next(&mut reader).await, Some(Err(())));
        drop(reader);
        assert_eq!(memory.used(), 0);
    }
}
