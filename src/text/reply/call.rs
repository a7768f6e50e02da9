//! Parses one block of calls in an answer as it arrives.

mod braced;
mod framed;
mod pairs;
mod tags;

use super::format::{
    ARGS, BRACED, Block, Body, CALL_ID, FENCE, FRAMED, LIST, NAMED, OBJECT, PAIRS, PYTHON, TAGS,
    TAGS_OF_KNOWN,
};
use super::mend::Mend;
use super::scan::{Scan, Step};
use super::{Emitter, Symbol, python};
use crate::text::chat::{Json, is_name};
use braced::Braced;
use framed::Framed;
use pairs::Pairs;
use tags::Tags;

/// Maximum length in bytes of a key, string or marker.
const MAX_WORD: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    More,
    /// The text is not a call, or does not continue as one: `raw` is text.
    Fail,
    /// The block has ended.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    /// A known field that is ignored.
    Other,
}

#[derive(Debug, Default)]
enum At {
    #[default]
    Begin,
    /// In the line that begins a fence.
    Fence,
    /// After `[`.
    Bracket,
    /// Before another call.
    Item,
    /// In an object: before a field's name, in it, after it.
    Key,
    KeyText,
    Colon(Field),
    Value(Field),
    Text(Field),
    /// In the arguments; in the arguments as a JSON text.
    Arguments(Mend),
    Quoted {
        escaped: bool,
    },
    /// In a `null` instead of arguments, of which this rest is missing.
    Null(&'static str),
    BehindField,
    /// A name without quotes: in it, after it, in a marker after it, in an id, before the arguments.
    Name,
    BehindName,
    Sign,
    Id,
    NamedArguments,
    Python {
        depth: u32,
        quote: Option<char>,
        escaped: bool,
    },
    /// After a call.
    Behind,
    /// In the marker that ends the block, after this many bytes.
    Close(usize),
}

#[derive(Debug, Default)]
pub(super) struct Call {
    /// None: a call without a marker, at the start of the answer.
    block: Option<&'static Block>,
    body: Body,
    at: At,
    /// The state in calls that are written in tags, in place of `at`.
    tags: Tags,
    /// The same for calls in pairs of tags, in frames and in braces.
    pairs: Pairs,
    framed: Framed,
    braced: Braced,
    /// Calls are in a list; in Python's syntax; with a name without quotes.
    list: bool,
    python: bool,
    named: bool,
    /// Received text that is not emitted yet.
    pub raw: String,
    /// Length of the prefix of `raw` that must not be tried as a call again.
    pub lead: usize,
    name: String,
    /// Arguments that came before the name.
    arguments: String,
    has_arguments: bool,
    emitted: bool,
    word: String,
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

impl Call {
    /// Begins after a block's marker, or at a call that needs none. Reuses its memory.
    pub(super) fn begin(&mut self, block: Option<&'static Block>, body: Body) {
        let Self { mut raw, mut name, mut arguments, mut word, .. } = std::mem::take(self);
        [&mut raw, &mut name, &mut arguments, &mut word].into_iter().for_each(|text| text.clear());
        let open = block.map_or("", |block| block.open);
        raw.push_str(open);
        if body & TAGS_OF_KNOWN != 0 {
            word.push_str(open);
        }
        *self = Self { block, body, raw, lead: open.len(), name, arguments, word, ..Self::default() };
    }

    /// Reserves room for `bytes` more bytes in each buffer.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), std::collections::TryReserveError> {
        let Self { raw, name, arguments, word, .. } = self;
        // An escape may turn one character into six.
        arguments.try_reserve(6 * bytes)?;
        [raw, name, word].into_iter().try_for_each(|text| text.try_reserve(bytes))
    }

    /// Drops the held-back part of the arguments when the answer ends within them.
    pub(super) fn leave_held(&mut self) {
        if self.emitted && matches!(self.at, At::Arguments(_)) {
            self.raw.clear();
        }
    }

    /// Number of bytes held back.
    pub(super) fn held(&self) -> usize {
        self.raw.len() + self.arguments.len()
    }

