//! Texts that are looked for in a stream.

use crate::base::{Error, Result, reserve};
use std::fmt::Display;

/// Bytes of one text; its matcher is several times as large.
const MOST: usize = 1 << 16;

/// A text, and how much of it the text so far ends with (Knuth, Morris and Pratt 1977).
pub struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: the longest proper prefix of the first n bytes that they also end with.
    fallback: Vec<u32>,
    /// Bytes of the pattern that end the text; less than its length.
    matched: usize,
}

impl Pattern {
    /// `InvalidArgument` for a text that is empty, which everything would complete, or too long; it is called `name`.
    pub fn new(text: &str, name: &dyn Display) -> Result<Self> {
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

    /// Bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the pattern that end the text so far; less than `len`.
    pub fn matched(&self) -> usize {
        self.matched
    }

    /// Forgets the text so far.
    pub fn restart(&mut self) {
        self.matched = 0;
    }

    /// Takes the next byte; true when it completes the pattern.
    pub fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched] as usize;
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        let complete = self.matched == self.bytes.len();
        if complete {
            self.matched = self.fallback[self.matched] as usize;
        }
        complete
    }
}
