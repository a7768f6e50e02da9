//! Splits a model's answer into text, reasoning and tool calls while it streams.
//!
//! The result does not depend on how the answer is cut into pieces. Nothing is lost: everything that is not
//! reasoning, a call or one of their markers is text. Line breaks next to a marker belong to it, and so do blanks
//! before the first marker. White space separates the texts before and after a call; if there is none, a line
//! break is added.
//!
//! A control token that begins a call also ends reasoning that is still open. Spelled out there, it is reasoning.
//!
//! A call is emitted once its name is known and its arguments begin, which then stream. If something turns out not
//! to be a call before that point, it is text from its marker on. If it goes wrong later, the call keeps what was
//! emitted, and the rest is text from the first wrong character on.

mod call;
mod format;
mod grammar;
mod harmony;
mod known;
mod mend;
mod parts;
mod python;
mod scan;
#[cfg(test)]
mod tests;

pub use format::{Format, Thoughts, format_named, format_of, thoughts_named, thoughts_of};
pub use grammar::{Advice, grammar};
pub use known::{Kind, Known};

use crate::base::{Error, Result};
use call::{Call, Turn};
use format::HARMONY;
use harmony::Messages;

/// Receives the parts of an answer.
pub trait Sink {
    fn text(&mut self, text: &str);
    fn reasoning(&mut self, text: &str);
    /// A call begins; `index` counts them from 0.
    fn call(&mut self, index: u32, id: &str, name: &str);
    /// Appends to the arguments of call `index`, the last one.
    fn arguments(&mut self, index: u32, text: &str);
}

/// The parts to look for in an answer.
#[derive(Clone, Debug, Default)]
pub struct ReplyParts {
    /// How calls are written; None: the answer has no calls.
    pub format: Option<&'static Format>,
    /// The markers of reasoning; None: the answer has no reasoning.
    pub thoughts: Option<&'static Thoughts>,
    /// The prompt has already begun the reasoning.
    pub thinking: bool,
    /// The prompt has begun a message of an answer that is a sequence of them.
    pub begun: bool,
    /// The tools. Without a marker, only these are calls.
    pub tools: Vec<Known>,
    /// Seed of the calls' ids.
    pub seed: u64,
}

/// A piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    Char(char),
    /// A control token that is a marker.
    Mark(&'static str),
}

/// The parser, see the module. Holds back what may still become a marker or a call.
#[derive(Debug)]
pub struct Reply {
    parts: ReplyParts,
    /// The markers that are control tokens. Spelled out by other tokens, they are text.
    controls: Vec<&'static str>,
    stage: Stage,
    /// The stage around the call.
    outer: Stage,
    call: Call,
    /// Used in place of the rest if the answer is a sequence of messages.
    messages: Option<Messages>,
    calls: u32,
    /// Blanks before `held`; they belong to the marker if one comes.
    blanks: String,
    /// Text that may become a marker.
    held: String,
    /// Text or a call was emitted.
    begun: bool,
    /// The last emitted text does not end with white space.
    spoke: bool,
    /// A call followed that text, so a line break must precede more text.
    apart: bool,
    /// Reasoning was emitted, so there is no more of it.
    thought: bool,
    /// Nothing came since the prompt began the reasoning, so the model may repeat its marker.
    repeats: bool,
    /// How many of the markers around the answer came.
    answered: usize,
    /// Line breaks at this point belong to the marker before them.
    behind_mark: bool,
    /// Text that belongs to the marker of reasoning before it; empty if it may not come here.
    label: &'static str,
    /// Symbols to process, the next one last.
    todo: Vec<Symbol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Text,
    Thoughts,
    Call,
}

/// Emits calls to a sink.
struct Emitter<'a> {
    sink: &'a mut dyn Sink,
    count: &'a mut u32,
    parts: &'a ReplyParts,
}

impl Emitter<'_> {
    fn call(&mut self, name: &str) {
        self.sink.call(*self.count, &id(self.parts.seed, *self.count), name);
        *self.count += 1;
    }

    fn arguments(&mut self, text: &str) {
        if !text.is_empty() {
            self.sink.arguments(*self.count - 1, text);
        }
    }

    fn knows(&self, name: &str) -> bool {
        self.tool(name).is_some()
    }

    fn tool(&self, name: &str) -> Option<&Known> {
        self.parts.tools.iter().find(|tool| tool.name == name)
    }
}

