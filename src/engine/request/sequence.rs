//! A request as the engine thread holds it, from submit to its terminal event.

use super::adapters::Adapted;
use super::answer::Answer;
use super::embedding::Pooler;
use super::event::{Event, FinishReason, Spare, Usage};
use super::lookup::Text;
use super::scores::Scores;
use super::speculation::Drafts;
use crate::base::{Error, Result, Status, reserve};
use crate::constrain::Guide;
use crate::engine::api::{LogitsHook, LogitsRow, Pooling, RequestParams, TraceContext};
use crate::engine::delivery::callback;
use crate::engine::hub::ids::RequestId;
use crate::engine::memory::plan::{GRANT, KEPT_BYTES, RequestBytes};
use crate::model::Facts;
use crate::sample::{
    self, Allowed, Edits, Known, Logprob, Sampler, SamplerState, SamplingParams, StopMatcher,
};
use crate::schedule::{Offer, PlanEntry, Request, Reuse};
use crate::text::{Tokenizer, Utf8Stream};
use std::ops::Range;

/// A checked request on its way to the engine thread.
pub struct Sequence {
    pub id: RequestId,
    user_data: u64,
    sampling: SamplingParams,
    sampler: SamplerState,
    /// Penalties and biases of tokens that are drawn on the device.
    edits: Edits,
    stream: bool,
    /// The prompt is still to be echoed.
    echo_prompt: bool,
    /// Cancelled or expired during a pass: it ends after the pass.
    pub doomed: bool,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    /// At most what `max_sequence_length` leaves. 1 for an embedding: the scheduler sees a prompt and one new
    /// token. That token is never drawn or run, so it needs no position.
    pub max_new: u32,
    /// Bytes held from submit to the end.
    pub reserved: u64,
    /// Part of `reserved` that the last event takes along.
    extra_bytes: u64,
    /// Bytes for each token of the output.
    token_bytes: u64,
    /// Number of tokens that it may output before it needs another grant.
    credit: u32,
    /// It has had a grant.
    pub began: bool,
    /// Reasons for a pause: it lacks a grant; its output is not polled.
    pub starved: bool,
    pub unread: bool,
    /// It ends instead of being paused for unpolled output.
    pub end_unread: bool,
    /// Prompt positions in each replica's prefix cache at submit; empty with one replica.
    pub cached_at: Vec<u32>,
    /// Number of positions that it shares with the previous request of the same submit.
    pub like_before: u32,
    /// It was handed on by another replica.
    pub moved: bool,
    /// Name of the session that keeps its KV when it ends.
    pub session: Option<Box<str>>,
    pub trace: Option<TraceContext>,
    pub adapter: Option<Adapted>,
    priority: u8,
    drop_late: bool,
    reuse: Reuse,
    pub submitted_ns: u64,
    /// 0: none.
    pub deadline_ns: u64,
    /// Deadline of its admission; 0: none.
    pub queue_deadline_ns: u64,
    admitted_ns: u64,
    /// Prompt positions found in the prefix cache.
    cached: u32,
    prefilled_ns: u64,
    first_ns: u64,
    last_ns: u64,
    utf8: Utf8Stream,
    stop: StopMatcher,
    pending: Option<Box<Event>>,
    /// Some: the request is for an embedding.
    pooler: Option<Pooler>,
    /// Some: the request asks for log probabilities of its prompt.
    scores: Option<Scores>,
    /// None: the request drafts nothing.
    pub drafts: Option<Box<Drafts>>,
    /// Some: the output must match a grammar.
    pub guide: Option<Guide>,
    /// The host's hook that may change the logits.
    hook: Option<LogitsHook>,
    /// Some: the output is parsed into text, reasoning and calls.
    pub answer: Option<Answer>,
}

