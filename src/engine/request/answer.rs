//! A request's output, parsed into text, reasoning and tool calls.

use super::event::{Event, FinishReason};
use super::thinking::Bound;
use super::tool_calls::CallText;
use crate::base::{Error, Result};
use crate::text::reply::{Reply, Sink};

pub(crate) struct Answer {
    reply: Reply,
    /// Text that passed the stop rules and is not parsed yet.
    pub raw: String,
    /// Tokens that belong to reasoning, its end marker included.
    pub reasoning_tokens: u64,
    /// Some: reasoning is bounded.
    bound: Option<Bound>,
}

/// Fills an event, and remembers if memory was refused.
struct Filling<'a> {
    event: &'a mut Event,
    refused: bool,
}

impl Filling<'_> {
    fn push(to: &mut String, text: &str) -> bool {
        let room = to.try_reserve(text.len()).is_ok();
        if room {
            to.push_str(text);
        }
        !room
    }

    fn add(&mut self, part: CallText) {
        let text_before = self.event.text.len() as u32;
        self.refused |= !self.event.calls.add(CallText { text_before, ..part });
    }
}

impl Sink for Filling<'_> {
    fn text(&mut self, text: &str) {
        self.refused |= Self::push(&mut self.event.text, text);
    }
    fn reasoning(&mut self, text: &str) {
        self.refused |= Self::push(&mut self.event.reasoning, text);
    }
    fn call(&mut self, index: u32, id: &str, name: &str) {
        self.add(CallText { index, id: id.into(), name: name.into(), ..CallText::default() });
    }
    fn arguments(&mut self, index: u32, text: &str) {
        self.add(CallText { index, arguments: text.into(), ..CallText::default() });
    }
}

impl Answer {
    pub(crate) fn new(reply: Reply, bound: Option<Bound>) -> Self {
        Self { reply, raw: String::new(), reasoning_tokens: 0, bound }
    }

    /// Bytes that an answer holds from the start.
    pub(crate) fn bytes(&self) -> u64 {
        let bound = self.bound.as_ref().map_or(0, Bound::bytes);
        (size_of::<Self>() + self.reply.bytes() + bound) as u64
    }

    /// The token that must come next because the reasoning has reached its bound.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.bound.as_ref()?.forced(self.reply.thinks(), self.reasoning_tokens)
    }

    /// Whether the bound may still choose a token.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bound.as_ref().is_some_and(Bound::holds)
    }

    /// Counts a token before it is parsed. `forced`: the token that had to come, if any.
    pub(crate) fn count(&mut self, token: u32, forced: Option<u32>) {
        self.reasoning_tokens += u64::from(self.reply.thinks());
        if let (Some(bound), Some(forced)) = (&mut self.bound, forced) {
            bound.came(token == forced);
        }
    }

    /// Returns whether a control token with this text has a meaning in the answer.
    pub(crate) fn is_mark(&self, control: &[u8]) -> bool {
        self.reply.is_mark(control)
    }

    /// Number of calls parsed so far.
    pub(crate) fn calls(&self) -> u32 {
        self.reply.calls()
    }

    /// Parses `raw`, and then `mark`, a control token for which `is_mark` holds. `OutOfMemory`.
    pub(crate) fn parse(&mut self, mark: Option<&[u8]>, event: &mut Event) -> Result<()> {
        let Self { reply, raw, .. } = self;
        reply.reserve(raw.len() + mark.map_or(0, <[u8]>::len))?;
        fill(event, |sink| {
            reply.push(raw, sink);
            if let Some(mark) = mark {
                reply.mark(mark, sink);
            }
            raw.clear();
        })
    }

    /// Parses `raw` as the last part of the output. `OutOfMemory`.
    pub(crate) fn finish(&mut self, event: &mut Event) -> Result<()> {
        self.parse(None, event)?;
        let cut = !matches!(event.finish, FinishReason::Stop | FinishReason::StopString);
        fill(event, |sink| self.reply.finish(cut, sink))
    }
}

fn fill(event: &mut Event, with: impl FnOnce(&mut dyn Sink)) -> Result<()> {
    let mut filling = Filling { event, refused: false };
    with(&mut filling);
    if filling.refused { Err(Error::out_of_memory("an answer's parts", 0)) } else { Ok(()) }
}