    pub(super) fn step(&mut self, symbol: Symbol, to: &mut Emitter) -> Turn {
        if self.body & (TAGS | TAGS_OF_KNOWN) != 0 {
            return self.spelled(symbol, to, Self::in_tag);
        }
        if self.body & PAIRS != 0 {
            return self.spelled(symbol, to, Self::in_pair);
        }
        if self.body & FRAMED != 0 {
            return self.spelled(symbol, to, Self::in_frame);
        }
        if self.body & BRACED != 0 {
            return self.spelled(symbol, to, Self::in_braces);
        }
        let c = match symbol {
            Symbol::Mark(mark) => return self.mark(mark),
            Symbol::Char(c) => c,
        };
        self.raw.push(c);
        if matches!(self.at, At::Behind) && self.in_fence(c) {
            self.at = At::Item;
        }
        let next = match &mut self.at {
            At::Arguments(_) => return self.argument(c, to),
            At::KeyText | At::Text(_) | At::Name | At::Sign | At::Id => return self.in_word(c, to),
            At::Quoted { .. } => return self.in_quoted(c, to),
            At::Null(rest) => match rest.strip_prefix(c) {
                Some("") => return self.whole_arguments("{}", to),
                rest => rest.map(At::Null),
            },
            At::Python { .. } => return self.in_python(c, to),
            At::Fence => return self.in_fence_line(c),
            At::Behind | At::Close(_) => return self.behind(c),
            At::BehindField if c == '}' => return self.end_object(to),
            _ if is_blank(c) => return Turn::More,
            At::Value(Field::Arguments) | At::NamedArguments | At::BehindName if c == '{' => {
                return self.begin_arguments(to);
            }
            At::Begin | At::Bracket | At::Item => self.begins(c),
            At::Key if c == '"' => Some(At::KeyText),
            At::Colon(field) if c == ':' => Some(At::Value(*field)),
            At::Value(Field::Arguments) if c == '"' => Some(At::Quoted { escaped: false }),
            At::Value(Field::Arguments) if c == 'n' => Some(At::Null("ull")),
            At::Value(Field::Arguments) if c == 'N' => Some(At::Null("one")),
            At::Value(field @ (Field::Name | Field::Other)) if c == '"' => Some(At::Text(*field)),
            At::BehindField if c == ',' => Some(At::Key),
            At::BehindName if c == '[' => Some(At::Sign),
            _ => None,
        };
        let Some(next) = next else { return Turn::Fail };
        if matches!(next, At::KeyText | At::Text(_)) {
            self.word.clear();
        }
        if matches!(next, At::Fence | At::Sign | At::Name | At::Quoted { .. } | At::Python { .. }) {
            self.word.clear();
            self.word.push(c);
        }
        self.at = next;
        Turn::More
    }

    /// The state after the first character of a call, or of a list of calls.
    fn begins(&mut self, c: char) -> Option<At> {
        let may = |body| self.body & body != 0;
        let python = At::Python { depth: 0, quote: None, escaped: false };
        match (&self.at, c) {
            (At::Begin, '`') if may(FENCE) => Some(At::Fence),
            (At::Begin, '{') if may(OBJECT) => Some(At::Key),
            (At::Begin, '[') if may(LIST | PYTHON) => {
                self.list = true;
                Some(At::Bracket)
            }
            (At::Begin, c) if may(NAMED) && is_name(c.encode_utf8(&mut [0; 4])) => {
                self.named = true;
                Some(At::Name)
            }
            (At::Bracket, '{') if may(LIST) => Some(At::Key),
            (At::Item, '{') if !self.python => Some(At::Key),
            (At::Bracket, c) if may(PYTHON) && begins_word(c) => {
                self.python = true;
                Some(python)
            }
            (At::Item, c) if self.python && begins_word(c) => Some(python),
            (At::Begin, c) if may(PYTHON) && self.block.is_some() && begins_word(c) => {
                self.python = true;
                Some(python)
            }
            _ => None,
        }
    }

    /// Processes a control token that is a marker.
    fn mark(&mut self, mark: &str) -> Turn {
        let next = match &self.at {
            At::Name | At::BehindName if mark == CALL_ID => {
                self.keep_name();
                At::Id
            }
            At::Name | At::BehindName | At::Id if mark == ARGS => {
                self.keep_name();
                At::NamedArguments
            }
            At::Behind if self.ends_with(mark) => return Turn::End,
            _ => return Turn::Fail,
        };
        self.raw.push_str(mark);
        self.at = next;
        Turn::More
    }

    /// Processes a character in the line that begins a fence.
    fn in_fence_line(&mut self, c: char) -> Turn {
        self.word.push(c);
        let line = self.word.trim_end();
        match c {
            '\n' if ["```", "```python"].contains(&line) => self.at = At::Begin,
            '\n' => return Turn::Fail,
            _ if !"```python".starts_with(line) => return Turn::Fail,
            _ => {}
        }
        Turn::More
    }

