//! Engines.
use crate::adapter::Adapter;
use crate::constraint::Constraint;
use crate::error::{Error, ErrorKind, Result, check, check_status};
use crate::handle::{Handle, Keep, free_engine};
use crate::model::{Model, check_abi};
use crate::settings::EngineOptions;
use crate::{sys, text};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs one model for any number of requests. Clones are the same engine, as are those that streams and adapters keep.
///
/// The engine is freed with the last of them, or by [`Engine::close`]: every request that is under way ends as cancelled.
/// That waits for the end of a step, except in a closure that the library calls, where another thread does it.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Core>);

pub(crate) struct Core {
    handle: Handle<sys::bn_engine>,
    /// The engine was freed, or is about to be.
    closed: AtomicBool,
    keep: Arc<Keep>,
    model: Model,
}

/// The state of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// The engine accepts requests.
    Running,
    /// The engine accepts no more requests, and finishes those that it has.
    Draining,
    /// Every request has finished. Events may still be delivered.
    Drained,
    /// Its thread died of a bug, or its last device was lost.
    Dead,
    /// A state that this package does not know.
    Unknown(u32),
}

/// The way to end the acceptance of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Shutdown {
    /// Finish what was accepted.
    Drain = sys::BN_SHUTDOWN_DRAIN,
    /// Cancel what was accepted. May follow a drain.
    Cancel = sys::BN_SHUTDOWN_CANCEL,
}

impl Core {
    pub fn raw(&self) -> *mut sys::bn_engine {
        self.handle.raw()
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn handle(&self) -> Handle<sys::bn_engine> {
        self.handle
    }

    /// Makes a call with the engine. One that was closed is refused.
    pub fn call(
        &self,
        call: impl FnOnce(*mut sys::bn_engine, *mut sys::bn_error) -> sys::bn_status,
    ) -> Result<()> {
        let closed = || Error::new(ErrorKind::Shutdown, "the engine was closed");
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        check(|error| call(self.raw(), error)).map_err(|error| {
            // If the engine was closed meanwhile, the library does not know the handle any more.
            let stale = error.kind() == ErrorKind::InvalidArgument && self.closed.load(Ordering::Acquire);
            if stale { closed() } else { error }
        })
    }

    /// Frees the engine, unless it was freed before.
    fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        free_engine(self.handle, self.keep.clone())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.close(); // in a forked child it does nothing
    }
}

impl Engine {
    /// Makes an engine: loads the model, unless the options have an open one, and starts threads.
    pub fn new(options: EngineOptions) -> Result<Self> {
        check_abi()?;
        text::check_path(options.model_path.as_deref())?;
        let keep = Arc::new(options.keep());
        let config = options.raw(&keep);
        let mut raw = ptr::null_mut();
        // SAFETY: what the configuration points to lives until the call returns, and its contexts until the engine is freed.
        check(|error| unsafe { sys::bn_engine_create(&config, &mut raw, error) })?;
        let handle = Handle::new(raw);
        let model = match &options.model {
            Some(model) => Ok(model.clone()),
            None => model_of(handle),
        };
        match model {
            Ok(model) => Ok(Self(Arc::new(Core { handle, closed: AtomicBool::new(false), keep, model }))),
            Err(error) => {
                let _ = free_engine(handle, keep);
                Err(error)
            }
        }
    }

    /// Its model.
    pub fn model(&self) -> Model {
        self.0.model.clone()
    }

    /// Frees the engine for all that have it: every request under way ends as cancelled, and later calls are errors of
    /// the kind [`ErrorKind::Shutdown`]. The first call waits until its threads have ended.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// The state of the engine.
    pub fn state(&self) -> Result<State> {
        let mut state = 0;
        // SAFETY: `state` can be written.
        self.0.call(|engine, _| unsafe { sys::bn_engine_state(engine, &mut state) })?;
        Ok(match state {
            sys::BN_STATE_RUNNING => State::Running,
            sys::BN_STATE_DRAINING => State::Draining,
            sys::BN_STATE_DRAINED => State::Drained,
            sys::BN_STATE_DEAD => State::Dead,
            other => State::Unknown(other),
        })
    }

    /// Ends the acceptance of requests, and returns at once. Every accepted request still gets its last event.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_engine_shutdown(engine, how as u32, error) })
    }

    /// Pauses the engine: waits for the running step, and none begins until [`Engine::resume`]. Requests may be submitted,
    /// wait, time out and be cancelled.
    pub fn pause(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_engine_pause(engine, error) })
    }

    /// Ends a pause, and returns at once.
    pub fn resume(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_engine_resume(engine, error) })
    }

    /// Waits for the running step, and computes the next ones on `threads` threads. 0: as many as the engine
    /// has.
    pub fn set_threads(&self, threads: u32) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_engine_set_threads(engine, threads, error) })
    }

    /// Asks the engine to end all its requests, and returns at once.
    pub fn cancel_all(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_cancel(engine, sys::BN_ANY, error) })
    }

    /// Compiles a constraint, which may take seconds, and keeps it for requests with the same one.
    pub fn check_constraint(&self, constraint: &Constraint) -> Result<()> {
        let raw = constraint.raw();
        // SAFETY: the constraint lives until the call returns.
        self.0.call(|engine, error| unsafe { sys::bn_engine_check_constraint(engine, &raw, error) })
    }

    /// Reads a LoRA adapter for requests of this engine: a PEFT folder, or a GGUF file of llama.cpp. Requests go on
    /// meanwhile.
    pub fn open_adapter(&self, path: impl AsRef<Path>) -> Result<Adapter> {
        let path = text::path(Some(path.as_ref()));
        let mut adapter = ptr::null_mut();
        // SAFETY: the path lives until the call returns, and `adapter` can be written.
        self.0.call(|engine, error| unsafe { sys::bn_adapter_open(engine, path, &mut adapter, error) })?;
        Ok(Adapter::new(Handle::new(adapter), self.clone()))
    }
}

fn model_of(engine: Handle<sys::bn_engine>) -> Result<Model> {
    let mut model = ptr::null_mut();
    // SAFETY: `model` can be written.
    check(|error| unsafe { sys::bn_engine_model(engine.raw(), &mut model, error) })?;
    Model::new(Handle::new(model), None)
}

/// Whether the engine belongs to the parent process, so that it makes no progress.
pub(crate) fn forked(engine: &Core) -> bool {
    let mut state = 0;
    // SAFETY: `state` can be written.
    let status = check_status(unsafe { sys::bn_engine_state(engine.raw(), &mut state) });
    status.is_err_and(|error| error.kind() == ErrorKind::Forked)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("model", &self.0.model).finish_non_exhaustive()
    }
}