impl Sequence {
    /// `end_tokens` are the model's end tokens.
    pub fn new(
        params: &RequestParams,
        prompt: Vec<u32>,
        max_new: u32,
        facts: &Facts,
        end_tokens: &[u32],
        now: u64,
        timeout_ms: u32,
    ) -> Result<Self> {
        let after = |ms: u32| if ms == 0 { 0 } else { now.saturating_add(u64::from(ms) * 1_000_000) };
        let salt = params.adapter.as_ref().map_or(params.cache_salt, |a| a.salt(params.cache_salt));
        let stop = StopMatcher::new(&params.stop_tokens, end_tokens, &params.stop_strings)?;
        let pooler = params.embedding.as_ref().map(|e| Pooler::new(e, facts.pooling, facts.hidden_size));
        Ok(Self {
            id: RequestId(0),
            user_data: params.user_data,
            sampling: params.sampling.clone(),
            sampler: SamplerState::new(&params.sampling)?,
            edits: Edits::default(),
            stream: params.stream,
            echo_prompt: params.echo_prompt,
            doomed: false,
            prompt,
            output: Vec::new(),
            max_new,
            reserved: 0,
            extra_bytes: 0,
            token_bytes: 0,
            credit: 0,
            began: false,
            starved: false,
            unread: false,
            end_unread: params.end_unread,
            cached_at: Vec::new(),
            like_before: 0,
            moved: false,
            session: params.session.as_deref().map(Into::into),
            trace: params.trace,
            adapter: params.adapter.clone(),
            priority: params.priority,
            drop_late: params.drop_late,
            reuse: Reuse { limit: reusable(params, facts), shared: params.cache, salt },
            submitted_ns: now,
            deadline_ns: after(timeout_ms),
            queue_deadline_ns: after(params.queue_timeout_ms),
            admitted_ns: 0,
            cached: 0,
            prefilled_ns: 0,
            first_ns: 0,
            last_ns: 0,
            utf8: Utf8Stream::default(),
            stop,
            pending: None,
            pooler,
            scores: params.scores.map(Scores::new),
            drafts: None,
            guide: None,
            hook: params.on_logits.clone(),
            answer: None,
        })
    }

    /// Forbids token sequences in the output.
    pub fn forbid(&mut self, words: Vec<Vec<u32>>) {
        self.sampling.bad_words.extend(words);
    }

    /// The scheduler's view of the request.
    pub fn request(&self) -> Request {
        Request {
            prompt_len: self.prompt.len() as u32,
            max_new: self.max_new,
            priority: self.priority,
            arrived_ns: self.submitted_ns,
            first_by_ns: if self.drop_late { self.queue_deadline_ns } else { 0 },
            reuse: self.reuse,
            logits_from: self.scores.as_ref().map(Scores::first_row),
        }
    }

    /// Returns whether the request generates tokens.
    pub fn generates(&self) -> bool {
        self.pooler.is_none() && self.scores.as_ref().is_none_or(Scores::generates)
    }

    /// Sets the memory that the request takes.
    pub fn takes(&mut self, bytes: RequestBytes) {
        (self.reserved, self.extra_bytes, self.token_bytes) =
            (bytes.reserved(), bytes.delivered, bytes.token);
    }

    /// Maximum number of bytes that it holds at a time. Bytes of streamed events are returned as they are
    /// polled.
    pub fn most(&self) -> u64 {
        let tokens = u64::from(if self.generates() { self.max_new } else { 0 });
        let grants = if self.drafts.is_some() { 3 } else { 2 };
        let in_events = if self.stream { tokens.min(grants * u64::from(GRANT)) } else { tokens };
        self.reserved + tokens * KEPT_BYTES + in_events * self.token_bytes.saturating_sub(KEPT_BYTES)
    }

    /// The grant that it needs before the next token: the number of tokens and their bytes. None if it needs none.
    pub fn wants(&self) -> Option<(u32, u64)> {
        let tokens = GRANT.min(self.max_new.saturating_sub(self.output.len() as u32)).max(1);
        let needs = self.credit == 0 && self.generates();
        needs.then_some((tokens, u64::from(tokens) * self.token_bytes))
    }

    /// Like `wants`, for a grant that makes room for all of its drafts.
    pub fn wants_room(&self) -> Option<(u32, u64)> {
        let left = self.max_new.saturating_sub(self.output.len() as u32 + self.credit);
        let needs = self.drafts.as_ref().is_some_and(|drafts| self.credit <= drafts.most()) && left > 0;
        let tokens = GRANT.min(left);
        needs.then_some((tokens, u64::from(tokens) * self.token_bytes))
    }

    pub fn grant(&mut self, tokens: u32) {
        self.credit += tokens;
        self.began = true;
    }

    /// Granted bytes that are not in an event it has given away.
    #[cfg(test)]
    pub fn granted_bytes(&self) -> u64 {
        let pending = self.pending.as_ref().map_or(0, |event| event.granted);
        u64::from(self.credit) * self.token_bytes + self.output.len() as u64 * KEPT_BYTES + pending
    }