    /// Whether `c`, after a call, begins another one on its own line.
    fn in_fence(&self, c: char) -> bool {
        self.body & FENCE != 0 && self.python && !self.list && begins_word(c)
    }

    /// Processes a symbol where control tokens are the text that they spell.
    fn spelled(
        &mut self,
        symbol: Symbol,
        to: &mut Emitter,
        step: fn(&mut Self, char, &mut Emitter) -> Turn,
    ) -> Turn {
        let mark = match symbol {
            Symbol::Char(c) => return step(self, c, to),
            Symbol::Mark(mark) => mark,
        };
        let before = self.raw.len();
        for c in mark.chars() {
            match step(self, c, to) {
                Turn::More => {}
                Turn::End => return Turn::End,
                Turn::Fail => {
                    // Try the marker again as the beginning of a call.
                    self.raw.truncate(before);
                    return Turn::Fail;
                }
            }
        }
        Turn::More
    }

    fn ends_with(&self, mark: &str) -> bool {
        !self.list && self.block.is_some_and(|block| block.close == mark)
    }

    /// Processes a character in a string, an unquoted name or a marker.
    fn in_word(&mut self, c: char, to: &mut Emitter) -> Turn {
        let ends = match self.at {
            At::KeyText | At::Text(_) => c == '"',
            At::Name => c == '[' || c == '{' || is_blank(c),
            At::Id => c == '[',
            _ => false,
        };
        if !ends {
            self.word.push(c);
            let good = c >= ' ' && c != '\\' && self.word.len() <= MAX_WORD;
            return match self.at {
                At::Name | At::Id if !is_name(&self.word) => Turn::Fail,
                At::Sign => self.sign(),
                _ if good => Turn::More,
                _ => Turn::Fail,
            };
        }
        match self.at {
            At::KeyText => match self.field() {
                Some(field) => self.at = At::Colon(field),
                None => return Turn::Fail,
            },
            At::Text(Field::Name) => {
                if !self.keep_name_if(to) {
                    return Turn::Fail;
                }
                self.at = At::BehindField;
            }
            At::Text(_) => self.at = At::BehindField,
            At::Name => {
                self.keep_name();
                self.at = At::BehindName;
                if c == '{' {
                    return self.begin_arguments(to);
                }
            }
            _ => {}
        }
        if c == '[' {
            self.word.clear();
            self.word.push(c);
            self.at = At::Sign;
        }
        Turn::More
    }

    /// Checks a spelled-out marker after a name.
    fn sign(&mut self) -> Turn {
        match &*self.word {
            ARGS => self.at = At::NamedArguments,
            CALL_ID => {
                self.word.clear();
                self.at = At::Id;
            }
            part if ARGS.starts_with(part) || CALL_ID.starts_with(part) => {}
            _ => return Turn::Fail,
        }
        Turn::More
    }

    /// The field with this name; None if calls have no such field, or if it is a duplicate.
    fn field(&self) -> Option<Field> {
        match &*self.word {
            "name" if self.name.is_empty() => Some(Field::Name),
            "arguments" | "parameters" if !self.has_arguments => Some(Field::Arguments),
            "id" | "type" => Some(Field::Other),
            _ => None,
        }
    }

    fn keep_name(&mut self) {
        if self.name.is_empty() {
            std::mem::swap(&mut self.name, &mut self.word);
        }
    }

    /// Stores the name in an object, and emits arguments that came before it. Returns false if it is not a valid
    /// name.
    fn keep_name_if(&mut self, to: &mut Emitter) -> bool {
        let good = is_name(&self.word) && (self.block.is_some() || to.knows(&self.word));
        if good {
            self.keep_name();
            if self.has_arguments {
                self.emit_name(to);
                to.arguments(&self.arguments);
            }
        }
        good
    }

    fn emit_name(&mut self, to: &mut Emitter) {
        to.call(&self.name);
        self.emitted = true;
        self.raw.clear();
        self.lead = 0;
    }

    fn begin_arguments(&mut self, to: &mut Emitter) -> Turn {
        self.has_arguments = true;
        if !self.name.is_empty() {
            self.emit_name(to);
        }
        self.at = At::Arguments(Mend::default());
        self.argument('{', to)
    }

