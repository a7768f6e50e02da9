//! `bn_status`, its values and names, and `bn_error`.

use super::growth::Grown;
use crate::base::{Error, Status};
use std::borrow::Cow;
use std::ffi::{CStr, c_char};

/// What a call came to: `BN_OK` (0) or a negative `BN_ERR_*`. The numbers are stable and never reused.
pub type bn_status = i32;

/// Done.
pub const BN_OK: i32 = 0;
/// An argument is NULL, out of range, not UTF-8 or of the wrong `struct_size`; an enum value is unknown;
/// or the engine pointer is not one of a live engine.
pub const BN_ERR_INVALID_ARGUMENT: i32 = -1;
/// No such request: never issued by this engine, or released.
pub const BN_ERR_NOT_FOUND: i32 = -2;
/// A field, a flag, or a feature of a model or file that this version does not know.
pub const BN_ERR_UNSUPPORTED: i32 = -3;
/// Another thread is polling this request at this moment.
pub const BN_ERR_BUSY: i32 = -4;
/// `queue_capacity` requests are unreleased: release finished ones, or try again later.
pub const BN_ERR_QUEUE_FULL: i32 = -5;
/// The system refused an allocation.
pub const BN_ERR_OUT_OF_MEMORY: i32 = -6;
/// `memory_limit_bytes` does not allow it.
pub const BN_ERR_MEMORY_LIMIT: i32 = -7;
/// A file could not be opened or mapped, or is no regular file.
pub const BN_ERR_IO: i32 = -8;
/// A model file is malformed, truncated, or no model file.
pub const BN_ERR_BAD_MODEL: i32 = -9;
/// The call belongs to the other delivery mode.
pub const BN_ERR_WRONG_MODE: i32 = -10;
/// The call is not allowed from a callback.
pub const BN_ERR_REENTRANT: i32 = -11;
/// The engine is shutting down, or drained.
pub const BN_ERR_SHUTDOWN: i32 = -12;
/// The engine's thread died of a bug; every request has its terminal event, and only poll, release,
/// stats and destroy are left.
pub const BN_ERR_ENGINE_DEAD: i32 = -13;
/// The engine was made by the parent of this process.
pub const BN_ERR_FORKED: i32 = -14;
/// A progress callback, a cancel or a shutdown ended it.
pub const BN_ERR_CANCELLED: i32 = -15;
/// The prompt leaves no room for a new token under the engine's `max_sequence_length`.
pub const BN_ERR_TOO_LONG: i32 = -16;
/// The caller's buffer is too small; the needed size was written.
pub const BN_ERR_BUFFER_TOO_SMALL: i32 = -17;
/// A bug of this library's. The message, where there is one, says where.
pub const BN_ERR_INTERNAL: i32 = -18;
/// The request's timeout passed.
pub const BN_ERR_TIMED_OUT: i32 = -19;

/// Why a call failed, in words. Optional wherever it is taken (NULL: not wanted). The caller owns it; the
/// library writes into it only before the call returns.
///
/// `bn_error_init`, or in C `bn_error error = { .struct_size = sizeof error };`, makes one ready.
#[repr(C)]
pub struct bn_error {
    /// `sizeof(bn_error)`, set by the caller; any other value refuses the call with
    /// `BN_ERR_INVALID_ARGUMENT`.
    pub struct_size: u32,
    /// The status that the call returned.
    pub status: i32,
    /// UTF-8, NUL-terminated, what went wrong, where, and what to do; too long a one lacks its middle.
    /// Empty after success.
    pub message: [c_char; 504],
}

// SAFETY: repr(C), `struct_size` first, valid for every bit pattern.
unsafe impl Grown for bn_error {
    const NAME: &'static str = "bn_error";
    const FIRST: usize = 512;
    fn defaults() -> Self {
        Self { struct_size: 0, status: BN_OK, message: [0; 504] }
    }
    fn set_struct_size(&mut self, size: u32) {
        self.struct_size = size;
    }
}

impl bn_error {
    pub(super) fn from_result(result: &Result<(), Error>) -> Self {
        let mut out = Self::defaults();
        if let Err(error) = result {
            out.status = error.status as i32;
            // One byte stays 0.
            let message = fitted(&error.message, out.message.len() - 1);
            for (to, from) in out.message.iter_mut().zip(message.bytes()) {
                *to = from as c_char;
            }
        }
        out
    }
}

/// `message` in `max` bytes. What goes is its middle, between characters: sentences begin with the place, often a path,
/// and end with the reason.
fn fitted(message: &str, max: usize) -> Cow<'_, str> {
    const GAP: &str = " ... ";
    if message.len() <= max {
        return message.into();
    }
    let half = (max - GAP.len()) / 2;
    let (mut head, mut tail) = (half, message.len() - half);
    while !message.is_char_boundary(head) {
        head -= 1;
    }
    while !message.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}{GAP}{}", &message[..head], &message[tail..]).into()
}

