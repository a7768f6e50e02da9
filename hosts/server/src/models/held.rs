//! A request's hold on a model, which stays loaded meanwhile.
use super::Models;
use super::load::Loaded;
use crate::failure::{Failure, Result};
use crate::request::conversation::Conversation;
use crate::request::forms::Told;
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
    /// Where the client's body has the request's pictures, in their order.
    pub(super) places: OnceLock<Vec<String>>,
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

    /// The client's conversation for the engine. Failures then name its pictures as the body does.
    pub fn told(&self, conversation: Conversation) -> Result<Told> {
        let told = self.loaded.told(conversation)?;
        let _ = self.places.set(told.places.clone());
        Ok(told)
    }

    /// The failure of a call of this model's engine for this request.
    pub fn failure(&self, error: &bn::Error) -> Failure {
        let places = self.places.get().map_or(&[][..], Vec::as_slice);
        self.loaded.failure(error).with_places(places)
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
