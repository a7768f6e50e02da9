//! Strings that know which of their bytes come from messages.
//!
//! minijinja's own strings are the template's words. Text from a message, or derived from it, is a `Text`.
//! Operations that copy parts keep the mark of each part; other operations mark their whole result.

use super::value::{OBJECT_BYTES, Outcome, Run, short_debug};
use minijinja::value::{Object, ObjectRepr, Value};
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Maximum length of a string that minijinja stores in the value itself.
const INLINE_BYTES: usize = 22;

/// A string and its untrusted ranges: sorted, disjoint and not adjacent, on character boundaries.
#[derive(Default)]
pub(super) struct Text {
    pub text: String,
    pub untrusted: Vec<Range<usize>>,
}

impl Text {
    pub(super) fn piece(&self) -> Piece<'_> {
        Piece { text: &self.text, start: 0, marks: &self.untrusted }
    }
}

short_debug!(Text "string");

impl Object for Text {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn is_true(self: &Arc<Self>) -> bool {
        !self.text.is_empty()
    }
}

/// Part of a string.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub text: &'a str,
    /// Start of the piece in the string that `marks` refers to.
    start: usize,
    marks: &'a [Range<usize>],
}

impl Deref for Piece<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        self.text
    }
}

impl<'a> Piece<'a> {
    pub(super) fn trusted(text: &'a str) -> Self {
        Self { text, start: 0, marks: &[] }
    }

    /// None if the value is not a string.
    pub(super) fn of(value: &'a Value) -> Option<Self> {
        let native = || value.as_str().map(Self::trusted);
        value.downcast_object_ref::<Text>().map(Text::piece).or_else(native)
    }

    pub(super) fn sub(&self, range: Range<usize>) -> Self {
        Self { text: &self.text[range.clone()], start: self.start + range.start, marks: self.marks }
    }

    /// The piece of `part`, which must be a slice of `self.text`.
    pub(super) fn part(&self, part: &'a str) -> Self {
        let at = part.as_ptr() as usize - self.text.as_ptr() as usize;
        self.sub(at..at + part.len())
    }

    pub(super) fn has_untrusted(&self) -> bool {
        self.segments().any(|(_, untrusted)| untrusted)
    }

    /// Its maximal segments that are trusted or untrusted as a whole.
    pub(super) fn segments(self) -> impl Iterator<Item = (&'a str, bool)> {
        let (mut at, end) = (self.start, self.start + self.text.len());
        let mut marks = &self.marks[self.marks.partition_point(|mark| mark.end <= at)..];
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let from = at;
            let untrusted = marks.first().is_some_and(|mark| mark.start <= from);
            at = match marks.first() {
                Some(mark) if untrusted => mark.end.min(end),
                Some(mark) => mark.start.min(end),
                None => end,
            };
            marks = &marks[usize::from(untrusted)..];
            Some((&self.text[from - self.start..at - self.start], untrusted))
        })
    }

    /// Its characters, each as a piece.
    pub(super) fn characters(self) -> impl Iterator<Item = Piece<'a>> {
        self.text.char_indices().map(move |(at, c)| self.sub(at..at + c.len_utf8()))
    }
}

/// A text under construction, charged before it grows.
pub(super) struct Sink<'a> {
    pub run: &'a Run,
    text: Text,
    /// Number of bytes charged.
    paid: usize,
}

impl<'a> Sink<'a> {
    pub(super) fn new(run: &'a Run) -> Self {
        Self { run, text: Text::default(), paid: 0 }
    }

    /// Charges and reserves room for exactly `bytes` more.
    pub(super) fn reserve(&mut self, bytes: usize) -> Outcome<()> {
        self.run.memory(bytes)?;
        self.text.text.try_reserve_exact(bytes).map_err(|_| self.run.no_memory(bytes))?;
        self.paid = self.text.text.len() + bytes;
        Ok(())
    }

    /// Appends the template's own text.
    pub(super) fn push(&mut self, text: &str) -> Outcome<()> {
        self.push_as(text, false)
    }

    pub(super) fn push_piece(&mut self, piece: Piece) -> Outcome<()> {
        piece.segments().try_for_each(|(text, untrusted)| self.push_as(text, untrusted))
    }

    pub(super) fn push_char(&mut self, c: char, untrusted: bool) -> Outcome<()> {
        self.push_as(c.encode_utf8(&mut [0; 4]), untrusted)
    }

    /// Appends `piece`, in which `escape` replaces some characters.
    pub(super) fn push_escaped(
        &mut self,
        piece: Piece,
        escape: impl Fn(char) -> Option<Cow<'static, str>>,
    ) -> Outcome<()> {
        for (part, untrusted) in piece.segments() {
            let mut plain = 0;
            for (at, c) in part.char_indices() {
                let Some(escaped) = escape(c) else { continue };
                self.push_as(&part[plain..at], untrusted)?;
                self.push_as(&escaped, untrusted)?;
                plain = at + c.len_utf8();
            }
            self.push_as(&part[plain..], untrusted)?;
        }
        Ok(())
    }

    pub(super) fn push_as(&mut self, text: &str, untrusted: bool) -> Outcome<()> {
        let more = (self.text.text.len() + text.len()).saturating_sub(self.paid);
        if more > 0 {
            self.run.memory(more)?;
            self.text.text.try_reserve(text.len()).map_err(|_| self.run.no_memory(text.len()))?;
            self.paid += more;
        }
        let (start, end) = (self.text.text.len(), self.text.text.len() + text.len());
        self.text.text.push_str(text);
        if !untrusted || text.is_empty() {
            return Ok(());
        }
        match self.text.untrusted.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => {
                self.run.grow(&mut self.text.untrusted, 1)?;
                self.text.untrusted.push(start..end);
            }
        }
        Ok(())
    }

    pub(super) fn into_text(self) -> Text {
        self.text
    }

    pub(super) fn into_value(self) -> Outcome<Value> {
        if self.text.untrusted.is_empty() && self.text.text.len() <= INLINE_BYTES {
            return Ok(Value::from(&*self.text.text));
        }
        self.run.memory(OBJECT_BYTES)?;
        Ok(Value::from_object(self.text))
    }
}

/// The piece of a value that is known to be a string.
pub(super) fn piece(string: &Value) -> Piece<'_> {
    Piece::of(string).unwrap_or(Piece::trusted(""))
}