impl Reply {
    /// `is_control` returns whether a marker is a control token of the vocabulary.
    pub fn new(parts: ReplyParts, is_control: &dyn Fn(&str) -> bool) -> Self {
        let thoughts = parts.thoughts.into_iter().flat_map(Thoughts::markers);
        let blocks = parts.format.iter().flat_map(|format| format.blocks);
        let inner = parts.format.iter().flat_map(|format| format.inner.iter().copied());
        let markers = blocks.flat_map(|block| [block.open, block.close]).chain(thoughts).chain(inner);
        let names = [parts.format.map(|format| format.name), parts.thoughts.map(|tags| tags.name)];
        let messages = names.contains(&Some(HARMONY));
        let whole = if messages { &harmony::MARKERS[..] } else { &[] };
        let markers =
            markers.chain(whole.iter().copied()).filter(|marker| !marker.is_empty() && is_control(marker));
        let thinking = parts.thinking && parts.thoughts.is_some();
        Self {
            controls: markers.collect(),
            stage: if thinking { Stage::Thoughts } else { Stage::Text },
            outer: Stage::Text,
            call: Call::default(),
            messages: messages.then(|| Messages::new(parts.begun, thinking)),
            calls: 0,
            blanks: String::new(),
            held: String::new(),
            begun: false,
            spoke: false,
            apart: false,
            thought: thinking,
            repeats: thinking,
            answered: 0,
            behind_mark: thinking,
            label: "",
            todo: Vec::new(),
            parts,
        }
    }

    /// Heap bytes that it holds from the start.
    pub fn bytes(&self) -> usize {
        self.parts.tools.iter().map(Known::bytes).sum::<usize>()
            + self.controls.capacity() * size_of::<&str>()
    }

    /// Number of calls emitted so far.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Whether the next symbol belongs to reasoning or ends it.
    pub fn thinks(&self) -> bool {
        self.messages.as_ref().map_or(self.stage == Stage::Thoughts, Messages::thinks)
    }

    /// Returns whether `control`, the written form of a control token, is a marker, which must be passed to
    /// [`Self::mark`].
    pub fn is_mark(&self, control: &[u8]) -> bool {
        self.controls.iter().any(|mark| mark.as_bytes() == control)
    }

    /// Reserves room for `bytes` more of the answer. `OutOfMemory`.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        let all = self.blanks.len() + self.held.len() + self.call.held() + bytes;
        let more = |_| Error::out_of_memory("an answer's parts", 8 * all);
        if let Some(messages) = &mut self.messages {
            messages.reserve(bytes).map_err(more)?;
        }
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

    /// Processes a control token for which `is_mark` holds.
    pub fn mark(&mut self, control: &[u8], sink: &mut dyn Sink) {
        if let Some(mark) = self.controls.iter().find(|mark| mark.as_bytes() == control) {
            self.todo.push(Symbol::Mark(mark));
            self.drain(sink);
        }
    }

    /// Ends the answer: held-back characters become text or reasoning. `cut`: the output was cut short, so the
    /// beginning of another call after a call is left out.
    pub fn finish(&mut self, cut: bool, sink: &mut dyn Sink) {
        if let Some(messages) = &mut self.messages {
            return messages.finish(&mut Emitter { sink, count: &mut self.calls, parts: &self.parts });
        }
        let another = cut && self.calls > 0;
        if another && (self.stage == Stage::Call || self.begins_block()) {
            return;
        }
        if self.stage == Stage::Call {
            self.call.leave_held();
        }
        while self.stage == Stage::Call && !self.call.raw.is_empty() {
            self.fail(sink);
            self.drain(sink);
        }
        let held = std::mem::take(&mut self.held);
        self.emit(&held, sink);
    }

    /// Whether the text that is held back is the beginning of a call's marker, right after a call.
    fn begins_block(&self) -> bool {
        let mut blocks = self.parts.format.iter().flat_map(|format| format.blocks);
        self.behind_mark && !self.held.is_empty() && blocks.any(|block| block.open.starts_with(&*self.held))
    }

    fn drain(&mut self, sink: &mut dyn Sink) {
        if let Some(messages) = &mut self.messages {
            let to = &mut Emitter { sink, count: &mut self.calls, parts: &self.parts };
            while let Some(symbol) = self.todo.pop() {
                messages.step(symbol, &self.controls, to);
            }
            return;
        }
        while let Some(symbol) = self.todo.pop() {
            match (self.stage, symbol) {
                (Stage::Call, symbol) => self.in_call(symbol, sink),
                (_, Symbol::Char(c)) => self.in_text(c, sink),
                (_, Symbol::Mark(mark)) => {
                    let held = std::mem::take(&mut self.held);
                    let nothing = self.label.strip_suffix('\n') == Some(&*held) && self.looks_for(mark);
                    if !held.is_empty() && !nothing {
                        self.emit(&held, sink);
                    }
                    if self.looks_for(mark) {
                        self.turn(mark);
                    }
                }
            }
        }
    }

    /// Returns whether `mark` has a meaning at this point.
    fn looks_for(&self, mark: &str) -> bool {
        let thoughts = self.parts.thoughts;
        match self.stage {
            Stage::Thoughts => {
                let call = || self.controls.contains(&mark) && self.block(mark).is_some();
                thoughts.is_some_and(|tags| tags.close == mark || self.repeats && tags.open == mark) || call()
            }
            _ => {
                let opens = !self.begun && !self.thought && thoughts.is_some_and(|tags| tags.open == mark);
                opens || self.block(mark).is_some() || self.is_answer(mark)
            }
        }
    }

