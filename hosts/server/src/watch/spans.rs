//! Spans that have ended and wait to be sent.
use opentelemetry_sdk::trace::SpanData;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Spans that may wait. More are lost.
const MOST: usize = 4096;
/// Spans that are sent together.
pub const BATCH: usize = 512;

#[derive(Default)]
pub struct Queue {
    spans: Mutex<VecDeque<SpanData>>,
    exported: AtomicU64,
    dropped: AtomicU64,
    ending: AtomicBool,
    news: Notify,
}

impl Queue {
    pub fn put(&self, span: SpanData) {
        let mut spans = self.lock();
        if spans.len() == MOST {
            self.lose(1);
            return;
        }
        spans.push_back(span);
        if matches!(spans.len(), 1 | BATCH) {
            self.news.notify_one();
        }
    }

    pub fn take(&self) -> Vec<SpanData> {
        let mut spans = self.lock();
        let count = spans.len().min(BATCH);
        spans.drain(..count).collect()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Waits for a first span, for a whole batch, or for the end.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// The collector took so many.
    pub fn sent(&self, count: usize) {
        self.exported.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn lose(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn lose_all(&self) {
        let mut spans = self.lock();
        self.lose(spans.len());
        spans.clear();
    }

    /// No more spans will come.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.news.notify_one();
    }

    pub fn ends(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SpanData>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::{Own, new_span, span};
    use super::*;
    use opentelemetry::trace::SpanKind;
    use std::time::SystemTime;

    #[test]
    fn spans_beyond_the_most_are_lost_and_counted() {
        let queue = Queue::default();
        let times = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        let (kind, attributes) = (SpanKind::Internal, Vec::new());
        let own = Own { id: new_span(), kind, name: "x".into(), times, attributes, failed: false };
        let one = span(&bn::Trace::default(), own);
        (0..MOST + 3).for_each(|_| queue.put(one.clone()));
        assert_eq!((queue.len(), queue.dropped()), (MOST, 3));
        assert_eq!((queue.take().len(), queue.len()), (BATCH, MOST - BATCH));
        queue.lose_all();
        assert_eq!((queue.len(), queue.dropped()), (0, (MOST - BATCH + 3) as u64));
    }
}
