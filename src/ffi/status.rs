//! `bn_status`, its values and names, and `bn_error`.

use crate::base::{Error, Status};
use std::borrow::Cow;
use std::ffi::{CStr, c_char};

/// The result of a call: `BN_OK` or a negative `BN_ERR_*`.
pub type bn_status = i32;

/// Success.
pub const BN_OK: i32 = 0;
/// An argument is NULL, out of range, not UTF-8, of a wrong size, or not a live handle.
pub const BN_ERR_INVALID_ARGUMENT: i32 = -1;
/// No such session, or no such request: never issued, or freed.
pub const BN_ERR_NOT_FOUND: i32 = -2;
/// A field, flag, model or file feature that this version does not support.
pub const BN_ERR_UNSUPPORTED: i32 = -3;
/// Another thread is polling this request, or every KV block is in use.
pub const BN_ERR_BUSY: i32 = -4;
/// `queue_capacity` or `queue_token_capacity` is reached, or too many constraints wait to be
/// compiled.
pub const BN_ERR_QUEUE_FULL: i32 = -5;
/// The system refused an allocation or a thread.
pub const BN_ERR_OUT_OF_MEMORY: i32 = -6;
/// `memory_limit_bytes`, or the size of the KV cache, does not allow it.
pub const BN_ERR_MEMORY_LIMIT: i32 = -7;
/// A file cannot be opened or mapped, or is not a regular file.
pub const BN_ERR_IO: i32 = -8;
/// The model's files are malformed or truncated, or it computed a value that is not a
/// number.
pub const BN_ERR_BAD_MODEL: i32 = -9;
/// The call belongs to the other delivery mode, or to a feature that is off.
pub const BN_ERR_WRONG_MODE: i32 = -10;
/// The call is not allowed from a callback.
pub const BN_ERR_REENTRANT: i32 = -11;
/// The engine is shutting down or has shut down.
pub const BN_ERR_SHUTDOWN: i32 = -12;
/// The engine's thread died of a bug, or its last device was lost; every request has its last
/// event.
pub const BN_ERR_ENGINE_DEAD: i32 = -13;
/// The engine was made before this process was forked.
pub const BN_ERR_FORKED: i32 = -14;
/// Ended by a progress callback, a cancel or a shutdown.
pub const BN_ERR_CANCELLED: i32 = -15;
/// The prompt leaves no room for a new token, or a text is longer than the library takes.
pub const BN_ERR_TOO_LONG: i32 = -16;
/// The caller's buffer is too small.
pub const BN_ERR_BUFFER_TOO_SMALL: i32 = -17;
/// A bug in this library; the message says where.
pub const BN_ERR_INTERNAL: i32 = -18;
/// The request's timeout passed.
pub const BN_ERR_TIMED_OUT: i32 = -19;
/// The request's last event was polled before.
pub const BN_ERR_FINISHED: i32 = -20;

/// The reason why a call failed. Each call overwrites it; it needs no initialization.
#[repr(C)]
pub struct bn_error {
    /// The status that the call returned.
    pub status: i32,
    /// UTF-8 that ends with a NUL; a long message loses its middle. Empty after success.
    pub message: [c_char; 508],
}

const _: () = assert!(size_of::<bn_error>() == 512);

impl bn_error {
    pub(super) fn from_result(result: &Result<(), Error>) -> Self {
        let mut out = Self { status: 0, message: [0; 508] };
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

/// `message`, cut to `max` bytes. The middle is removed, at character boundaries, because messages
/// begin with the place, often a path, and end with the reason.
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

/// Number, name, sentence; the numbers are `base::Status`'s, the sentences the constants' own.
macro_rules! statuses {
    ($($constant:ident $status:ident $sentence:literal)*) => {
        const STATUSES: &[(i32, &CStr, &CStr)] = &[$((
            $constant,
            match CStr::from_bytes_with_nul(concat!(stringify!($constant), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            $sentence,
        )),*];
        const _: () = { $(assert!($constant == Status::$status as i32);)* };
    };
}

statuses! {
    BN_OK Ok c"success"
    BN_ERR_INVALID_ARGUMENT InvalidArgument c"an argument is NULL, out of range, not UTF-8, of a wrong size, or not a live handle"
    BN_ERR_NOT_FOUND NotFound c"no such session, or no such request: never issued, or freed"
    BN_ERR_UNSUPPORTED Unsupported c"a field, flag, model or file feature that this version does not support"
    BN_ERR_BUSY Busy c"another thread is polling this request, or every KV block is in use"
    BN_ERR_QUEUE_FULL QueueFull c"queue_capacity or queue_token_capacity is reached, or too many constraints wait to be compiled"
    BN_ERR_OUT_OF_MEMORY OutOfMemory c"the system refused an allocation or a thread"
    BN_ERR_MEMORY_LIMIT MemoryLimit c"memory_limit_bytes, or the size of the KV cache, does not allow it"
    BN_ERR_IO Io c"a file cannot be opened or mapped, or is not a regular file"
    BN_ERR_BAD_MODEL BadModel c"the model's files are malformed or truncated, or it computed a value that is not a number"
    BN_ERR_WRONG_MODE WrongMode c"the call belongs to the other delivery mode, or to a feature that is off"
    BN_ERR_REENTRANT Reentrant c"the call is not allowed from a callback"
    BN_ERR_SHUTDOWN Shutdown c"the engine is shutting down or has shut down"
    BN_ERR_ENGINE_DEAD EngineDead c"the engine's thread died of a bug, or its last device was lost; every request has its last event"
    BN_ERR_FORKED Forked c"the engine was made before this process was forked"
    BN_ERR_CANCELLED Cancelled c"ended by a progress callback, a cancel or a shutdown"
    BN_ERR_TOO_LONG TooLong c"the prompt leaves no room for a new token, or a text is longer than the library takes"
    BN_ERR_BUFFER_TOO_SMALL BufferTooSmall c"the caller's buffer is too small"
    BN_ERR_INTERNAL Internal c"a bug in this library; the message says where"
    BN_ERR_TIMED_OUT TimedOut c"the request's timeout passed"
    BN_ERR_FINISHED Finished c"the request's last event was polled before"
}

fn entry(status: i32) -> Option<&'static (i32, &'static CStr, &'static CStr)> {
    STATUSES.iter().find(|(number, _, _)| *number == status)
}

pub(super) fn name(status: i32) -> &'static CStr {
    entry(status).map_or(c"BN_ERR_UNKNOWN", |e| e.1)
}

pub(super) fn sentence(status: i32) -> &'static CStr {
    entry(status).map_or(c"a status that this version does not know", |e| e.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sentence_is_its_constants_comment() {
        let source = include_str!("status.rs");
        for (_, name, sentence) in STATUSES {
            let (name, sentence) = (name.to_str().unwrap(), sentence.to_str().unwrap());
            let (before, _) = source.split_once(&format!("pub const {name}:")).unwrap();
            let lines: Vec<_> = before.lines().rev().map_while(|line| line.strip_prefix("/// ")).collect();
            let comment = lines.into_iter().rev().collect::<Vec<_>>().join(" ").replace('`', "");
            assert!(comment.eq_ignore_ascii_case(&format!("{sentence}.")), "{name}: {comment} / {sentence}");
        }
    }
}
