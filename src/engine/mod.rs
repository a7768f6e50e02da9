//! The threads: inbox, step loop, event delivery, wake handle, stats, shutdown.

pub mod api;

use crate::base::{Error, Result};
use crate::model::Facts;
use crate::text::Tokenizer;
use api::*;
use std::sync::Arc;
use std::time::Duration;

/// A running engine. Every method may be called from any thread.
pub struct Engine {}

fn later<T>() -> Result<T> {
    Err(Error::internal("not built yet"))
}

impl Engine {
    pub fn create(_config: EngineConfig) -> Result<Self> {
        later()
    }
    /// All or nothing.
    pub fn submit(&self, _requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        later()
    }
    /// Hands up to `capacity` events to `sink`, waiting for the first up to `timeout` (None: for good).
    /// What an event points to stays where it is until the next poll that returns an event of the same
    /// request, or its release.
    pub fn poll(
        &self,
        _which: Which,
        _capacity: usize,
        _timeout: Option<Duration>,
        _sink: &mut dyn FnMut(usize, &Event),
    ) -> Result<usize> {
        later()
    }
    pub fn cancel(&self, _which: Which) -> Result<()> {
        later()
    }
    pub fn release(&self, _id: RequestId) -> Result<()> {
        later()
    }
    /// Submits and waits: the completion event. Never touches the queue that polling reads.
    pub fn generate(&self, _request: RequestParams) -> Result<Event> {
        later()
    }
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
    /// -1 in callback mode.
    pub fn wait_fd(&self) -> i32 {
        -1
    }
    /// Asynchronous, idempotent; Drain may be followed by Cancel.
    pub fn shutdown(&self, _mode: ShutdownMode) -> Result<()> {
        later()
    }
    /// Cancels what is left, wakes and waits for blocked pollers, joins every thread. Ids are dead after it.
    /// `Reentrant` from a callback, and then nothing has happened.
    pub fn destroy(&self) -> Result<()> {
        later()
    }
    pub fn facts(&self) -> &Facts {
        unimplemented!()
    }
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        None
    }
    /// `Forked` in a child of the process that made it, `Reentrant` on a callback's thread (delivery, log or
    /// progress) when `blocking`, `EngineDead` when the engine thread died: what every export asks first.
    pub fn check_call(&self, _blocking: bool) -> Result<()> {
        Ok(())
    }
}