    /// Reason for ending at `now`, if one of its deadlines has passed.
    pub fn expired(&self, now: u64) -> Option<(FinishReason, Error)> {
        let passed = |deadline: u64| deadline > 0 && deadline <= now;
        if passed(self.deadline_ns) {
            return Some(timed_out("the request's timeout passed"));
        }
        let queued = passed(self.queue_deadline_ns) && !self.was_admitted();
        queued.then(|| timed_out("the request was not admitted within queue_timeout_ms"))
    }

    pub fn was_admitted(&self) -> bool {
        self.admitted_ns > 0
    }

    /// Records an admission that found `cached` positions in the cache. Returns the waiting time if it is the
    /// first admission. After a preemption, a pooler starts over.
    pub fn admit(&mut self, cached: u32, now: u64) -> Result<Option<u64>> {
        if let Some(pooler) = &mut self.pooler {
            pooler.admit()?;
        }
        if self.was_admitted() {
            return Ok(None);
        }
        if let Some(guide) = &mut self.guide {
            guide.begin()?;
        }
        (self.admitted_ns, self.cached) = (now, cached);
        Ok(Some(now.saturating_sub(self.submitted_ns)))
    }

    pub fn token_at(&self, position: usize) -> u32 {
        match self.prompt.get(position) {
            Some(&token) => token,
            None => self.output[position - self.prompt.len()],
        }
    }

    /// Like `token_at`, with the drafted tokens after the known ones.
    pub fn token_or_draft(&self, position: usize) -> u32 {
        let known = self.prompt.len() + self.output.len();
        if position < known { self.token_at(position) } else { self.drafted()[position - known] }
    }

    /// The drafts that it offers for verification next to its next token, which is entry `at` of a plan; None
    /// without any. A draft model has room for `positions` more.
    pub fn offer(&self, at: usize, positions: u32) -> Option<Offer> {
        // The step would wait for the masks of all drafts.
        if self.guide.as_ref().is_some_and(Guide::is_slow) {
            return None;
        }
        // Each token uses up one unit of credit, and the next token itself needs one.
        let mut offer = self.drafts.as_ref()?.offer(at, self.credit.saturating_sub(1));
        if offer.by_model {
            offer.most = offer.most.min(positions);
        }
        (offer.most > 0 && offer.stands[0] > 0.0).then_some(offer)
    }

    /// Drafts its next `count` tokens.
    pub fn draft(&mut self, count: u32) {
        let text = Text { prompt: &self.prompt, output: &self.output };
        self.drafts.iter_mut().for_each(|drafts| drafts.draft(text, count));
    }

    /// Drafts the token that it draws from a draft model's `logits`.
    pub fn propose(&mut self, logits: &mut [f32], sampler: &mut Sampler) -> Result<()> {
        let Some(drafts) = &mut self.drafts else { return Ok(()) };
        let known = self.output.len();
        reserve(&mut self.output, drafts.tokens().len(), "drafted tokens")?;
        self.output.extend_from_slice(drafts.tokens());
        let drawn = drafts.sampling().map(|(params, state)| {
            let (prompt, output, ends) = (&self.prompt[..], &self.output[..], self.stop.tokens());
            let known = Known { prompt, output, ends, ..Known::default() };
            sampler.sample(params, state, logits, &known, &mut Vec::new())
        });
        self.output.truncate(known);
        drawn.transpose()?.into_iter().for_each(|token| drafts.push(token));
        Ok(())
    }

    /// The drafted tokens to verify.
    pub fn drafted(&self) -> &[u32] {
        self.drafts.as_ref().map_or(&[], |drafts| drafts.tokens())
    }

    /// The event that is being filled, or else a new one made from `spare`.
    fn event(&mut self, spare: &mut Spare) -> Box<Event> {
        if let Some(event) = self.pending.take() {
            return event;
        }
        let per_token = self.sampling.logprobs_per_token();
        let mut event = spare.pop().unwrap_or_default();
        (event.request, event.user_data) = (self.id, self.user_data);
        event.logprobs_per_token = per_token;
        event
    }

