//! Parses a call that is a name and pairs of tags (GLM 4.5 and later). Its parameters become one JSON object.
//!
//! Nothing in a value is escaped, and no line breaks belong to its tags: everything is text up to a closing tag that is
//! followed by the next key or the end of the block.

use super::tags::{MAX_BLANKS, emit_value};
use super::{Call, MAX_WORD, Turn, is_blank};
use crate::text::chat::is_name;
use crate::text::reply::{Emitter, Kind, python};

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pairs {
    #[default]
    Name,
    /// Before a key, or the end of the block.
    Between,
    Key,
    /// Before a value.
    Behind,
    /// In a value, to which the first bytes of `raw` certainly belong.
    Value {
        kind: Kind,
        sure: usize,
    },
}

/// Whether `text` is the beginning of `tag`, or all of it.
fn part_of(text: &str, tag: &str) -> Option<bool> {
    tag.starts_with(text).then_some(text == tag)
}

impl Call {
    pub(super) fn in_pair(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.raw.push(c);
        if let Pairs::Value { kind, sure } = self.pairs {
            return self.in_pair_value(kind, sure, to);
        }
        if self.pairs != Pairs::Name && self.word.is_empty() && is_blank(c) {
            return Turn::More;
        }
        self.word.push(c);
        match self.pairs {
            Pairs::Name => self.pair_name(to),
            Pairs::Key => self.pair_key(),
            Pairs::Between => self.between_pairs(to),
            Pairs::Behind | Pairs::Value { .. } => match part_of(&self.word, VALUE) {
                Some(true) => self.begin_pair_value(to),
                Some(false) => Turn::More,
                None => Turn::Fail,
            },
        }
    }

    /// The name ends with a line break or a tag.
    fn pair_name(&mut self, to: &mut Emitter) -> Turn {
        let text = self.word.trim_start_matches(is_blank);
        let Some(at) = text.find(['\n', '<']) else {
            let good = text.is_empty() || text.len() <= MAX_WORD && is_name(text.trim_end_matches(is_blank));
            return if good { Turn::More } else { Turn::Fail };
        };
        let name = text[..at].trim_end_matches(is_blank);
        if !is_name(name) {
            return Turn::Fail;
        }
        let (name, rest) = (name.to_owned(), text[at..].trim_start_matches('\n').to_owned());
        (self.name, self.word) = (name, rest);
        self.pairs = Pairs::Between;
        if self.word.is_empty() { Turn::More } else { self.between_pairs(to) }
    }

    fn between_pairs(&mut self, to: &mut Emitter) -> Turn {
        let close = self.block.map_or("", |block| block.close);
        match (part_of(&self.word, KEY), part_of(&self.word, close)) {
            (Some(true), _) => {
                self.word.clear();
                self.pairs = Pairs::Key;
                Turn::More
            }
            (_, Some(true)) => {
                if !self.emitted {
                    self.emit_name(to);
                    to.arguments("{");
                }
                to.arguments("}");
                self.complete();
                Turn::End
            }
            (None, None) => Turn::Fail,
            _ => Turn::More,
        }
    }

    fn pair_key(&mut self) -> Turn {
        let Some(key) = self.word.strip_suffix(KEY_END) else {
            let good = self.word.len() <= MAX_WORD + KEY_END.len() && !self.word.contains('\n');
            return if good { Turn::More } else { Turn::Fail };
        };
        if key.is_empty() || key.contains('<') {
            return Turn::Fail;
        }
        self.arguments = key.to_owned();
        self.word.clear();
        self.pairs = Pairs::Behind;
        Turn::More
    }

    /// Begins the value of the parameter whose name is in `arguments`.
    fn begin_pair_value(&mut self, to: &mut Emitter) -> Turn {
        let kind = to.tool(&self.name).and_then(|tool| tool.kind(&self.arguments)).unwrap_or_default();
        let mut key = String::from(if self.emitted { ", " } else { "{" });
        python::quote(&self.arguments, &mut key);
        key.push_str(": ");
        if !self.emitted {
            self.emit_name(to);
        }
        to.arguments(&key);
        self.word.clear();
        self.raw.clear();
        self.pairs = Pairs::Value { kind, sure: 0 };
        Turn::More
    }

    fn in_pair_value(&mut self, kind: Kind, mut sure: usize, to: &mut Emitter) -> Turn {
        let close = self.block.map_or("", |block| block.close);
        while let Some(c) = self.raw[sure..].chars().next() {
            let text = &self.raw[sure..];
            let behind = text.strip_prefix(VALUE_END);
            if behind.is_none() && VALUE_END.starts_with(text) {
                break;
            }
            let rest = behind.map(|behind| (behind, behind.trim_start_matches(is_blank)));
            let Some(rest) =
                rest.filter(|(all, rest)| all.len() - rest.len() <= MAX_BLANKS).map(|(_, rest)| rest)
            else {
                sure += c.len_utf8();
                continue;
            };
            match (part_of(rest, KEY), part_of(rest, close)) {
                (None, None) => sure += c.len_utf8(),
                (key @ Some(true), _) | (key, Some(true)) => {
                    emit_value(&self.raw[..sure], kind, to);
                    self.raw.clear();
                    if key == Some(true) {
                        self.pairs = Pairs::Key;
                        return Turn::More;
                    }
                    to.arguments("}");
                    self.complete();
                    return Turn::End;
                }
                _ => break,
            }
        }
        self.pairs = Pairs::Value { kind, sure };
        Turn::More
    }
}
