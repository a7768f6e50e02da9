//! The state that requests and the keeper thread share.
use super::Model;
use super::held::Held;
use super::list::List;
use super::load::Loaded;
use super::residence::Residence;
use crate::failure::{Failure, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

pub struct State {
    pub list: List,
    pub residence: Residence,
    /// The loaded models, by index in the list.
    pub loaded: Vec<Option<Arc<Loaded>>>,
    pub waiters: Vec<Waiter>,
    /// A model to load although no request waits for it.
    pub first: Option<usize>,
    /// A model is being loaded or unloaded.
    pub busy: bool,
    pub stopped: bool,
}

/// A request that waits for a model.
pub struct Waiter {
    pub at: usize,
    pub adapter: Option<usize>,
    pub answer: oneshot::Sender<Result<Held>>,
}

impl State {
    pub fn new(list: List, residence: Residence) -> Self {
        let first = (!list.several).then_some(0);
        let (loaded, waiters) = (Vec::new(), Vec::new());
        let mut state = Self { list, residence, loaded, waiters, first, busy: false, stopped: false };
        state.settle();
        state
    }

    /// Adds entries for new models in the list, and updates the sizes of their files. Models whose files are gone need
    /// not stay.
    pub fn settle(&mut self) {
        self.residence.models.resize_with(self.list.models.len(), Default::default);
        self.loaded.resize_with(self.list.models.len(), Default::default);
        for (residency, model) in self.residence.models.iter_mut().zip(&self.list.models) {
            (residency.file_bytes, residency.more_bytes) = (model.files.bytes, model.options.kv_cache);
            if !model.present {
                residency.keep = Some(Duration::ZERO);
            }
        }
    }

    /// The index of the model that a request means, and that of its adapter.
    pub fn choose(&self, name: Option<&str>) -> Option<(usize, Option<usize>)> {
        match name {
            None => (!self.list.several).then_some((0, None)),
            Some(name) => self.list.find(name).map(|at| (at, self.list.models[at].shown(name).1)),
        }
    }

    /// The current state of the model.
    pub fn model(&self, at: usize, now: Duration) -> Model {
        let listing = &self.list.models[at];
        Model {
            name: listing.name.clone(),
            path: listing.path.clone(),
            bytes: listing.files.bytes,
            created: listing.files.written,
            sees: self.loaded[at].as_ref().map_or(listing.sees, |loaded| loaded.info.sees),
            adapters: listing.options.adapters.iter().map(|(name, _)| name.clone()).collect(),
            loaded: self.loaded[at].clone(),
            left: self.residence.left(at, now),
        }
    }

    /// The model to load next, for the request that has waited longest.
    pub fn wanted(&self) -> Option<usize> {
        let waited = self.waiters.iter().map(|waiter| waiter.at);
        self.first.into_iter().chain(waited).find(|at| !self.residence.models[*at].here)
    }

    pub fn measure(&mut self) {
        for (residency, loaded) in self.residence.models.iter_mut().zip(&self.loaded) {
            let stats = loaded.as_ref().and_then(|loaded| loaded.engine.stats().ok());
            residency.held_bytes = stats.map_or(residency.held_bytes, |stats| stats.memory_used_bytes);
        }
    }

    pub fn fail(&mut self, which: impl Fn(usize) -> bool, failure: &Failure) {
        for waiter in self.waiters.extract_if(.., |waiter| which(waiter.at)) {
            let _ = waiter.answer.send(Err(failure.clone()));
        }
    }
}
