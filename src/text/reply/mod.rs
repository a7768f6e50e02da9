//! A model's answer told apart while it streams: text, reasoning, and calls of tools.
//!
//! The result does not depend on how the answer was cut into pieces. Nothing is lost: what is not reasoning, no call and
//! no marker of these is text. Line breaks beside a marker belong to it, as do blanks before the first.
//!
//! A call is told once its name is known and its arguments begin, which then stream. What turns out earlier to be no
//! call is text from its marker on; later, the call keeps what was told, and the rest is text from the first wrong
//! character on.

mod call;
mod format;
mod grammar;
mod parts;
mod python;
mod scan;
#[cfg(test)]
mod tests;

pub use format::{Format, Thoughts, format_named, format_of, thoughts_named, thoughts_of};
pub use grammar::grammar;

use crate::base::{Error, Result};
use call::{Call, Turn};
use format::{ARGS, CALL_ID};

/// Where the parts of an answer go.
pub trait Sink {
    fn text(&mut self, text: &str);
    fn reasoning(&mut self, text: &str);
    /// A call begins; `index` counts them from 0.
    fn call(&mut self, index: u32, id: &str, name: &str);
    /// More of the arguments of call `index`, the last one.
    fn arguments(&mut self, index: u32, text: &str);
}

/// What is looked for in an answer.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// How calls are written; None: there are none.
    pub format: Option<&'static Format>,
    /// None: there is no reasoning.
    pub thoughts: Option<&'static Thoughts>,
    /// The prompt has begun the reasoning.
    pub thinking: bool,
    /// The tools' names: without a marker, others are no calls.
    pub names: Vec<String>,
    /// The calls' ids come of it.
    pub seed: u64,
}

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    Char(char),
    /// A control token that is a marker.
    Mark(&'static str),
}

/// See the module. Keeps back what may still become a marker or a call.
#[derive(Debug)]
pub struct Reply {
    parts: Parts,
    /// The markers that are control tokens. Written out by others, they are text.
    controls: Vec<&'static str>,
    stage: Stage,
    call: Call,
    calls: u32,
    /// Before `held`: they belong to a marker, should one come.
    blanks: String,
    /// What may become a marker.
    held: String,
    /// Text or a call has come.
    begun: bool,
    /// Reasoning has come, so there is none any more.
    thought: bool,
    /// Line breaks that come belong to a marker.
    behind_mark: bool,
    /// What is to be looked at, the next last.
    todo: Vec<Symbol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Text,
    Thoughts,
    Call,
}

/// Tells calls to a sink.
struct Teller<'a> {
    sink: &'a mut dyn Sink,
    count: &'a mut u32,
    parts: &'a Parts,
}

impl Teller<'_> {
    fn call(&mut self, name: &str) {
        self.sink.call(*self.count, &id(self.parts.seed, *self.count), name);
        *self.count += 1;
    }

    fn arguments(&mut self, text: &str) {
        self.sink.arguments(*self.count - 1, text);
    }

    fn knows(&self, name: &str) -> bool {
        self.parts.names.iter().any(|known| known == name)
    }
}

impl Reply {
    /// `is_control` says which markers are control tokens of the vocabulary.
    pub fn new(parts: Parts, is_control: &dyn Fn(&str) -> bool) -> Self {
        let thoughts = parts.thoughts.iter().flat_map(|tags| [tags.open, tags.close]);
        let blocks = parts.format.iter().flat_map(|format| format.blocks);
        let markers = blocks.flat_map(|block| [block.open, block.close]).chain(thoughts);
        let markers =
            markers.chain([ARGS, CALL_ID]).filter(|marker| !marker.is_empty() && is_control(marker));
        let thinking = parts.thinking && parts.thoughts.is_some();
        Self {
            controls: markers.collect(),
            stage: if thinking { Stage::Thoughts } else { Stage::Text },
            call: Call::default(),
            calls: 0,
            blanks: String::new(),
            held: String::new(),
            begun: false,
            thought: thinking,
            behind_mark: thinking,
            todo: Vec::new(),
            parts,
        }
    }

    /// Heap bytes that it holds from the start.
    pub fn bytes(&self) -> usize {
        let names = self.parts.names.iter().map(|name| size_of::<String>() + name.capacity());
        names.sum::<usize>() + self.controls.capacity() * size_of::<&str>()
    }

    /// Calls that have been told.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Whether `control`, as a control token is written, is a marker: then it is to be given to [`Self::mark`].
    pub fn is_mark(&self, control: &[u8]) -> bool {
        self.controls.iter().any(|mark| mark.as_bytes() == control)
    }

