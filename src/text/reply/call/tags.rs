//! Parses calls that are written in tags. Their parameters become one JSON object.
//!
//! Nothing in a value is escaped, so everything is text up to its end, control tokens included, and its closing tag
//! counts only if an expected tag follows. Models leave out closing tags: a value also ends before a declared
//! parameter on a new line, and before the end of the function on a new line with the end of the block after it.

use super::{Call, MAX_WORD, Turn, is_blank};
use crate::text::chat::is_name;
use crate::text::reply::format::{FUNCTION_END, TAGS_OF_KNOWN};
use crate::text::reply::{Emitter, Kind, python, scan};

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Maximum number of blanks between a value's closing tag and the tag that follows.
pub(super) const MAX_BLANKS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tags {
    /// Before a function.
    #[default]
    Function,
    /// In a function, before its first parameter.
    Inside,
    Value(Value),
    /// After a function.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    kind: Kind,
    /// Length of the prefix of `raw` that belongs to the value. What follows may be its end.
    sure: usize,
    /// No part of the value has come yet.
    fresh: bool,
}

/// The result of comparing a text with tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found<'a> {
    /// The text is no tag, and cannot become one.
    No,
    /// The text may become a tag.
    Part,
    /// The text is this tag, with a name if tags of its kind have one.
    Tag(&'static str, &'a str),
}

