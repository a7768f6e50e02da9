//! Parses a call that consists of `call:`, a name, and an object without quotes around its keys, with texts between
//! special marks (Gemma 4). A call is emitted when it is complete, with its arguments as JSON.

use super::{Call, MAX_WORD, Turn, is_blank};
use crate::text::chat::is_name;
use crate::text::reply::Emitter;
use crate::text::reply::format::QUOTE;
use crate::text::reply::python;

const BEGIN: &str = "call:";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Braced {
    #[default]
    Head,
    Arguments {
        depth: usize,
        within: Within,
    },
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    Nothing,
    /// A text between marks, which begins at this byte of `word`.
    Marks(usize),
    /// A text in JSON's syntax.
    Quotes {
        escaped: bool,
    },
}

impl Call {
    pub(super) fn in_braces(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.raw.push(c);
        if self.word.is_empty() && is_blank(c) {
            return Turn::More;
        }
        self.word.push(c);
        match self.braced {
            Braced::Head => self.brace_head(c),
            Braced::Arguments { depth, within } => self.brace_arguments(c, depth, within, to),
            Braced::Behind => {
                let close = self.block.map_or("", |block| block.close);
                match close.starts_with(&*self.word) {
                    true if self.word == close => Turn::End,
                    true => Turn::More,
                    false => Turn::Fail,
                }
            }
        }
    }

    fn brace_head(&mut self, c: char) -> Turn {
        let Some(name) = self.word.strip_prefix(BEGIN) else {
            return if BEGIN.starts_with(&*self.word) { Turn::More } else { Turn::Fail };
        };
        let good = match name.strip_suffix('{') {
            Some(name) => is_name(name),
            None => name.is_empty() || is_name(name) && name.len() <= MAX_WORD,
        };
        if c == '{' {
            self.braced = Braced::Arguments { depth: 1, within: Within::Nothing };
        }
        if good { Turn::More } else { Turn::Fail }
    }

    fn brace_arguments(&mut self, c: char, mut depth: usize, within: Within, to: &mut Emitter) -> Turn {
        let marks = self.word.ends_with(QUOTE);
        let within = match within {
            Within::Nothing if marks => Within::Marks(self.word.len()),
            // The third character of a mark does not begin a quoted text.
            Within::Nothing if c == '"' && !self.word.ends_with(&QUOTE[..3]) => {
                Within::Quotes { escaped: false }
            }
            Within::Nothing => {
                match c {
                    '{' | '[' => depth += 1,
                    '}' | ']' => depth -= 1,
                    _ => {}
                }
                Within::Nothing
            }
            Within::Marks(from) if marks && self.word.len() >= from + QUOTE.len() => Within::Nothing,
            Within::Quotes { escaped: false } if c == '"' => Within::Nothing,
            Within::Quotes { escaped } => Within::Quotes { escaped: c == '\\' && !escaped },
            marks => marks,
        };
        self.braced = Braced::Arguments { depth, within };
        if depth > 0 { Turn::More } else { self.end_braces(to) }
    }

    fn end_braces(&mut self, to: &mut Emitter) -> Turn {
        let call = self.word.strip_prefix(BEGIN).and_then(|call| call.split_at_checked(call.find('{')?));
        let Some((name, json)) = call.and_then(|(name, text)| Some((name, python::object(text)?))) else {
            return Turn::Fail;
        };
        to.call(name);
        to.arguments(&json);
        self.complete();
        self.word.clear();
        self.braced = Braced::Behind;
        Turn::More
    }
}
