//! One limit for all memory that clients make the server hold: bodies, the values in them, answers, and what streams
//! have unread. Bytes are counted before they are allocated, as far as they can be known. A request that does not fit
//! is refused rather than delayed, so that it blocks nothing.
use crate::failure::{Failure, Result};
use axum::http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone)]
pub struct Memory(Arc<Count>);

struct Count {
    used: AtomicUsize,
    most: usize,
}

/// The bytes that one request holds. They are given back when this is dropped.
pub struct Lease {
    of: Memory,
    held: usize,
}

impl Memory {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Count { used: AtomicUsize::new(0), most }))
    }

    pub fn lease(&self) -> Lease {
        Lease { of: self.clone(), held: 0 }
    }

    /// Bytes that are held now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

impl Lease {
    /// Adds `bytes` to the lease.
    pub fn take(&mut self, bytes: usize) -> Result<()> {
        let count = &self.of.0;
        let grow = |used: usize| used.checked_add(bytes).filter(|used| *used <= count.most);
        match count.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow) {
            Ok(_) => {
                self.held += bytes;
                Ok(())
            }
            // Nothing else is held, so it would not fit later either.
            Err(used) if used <= self.held => Err(Failure::new(
                StatusCode::BAD_REQUEST,
                "too_large",
                "this request and its answer need more memory than the server has",
            )),
            Err(_) => Err(Failure::unavailable(
                "out_of_memory",
                "the server has no memory for this request now: try again later",
                1,
            )),
        }
    }

    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns `bytes` of the lease.
    pub fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        self.of.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let memory = Memory::new(100);
        let (mut one, mut other) = (memory.lease(), memory.lease());
        one.take(60).unwrap();
        other.take(40).unwrap();
        assert_eq!(other.take(1).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        drop(one);
        assert_eq!(other.take(61).unwrap_err().code, "too_large");
        assert_eq!(other.take(usize::MAX).unwrap_err().code, "too_large");
        other.take(60).unwrap();
        other.give(10);
        assert_eq!(memory.used(), 90);
        drop(other);
        assert_eq!(memory.used(), 0);
    }
}