    fn argument(&mut self, c: char, to: &mut Emitter) -> Turn {
        let At::Arguments(mend) = &mut self.at else { return Turn::Fail };
        let from = self.arguments.len();
        let step = mend.push(c, &mut self.arguments);
        let even = mend.is_even();
        if step == Step::Bad {
            // Everything before was emitted; only the held-back text and this character become text.
            return Turn::Fail;
        }
        if self.emitted {
            to.arguments(&self.arguments[from..]);
            self.arguments.truncate(from);
            if even {
                self.raw.clear();
            }
        }
        if step == Step::Done {
            match self.named {
                true => self.complete(),
                false => self.at = At::BehindField,
            }
        }
        Turn::More
    }

    /// Processes a character in arguments that are a JSON text, which is used when it is complete.
    fn in_quoted(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.word.push(c);
        let At::Quoted { escaped } = &mut self.at else { return Turn::Fail };
        if c != '"' || *escaped {
            *escaped = c == '\\' && !*escaped;
            return Turn::More;
        }
        let Ok((Json::Text(text), _)) = Json::parse(&self.word) else { return Turn::Fail };
        let text = if text.trim().is_empty() { "{}" } else { text.trim() };
        let mut scan = Scan::default();
        let mut steps = text.chars().map(|c| scan.push(c)).skip_while(|step| *step == Step::More);
        if !text.starts_with('{') || steps.next() != Some(Step::Done) || steps.next().is_some() {
            return Turn::Fail;
        }
        self.whole_arguments(text, to)
    }

    fn whole_arguments(&mut self, text: &str, to: &mut Emitter) -> Turn {
        self.has_arguments = true;
        match self.name.is_empty() {
            true => self.arguments.push_str(text),
            false => {
                self.emit_name(to);
                to.arguments(text);
            }
        }
        self.at = At::BehindField;
        Turn::More
    }

    fn end_object(&mut self, to: &mut Emitter) -> Turn {
        if self.name.is_empty() {
            return Turn::Fail;
        }
        if !self.emitted {
            self.emit_name(to);
            to.arguments("{}");
        }
        self.complete();
        Turn::More
    }

    fn complete(&mut self) {
        [&mut self.raw, &mut self.name, &mut self.arguments].into_iter().for_each(|text| text.clear());
        (self.has_arguments, self.emitted, self.lead) = (false, false, 0);
        self.at = At::Behind;
    }

    fn in_python(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.word.push(c);
        let At::Python { depth, quote, escaped } = &mut self.at else { return Turn::Fail };
        if let Some(end) = *quote {
            *quote = Some(end).filter(|end| *escaped || c != *end);
            *escaped = c == '\\' && !*escaped;
            return if c == '\n' { Turn::Fail } else { Turn::More };
        }
        match c {
            '(' if *depth == 0 => {
                *depth = 1;
                let name = &self.word[..self.word.len() - 1];
                let good = is_name(name) && (self.block.is_some() || to.knows(name));
                return if good { Turn::More } else { Turn::Fail };
            }
            c if *depth == 0 => {
                let good = self.word.len() <= MAX_WORD && is_name(c.encode_utf8(&mut [0; 4]));
                return if good { Turn::More } else { Turn::Fail };
            }
            '"' | '\'' => *quote = Some(c),
            '(' | '[' | '{' => *depth += 1,
            ')' | ']' | '}' => *depth -= 1,
            _ => {}
        }
        if *depth > 0 {
            return Turn::More;
        }
        let Some((name, arguments)) = python::call(&self.word) else { return Turn::Fail };
        to.call(name);
        to.arguments(&arguments);
        self.complete();
        Turn::More
    }

    /// After a call: another call, or the end of the block.
    fn behind(&mut self, c: char) -> Turn {
        let close = self.block.map_or("", |block| block.close).as_bytes();
        let next = match (&self.at, c) {
            (At::Close(n), c) if close.get(*n) == Some(&(c as u8)) && c.is_ascii() => At::Close(n + 1),
            (At::Behind, c) if is_blank(c) || c == '`' && self.body & FENCE != 0 => return Turn::More,
            (At::Behind, ',') if self.list => At::Item,
            (At::Behind, ']') if self.list => {
                self.list = false;
                self.raw.clear();
                return Turn::More;
            }
            (At::Behind, c) if !self.list && close.first() == Some(&(c as u8)) && c.is_ascii() => {
                At::Close(1)
            }
            // Llama 3 separates calls by semicolons.
            (At::Behind, ';') if close.is_empty() && !self.named && !self.python => At::Item,
            (At::Behind, '{') if !self.list && !close.is_empty() && !self.python => At::Key,
            _ => return Turn::Fail,
        };
        if matches!(next, At::Close(n) if n == close.len()) {
            return Turn::End;
        }
        self.at = next;
        Turn::More
    }
}