    /// Puts the echoed prompt at the start of the first event.
    fn echo(&mut self, tokenizer: Option<&Tokenizer>, event: &mut Event) -> Result<()> {
        if !std::mem::take(&mut self.echo_prompt) {
            return Ok(());
        }
        let per_token = event.logprobs_per_token;
        let text = match tokenizer.map(|t| t.decode(&self.prompt)) {
            Some(Err(error)) if error.status == Status::OutOfMemory => return Err(error),
            Some(Ok(text)) => text,
            _ => String::new(),
        };
        reserve(&mut event.tokens, self.prompt.len(), "the prompt's tokens")?;
        reserve(&mut event.logprobs, self.prompt.len() * per_token as usize, "log probabilities")?;
        event.text = text;
        event.tokens.extend_from_slice(&self.prompt);
        if let Some(scores) = &self.scores {
            return scores.write(event, &self.prompt, 0);
        }
        let unknown = |&token| (0..per_token).map(move |_| Logprob { token, logprob: f32::NAN });
        event.logprobs.extend(self.prompt.iter().flat_map(unknown));
        Ok(())
    }

    /// Must precede `advance`: prepares an event to fill.
    pub fn begin_token(&mut self, spare: &mut Spare) {
        self.pending = Some(self.event(spare));
    }

    /// Takes the next token from `row` and applies the stop rules. Returns the nanoseconds since the last token, or
    /// since submit for the first one.
    pub fn advance(
        &mut self,
        row: Drawn,
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        now: u64,
    ) -> Result<u64> {
        let Some(mut event) = self.pending.take() else {
            return Err(Error::internal("a token without an event"));
        };
        let gap = self.next_token(row, sampler, tokenizer, &mut event, now);
        // After an error too, since the terminal event still delivers the output before it.
        self.pending = Some(event);
        gap
    }

    /// The event that `advance` filled, if it is to be sent at once.
    pub fn event_to_send(&mut self) -> Option<Box<Event>> {
        self.pending.take_if(|event| self.stream && event.finish == FinishReason::None)
    }

    fn next_token(
        &mut self,
        row: Drawn,
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        event: &mut Event,
        now: u64,
    ) -> Result<u64> {
        self.echo(tokenizer, event)?;
        reserve(&mut event.tokens, 1, "output tokens")?;
        reserve(&mut self.output, 1, "output tokens")?;
        reserve(&mut event.logprobs, event.logprobs_per_token as usize, "log probabilities")?;
        let token = match row {
            Drawn::Already(token, report) => sample::drawn(token, report, &mut event.logprobs)?,
            Drawn::From(logits) => self.draw(logits, sampler, tokenizer, event)?,
        };
        self.output.push(token);
        event.tokens.push(token);
        self.credit = self.credit.saturating_sub(1);
        event.granted += self.token_bytes.saturating_sub(KEPT_BYTES);
        let text = Text { prompt: &self.prompt, output: &self.output };
        self.drafts.iter_mut().for_each(|drafts| drafts.read(text));
        let gap = self.tick(now);
        self.stop_rules(token, tokenizer, event)?;
        if let Some(guide) = self.guide.as_mut().filter(|_| event.finish == FinishReason::None) {
            guide.push(token)?;
        }
        Ok(gap)
    }

    /// Range of `entry`'s rows whose hidden states are needed; None for a request that generates.
    pub fn hidden_wanted(&self, entry: &PlanEntry) -> Option<Range<u32>> {
        self.pooler.as_ref().map(|pooler| pooler.wanted(entry.start, entry.rows, entry.sample))
    }

    /// Adds the hidden states that `hidden_wanted` asked for. `done` marks the prompt's last rows, after which the
    /// embedding is complete.
    pub fn pool(&mut self, hidden: &[f32], done: bool, spare: &mut Spare, now: u64) -> Result<()> {
        let Some(pooler) = &mut self.pooler else {
            return Err(Error::internal("hidden states for a request that generates"));
        };
        pooler.add(hidden);
        if done {
            let embedding = pooler.finish()?;
            self.prefilled_ns = now;
            let mut event = self.event(spare);
            (event.finish, event.embedding) = (FinishReason::Embedding, Some(embedding));
            self.pending = Some(event);
        }
        Ok(())
    }

    /// Returns whether log probabilities of the prompt are still missing.
    pub fn scores(&self) -> bool {
        self.scores.as_ref().is_some_and(|scores| !scores.is_done(self.prompt.len()))
    }

    /// Adds the log probabilities from the logits of `entry`'s last rows.
    pub fn score(&mut self, entry: &PlanEntry, logits: &[f32], sampler: &mut Sampler) -> Result<()> {
        match &mut self.scores {
            Some(scores) => scores.add(entry, logits, &self.prompt, &self.sampling, sampler),
            None => Ok(()),
        }
    }

