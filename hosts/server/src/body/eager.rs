//! An answer that is made whether or not its client reads it. The unread bytes are counted and bounded.
use super::PIECE;
use crate::app::App;
use crate::memory::Lease;
use axum::body::Body;
use futures_util::stream;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::task::JoinSet;

/// The body that `make` writes in a task of its own, which ends when the body is dropped.
pub fn eager<F: Future<Output = ()> + Send + 'static>(app: &App, make: impl FnOnce(Writer) -> F) -> Body {
    let inbox = Inbox::new(app.memory.lease());
    let mut task = JoinSet::new();
    task.spawn(make(Writer { inbox: inbox.clone(), most: app.options.max_unread }));
    let reader = Reader { inbox, _task: task };
    Body::from_stream(stream::poll_fn(move |context| reader.poll(context)))
}

#[derive(Clone)]
struct Inbox(Arc<Mutex<Waiting>>);

struct Waiting {
    lease: Lease,
    data: VecDeque<u8>,
    end: End,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Whole,
    Cut,
}

impl Inbox {
    fn new(lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(Waiting { lease, data: VecDeque::new(), end: End::Open, waker: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// The writing side. If it is dropped without an end, the answer is cut off.
pub struct Writer {
    inbox: Inbox,
    most: usize,
}

impl Writer {
    /// Appends data. False: too much is unread.
    pub fn put(&self, data: &[u8]) -> bool {
        let mut waiting = self.inbox.lock();
        if waiting.data.len() + data.len() > self.most || waiting.lease.take(data.len()).is_err() {
            return false;
        }
        waiting.data.extend(data);
        waiting.wake();
        true
    }

    pub fn end(self) {
        self.inbox.lock().end = End::Whole;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut waiting = self.inbox.lock();
        if waiting.end == End::Open {
            waiting.end = End::Cut;
        }
        waiting.wake();
    }
}

struct Reader {
    inbox: Inbox,
    _task: JoinSet<()>,
}

impl Reader {
    fn poll(&self, context: &Context<'_>) -> Poll<Option<io::Result<Vec<u8>>>> {
        let mut waiting = self.inbox.lock();
        let count = waiting.data.len().min(PIECE);
        match waiting.end {
            // Too much is unread, or no memory is left for it. The connection is closed.
            End::Cut => {
                Poll::Ready(Some(Err(io::Error::other("the client left too much of the answer unread"))))
            }
            End::Whole if count == 0 => Poll::Ready(None),
            End::Open if count == 0 => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => {
                waiting.lease.give(count);
                let piece = waiting.data.drain(..count).collect();
                waiting.data.shrink_to(PIECE); // data that is not counted must not be kept
                Poll::Ready(Some(Ok(piece)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use std::future::poll_fn;

    fn pair(memory: &Memory, most: usize) -> (Writer, Reader) {
        let inbox = Inbox::new(memory.lease());
        (Writer { inbox: inbox.clone(), most }, Reader { inbox, _task: JoinSet::new() })
    }

    async fn next(reader: &Reader) -> Option<Result<usize, ()>> {
        let piece = poll_fn(|context| reader.poll(context)).await?;
        Some(piece.map(|piece| piece.len()).map_err(drop))
    }

    #[tokio::test]
    async fn what_waits_comes_together_and_is_counted() {
        let memory = Memory::new(1 << 20);
        let (writer, reader) = pair(&memory, PIECE * 2);
        assert!(writer.put(&[0; 10]));
        assert!(writer.put(&vec![0; PIECE]));
        assert_eq!(memory.used(), PIECE + 10);
        assert!(!writer.put(&vec![0; PIECE]));
        writer.end();
        assert_eq!(next(&reader).await, Some(Ok(PIECE)));
        assert_eq!(memory.used(), 10);
        assert_eq!(next(&reader).await, Some(Ok(10)));
        assert_eq!(next(&reader).await, None);
    }

    #[tokio::test]
    async fn without_an_end_it_is_cut() {
        let memory = Memory::new(100);
        let (writer, reader) = pair(&memory, PIECE);
        assert!(!writer.put(&[0; 101]));
        assert!(writer.put(&[0; 100]));
        drop(writer);
        assert_eq!(next(&reader).await, Some(Err(())));
        drop(reader);
        assert_eq!(memory.used(), 0);
    }
}
