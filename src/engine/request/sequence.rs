//! A request as the engine thread holds it, from submit to its terminal event.

use super::account::{Account, RequestBytes};
use super::adapters::Adapted;
use super::answer::Answer;
use super::decision::Decider;
use super::drawing::{Drawing, Drawn};
use super::embedding::{AfterPooling, Pooler};
use super::ending::Ending;
use super::event::{Event, FinishReason, Spare, Usage};
use super::lookup::Text;
use super::pictures::Pictures;
use super::scores::Scores;
use super::speculation::Drafts;
use super::times::Times;
use super::writer::Writer;
use crate::base::{Error, Result, reserve};
use crate::cache::ContentId;
use crate::constrain::Guide;
use crate::engine::api::{Pooling, RequestParams, TraceContext};
use crate::engine::hub::ids::RequestId;
use crate::engine::replicas::placement::Placement;
use crate::model::Facts;
use crate::ops::{Draw, Draws};
use crate::sample::{Known, Sampler};
use crate::schedule::{Offer, PlanEntry, Request, Reuse, SeqId};
use crate::text::Tokenizer;
use std::ops::Range;
use std::sync::Arc;

/// A checked request on its way to the engine thread.
pub(crate) struct Sequence {
    pub id: RequestId,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    /// The scheduler's view. `max_new` is at most what `context_length` leaves, and 1 for an embedding: the
    /// scheduler sees a prompt and one new token, which is never drawn or run, so it needs no position.
    pub request: Request,
    /// Cancelled or expired during a pass: it ends after the pass.
    pub doomed: bool,
    /// Prompt positions found in the prefix cache.
    cached: u32,
    pub times: Times,
    pub account: Account,
    pub drawing: Drawing,
    pub writer: Writer,
    pub placement: Placement,
    pub trace: Option<TraceContext>,
    pub adapter: Option<Adapted>,
    /// Some: the request is for an embedding.
    pooler: Option<Pooler>,
    /// The position where the second text of a pair begins, for a model that distinguishes the two.
    pub second: Option<u32>,
    /// Some: the prompt has pictures.
    pub pictures: Option<Arc<Pictures>>,
    /// Some: the request asks for log probabilities of its prompt.
    scores: Option<Scores>,
    /// Some: the request has questions, which branches of it answer. It is in no line itself, and `prompt` has what
    /// all questions begin with.
    pub decider: Option<Box<Decider>>,
    /// Some: the sequence is a branch of the request `id`, with this number.
    pub branch: Option<u32>,
    /// None: the request drafts nothing.
    pub drafts: Option<Box<Drafts>>,
}

impl Sequence {
    /// `end_tokens` are the model's end tokens.
    pub(crate) fn new(
        params: &RequestParams,
        prompt: Vec<u32>,
        max_new: u32,
        bytes: RequestBytes,
        facts: &Facts,
        end_tokens: &[u32],
        times: Times,
    ) -> Result<Self> {
        let salt = params.adapter.as_ref().map_or(params.cache_salt, |a| a.salt(params.cache_salt));
        let pooler = params.embedding.as_ref().map(|e| Pooler::new(e, facts));
        let scores = params.scores.map(Scores::new);
        let request = Request {
            prompt_len: prompt.len() as u32,
            max_new,
            priority: params.priority,
            arrived_ns: times.submitted,
            first_by_ns: if params.drop_late { times.queue_deadline } else { 0 },
            reuse: Reuse { limit: reusable(params, facts), shared: params.cache, salt },
            logits_from: scores.as_ref().map(Scores::first_row),
            whole: facts.encodes,
        };
        Ok(Self {
            id: RequestId(0),
            prompt,
            output: Vec::new(),
            request,
            doomed: false,
            cached: 0,
            times,
            account: Account::new(bytes, params.end_unread),
            writer: Writer::new(params, end_tokens)?,
            drawing: Drawing::new(params)?,
            placement: Placement::new(params.session.as_deref(), request.prompt_len, max_new),
            trace: params.trace,
            adapter: params.adapter.clone(),
            pooler,
            second: None,
            pictures: None,
            scores,
            decider: None,
            branch: None,
            drafts: None,
        })
    }

