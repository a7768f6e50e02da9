//! The names that a file has for the fields of a configuration, and errors with them.

use crate::base::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// A file's names of the fields, for errors.
pub struct Names<'a> {
    /// Name of the file in errors.
    pub what: &'a str,
    /// Maps GGUF's key without its prefix (`attention.head_count`) to the file's key.
    pub key: &'a dyn Fn(&str) -> String,
}

impl Names<'_> {
    pub fn bad(&self, key: &str, value: impl Display, why: &str) -> Error {
        Error::bad_model(format!("{}: '{}' is {value}; {why}", self.what, (self.key)(key)))
    }

    pub fn unsupported(&self, key: &str, value: impl Display) -> Error {
        let message = format!("{}: '{}' is {value}, which is not supported", self.what, (self.key)(key));
        Error::unsupported(message)
    }

    pub fn within(&self, key: &str, value: usize, range: RangeInclusive<usize>) -> Result<()> {
        if range.contains(&value) {
            return Ok(());
        }
        Err(self.bad(key, value, &format!("it must lie within {} and {}", range.start(), range.end())))
    }

    pub fn float(&self, key: &str, value: f32, range: RangeInclusive<f32>) -> Result<()> {
        // NaN is in no range.
        if range.contains(&value) {
            return Ok(());
        }
        Err(self.bad(key, value, &format!("it must lie within {:e} and {:e}", range.start(), range.end())))
    }
}