    /// Returns whether `mark` is the next one around the answer.
    fn is_answer(&self, mark: &str) -> bool {
        let answer = self.parts.thoughts.and_then(|tags| tags.answer.get(self.answered));
        answer == Some(&mark) && (self.answered > 0 || !self.begun)
    }

    fn block(&self, open: &str) -> Option<&'static format::Block> {
        self.parts.format?.blocks.iter().find(|block| block.open == open)
    }

    /// The markers that text may spell at this point.
    fn markers(&self) -> impl Iterator<Item = &'static str> {
        let tags = self.parts.thoughts;
        let thoughts = tags.into_iter().flat_map(Thoughts::markers);
        let blocks = self.parts.format.iter().flat_map(|format| format.blocks).map(|block| block.open);
        let spelled = |mark: &&str| !self.controls.contains(mark) && self.looks_for(mark);
        let label = Some(self.label).filter(|label| !label.is_empty());
        let nothing = tags.filter(|tags| label.is_some() && spelled(&tags.close)).map(|tags| tags.nothing);
        let marks = thoughts.chain(blocks).filter(spelled);
        marks.chain(label).chain(nothing)
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
                    return match std::mem::take(&mut self.label) == mark {
                        true => {}
                        false => self.turn(mark),
                    };
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

    /// Returns whether `c` may belong to a marker that follows.
    fn is_break(&self, c: char) -> bool {
        let marks = self.parts.format.is_some() || self.parts.thoughts.is_some();
        let first = self.stage == Stage::Text && !self.begun && matches!(c, ' ' | '\r' | '\t');
        marks && (c == '\n' || first)
    }

    fn begins_bare(&mut self, c: char) -> bool {
        let bare = self.parts.format.map_or(0, |format| format.bare);
        let begins = self.stage == Stage::Text && !self.begun && bare != 0 && !self.parts.tools.is_empty();
        if begins {
            (self.stage, self.outer) = (Stage::Call, Stage::Text);
            self.call.begin(None, bare);
            self.todo.push(Symbol::Char(c));
        }
        begins
    }

    /// Changes the stage at a marker.
    fn turn(&mut self, mark: &str) {
        let repeated = self.repeats && self.parts.thoughts.is_some_and(|tags| tags.open == mark);
        self.repeats = false;
        if self.stage == Stage::Text && self.is_answer(mark) {
            self.answered += 1;
            (self.thought, self.behind_mark) = (true, true);
            return self.blanks.clear();
        }
        self.stage = match (self.stage, self.block(mark)) {
            (outer @ (Stage::Text | Stage::Thoughts), Some(block)) => {
                self.call.begin(Some(block), block.body);
                self.outer = outer;
                Stage::Call
            }
            (Stage::Text, None) => Stage::Thoughts,
            (Stage::Thoughts, _) if repeated => Stage::Thoughts,
            _ => Stage::Text,
        };
        if self.stage != Stage::Call {
            self.thought = true;
            self.behind_mark = true;
            self.blanks.clear();
        }
        let label = self.parts.thoughts.map(|tags| tags.label);
        self.label = label.filter(|_| self.stage == Stage::Thoughts).unwrap_or_default();
    }

    fn in_call(&mut self, symbol: Symbol, sink: &mut dyn Sink) {
        let before = self.calls;
        let turn = self.call.step(symbol, &mut Emitter { sink, count: &mut self.calls, parts: &self.parts });
        if self.calls > before {
            self.begun = true;
            self.apart = self.spoke;
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

    /// A supposed call that was not emitted becomes text, which may contain markers.
    fn fail(&mut self, sink: &mut dyn Sink) {
        let (raw, lead) = (std::mem::take(&mut self.call.raw), self.call.lead);
        // Behind a call that was emitted, reasoning has ended.
        self.stage = if lead == 0 { Stage::Text } else { self.outer };
        self.behind_mark = self.begun && lead == 0;
        self.begun |= self.stage == Stage::Text;
        self.emit(&raw[..lead], sink);
        self.todo.extend(raw[lead..].chars().rev().map(Symbol::Char));
    }

    /// Emits the blanks held back before `text`, and then `text`.
    fn emit(&mut self, text: &str, sink: &mut dyn Sink) {
        if text.is_empty() && self.blanks.is_empty() {
            return;
        }
        let speaks = self.stage != Stage::Thoughts && !text.is_empty();
        let joined = self.blanks.is_empty() && !text.starts_with(char::is_whitespace);
        if speaks && std::mem::take(&mut self.apart) && joined {
            sink.text("\n");
        }
        if speaks {
            self.spoke = !text.ends_with(char::is_whitespace);
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
            self.repeats = false;
            self.label = "";
            self.begun |= self.stage != Stage::Thoughts;
        }
    }
}

/// An id of nine letters and digits, as Mistral's templates require; determined by seed and index.
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
