//! When a request's output ends: end tokens, stop tokens and stop strings.

use super::pattern::Pattern;
use crate::base::{Error, Result, reserve};

const STOP_STRINGS: &str = "stop strings";
/// The stop rules of one request over its stream of tokens and text.
///
/// The match that counts is the one that is complete first; of several complete at the same byte, the
/// longest (of equal ones the first). So the outcome doesn't depend on how the text was cut into pieces.
pub struct StopMatcher {
    /// The request's, then the model's.
    tokens: Vec<u32>,
    /// How many of them are the request's.
    own: usize,
    patterns: Vec<Pattern>,
    /// Text that may turn out to begin a stop string.
    held: String,
    /// Index of the stop string that is complete.
    stopped: Option<usize>,
}

impl StopMatcher {
    /// `end_tokens` are the model's; leave them out (an empty slice) to ignore them. `InvalidArgument` for a
    /// stop string that is empty, which would stop everything, or too long.
    pub fn new(stop_tokens: &[u32], end_tokens: &[u32], stop_strings: &[impl AsRef<str>]) -> Result<Self> {
        let mut patterns = Vec::new();
        reserve(&mut patterns, stop_strings.len(), STOP_STRINGS)?;
        for (i, text) in stop_strings.iter().map(AsRef::as_ref).enumerate() {
            patterns.push(Pattern::new(text, &format_args!("stop_strings[{i}]"))?);
        }
        Ok(Self {
            tokens: stop_tokens.iter().chain(end_tokens).copied().collect(),
            own: stop_tokens.len(),
            patterns,
            held: String::new(),
            stopped: None,
        })
    }

    /// All tokens that end the output.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Some where `token` ends the output, whose text is then not part of it: its index among the request's stop tokens,
    /// or None for the model's own.
    pub fn stop_token(&self, token: u32) -> Option<Option<usize>> {
        let at = self.tokens.iter().position(|stop| *stop == token)?;
        Some((at < self.own).then_some(at))
    }

    /// Room for `bytes` more of text: in `out` for all that it may get then, and in what is held. `OutOfMemory`.
    pub fn reserve(&mut self, bytes: usize, out: &mut String) -> Result<()> {
        let more = self.held.len() + bytes;
        let held = if self.patterns.is_empty() { 0 } else { bytes };
        let made = out.try_reserve(more).and_then(|()| self.held.try_reserve(held));
        made.map_err(|_| Error::out_of_memory("output text", more))
    }

    /// Takes the next text and appends what can no longer be part of a stop string to `out`. Once a stop string is
    /// complete, its index: `out` then has the text before it and nothing more ever comes.
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
        // A pattern begins with a whole character, so what it matched does as well.
        let hold = self.patterns.iter().map(|pattern| pattern.matched()).max().unwrap_or(0);
        self.give(piece, self.held.len() + piece.len() - hold, out);
        None
    }

    /// The first `count` bytes of held text and `piece` go to `out`, the rest is held.
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

    /// Something that is no text follows: no stop string goes across it, so what was held back is text.
    pub fn cut(&mut self, out: &mut String) {
        self.finish(out);
        self.patterns.iter_mut().for_each(Pattern::restart);
    }

    /// The output ended for another reason: what was held back belongs to it.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

#[cfg(test)]
#[path = "stop_tests.rs"]
mod tests;
