//! One error type: a stable status and a sentence that says what, where and what to do.

use std::fmt;

/// The stable numbers of the C ABI's `bn_status`. Never reused, never renumbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    #[default]
    Ok = 0,
    /// An argument is NULL, out of range, not UTF-8, or of the wrong struct_size.
    InvalidArgument = -1,
    /// No such request: never issued by this engine, or released.
    NotFound = -2,
    /// A field, flag, model feature or file feature that this build does not support.
    Unsupported = -3,
    /// Another thread is already polling this request.
    Busy = -4,
    /// `queue_capacity` requests are unreleased, or `queue_token_capacity` prompt tokens queued.
    QueueFull = -5,
    /// The system refused an allocation.
    OutOfMemory = -6,
    /// `memory_limit_bytes` does not allow it.
    MemoryLimit = -7,
    /// A file could not be opened or mapped.
    Io = -8,
    /// A model file is malformed, truncated or not a model file.
    BadModel = -9,
    /// The call belongs to the other delivery mode.
    WrongMode = -10,
    /// The call is not allowed from a callback.
    Reentrant = -11,
    /// The engine is shutting down or drained.
    Shutdown = -12,
    /// The engine's thread died; only destroy is left.
    EngineDead = -13,
    /// The engine was made in the parent process.
    Forked = -14,
    /// The caller's progress callback, a cancel or a shutdown ended it.
    Cancelled = -15,
    /// The prompt, or prompt plus new tokens, can never fit.
    TooLong = -16,
    /// The caller's buffer is too small; the needed size was written.
    BufferTooSmall = -17,
    /// A bug of this library's; the message says where.
    Internal = -18,
    /// The request's timeout passed.
    TimedOut = -19,
    /// The request's last event was polled before: there will never be another.
    Finished = -20,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub status: Status,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

/// How every message of a refused allocation begins.
pub const REFUSED: &str = "could not allocate";

/// Bytes of a message, at most: two paths and what is wrong.
const MAX_MESSAGE: usize = 10_000;

impl Error {
    /// What files put into a message cannot break its line, nor make it endless.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: one_line(message.into()) }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::InvalidArgument, message)
    }
    pub fn bad_model(message: impl Into<String>) -> Self {
        Self::new(Status::BadModel, message)
    }
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Status::Unsupported, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Status::Internal, message)
    }
    pub fn out_of_memory(what: &str, bytes: usize) -> Self {
        Self::new(Status::OutOfMemory, format!("{REFUSED} {bytes} bytes for {what}"))
    }
    /// Of a failure that came as text, through candle, serde or a panic: `OutOfMemory` where that says so.
    pub fn failed(otherwise: Status, message: String) -> Self {
        let refused = message.contains(REFUSED);
        Self::new(if refused { Status::OutOfMemory } else { otherwise }, message)
    }
}

/// Room for `more` elements in `list`; `OutOfMemory` where the system refuses it.
pub fn reserve<T>(list: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    reserved(list.try_reserve(more), what, more.saturating_mul(size_of::<T>()))
}

/// As `reserve`, of what another collection's `try_reserve` said of `bytes` bytes.
pub fn reserved(
    made: std::result::Result<(), std::collections::TryReserveError>,
    what: &str,
    bytes: usize,
) -> Result<()> {
    #[cfg(test)]
    if refusals::is_next() {
        return Err(Error::out_of_memory(what, bytes));
    }
    made.map_err(|_| Error::out_of_memory(what, bytes))
}

/// Calls of `reserved` on this thread that are refused, for simulations.
#[cfg(test)]
pub mod refusals {
    use std::cell::Cell;

    thread_local! {
        static AFTER: Cell<Option<u64>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// One is, after so many that are not; None: none.
    pub fn refuse_after(calls: Option<u64>) {
        AFTER.set(calls);
    }

    /// So many were.
    pub fn count() -> u64 {
        COUNT.get()
    }

    pub(super) fn is_next() -> bool {
        let left = AFTER.get();
        AFTER.set(left.and_then(|left| left.checked_sub(1)));
        COUNT.set(COUNT.get() + u64::from(left == Some(0)));
        left == Some(0)
    }
}

/// `message` with its control characters written out, and cut where it is too long.
fn one_line(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        message.truncate((0..=MAX_MESSAGE).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0));
        message.push('…');
    }
    if !message.contains(char::is_control) {
        return message;
    }
    let mut line = String::with_capacity(message.len() + 16);
    for c in message.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_allocation_keeps_its_status_as_text() {
        let refused = Error::out_of_memory("a list", 8);
        assert_eq!(Error::failed(Status::Internal, format!("add: {refused}")).status, Status::OutOfMemory);
        assert_eq!(Error::failed(Status::BadModel, "a comma is missing".into()).status, Status::BadModel);
    }

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        let error = Error::bad_model("a\nb\0c \u{85}é\\");
        assert_eq!(error.message, "a\\nb\\u{0}c \\u{85}é\\");
        let long = Error::invalid("é".repeat(MAX_MESSAGE)).message;
        assert!(long.len() <= MAX_MESSAGE + 3 && long.ends_with("é…"), "{}", long.len());
    }
}
