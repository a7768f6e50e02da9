//! The state of the server, from loading to the end, and its running requests.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    #[default]
    Loading,
    Serving,
    /// The server finishes running requests.
    Draining,
    Cancelling,
}

#[derive(Default)]
pub struct Life {
    state: Mutex<State>,
    /// Number of requests whose answers have not been taken.
    pub(super) exchanges: AtomicUsize,
    pub(super) connections: AtomicUsize,
    /// Each request holds a clone until all its work is submitted.
    unsubmitted: Arc<()>,
}

impl Life {
    pub fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a state, unless the server is already there or beyond.
    pub fn enter(&self, state: State) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *now = state.max(*now);
    }

    /// A token that delays the draining of engines until it is dropped.
    pub fn submits(&self) -> Arc<()> {
        self.unsubmitted.clone()
    }

    pub fn unsubmitted(&self) -> usize {
        Arc::strong_count(&self.unsubmitted) - 1
    }

    pub fn exchanges(&self) -> usize {
        self.exchanges.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}
