//! Events: the output and the end of a request.
use crate::error::{Error, ErrorKind};
use crate::finish::Finish;
use std::mem::size_of;

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logprob {
    /// Its id.
    pub token: u32,
    /// By the model, or with [`Request::chain_logprobs`](crate::Request::chain_logprobs) after the samplers. NaN for
    /// prompt tokens that were not asked for, and for the first one.
    pub logprob: f32,
}

/// A call of a tool, or the next part of one. The first part comes when the name is known and the arguments
/// begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCallPart {
    /// Its number in the answer, from 0.
    pub index: u32,
    /// Nine letters and digits, in the first part.
    pub id: Option<String>,
    /// In the first part, the name as the model wrote it, which may be no known tool.
    pub name: Option<String>,
    /// The next part of the arguments' JSON.
    pub arguments: String,
    /// Bytes of the event's `text` that the model wrote before it.
    pub text_before: usize,
}

/// A whole call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Nine letters and digits, the same for the same prompt, seed and place.
    pub id: String,
    /// The name as the model wrote it, which may be no known tool.
    pub name: String,
    /// JSON.
    pub arguments: String,
    /// Bytes of the answer's `text` that came before it, as in [`ToolCallPart`].
    pub text_before: usize,
}

/// The output of a request since the event before it. Events that are not taken become one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// The request's own.
    pub user_data: u64,
    /// New text: whole characters.
    pub text: String,
    /// New reasoning, with [`Request::parse_output`](crate::Request::parse_output).
    pub reasoning: String,
    /// New calls of tools and parts of them, with [`Request::parse_output`](crate::Request::parse_output).
    pub tool_calls: Vec<ToolCallPart>,
    /// New tokens, an end token included.
    pub tokens: Vec<u32>,
    /// `logprobs_per_token` for each of `tokens`: its own, then the most likely ones, then those that were named.
    pub logprobs: Vec<Logprob>,
    /// 0 without log probabilities.
    pub logprobs_per_token: usize,
    /// How the request ended, in its last event.
    pub finish: Option<Finish>,
}

/// The content of one event of the library, before it is copied.
#[derive(Default)]
pub(crate) struct EventContent<'a> {
    pub text: &'a str,
    pub reasoning: &'a str,
    pub tool_calls: Vec<ToolCallPart>,
    pub tokens: &'a [u32],
    pub logprobs: &'a [Logprob],
    pub logprobs_per_token: usize,
    pub finish: Option<Finish>,
}

impl Event {
    /// Appends the next event's content.
    pub(crate) fn add(&mut self, part: EventContent<'_>) {
        let before = self.text.len();
        self.text.push_str(part.text);
        self.reasoning.push_str(part.reasoning);
        for call in part.tool_calls {
            self.add_call(ToolCallPart { text_before: before + call.text_before, ..call });
        }
        self.tokens.extend_from_slice(part.tokens);
        self.logprobs.extend_from_slice(part.logprobs);
        self.logprobs_per_token = self.logprobs_per_token.max(part.logprobs_per_token);
        self.finish = part.finish.or(self.finish.take());
    }

    /// Appends the next event.
    pub(crate) fn append(&mut self, next: Self) {
        if self.bytes() == 0 && self.tool_calls.is_empty() && self.finish.is_none() {
            *self = next;
            return;
        }
        self.add(EventContent {
            text: &next.text,
            reasoning: &next.reasoning,
            tool_calls: next.tool_calls,
            tokens: &next.tokens,
            logprobs: &next.logprobs,
            logprobs_per_token: next.logprobs_per_token,
            finish: next.finish,
        });
    }

    /// Parts come in order, so a part of an existing call continues the last one.
    fn add_call(&mut self, part: ToolCallPart) {
        match self.tool_calls.last_mut() {
            Some(last) if last.index == part.index => {
                last.arguments.push_str(&part.arguments);
                last.id = last.id.take().or(part.id);
                last.name = last.name.take().or(part.name);
            }
            _ => self.tool_calls.push(part),
        }
    }

    /// Bytes of output that it holds.
    pub(crate) fn bytes(&self) -> usize {
        let calls: usize = self.tool_calls.iter().map(|call| call.arguments.len()).sum();
        let numbers = self.tokens.len() * size_of::<u32>() + self.logprobs.len() * size_of::<Logprob>();
        self.text.len() + self.reasoning.len() + calls + numbers
    }

    /// The last event of a stream whose real last event cannot be awaited.
    pub(crate) fn failure(user_data: u64, kind: ErrorKind) -> Self {
        Self { user_data, finish: Some(Finish::failure(Error::of(kind))), ..Self::default() }
    }
}

/// A whole answer: the combined content of all events of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The request's own.
    pub user_data: u64,
    /// The text.
    pub text: String,
    /// The reasoning, with [`Request::parse_output`](crate::Request::parse_output).
    pub reasoning: String,
    /// The calls of tools, with [`Request::parse_output`](crate::Request::parse_output).
    pub tool_calls: Vec<ToolCall>,
    /// All tokens, an end token included.
    pub tokens: Vec<u32>,
    /// As in [`Event`].
    pub logprobs: Vec<Logprob>,
    /// As in [`Event`].
    pub logprobs_per_token: usize,
    /// How the request ended.
    pub finish: Finish,
}

impl From<Event> for Answer {
    /// The answer of all events of a request, appended to one.
    fn from(all: Event) -> Self {
        let whole = |part: ToolCallPart| ToolCall {
            id: part.id.unwrap_or_default(),
            name: part.name.unwrap_or_default(),
            arguments: part.arguments,
            text_before: part.text_before,
        };
        Self {
            user_data: all.user_data,
            text: all.text,
            reasoning: all.reasoning,
            tool_calls: all.tool_calls.into_iter().map(whole).collect(),
            tokens: all.tokens,
            logprobs: all.logprobs,
            logprobs_per_token: all.logprobs_per_token,
            finish: all.finish.unwrap_or_else(|| Finish::failure(Error::of(ErrorKind::Finished))),
        }
    }
}
