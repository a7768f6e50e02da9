//! Errors of calls and requests.
use crate::sys;
use std::ffi::{CStr, c_char};
use std::fmt;

/// The kind of an [`Error`], one for each status of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is out of range, not UTF-8, or of an engine or a model that is gone.
    InvalidArgument,
    /// No such session, or no such request.
    NotFound,
    /// A field, flag, model or file feature that this version does not support.
    Unsupported,
    /// Every KV block is in use.
    Busy,
    /// The queue's limits are reached, or too many constraints wait to be compiled.
    QueueFull,
    /// The system refused an allocation or a thread.
    OutOfMemory,
    /// The memory limit, or the size of the KV cache, does not allow it.
    MemoryLimit,
    /// A file cannot be opened or mapped, or is not a regular file.
    Io,
    /// The model's files are malformed or truncated.
    BadModel,
    /// The call belongs to a feature that is off.
    WrongMode,
    /// The call may wait, and is not allowed in a callback of the library.
    Reentrant,
    /// The engine is shutting down, has shut down, or was closed.
    Shutdown,
    /// The engine's thread died of a bug, or its last device was lost.
    EngineDead,
    /// The engine was made before this process was forked.
    Forked,
    /// A progress closure, a cancel or a shutdown ended it.
    Cancelled,
    /// The prompt leaves no room for a new token, or a text is longer than the library takes.
    TooLong,
    /// A buffer is too small.
    BufferTooSmall,
    /// A bug in the library; the message says where.
    Internal,
    /// The request's timeout passed.
    TimedOut,
    /// The request's last event was taken before.
    Finished,
    /// A status that this package does not know.
    Unknown(i32),
}

const KINDS: [(ErrorKind, sys::bn_status); 20] = [
    (ErrorKind::InvalidArgument, sys::BN_ERR_INVALID_ARGUMENT),
    (ErrorKind::NotFound, sys::BN_ERR_NOT_FOUND),
    (ErrorKind::Unsupported, sys::BN_ERR_UNSUPPORTED),
    (ErrorKind::Busy, sys::BN_ERR_BUSY),
    (ErrorKind::QueueFull, sys::BN_ERR_QUEUE_FULL),
    (ErrorKind::OutOfMemory, sys::BN_ERR_OUT_OF_MEMORY),
    (ErrorKind::MemoryLimit, sys::BN_ERR_MEMORY_LIMIT),
    (ErrorKind::Io, sys::BN_ERR_IO),
    (ErrorKind::BadModel, sys::BN_ERR_BAD_MODEL),
    (ErrorKind::WrongMode, sys::BN_ERR_WRONG_MODE),
    (ErrorKind::Reentrant, sys::BN_ERR_REENTRANT),
    (ErrorKind::Shutdown, sys::BN_ERR_SHUTDOWN),
    (ErrorKind::EngineDead, sys::BN_ERR_ENGINE_DEAD),
    (ErrorKind::Forked, sys::BN_ERR_FORKED),
    (ErrorKind::Cancelled, sys::BN_ERR_CANCELLED),
    (ErrorKind::TooLong, sys::BN_ERR_TOO_LONG),
    (ErrorKind::BufferTooSmall, sys::BN_ERR_BUFFER_TOO_SMALL),
    (ErrorKind::Internal, sys::BN_ERR_INTERNAL),
    (ErrorKind::TimedOut, sys::BN_ERR_TIMED_OUT),
    (ErrorKind::Finished, sys::BN_ERR_FINISHED),
];

impl ErrorKind {
    pub(crate) fn of(status: sys::bn_status) -> Self {
        KINDS.iter().find(|(_, known)| *known == status).map_or(Self::Unknown(status), |(kind, _)| *kind)
    }

    /// The library's number, a negative `BN_ERR_*`.
    pub fn status(self) -> i32 {
        match self {
            Self::Unknown(status) => status,
            _ => KINDS
                .iter()
                .find(|(kind, _)| *kind == self)
                .map_or(sys::BN_ERR_INTERNAL, |(_, status)| *status),
        }
    }

    /// The library's name, like `BN_ERR_QUEUE_FULL`.
    pub fn name(self) -> &'static str {
        // SAFETY: any number is allowed, and the text is static.
        unsafe { static_text(sys::bn_status_name(self.status())) }
    }

    /// The meaning in English.
    pub fn meaning(self) -> &'static str {
        // SAFETY: as above.
        unsafe { static_text(sys::bn_status_message(self.status())) }
    }
}

/// Why a call or a request failed, in the library's words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// A result with this package's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An error with the words that the library has for the kind.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        Self::new(kind, kind.meaning())
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The reason, and the place of the mistake.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Makes a call that returns a status and says why it failed.
pub(crate) fn check(call: impl FnOnce(*mut sys::bn_error) -> sys::bn_status) -> Result<()> {
    let mut error = sys::bn_error { status: sys::BN_OK, message: [0; 508] };
    let status = call(&mut error);
    if status == sys::BN_OK {
        return Ok(());
    }
    let kind = ErrorKind::of(status);
    let bytes = error.message.map(|c| c as u8);
    let message = CStr::from_bytes_until_nul(&bytes).map_or("".into(), CStr::to_string_lossy);
    if message.is_empty() { Err(Error::of(kind)) } else { Err(Error::new(kind, message)) }
}

/// Makes a call that returns only a status.
pub(crate) fn check_status(status: sys::bn_status) -> Result<()> {
    if status == sys::BN_OK { Ok(()) } else { Err(Error::of(ErrorKind::of(status))) }
}

/// A static text of the library.
///
/// # Safety
/// `text` points to a static text that ends with a NUL.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}