/// Number, name, sentence.
const STATUSES: [(i32, &CStr, &CStr); 20] = [
    (BN_OK, c"BN_OK", c"done"),
    (
        BN_ERR_INVALID_ARGUMENT,
        c"BN_ERR_INVALID_ARGUMENT",
        c"an argument is NULL, out of range, not UTF-8 or of the wrong struct_size, or the engine is not a live one",
    ),
    (BN_ERR_NOT_FOUND, c"BN_ERR_NOT_FOUND", c"no such request: never issued by this engine, or released"),
    (BN_ERR_UNSUPPORTED, c"BN_ERR_UNSUPPORTED", c"a field, flag or feature that this version does not know"),
    (BN_ERR_BUSY, c"BN_ERR_BUSY", c"another thread is polling this request"),
    (BN_ERR_QUEUE_FULL, c"BN_ERR_QUEUE_FULL", c"queue_capacity requests are unreleased"),
    (BN_ERR_OUT_OF_MEMORY, c"BN_ERR_OUT_OF_MEMORY", c"the system refused an allocation"),
    (BN_ERR_MEMORY_LIMIT, c"BN_ERR_MEMORY_LIMIT", c"memory_limit_bytes does not allow it"),
    (BN_ERR_IO, c"BN_ERR_IO", c"a file could not be opened or mapped"),
    (BN_ERR_BAD_MODEL, c"BN_ERR_BAD_MODEL", c"a model file is malformed, truncated, or no model file"),
    (BN_ERR_WRONG_MODE, c"BN_ERR_WRONG_MODE", c"the call belongs to the other delivery mode"),
    (BN_ERR_REENTRANT, c"BN_ERR_REENTRANT", c"the call is not allowed from a callback"),
    (BN_ERR_SHUTDOWN, c"BN_ERR_SHUTDOWN", c"the engine is shutting down, or drained"),
    (BN_ERR_ENGINE_DEAD, c"BN_ERR_ENGINE_DEAD", c"the engine's thread died; poll, release, stats and destroy are left"),
    (BN_ERR_FORKED, c"BN_ERR_FORKED", c"the engine was made by the parent of this process"),
    (BN_ERR_CANCELLED, c"BN_ERR_CANCELLED", c"a callback, a cancel or a shutdown ended it"),
    (BN_ERR_TOO_LONG, c"BN_ERR_TOO_LONG", c"the prompt leaves no room for a new token"),
    (
        BN_ERR_BUFFER_TOO_SMALL,
        c"BN_ERR_BUFFER_TOO_SMALL",
        c"the caller's buffer is too small; the needed size was written",
    ),
    (BN_ERR_INTERNAL, c"BN_ERR_INTERNAL", c"a bug in bn_engine"),
    (BN_ERR_TIMED_OUT, c"BN_ERR_TIMED_OUT", c"the request's timeout passed"),
];

fn entry(status: i32) -> Option<&'static (i32, &'static CStr, &'static CStr)> {
    STATUSES.iter().find(|(number, _, _)| *number == status)
}

pub(super) fn name(status: i32) -> &'static CStr {
    entry(status).map_or(c"BN_ERR_UNKNOWN", |e| e.1)
}

pub(super) fn sentence(status: i32) -> &'static CStr {
    entry(status).map_or(c"a status that this version does not know", |e| e.2)
}

// The C numbers are `base::Status`'s.
const _: () = {
    assert!(BN_ERR_INVALID_ARGUMENT == Status::InvalidArgument as i32);
    assert!(BN_ERR_NOT_FOUND == Status::NotFound as i32);
    assert!(BN_ERR_UNSUPPORTED == Status::Unsupported as i32);
    assert!(BN_ERR_BUSY == Status::Busy as i32);
    assert!(BN_ERR_QUEUE_FULL == Status::QueueFull as i32);
    assert!(BN_ERR_OUT_OF_MEMORY == Status::OutOfMemory as i32);
    assert!(BN_ERR_MEMORY_LIMIT == Status::MemoryLimit as i32);
    assert!(BN_ERR_IO == Status::Io as i32);
    assert!(BN_ERR_BAD_MODEL == Status::BadModel as i32);
    assert!(BN_ERR_WRONG_MODE == Status::WrongMode as i32);
    assert!(BN_ERR_REENTRANT == Status::Reentrant as i32);
    assert!(BN_ERR_SHUTDOWN == Status::Shutdown as i32);
    assert!(BN_ERR_ENGINE_DEAD == Status::EngineDead as i32);
    assert!(BN_ERR_FORKED == Status::Forked as i32);
    assert!(BN_ERR_CANCELLED == Status::Cancelled as i32);
    assert!(BN_ERR_TOO_LONG == Status::TooLong as i32);
    assert!(BN_ERR_BUFFER_TOO_SMALL == Status::BufferTooSmall as i32);
    assert!(BN_ERR_INTERNAL == Status::Internal as i32);
    assert!(BN_ERR_TIMED_OUT == Status::TimedOut as i32);
    assert!(size_of::<bn_error>() == <bn_error as Grown>::FIRST);
};