/// Compares `text` with `tags`. Those that end with `=` continue with a name and `>`.
fn find<'a>(text: &'a str, tags: &[&'static str]) -> Found<'a> {
    for tag in tags {
        match text.strip_prefix(tag) {
            None if tag.starts_with(text) => return Found::Part,
            None => {}
            Some("") if tag.ends_with('>') => return Found::Tag(tag, ""),
            Some(name) if tag.ends_with('=') => {
                let (name, ends) = name.strip_suffix('>').map_or((name, false), |name| (name, true));
                let good = |c: char| !c.is_control() && c != '<' && c != '>';
                return match name.len() <= MAX_WORD && name.chars().all(good) {
                    true if !ends => Found::Part,
                    true if !name.is_empty() => Found::Tag(tag, name),
                    _ => Found::No,
                };
            }
            Some(_) => {}
        }
    }
    Found::No
}

/// Like `find`, for blanks followed by a tag.
fn find_behind<'a>(text: &'a str, tags: &[&'static str]) -> Found<'a> {
    let rest = text.trim_start_matches(is_blank);
    match text.len() - rest.len() {
        0..=MAX_BLANKS => find(rest, tags),
        _ => Found::No,
    }
}

/// Compares `text`, a part of a value, with what may end it. The tag that is found is the last one.
fn find_end<'a>(text: &'a str, call_end: &'static str, knows: &dyn Fn(&str) -> bool) -> Found<'a> {
    let line = text.strip_prefix('\n');
    let rest = line.unwrap_or(text);
    if let Some(rest) = rest.strip_prefix(PARAMETER_END) {
        return find_behind(rest, &[PARAMETER, FUNCTION_END, call_end]);
    }
    if PARAMETER_END.starts_with(rest) {
        return Found::Part;
    }
    if line.is_none() {
        return Found::No;
    }
    if let Some(rest) = rest.strip_prefix(FUNCTION_END) {
        return find_behind(rest, &[call_end]);
    }
    match find(rest, &[PARAMETER, FUNCTION_END]) {
        Found::Tag(_, name) if !knows(name) => Found::No,
        found => found,
    }
}

/// Emits a character of a string.
fn emit_char(c: char, to: &mut Emitter) {
    if c < ' ' || c == '"' || c == '\\' {
        let mut escaped = String::new();
        python::escape(c, &mut escaped);
        to.arguments(&escaped);
    } else {
        to.arguments(c.encode_utf8(&mut [0; 4]));
    }
}

/// Emits a complete value. If it is neither text nor JSON, it becomes a string, so that it is not lost.
pub(super) fn emit_value(text: &str, kind: Kind, to: &mut Emitter) {
    let trimmed = text.trim_matches(is_blank);
    if kind == Kind::Any && scan::is_value(trimmed) {
        return to.arguments(trimmed);
    }
    let converted = match kind {
        Kind::Any => python::value(trimmed),
        Kind::Text => None,
        Kind::Nullable => ["null", "None"].contains(&text).then(|| "null".to_owned()),
    };
    if let Some(json) = converted {
        return to.arguments(&json);
    }
    to.arguments("\"");
    text.chars().for_each(|c| emit_char(c, to));
    to.arguments("\"");
}

impl Call {
    pub(super) fn in_tag(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.raw.push(c);
        let tags = match self.tags {
            Tags::Value(value) => return self.in_value(value, to),
            Tags::Function => [FUNCTION; 2],
            Tags::Inside => [PARAMETER, FUNCTION_END],
            Tags::Behind => [FUNCTION, self.call_end()],
        };
        if self.word.is_empty() && is_blank(c) {
            return Turn::More;
        }
        self.word.push(c);
        let tag = match find(&self.word, &tags) {
            Found::No => return Turn::Fail,
            Found::Part => return Turn::More,
            Found::Tag(tag, _) => tag,
        };
        self.word.drain(..tag.len());
        self.word.pop();
        if tag == FUNCTION {
            return self.begin_function(to);
        }
        if self.tags == Tags::Inside {
            self.emit_name(to);
            to.arguments("{");
        }
        self.turn(tag, to)
    }

    /// The tag that ends the block.
    fn call_end(&self) -> &'static str {
        self.block.map_or("", |block| block.close)
    }

    /// Begins the function whose name is in `word`.
    fn begin_function(&mut self, to: &Emitter) -> Turn {
        let any = self.body & TAGS_OF_KNOWN == 0;
        if !is_name(&self.word) || !any && !to.knows(&self.word) {
            return Turn::Fail;
        }
        std::mem::swap(&mut self.name, &mut self.word);
        self.word.clear();
        self.tags = Tags::Inside;
        Turn::More
    }

    /// Processes a tag in a function. The name of a parameter is in `word`.
    fn turn(&mut self, tag: &'static str, to: &mut Emitter) -> Turn {
        if tag == PARAMETER {
            self.begin_value(to);
            return Turn::More;
        }
        let ends = tag == self.call_end();
        if !ends || matches!(self.tags, Tags::Value(_)) {
            to.arguments("}");
        }
        self.complete();
        self.word.clear();
        self.tags = Tags::Behind;
        if ends { Turn::End } else { Turn::More }
    }

    /// Begins the value of the parameter whose name is in `word`.
    fn begin_value(&mut self, to: &mut Emitter) {
        let kind = to.tool(&self.name).and_then(|tool| tool.kind(&self.word)).unwrap_or_default();
        let mut key = String::new();
        key.push_str(if std::mem::replace(&mut self.has_arguments, true) { ", " } else { "" });
        python::quote(&self.word, &mut key);
        key.push_str(if kind == Kind::Text { ": \"" } else { ": " });
        to.arguments(&key);
        self.word.clear();
        self.raw.clear();
        self.tags = Tags::Value(Value { kind, sure: 0, fresh: true });
    }

    /// Processes the last character of `raw`. A line break at either end of a value belongs to its tags.
    fn in_value(&mut self, mut value: Value, to: &mut Emitter) -> Turn {
        if std::mem::take(&mut value.fresh) && self.raw == "\n" {
            self.raw.clear();
        }
        while let Some(c) = self.raw[value.sure..].chars().next() {
            let knows = |name: &str| to.tool(&self.name).is_some_and(|tool| tool.kind(name).is_some());
            match find_end(&self.raw[value.sure..], self.call_end(), &knows) {
                Found::Part => break,
                Found::No if value.kind == Kind::Text => {
                    emit_char(c, to);
                    self.raw.drain(..c.len_utf8());
                }
                Found::No => value.sure += c.len_utf8(),
                Found::Tag(tag, name) => {
                    self.word.push_str(name);
                    match value.kind {
                        Kind::Text => to.arguments("\""),
                        kind => emit_value(&self.raw[..value.sure], kind, to),
                    }
                    return self.turn(tag, to);
                }
            }
        }
        self.tags = Tags::Value(value);
        Turn::More
    }
}