    /// Its name for the scheduler.
    pub(crate) fn seq(&self) -> SeqId {
        SeqId(self.branch.map_or(self.id.slot(), |number| SeqId::BRANCHES + number))
    }

    /// The request whose branch it is.
    pub(crate) fn owner(&self) -> Option<SeqId> {
        self.branch.map(|_| SeqId(self.id.slot()))
    }

    /// Returns whether the request generates tokens.
    pub(crate) fn generates(&self) -> bool {
        self.pooler.is_none() && self.decider.is_none() && self.scores.as_ref().is_none_or(Scores::generates)
    }

    /// Number of tokens that it may still generate.
    fn left(&self) -> u32 {
        let known = self.output.len() as u32;
        if self.generates() { self.request.max_new.saturating_sub(known) } else { 0 }
    }

    /// Maximum number of bytes that it holds at a time.
    pub(crate) fn most(&self) -> u64 {
        let grants = if self.drafts.is_some() { 3 } else { 2 };
        self.account.most(self.left(), self.writer.stream.then_some(grants))
    }

    /// The grant that it needs before the next token; see `Account::wants`.
    pub(crate) fn wants(&self) -> Option<(u32, u64)> {
        self.account.wants(0, self.left())
    }

    /// Like `wants`, for a grant that makes room for all of its drafts.
    pub(crate) fn wants_room(&self) -> Option<(u32, u64)> {
        self.account.wants(self.drafts.as_ref()?.most(), self.left())
    }

    /// Granted bytes that are not in an event that was handed over.
    #[cfg(test)]
    pub fn granted_bytes(&self) -> u64 {
        self.account.granted(self.output.len()) + self.writer.pending_bytes()
    }

    /// Records an admission that found `cached` positions in the cache. Returns the waiting time if it is the
    /// first admission. After a preemption, a pooler starts over.
    pub(crate) fn admit(&mut self, cached: u32, now: u64) -> Result<Option<u64>> {
        if let Some(pooler) = &mut self.pooler {
            pooler.admit()?;
        }
        if self.times.was_admitted() {
            return Ok(None);
        }
        if let Some(guide) = self.guide() {
            guide.begin()?;
        }
        self.cached = cached;
        Ok(Some(self.times.admit(now)))
    }

    /// Some: the output must match a grammar.
    pub(crate) fn guide(&mut self) -> Option<&mut Guide> {
        self.drawing.guide.as_mut()
    }

