//! Writes the output of a request into its events: the stop rules, and the text that they let through.

use super::answer::Answer;
use super::event::{Event, FinishReason, Logprob, Spare};
use super::scores::Scores;
use crate::base::{Result, Status, reserve};
use crate::engine::api::RequestParams;
use crate::engine::hub::ids::RequestId;
use crate::sample::StopMatcher;
use crate::text::{Tokenizer, Utf8Stream};

pub(crate) struct Writer {
    user_data: u64,
    logprobs_per_token: u32,
    pub stream: bool,
    /// The prompt is still to be echoed.
    echo: bool,
    utf8: Utf8Stream,
    pub stop: StopMatcher,
    /// Some: the output is parsed into text, reasoning and calls.
    pub answer: Option<Answer>,
    pending: Option<Box<Event>>,
}

impl Writer {
    /// `end_tokens` are the model's end tokens.
    pub(crate) fn new(params: &RequestParams, end_tokens: &[u32]) -> Result<Self> {
        Ok(Self {
            user_data: params.user_data,
            logprobs_per_token: params.sampling.logprobs_per_token(),
            stream: params.stream,
            echo: params.echo_prompt,
            utf8: Utf8Stream::default(),
            stop: StopMatcher::new(&params.stop_tokens, end_tokens, &params.stop_strings)?,
            answer: None,
            pending: None,
        })
    }

    /// Prepares an event to fill: the pending one, or else a new one made from `spare`.
    pub(crate) fn begin(&mut self, id: RequestId, spare: &mut Spare) {
        let event = self.event(id, spare);
        self.pending = Some(event);
    }

    /// Takes the pending event, or else a new one made from `spare`.
    pub(crate) fn event(&mut self, id: RequestId, spare: &mut Spare) -> Box<Event> {
        self.take().unwrap_or_else(|| {
            let mut event = spare.pop().unwrap_or_default();
            (event.request, event.user_data) = (id, self.user_data);
            event.logprobs_per_token = self.logprobs_per_token;
            event
        })
    }

    pub(crate) fn take(&mut self) -> Option<Box<Event>> {
        self.pending.take()
    }

    pub(crate) fn put(&mut self, event: Box<Event>) {
        self.pending = Some(event);
    }

    /// The pending event, if it is to be sent at once.
    pub(crate) fn event_to_send(&mut self) -> Option<Box<Event>> {
        self.pending.take_if(|event| self.stream && event.finish == FinishReason::None)
    }

    /// Finish reason of the pending event.
    pub(crate) fn finished(&self) -> FinishReason {
        self.pending.as_ref().map_or(FinishReason::None, |event| event.finish)
    }

    #[cfg(test)]
    pub fn pending_bytes(&self) -> u64 {
        self.pending.as_ref().map_or(0, |event| event.granted)
    }

    /// Puts the echoed prompt at the start of the first event.
    pub(crate) fn echo(
        &mut self,
        prompt: &[u32],
        scores: Option<&Scores>,
        tokenizer: Option<&Tokenizer>,
        event: &mut Event,
    ) -> Result<()> {
        if !std::mem::take(&mut self.echo) {
            return Ok(());
        }
        let per_token = event.logprobs_per_token;
        let text = match tokenizer.map(|t| t.decode(prompt)) {
            Some(Err(error)) if error.status == Status::OutOfMemory => return Err(error),
            Some(Ok(text)) => text,
            _ => String::new(),
        };
        reserve(&mut event.tokens, prompt.len(), "the prompt's tokens")?;
        reserve(&mut event.logprobs, prompt.len() * per_token as usize, "log probabilities")?;
        event.text = text;
        event.tokens.extend_from_slice(prompt);
        if let Some(scores) = scores {
            return scores.write(event, prompt, 0);
        }
        let unknown = |&token| (0..per_token).map(move |_| Logprob { token, logprob: f32::NAN });
        event.logprobs.extend(prompt.iter().flat_map(unknown));
        Ok(())
    }

    /// Applies the stop rules to the next token, and adds the text that they let through. `last`: the output has room
    /// for no other.
    pub(crate) fn push(
        &mut self,
        token: u32,
        last: bool,
        tokenizer: Option<&Tokenizer>,
        event: &mut Event,
    ) -> Result<()> {
        let bytes = tokenizer.and_then(|t| t.token_bytes(token)).unwrap_or_default();
        // Each byte may become U+FFFD, including those held back.
        self.stop.reserve(3 * (bytes.len() + 3), text_of(&mut self.answer, event))?;
        if let Some(stop) = self.stop.stop_token(token) {
            (event.finish, event.stop) = (FinishReason::Stop, stop.map(|at| at as u32));
        } else {
            let mark = self.mark(token, tokenizer);
            let mut piece = String::new();
            match mark {
                Some(_) => self.utf8.finish(&mut piece),
                None => self.utf8.push(bytes, &mut piece),
            }
            if let Some(stop) = self.stop.push(&piece, text_of(&mut self.answer, event)) {
                (event.finish, event.stop) = (FinishReason::StopString, Some(stop as u32));
                return self.answer.as_mut().map_or(Ok(()), |answer| answer.finish(event));
            }
            if let Some(answer) = &mut self.answer {
                if mark.is_some() {
                    self.stop.cut(&mut answer.raw);
                }
                answer.parse(mark, event)?;
            }
            if !last {
                return Ok(());
            }
            event.finish = FinishReason::Length;
        }
        if let Some(stop) = self.flush(event)? {
            (event.finish, event.stop) = (FinishReason::StopString, Some(stop));
        }
        Ok(())
    }

    /// The text of `token`, if it is a control token that has a meaning in the answer.
    fn mark<'a>(&self, token: u32, tokenizer: Option<&'a Tokenizer>) -> Option<&'a [u8]> {
        let (answer, tokenizer) = (self.answer.as_ref()?, tokenizer?);
        let written = tokenizer.token_piece(token).filter(|_| tokenizer.token_bytes(token) == Some(b""));
        written.filter(|written| answer.is_mark(written))
    }

    /// Adds the held-back text of a request that is ended from outside.
    pub(crate) fn close(&mut self, event: &mut Event) -> Result<()> {
        self.stop.reserve(3, text_of(&mut self.answer, event))?;
        self.flush(event).map(|_| ())
    }

    /// Releases the held-back text. Returns the index of the stop string that this completed, if any.
    fn flush(&mut self, event: &mut Event) -> Result<Option<u32>> {
        let mut piece = String::new();
        self.utf8.finish(&mut piece);
        let text = text_of(&mut self.answer, event);
        let stop = self.stop.push(&piece, text);
        if stop.is_none() {
            self.stop.finish(text);
        }
        self.answer.as_mut().map_or(Ok(()), |answer| answer.finish(event))?;
        Ok(stop.map(|at| at as u32))
    }
}

/// The string that receives the text that the stop rules let through.
fn text_of<'a>(answer: &'a mut Option<Answer>, event: &'a mut Event) -> &'a mut String {
    answer.as_mut().map_or(&mut event.text, |answer| &mut answer.raw)
}

#[cfg(test)]
mod tests;