    /// Ends a request that wants no output after its prompt.
    pub fn scored(&mut self, spare: &mut Spare, now: u64) -> Result<()> {
        let mut event = self.event(spare);
        if let Some(scores) = &self.scores {
            let from = scores.from();
            reserve(&mut event.tokens, self.prompt.len() - from, "the prompt's tokens")?;
            event.tokens.extend_from_slice(&self.prompt[from..]);
            scores.write(&mut event, &self.prompt, from)?;
        }
        self.prefilled_ns = now;
        event.finish = FinishReason::Length;
        self.pending = Some(event);
        Ok(())
    }

    /// Reason for which `advance` or `pool` ended the request; None if it continues.
    pub fn finished(&self) -> FinishReason {
        self.pending.as_ref().map_or(FinishReason::None, |event| event.finish)
    }

    fn tick(&mut self, now: u64) -> u64 {
        let since = if self.first_ns == 0 { self.submitted_ns } else { self.last_ns };
        if self.first_ns == 0 {
            (self.first_ns, self.prefilled_ns) = (now, now);
        }
        self.last_ns = now;
        now.saturating_sub(since)
    }

    fn stop_rules(&mut self, token: u32, tokenizer: Option<&Tokenizer>, event: &mut Event) -> Result<()> {
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
                answer.tell(mark, event)?;
            }
            if self.output.len() < self.max_new as usize {
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

    /// Makes the terminal event. `why`: the reason if the request is ended from outside, not by its own rules.
    pub fn finish(
        mut self: Box<Self>,
        tokenizer: Option<&Tokenizer>,
        spare: &mut Spare,
        why: Option<(FinishReason, Error)>,
        now: u64,
    ) -> Box<Event> {
        let mut event = self.event(spare);
        if let Some((reason, error)) = why {
            // If there is no memory for the texts, the event still gives the reason.
            let made = self.echo(tokenizer, &mut event);
            let made = made.and_then(|()| self.stop.reserve(3, text_of(&mut self.answer, &mut event)));
            let _ = made.and_then(|()| self.flush(&mut event));
            (event.finish, event.status, event.message) = (reason, error.status, error.message);
        }
        event.usage = self.usage(now);
        event.calls_made = self.answer.as_ref().map_or(0, Answer::calls);
        event.granted += self.extra_bytes;
        event
    }

    fn usage(&self, now: u64) -> Usage {
        let since = |end: u64, start: u64| if end == 0 { 0 } else { end.saturating_sub(start) };
        let admitted = if self.admitted_ns == 0 { now } else { self.admitted_ns };
        Usage {
            prompt_tokens: self.prompt.len() as u32,
            generated_tokens: self.output.len() as u32,
            cached_tokens: self.cached,
            drafted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.drafted),
            accepted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.accepted),
            queued_ns: admitted.saturating_sub(self.submitted_ns),
            prefill_ns: since(self.prefilled_ns, self.admitted_ns),
            first_token_ns: since(self.first_ns, self.submitted_ns),
            decode_ns: since(self.last_ns, self.first_ns),
            total_ns: now.saturating_sub(self.submitted_ns),
        }
    }
}

/// The string that receives the text that the stop rules let through.
fn text_of<'a>(answer: &'a mut Option<Answer>, event: &'a mut Event) -> &'a mut String {
    answer.as_mut().map_or(&mut event.text, |answer| &mut answer.raw)
}

/// Number of leading prompt positions whose results are not needed, so that the prefix cache may serve them.
fn reusable(params: &RequestParams, facts: &Facts) -> u32 {
    if let Some(scores) = params.scores {
        return Scores::new(scores).first_row();
    }
    match params.embedding.as_ref().map(|e| e.pooling.unwrap_or(facts.pooling)) {
        Some(Pooling::Mean | Pooling::First) => 0,
        Some(Pooling::Last) | None => u32::MAX,
    }
}

/// Reasons for ending a request from outside.
pub fn cancelled(what: &str) -> (FinishReason, Error) {
    (FinishReason::Cancelled, Error::new(Status::Cancelled, what))
}

pub fn too_late() -> (FinishReason, Error) {
    timed_out(
        "the request was given up while it was queued: its first token would have come after queue_timeout_ms",
    )
}

fn timed_out(what: &str) -> (FinishReason, Error) {
    (FinishReason::TimedOut, Error::new(Status::TimedOut, what))
}

mod draw;
pub use draw::Drawn;

#[cfg(test)]
mod tests;
