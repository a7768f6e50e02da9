//! Stop rules that end a request's output: end tokens, stop tokens and stop strings.

use super::pattern::Pattern;
use crate::base::{Error, Result, reserve};

const STOP_STRINGS: &str = "stop strings";
/// The stop rules of one request, applied to its stream of tokens and text.
///
/// The match that is complete first counts; of several that are complete at the same byte, the longest, and of equal
/// ones the first. So the result does not depend on how the text was cut into pieces.
pub struct StopMatcher {
    /// The request's stop tokens, then the model's end tokens.
    tokens: Vec<u32>,
    /// Number of leading `tokens` that are the request's.
    own: usize,
    /// Number of leading `tokens` that end the output.
    ending: usize,
    patterns: Vec<Pattern>,
    /// Text that may be the beginning of a stop string.
    held: String,
    /// Index of the completed stop string.
    stopped: Option<usize>,
}

impl StopMatcher {
    /// `end_tokens` are the model's. `InvalidArgument` for a stop string that is too long or empty, which would stop
    /// everything.
    pub fn new(stop_tokens: &[u32], end_tokens: &[u32], stop_strings: &[impl AsRef<str>]) -> Result<Self> {
        let mut patterns = Vec::new();
        reserve(&mut patterns, stop_strings.len(), STOP_STRINGS)?;
        for (i, text) in stop_strings.iter().map(AsRef::as_ref).enumerate() {
            patterns.push(Pattern::new(text, &format_args!("stop_strings[{i}]"))?);
        }
        Ok(Self {
            tokens: stop_tokens.iter().chain(end_tokens).copied().collect(),
            own: stop_tokens.len(),
            ending: stop_tokens.len() + end_tokens.len(),
            patterns,
            held: String::new(),
            stopped: None,
        })
    }

    /// From now on the model's end tokens end nothing; once allowed, they are ordinary tokens.
    pub fn ignore_ends(&mut self) {
        self.ending = self.own;
    }

    /// The request's stop tokens and the model's end tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns `Some` if `token` ends the output; its text is not part of the output then. The value is its index
    /// among the request's stop tokens, or `None` for one of the model's end tokens.
    pub fn stop_token(&self, token: u32) -> Option<Option<usize>> {
        let at = self.tokens[..self.ending].iter().position(|stop| *stop == token)?;
        Some((at < self.own).then_some(at))
    }

    /// Reserves memory for `bytes` more bytes of text: in `out` for all that it may receive then, and in the held
    /// text. `OutOfMemory`.
    pub fn reserve(&mut self, bytes: usize, out: &mut String) -> Result<()> {
        let more = self.held.len() + bytes;
        let held = if self.patterns.is_empty() { 0 } else { bytes };
        let made = out.try_reserve(more).and_then(|()| self.held.try_reserve(held));
        made.map_err(|_| Error::out_of_memory("output text", more))
    }

    /// Takes the next piece of text, and appends the text that cannot be part of a stop string any more to `out`.
    /// Returns the index of a stop string once it is complete. `out` then has the text before it, and nothing more is
    /// ever added.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Option<usize> {
        if self.stopped.is_some() {
            return self.stopped;
        }
        for (i, byte) in piece.bytes().enumerate() {
            let mut longest = 0;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.advance(byte) && pattern.len() > longest {
                    longest = pattern.len();
                    self.stopped = Some(index);
                }
            }
            if longest > 0 {
                self.give(piece, self.held.len() + i + 1 - longest, out);
                self.held.clear();
                return self.stopped;
            }
        }
        // A pattern begins at a character boundary, so its matched part does too.
        let hold = self.patterns.iter().map(|pattern| pattern.matched()).max().unwrap_or(0);
        self.give(piece, self.held.len() + piece.len() - hold, out);
        None
    }

    /// Moves the first `count` bytes of the held text and `piece` to `out`, and holds the rest.
    fn give(&mut self, piece: &str, count: usize, out: &mut String) {
        match count.checked_sub(self.held.len()) {
            Some(of_piece) => {
                out.push_str(&self.held);
                out.push_str(&piece[..of_piece]);
                self.held.clear();
                self.held.push_str(&piece[of_piece..]);
            }
            None => {
                out.push_str(&self.held[..count]);
                self.held.drain(..count);
                self.held.push_str(piece);
            }
        }
    }

    /// Marks a break in the text, which no stop string spans. The held text is released.
    pub fn cut(&mut self, out: &mut String) {
        self.finish(out);
        self.patterns.iter_mut().for_each(Pattern::restart);
    }

    /// The output ended for another reason: releases the held text, which belongs to it.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

#[cfg(test)]
mod tests;
