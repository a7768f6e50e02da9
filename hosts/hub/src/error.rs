//! The error type.
use std::fmt;
use std::io;
use std::path::Path;

use crate::printable;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The reason why a model was not found. Its text is for people. It has no line break at its end, may have several
/// lines (the choices), and no control characters.
#[derive(Debug)]
pub struct Error {
    text: String,
    stopped: bool,
}

impl Error {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self { text: text.into(), stopped: false }
    }

    pub(crate) fn stopped(text: impl Into<String>) -> Self {
        Self { text: text.into(), stopped: true }
    }

    pub(crate) fn io(path: &Path, error: &io::Error) -> Self {
        Self::failed(format!("{}: {error}", printable(&path.to_string_lossy())))
    }

    /// Whether the caller's flag ended the call.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The exit code of a program that ends with this error: 130 if it was stopped, as after SIGINT, else 1.
    pub fn exit_code(&self) -> u8 {
        if self.stopped { 130 } else { 1 }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
