//! The object that a host's event loop waits on. It is set while events wait.

use crate::base::{Error, Result, Status, os};
use crate::engine::hub::Readable;
use std::ffi::c_void;

/// Callers serialize `set` and `clear`.
pub(crate) struct Signal(os::Event);

impl Signal {
    pub(crate) fn new() -> Result<Self> {
        let event = os::Event::new();
        let failed =
            |e| Error::new(Status::Io, format!("could not make the event that a loop waits on: {e}"));
        event.map(Self).map_err(failed)
    }

    /// The descriptor; `Unsupported` on Windows.
    pub(crate) fn fd(&self) -> Result<i32> {
        let message = "this system has no descriptors to wait on: use bn_engine_wait_handle";
        self.0.descriptor().ok_or_else(|| Error::unsupported(message))
    }

    /// The handle for Windows; `Unsupported` elsewhere.
    pub(crate) fn handle(&self) -> Result<*mut c_void> {
        let message = "only Windows has handles to wait on: use bn_engine_wait_fd";
        self.0.handle().ok_or_else(|| Error::unsupported(message))
    }

    #[cfg(test)]
    pub fn is_set(&self) -> bool {
        self.0.is_set()
    }
}

impl Readable for Signal {
    fn set(&self) {
        self.0.set();
    }

    fn clear(&self) {
        self.0.clear();
    }
}