    /// Makes room for `bytes` more of the answer. `OutOfMemory`.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        let all = self.blanks.len() + self.held.len() + self.call.held() + bytes;
        let more = |_| Error::out_of_memory("an answer's parts", 8 * all);
        self.blanks.try_reserve(bytes).map_err(more)?;
        self.call.reserve(bytes).map_err(more)?;
        self.todo.try_reserve(all).map_err(more)
    }

    pub fn push(&mut self, text: &str, sink: &mut dyn Sink) {
        for c in text.chars() {
            self.todo.push(Symbol::Char(c));
            self.drain(sink);
        }
    }

    /// A control token for which `is_mark` holds.
    pub fn mark(&mut self, control: &[u8], sink: &mut dyn Sink) {
        if let Some(mark) = self.controls.iter().find(|mark| mark.as_bytes() == control) {
            self.todo.push(Symbol::Mark(mark));
            self.drain(sink);
        }
    }

    /// The answer has ended: what is kept back is text, or reasoning.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        while self.stage == Stage::Call && !self.call.raw.is_empty() {
            self.fail(sink);
            self.drain(sink);
        }
        let held = std::mem::take(&mut self.held);
        self.emit(&held, sink);
    }

    fn drain(&mut self, sink: &mut dyn Sink) {
        while let Some(symbol) = self.todo.pop() {
            match (self.stage, symbol) {
                (Stage::Call, symbol) => self.in_call(symbol, sink),
                (_, Symbol::Char(c)) => self.in_text(c, sink),
                (_, Symbol::Mark(mark)) => {
                    let held = std::mem::take(&mut self.held);
                    if !held.is_empty() {
                        self.emit(&held, sink);
                    }
                    if self.looks_for(mark) {
                        self.turn(mark);
                    }
                }
            }
        }
    }

    /// Whether `mark` means something here.
    fn looks_for(&self, mark: &str) -> bool {
        let thoughts = self.parts.thoughts;
        match self.stage {
            Stage::Thoughts => thoughts.is_some_and(|tags| tags.close == mark),
            _ => {
                let opens = !self.begun && !self.thought && thoughts.is_some_and(|tags| tags.open == mark);
                opens || self.block(mark).is_some()
            }
        }
    }

    fn block(&self, open: &str) -> Option<&'static format::Block> {
        self.parts.format?.blocks.iter().find(|block| block.open == open)
    }

    /// The markers that text may make here.
    fn markers(&self) -> impl Iterator<Item = &'static str> {
        let thoughts = self.parts.thoughts.iter().flat_map(|tags| [tags.open, tags.close]);
        let blocks = self.parts.format.iter().flat_map(|format| format.blocks).map(|block| block.open);
        thoughts.chain(blocks).filter(|mark| !self.controls.contains(mark) && self.looks_for(mark))
    }

    fn in_text(&mut self, c: char, sink: &mut dyn Sink) {
        if self.held.is_empty() && self.is_break(c) {
            if !self.behind_mark || c != '\n' {
                self.blanks.push(c);
            }
            return;
        }
        if self.held.is_empty() && matches!(c, '{' | '[') && self.begins_bare(c) {
            return;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let found = self.markers().find(|mark| mark.starts_with(&*self.held));
            match found {
                Some(mark) if mark == self.held => {
                    self.held.clear();
                    return self.turn(mark);
                }
                Some(_) => return,
                None => {}
            }
            let first = self.held.remove(0);
            self.emit(first.encode_utf8(&mut [0; 4]), sink);
            let breaks = self.held.len() - self.held.trim_start_matches('\n').len();
            self.blanks.extend(self.held.drain(..breaks));
        }
    }

    /// Whether `c` may belong to a marker that comes.
    fn is_break(&self, c: char) -> bool {
        let marks = self.parts.format.is_some() || self.parts.thoughts.is_some();
        let first = self.stage == Stage::Text && !self.begun && matches!(c, ' ' | '\r' | '\t');
        marks && (c == '\n' || first)
    }

    fn begins_bare(&mut self, c: char) -> bool {
        let bare = self.parts.format.map_or(0, |format| format.bare);
        let begins = self.stage == Stage::Text && !self.begun && bare != 0 && !self.parts.names.is_empty();
        if begins {
            self.stage = Stage::Call;
            self.call.begin(None, bare);
            self.todo.push(Symbol::Char(c));
        }
        begins
    }

    /// At a marker.
    fn turn(&mut self, mark: &str) {
        self.stage = match (self.stage, self.block(mark)) {
            (Stage::Text, Some(block)) => {
                self.call.begin(Some(block), block.body);
                Stage::Call
            }
            (Stage::Text, None) => Stage::Thoughts,
            _ => Stage::Text,
        };
        if self.stage != Stage::Call {
            self.thought = true;
            self.behind_mark = true;
            self.blanks.clear();
        }
    }

    fn in_call(&mut self, symbol: Symbol, sink: &mut dyn Sink) {
        let told = self.calls;
        let turn = self.call.step(symbol, &mut Teller { sink, count: &mut self.calls, parts: &self.parts });
        if self.calls > told {
            self.begun = true;
            self.blanks.clear();
        }
        match turn {
            Turn::More => {}
            Turn::End => {
                self.stage = Stage::Text;
                self.behind_mark = true;
            }
            Turn::Fail => {
                if let Symbol::Mark(_) = symbol {
                    self.todo.push(symbol);
                }
                self.fail(sink);
            }
        }
    }

    /// What was taken for a call, and was not told, is text; but it may hold markers.
    fn fail(&mut self, sink: &mut dyn Sink) {
        let (raw, lead) = (std::mem::take(&mut self.call.raw), self.call.lead);
        self.stage = Stage::Text;
        self.behind_mark = self.begun && lead == 0;
        self.begun = true;
        self.emit(&raw[..lead], sink);
        self.todo.extend(raw[lead..].chars().rev().map(Symbol::Char));
    }

    /// Behind what blanks came before it.
    fn emit(&mut self, text: &str, sink: &mut dyn Sink) {
        if text.is_empty() && self.blanks.is_empty() {
            return;
        }
        for part in [&*self.blanks, text] {
            match self.stage {
                Stage::Thoughts => sink.reasoning(part),
                _ => sink.text(part),
            }
        }
        self.blanks.clear();
        if !text.is_empty() {
            self.behind_mark = false;
            self.begun |= self.stage != Stage::Thoughts;
        }
    }
}

/// Nine letters and digits, as Mistral's templates want them: the same for the same seed and place.
fn id(seed: u64, index: u32) -> String {
    const SIGNS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut x = seed ^ u64::from(index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    (0..9)
        .map(|_| {
            let sign = SIGNS[(x % 62) as usize];
            x /= 62;
            char::from(sign)
        })
        .collect()
}
