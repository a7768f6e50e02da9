//! From loading to the end, and what is under way meanwhile.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    #[default]
    Loading,
    Serving,
    /// It finishes what runs.
    Draining,
    Cancelling,
}

#[derive(Default)]
pub struct Life {
    state: Mutex<State>,
    /// Requests whose answers have not been taken.
    pub(super) exchanges: AtomicUsize,
    pub(super) connections: AtomicUsize,
    /// Each request has it until all its work is submitted.
    unsubmitted: Arc<()>,
}

impl Life {
    pub fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to a later state. One that is there stays, as does one beyond it.
    pub fn enter(&self, state: State) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *now = state.max(*now);
    }

    /// Delays the draining of engines until it is dropped.
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
