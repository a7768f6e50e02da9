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
    exchanges: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

/// One more of what is counted, until it is dropped.
pub struct Counted(Arc<AtomicUsize>);

impl Life {
    pub fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to a later state. One that is there stays, as does one beyond it.
    pub fn enter(&self, state: State) {
        let mut now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *now = state.max(*now);
    }

    /// Requests whose answers have not been taken.
    pub fn exchanges(&self) -> usize {
        self.exchanges.load(Ordering::Relaxed)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn exchange(&self) -> Counted {
        Counted::new(&self.exchanges)
    }

    pub(super) fn connection(&self) -> Counted {
        Counted::new(&self.connections)
    }
}

impl Counted {
    fn new(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(of.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