    fn text(&self) -> Text<'_> {
        Text { prompt: &self.prompt, output: &self.output }
    }

    pub(crate) fn token_at(&self, position: usize) -> u32 {
        self.text().at(position)
    }

    /// What the prefix cache knows a position by.
    pub(crate) fn content_at(&self, position: u32) -> ContentId {
        let picture = self.pictures.as_ref().and_then(|pictures| pictures.content(position));
        picture.unwrap_or_else(|| self.token_at(position as usize).into())
    }

    /// See `Tokens::undivided`.
    pub(crate) fn undivided(&self, position: u32) -> Option<Range<u32>> {
        self.pictures.as_ref()?.undivided(position)
    }

    /// Like `token_at`, with the drafted tokens after the known ones.
    pub(crate) fn token_or_draft(&self, position: usize) -> u32 {
        let known = self.text().len();
        if position < known { self.token_at(position) } else { self.drafted()[position - known] }
    }

    /// The drafts that it offers for verification next to its next token, which is entry `at` of a plan; None
    /// without any. A draft model has room for `positions` more.
    pub(crate) fn offer(&self, at: usize, positions: u32) -> Option<Offer> {
        // The step would wait for the masks of all drafts.
        if self.drawing.guide.as_ref().is_some_and(Guide::is_slow) {
            return None;
        }
        let mut offer = self.drafts.as_ref()?.offer(at, self.account.drafts());
        if offer.by_model {
            offer.most = offer.most.min(positions);
        }
        (offer.most > 0 && offer.stands[0] > 0.0).then_some(offer)
    }

    /// Drafts its next `count` tokens.
    pub(crate) fn draft(&mut self, count: u32) {
        let text = Text { prompt: &self.prompt, output: &self.output };
        self.drafts.iter_mut().for_each(|drafts| drafts.draft(text, count));
    }

    /// Starts computing the masks after its first `count` drafts. Without memory for that, they are computed one
    /// after the other.
    pub(crate) fn look_ahead(&mut self, count: u32) {
        let Self { drafts: Some(drafts), drawing, .. } = self else { return };
        let drafted = &drafts.tokens()[..count as usize];
        let asked = drawing.guide.as_mut().map(|guide| guide.look_ahead(drafted));
        asked.into_iter().for_each(drop);
    }

    /// Drafts the token that it draws from a draft model's `logits`.
    pub(crate) fn propose(&mut self, logits: &mut [f32], sampler: &mut Sampler) -> Result<()> {
        let Some(drafts) = &mut self.drafts else { return Ok(()) };
        let known = self.output.len();
        reserve(&mut self.output, drafts.tokens().len(), "drafted tokens")?;
        self.output.extend_from_slice(drafts.tokens());
        let drawn = drafts.sampling().map(|(params, state)| {
            let (prompt, output, ends) = (&self.prompt[..], &self.output[..], self.writer.stop.tokens());
            let known = Known { prompt, output, ends, ..Known::default() };
            sampler.sample(params, state, logits, &known, &mut Vec::new())
        });
        self.output.truncate(known);
        drawn.transpose()?.into_iter().for_each(|token| drafts.push(token));
        Ok(())
    }

    /// The drafted tokens to verify.
    pub(crate) fn drafted(&self) -> &[u32] {
        self.drafts.as_ref().map_or(&[], |drafts| drafts.tokens())
    }

    /// Parameters with which the device can draw the `n`-th token from now; see `Drawing::there`.
    pub(crate) fn draw_there(&mut self, n: usize, vocab: usize, draws: &mut Draws) -> Result<Option<Draw>> {
        let bounded = self.writer.answer.as_ref().is_some_and(Answer::is_bounded);
        if self.scores() || !self.generates() || bounded {
            return Ok(None);
        }
        let text = Text { prompt: &self.prompt, output: &self.output };
        self.drawing.there(text, n, vocab, draws)
    }

    /// Takes the next token from `row` and applies the stop rules. The writer must have an event. Returns the
    /// nanoseconds since the last token, or since submit for the first one.
    pub(crate) fn advance(
        &mut self,
        row: Drawn,
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        now: u64,
    ) -> Result<u64> {
        let Some(mut event) = self.writer.take() else {
            return Err(Error::internal("a token without an event"));
        };
        let gap = self.next_token(row, sampler, tokenizer, &mut event, now);
        // This is done after an error too, since the terminal event still delivers the output before it.
        self.writer.put(event);
        gap
    }

    fn next_token(
        &mut self,
        row: Drawn,
        sampler: &mut Sampler,
        tokenizer: Option<&Tokenizer>,
        event: &mut Event,
        now: u64,
    ) -> Result<u64> {
        self.writer.echo(&self.prompt, self.scores.as_ref(), tokenizer, event)?;
        reserve(&mut event.tokens, 1, "output tokens")?;
        reserve(&mut self.output, 1, "output tokens")?;
        reserve(&mut event.logprobs, event.logprobs_per_token as usize, "log probabilities")?;
        let (text, ends) = (Text { prompt: &self.prompt, output: &self.output }, self.writer.stop.tokens());
        let forced = self.writer.answer.as_ref().and_then(Answer::forced);
        let row = match (row, forced) {
            (Drawn::From(logits), Some(token)) => Drawn::Forced(logits, token),
            (row, _) => row,
        };
        let token = self.drawing.draw(row, text, ends, sampler, tokenizer, &mut event.logprobs)?;
        self.writer.answer.iter_mut().for_each(|answer| answer.count(token, forced));
        self.output.push(token);
        event.tokens.push(token);
        self.account.spend(event);
        let text = Text { prompt: &self.prompt, output: &self.output };
        self.drafts.iter_mut().for_each(|drafts| drafts.read(text));
        let gap = self.times.token(now);
        self.writer.push(token, self.left() == 0, tokenizer, event)?;
        if let Some(guide) = self.guide().filter(|_| event.finish == FinishReason::None) {
            guide.push(token)?;
        }
        Ok(gap)
    }

    /// Range of `entry`'s rows whose hidden states are needed; None for a request that generates.
    pub(crate) fn hidden_wanted(&self, entry: &PlanEntry) -> Option<Range<u32>> {
        self.pooler.as_ref().map(|pooler| pooler.wanted(entry.start, entry.rows, entry.sample))
    }

    /// Adds the hidden states that `hidden_wanted` asked for. `done` marks the prompt's last rows, after which the
    /// embedding is complete.
    pub(crate) fn pool(
        &mut self,
        hidden: &[f32],
        done: bool,
        model: AfterPooling,
        spare: &mut Spare,
        now: u64,
    ) -> Result<()> {
        let Some(pooler) = &mut self.pooler else {
            return Err(Error::internal("hidden states for a request that generates"));
        };
        pooler.add(hidden);
        if done {
            let embedding = pooler.finish(model)?;
            self.times.prefill(now);
            let mut event = self.writer.event(self.id, spare);
            (event.finish, event.embedding) = (FinishReason::Embedding, Some(embedding));
            self.writer.put(event);
        }
        Ok(())
    }

    /// Returns whether log probabilities of the prompt are still missing.
    pub(crate) fn scores(&self) -> bool {
        self.scores.as_ref().is_some_and(|scores| !scores.is_done(self.prompt.len()))
    }

    /// Adds the log probabilities from the logits of `entry`'s last rows.
    pub(crate) fn score(&mut self, entry: &PlanEntry, logits: &[f32], sampler: &mut Sampler) -> Result<()> {
        match &mut self.scores {
            Some(scores) => scores.add(entry, logits, &self.prompt, self.drawing.params(), sampler),
            None => Ok(()),
        }
    }

    /// Ends a request that wants no output after its prompt.
    pub(crate) fn scored(&mut self, spare: &mut Spare, now: u64) -> Result<()> {
        let mut event = self.writer.event(self.id, spare);
        if let Some(scores) = &self.scores {
            let from = scores.from();
            reserve(&mut event.tokens, self.prompt.len() - from, "the prompt's tokens")?;
            event.tokens.extend_from_slice(&self.prompt[from..]);
            scores.write(&mut event, &self.prompt, from)?;
        }
        self.times.prefill(now);
        event.finish = FinishReason::Length;
        self.writer.put(event);
        Ok(())
    }

    /// Ends a request whose questions are answered.
    pub(crate) fn decided(&mut self, spare: &mut Spare, now: u64) -> Result<()> {
        let Some(decider) = &self.decider else { return Err(Error::internal("answers without questions")) };
        let decisions = decider.answers()?;
        self.times.prefill(now);
        let mut event = self.writer.event(self.id, spare);
        (event.finish, event.decisions) = (FinishReason::Length, decisions);
        self.writer.put(event);
        Ok(())
    }

    /// Makes the terminal event. `why`: the reason if the request is ended from outside, not by its own rules.
    pub(crate) fn finish(
        mut self: Box<Self>,
        tokenizer: Option<&Tokenizer>,
        spare: &mut Spare,
        why: Option<Ending>,
        now: u64,
    ) -> Box<Event> {
        let mut event = self.writer.event(self.id, spare);
        if let Some((reason, error)) = why {
            // If there is no memory for the texts, the event still gives the reason.
            let made = self.writer.echo(&self.prompt, self.scores.as_ref(), tokenizer, &mut event);
            let _ = made.and_then(|()| self.writer.close(&mut event));
            (event.finish, event.status, event.message) = (reason, error.status, error.message);
        }
        event.usage = self.usage(now);
        event.reasoning_tokens = self.writer.answer.as_ref().map_or(0, |answer| answer.reasoning_tokens);
        event.calls_made = self.writer.answer.as_ref().map_or(0, Answer::calls);
        event.granted += self.account.bytes.delivered;
        event
    }

    fn usage(&self, now: u64) -> Usage {
        Usage {
            prompt_tokens: self.decider.as_ref().map_or(self.prompt.len(), |own| own.tokens()) as u32,
            generated_tokens: self.output.len() as u32,
            cached_tokens: self.cached,
            drafted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.drafted),
            accepted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.accepted),
            ..self.times.usage(now)
        }
    }
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
