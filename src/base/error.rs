//! The only error type: a stable status, and a sentence that names the fault, its place, and the remedy.

use std::fmt;

/// The stable numbers of the C ABI's `bn_status`, never reused or renumbered. `ffi/status.rs` has their meanings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    #[default]
    Ok = 0,
    InvalidArgument = -1,
    NotFound = -2,
    Unsupported = -3,
    Busy = -4,
    QueueFull = -5,
    OutOfMemory = -6,
    MemoryLimit = -7,
    Io = -8,
    BadModel = -9,
    WrongMode = -10,
    Reentrant = -11,
    Shutdown = -12,
    EngineDead = -13,
    Forked = -14,
    Cancelled = -15,
    TooLong = -16,
    BufferTooSmall = -17,
    Internal = -18,
    TimedOut = -19,
    Finished = -20,
}

#[derive(Clone, Debug)]
pub struct Error {
    pub status: Status,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

/// Start of all messages about a refused allocation, by which `Error::failed` knows them.
pub const REFUSED: &str = "could not allocate";

/// Maximum bytes of a message: enough for two paths and the reason.
const MAX_MESSAGE: usize = 10_000;

impl Error {
    /// Creates an error. Control characters that files put into a message are escaped, and a long message is cut.
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
    /// Creates an error for a panic, of which only the text is left: `OutOfMemory` if the text says so, else
    /// `otherwise`. No file has a part in these texts, so none can forge the status.
    pub fn failed(otherwise: Status, message: String) -> Self {
        let refused = message.contains(REFUSED);
        Self::new(if refused { Status::OutOfMemory } else { otherwise }, message)
    }
}

/// Reserves room for `more` elements in `list`. `OutOfMemory` if the system refuses it.
pub fn reserve<T>(list: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    reserved(list.try_reserve(more), what, more.saturating_mul(size_of::<T>()))
}

/// The first `len` elements of `list`, which gets no more memory than they need, as whoever counts it expects.
/// `OutOfMemory`.
pub fn grow<'a, T: Clone + Default>(list: &'a mut Vec<T>, len: usize, what: &str) -> Result<&'a mut [T]> {
    let more = len.saturating_sub(list.len());
    reserved(list.try_reserve_exact(more), what, more.saturating_mul(size_of::<T>()))?;
    list.resize(len.max(list.len()), T::default());
    Ok(&mut list[..len])
}

/// Like `reserve`, for the result of another collection's `try_reserve` of `bytes` bytes.
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

/// Refuses calls of `reserved` on this thread, for simulations.
#[cfg(test)]
pub mod refusals {
    use std::cell::Cell;

    thread_local! {
        static AFTER: Cell<Option<u64>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// Refuses one call after `calls` that are not refused. `None`: refuses none.
    pub fn refuse_after(calls: Option<u64>) {
        AFTER.set(calls);
    }

    /// Number of refused calls.
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

/// `message` with its control characters escaped, cut if it is too long.
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

/// Checks the value of an option. The error names it.
pub fn in_range(name: &str, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} = {value} is out of range: {low} to {high}")))
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
        assert_eq!(Error::failed(Status::Internal, "a shape is wrong".into()).status, Status::Internal);
    }

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        let error = Error::bad_model("a\nb\0c \u{85}é\\");
        assert_eq!(error.message, "a\\nb\\u{0}c \\u{85}é\\");
        let long = Error::invalid("é".repeat(MAX_MESSAGE)).message;
        assert!(long.len() <= MAX_MESSAGE + 3 && long.ends_with("é…"), "{}", long.len());
    }
}
