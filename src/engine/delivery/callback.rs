//! The host's callbacks: running them, and detecting calls from inside one.

use crate::base::{Result, in_range};
use crate::engine::api::{LOG_DEBUG, LOG_OFF, LogSink};
use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a callback of the host. Blocking calls made inside it are refused (`Status::Reentrant`).
pub(crate) fn run<T>(f: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(true));
    f()
}

pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// The engine's log: a sink, and the most verbose level that it wants.
#[derive(Clone)]
pub(crate) struct Log {
    sink: Option<LogSink>,
    level: u32,
}

impl Log {
    pub(crate) fn new(sink: Option<LogSink>, level: u32) -> Result<Self> {
        in_range("log_level", level.into(), LOG_OFF.into(), LOG_DEBUG.into())?;
        Ok(Self { sink, level })
    }

    /// Writes a line. Must not be called with a lock held, because the sink may call the engine.
    pub(crate) fn write(&self, level: u32, message: impl AsRef<str>) {
        if let Some(sink) = self.sink.as_ref().filter(|_| level <= self.level) {
            run(|| sink(level, message.as_ref()));
        }
    }
}
