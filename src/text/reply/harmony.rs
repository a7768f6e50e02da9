//! Answers that are sequences of messages, as gpt-oss writes them (OpenAI's harmony format). A message consists of a
//! header, which names its channel and perhaps its recipient, `<|message|>`, its text, and `<|end|>` or an end of the
//! answer. The channel `analysis` is reasoning; a message for a function is a call; all others are text. Messages of
//! one kind are separated by a line break.

use super::mend::Mend;
use super::scan::Step;
use super::{Emitter, Symbol};
use crate::text::chat::is_name;

pub(super) const MARKERS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];

/// Maximum length of a header in bytes. A longer one is text.
const MAX_HEADER: usize = 512;
/// The prefix of a function's name in a header.
const FUNCTIONS: &str = "functions.";

#[derive(Debug, Default)]
enum At {
    #[default]
    Header,
    Text,
    Reasoning,
    /// A call of this function, before its arguments.
    Call(String),
    Arguments(Mend),
    /// After the arguments.
    Behind,
}

/// The parser of an answer that is a sequence of messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    at: At,
    /// The header so far, markers included.
    header: String,
    /// Whether a header or marker came.
    marked: bool,
    /// Text that may become a marker.
    held: String,
    /// Whether text, and reasoning, came in earlier messages.
    emitted: [bool; 2],
    /// Whether this message had any.
    own: bool,
}

/// Whether a prompt ends in the text of a message.
pub(super) fn begins_within(prompt: &str) -> bool {
    let last = |marker: &str| prompt.rfind(marker);
    last("<|message|>")
        .is_some_and(|at| MARKERS.iter().all(|marker| last(marker).is_none_or(|other| other <= at)))
}

/// The channel and the recipient that a header names.
fn read(header: &str) -> (&str, &str) {
    let ends = |c: char| c.is_whitespace() || c == '<';
    let behind =
        |sign: &str| header.rsplit_once(sign).map_or("", |(_, rest)| rest.split(ends).next().unwrap_or(""));
    (behind("<|channel|>"), behind("to="))
}

impl Messages {
    /// `begun`: the prompt has begun a message, `thinking` one of reasoning.
    pub(super) fn new(begun: bool, thinking: bool) -> Self {
        let at = match (thinking, begun) {
            (true, _) => At::Reasoning,
            (false, true) => At::Text,
            (false, false) => At::Header,
        };
        Self { at, ..Self::default() }
    }

    pub(super) fn thinks(&self) -> bool {
        matches!(self.at, At::Reasoning)
    }

    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), std::collections::TryReserveError> {
        self.held.try_reserve(bytes)?;
        self.header.try_reserve(bytes)
    }

    /// Processes a symbol. Markers among `controls` are these tokens alone.
    pub(super) fn step(&mut self, symbol: Symbol, controls: &[&'static str], to: &mut Emitter) {
        let c = match symbol {
            Symbol::Mark(mark) => {
                self.release(to);
                return self.mark(mark, to);
            }
            Symbol::Char(c) => c,
        };
        self.held.push(c);
        while !self.held.is_empty() {
            let mut spelled = MARKERS.iter().filter(|marker| !controls.contains(marker));
            match spelled.find(|marker| marker.starts_with(&*self.held)) {
                Some(marker) if **marker == *self.held => {
                    self.held.clear();
                    return self.mark(marker, to);
                }
                Some(_) => return,
                None => {
                    let first = self.held.remove(0);
                    self.char(first, to);
                }
            }
        }
    }

    pub(super) fn finish(&mut self, to: &mut Emitter) {
        self.release(to);
        self.end_call(to);
        // An answer without any header is text.
        if !self.marked {
            let text = std::mem::take(&mut self.header);
            self.say(&text, to);
        }
    }

    /// Emits the held-back text, which does not become a marker.
    fn release(&mut self, to: &mut Emitter) {
        std::mem::take(&mut self.held).chars().for_each(|c| self.char(c, to));
    }

    fn mark(&mut self, mark: &'static str, to: &mut Emitter) {
        let header = matches!(self.at, At::Header);
        match mark {
            "<|message|>" if header => self.begin(to),
            "<|message|>" | "<|constrain|>" if !header => {}
            "<|channel|>" | "<|constrain|>" if header => {
                self.header.push_str(mark);
                self.marked = true;
            }
            _ => {
                self.end_call(to);
                if header && !self.marked && mark != "<|start|>" {
                    let text = std::mem::take(&mut self.header);
                    self.say(&text, to);
                }
                self.at = At::Header;
                self.header.clear();
                self.marked = true;
                self.own = false;
                if mark == "<|channel|>" {
                    self.header.push_str(mark);
                }
            }
        }
    }

    /// Begins the text of a message, as its header says.
    fn begin(&mut self, to: &Emitter) {
        let (channel, recipient) = read(&self.header);
        let function = recipient.strip_prefix(FUNCTIONS).or(Some(recipient).filter(|name| to.knows(name)));
        let function = function.filter(|name| to.parts.format.is_some() && is_name(name));
        self.at = match (function, channel) {
            (Some(name), _) => At::Call(name.to_owned()),
            (None, "analysis") if to.parts.thoughts.is_some() => At::Reasoning,
            _ => At::Text,
        };
        self.header.clear();
    }

    /// Ends a call. A call without any text has no arguments.
    fn end_call(&mut self, to: &mut Emitter) {
        if let At::Call(name) = &self.at {
            to.call(name);
            to.arguments("{}");
            self.at = At::Behind;
        }
    }

    fn char(&mut self, c: char, to: &mut Emitter) {
        let mut text = [0; 4];
        match &mut self.at {
            At::Header => {
                self.header.push(c);
                if self.header.len() > MAX_HEADER {
                    self.at = At::Text;
                    let header = std::mem::take(&mut self.header);
                    self.say(&header, to);
                }
            }
            At::Text | At::Reasoning => self.say(c.encode_utf8(&mut text), to),
            At::Call(_) | At::Behind if c.is_whitespace() => {}
            At::Call(name) if c == '{' => {
                to.call(name);
                self.at = At::Arguments(Mend::default());
                self.argument(c, to);
            }
            At::Call(_) | At::Behind => {
                self.at = At::Text;
                self.say(c.encode_utf8(&mut text), to);
            }
            At::Arguments(_) => self.argument(c, to),
        }
    }

    fn argument(&mut self, c: char, to: &mut Emitter) {
        let At::Arguments(mend) = &mut self.at else { return };
        let mut json = String::new();
        match mend.push(c, &mut json) {
            Step::Bad => {
                self.at = At::Text;
                self.say(c.encode_utf8(&mut [0; 4]), to);
            }
            step => {
                to.arguments(&json);
                if step == Step::Done {
                    self.at = At::Behind;
                }
            }
        }
    }

    /// Emits text, or reasoning in a message of it.
    fn say(&mut self, text: &str, to: &mut Emitter) {
        if text.is_empty() {
            return;
        }
        let reasoning = matches!(self.at, At::Reasoning);
        let apart = self.emitted[usize::from(reasoning)] && !self.own;
        (self.emitted[usize::from(reasoning)], self.own) = (true, true);
        for part in [if apart { "\n" } else { "" }, text].into_iter().filter(|part| !part.is_empty()) {
            match reasoning {
                true => to.sink.reasoning(part),
                false => to.sink.text(part),
            }
        }
    }
}
