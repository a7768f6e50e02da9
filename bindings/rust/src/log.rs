//! The library's log.
use crate::{callback, sys, text};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// How important a line of the log is, and which lines to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum LogLevel {
    /// No log.
    Off = sys::BN_LOG_OFF,
    /// The engine or a request failed, and the caller did not cause it.
    Error = sys::BN_LOG_ERROR,
    /// Something is wrong, and the message says how the library goes on.
    Warn = sys::BN_LOG_WARN,
    /// Loading, start and shutdown.
    Info = sys::BN_LOG_INFO,
    /// Details for work on the library.
    Debug = sys::BN_LOG_DEBUG,
}

impl LogLevel {
    /// An unknown level is one of more detail.
    pub(crate) fn of(level: u32) -> Self {
        [Self::Off, Self::Error, Self::Warn, Self::Info]
            .into_iter()
            .find(|known| *known as u32 == level)
            .unwrap_or(Self::Debug)
    }
}

/// Receives lines of the log, on any thread, several at once. A panic in it is ignored.
pub type Log = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The library's callback and its context. The log must stay where it is until the last line.
pub(crate) fn hook(log: Option<&Log>) -> (sys::bn_log_callback, *mut c_void) {
    match log {
        Some(log) => (Some(on_log), ptr::from_ref(log).cast_mut().cast()),
        None => (None, ptr::null_mut()),
    }
}

unsafe extern "C" fn on_log(level: u32, message: sys::bn_string, context: *mut c_void) {
    callback::run(|| {
        // SAFETY: the context is a `Log` that outlives what logs, and the message is valid during the call.
        let (log, message) = unsafe { (&*context.cast::<Log>(), text::text(message)) };
        log(LogLevel::of(level), &message);
    });
}
