//! A request's hold on a model, which stays loaded meanwhile.
use super::Models;
use super::load::Loaded;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub struct Held {
    pub(super) models: Arc<Models>,
    pub(super) at: usize,
    pub(super) loaded: Arc<Loaded>,
    /// The adapter that was asked for.
    pub(super) adapter: Option<usize>,
    pub(super) keep: OnceLock<Duration>,
}

impl Held {
    /// The name that was asked for: the model's, or its adapter's.
    pub fn shown(&self) -> &str {
        let adapter = self.adapter.and_then(|at| self.adapters.get(at));
        adapter.map_or(&self.name, |(name, _)| name)
    }

    pub fn adapter(&self) -> Option<&bn::Adapter> {
        self.adapter.and_then(|at| self.adapters.get(at)).map(|(_, adapter)| adapter)
    }

    /// Sets how long the model stays after this request if no other comes. Only with several models.
    pub fn keep(&self, time: Duration) {
        let _ = self.keep.set(time);
    }
}

impl Deref for Held {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.models.leave(self.at, self.keep.get().copied(), self.loaded.died());
    }
}
