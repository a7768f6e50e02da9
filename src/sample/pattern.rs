//! Search for texts in a stream.

use crate::base::{Error, Result, reserve};
use std::fmt::Display;

/// Maximum bytes of a text; its matcher is several times as large.
const MOST: usize = 1 << 16;

/// A text to search for, and the length of its prefix that the stream ends with (Knuth, Morris and Pratt
/// 1977).
pub(super) struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix of the first n bytes that is also a suffix of them.
    fallback: Vec<u32>,
    /// Number of the pattern's leading bytes that the stream ends with; less than the pattern's length.
    matched: usize,
}

impl Pattern {
    /// `InvalidArgument` for a text that is too long or empty (any stream would complete it). Errors call it `name`.
    pub(super) fn new(text: &str, name: &dyn Display) -> Result<Self> {
        if !(1..=MOST).contains(&text.len()) {
            return Err(Error::invalid(format!("{name} has {} bytes, not 1 to {MOST}", text.len())));
        }
        let (mut bytes, mut fallback) = (Vec::new(), Vec::new());
        reserve(&mut bytes, text.len(), "a text to look for")?;
        bytes.extend_from_slice(text.as_bytes());
        reserve(&mut fallback, bytes.len() + 1, "a text to look for")?;
        fallback.resize(bytes.len() + 1, 0u32);
        let mut n = 0;
        for i in 1..bytes.len() {
            while n > 0 && bytes[i] != bytes[n] {
                n = fallback[n] as usize;
            }
            n += usize::from(bytes[i] == bytes[n]);
            fallback[i + 1] = n as u32;
        }
        Ok(Self { bytes, fallback, matched: 0 })
    }

    /// Length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Number of the pattern's leading bytes that the stream ends with so far; less than `len`.
    pub(super) fn matched(&self) -> usize {
        self.matched
    }

    /// Forgets the stream so far.
    pub(super) fn restart(&mut self) {
        self.matched = 0;
    }

    /// Takes the next byte. True if it completes the pattern.
    pub(super) fn advance(&mut self, byte: u8) -> bool {
        let matched = self.after(self.matched, byte);
        let complete = matched == self.bytes.len();
        self.matched = if complete { self.fallback[matched] as usize } else { matched };
        complete
    }

    /// Whether `text` alone has the pattern in it.
    pub(super) fn is_in(&self, text: &[u8]) -> bool {
        let mut matched = 0;
        text.iter().any(|byte| {
            matched = self.after(matched, *byte);
            matched == self.bytes.len()
        })
    }

    /// Length of the pattern's prefix that a text ends with after `byte`, if it was `matched`, less than the
    /// whole pattern, before.
    fn after(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.fallback[matched] as usize;
        }
        matched + usize::from(self.bytes[matched] == byte)
    }
}
