//! Takes a request from the host's call to the hub.

use super::Engine;
use super::limits::{Prompted, RequestLimits};
use crate::base::clock::now_ns;
use crate::base::{Error, Result, Status, reserve};
use crate::constrain::Guide;
use crate::engine::api::*;
use crate::engine::core::calls::Work;
use crate::engine::hub::RequestInfo;
use crate::engine::memory::{free, plan};
use crate::engine::request::account::RequestBytes;
use crate::engine::request::answer::Answer;
use crate::engine::request::sequence::Sequence;
use crate::engine::request::speculation::Drafts;
use crate::engine::request::times::Times;
use crate::model::Loaded;
use crate::sample::Edits;
use std::sync::Arc;

impl Engine {
    /// Submits all requests or none. Never waits for an engine thread.
    pub fn submit(&self, requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        let n = requests.len();
        let by_id = requests.iter().any(|request| request.poll_by_id);
        let queued = match self.hub().signal() {
            None if by_id => {
                // This must precede `refused`, which takes back the memory of adapters that nothing holds.
                drop(requests);
                Err(Error::invalid("BN_REQUEST_POLL_BY_ID: an engine in callback mode cannot be polled"))
            }
            _ => self.queue(requests),
        };
        queued.inspect_err(|error| self.refused(error.status, n))
    }

    /// Submits a request and waits for its completion event, in either mode and alongside any poller.
    pub fn generate(&self, mut request: RequestParams) -> Result<Box<Event>> {
        (request.stream, request.poll_by_id) = (false, true);
        // If `destroy` ends the request between the two calls, it keeps the terminal event.
        let _stay = self.hub().stay();
        let id = self.queue(vec![request]).inspect_err(|error| self.refused(error.status, 1))?[0];
        let event = self.hub().take_one(id);
        let _ = self.release(id);
        event
    }

    fn queue(&self, mut requests: Vec<RequestParams>) -> Result<Vec<RequestId>> {
        let (n, most) = (requests.len(), self.hub().bounds().requests);
        if n == 0 {
            return Err(Error::invalid("no requests"));
        }
        if n > most {
            return Err(Error::invalid(format!("{n} requests at once: queue_capacity is {most}")));
        }
        let (mut prepared, mut ids) = (Vec::new(), Vec::new());
        reserve(&mut prepared, n, "requests")?;
        reserve(&mut ids, n, "request ids")?;
        for (i, request) in requests.iter_mut().enumerate() {
            let made = self.prepare(request, prepared.last().map(|(_, work)| work));
            prepared.push(made.map_err(|error| in_batch(error, i, n))?);
        }
        let mut queued = self.hub().submit(&mut prepared, &mut ids);
        if queued.is_err() && self.hub().wants_kept(&prepared, self.shared.grammars.kept()) {
            self.shared.grammars.clear();
            queued = self.hub().submit(&mut prepared, &mut ids);
        }
        queued.map(|()| ids)
    }

    /// Counts `n` requests as refused, including those that the caller refused for this engine. Wakes requests that
    /// wait for memory, since a refused request may have held a grammar or the last reference to an adapter.
    pub fn refused(&self, status: Status, n: usize) {
        self.hub().take_back();
        self.shared.recorder.rejected(status, n);
    }

    /// Checks and tokenizes a request. `before`: the previous request of the same submit.
    fn prepare(&self, params: &mut RequestParams, before: Option<&Work>) -> Result<(RequestInfo, Work)> {
        self.speculation.apply(params)?;
        let timeout_ms = match params.timeout_ms {
            0 => self.default_timeout_ms,
            TIMEOUT_NONE => 0,
            ms => ms,
        };
        let times = Times::new(now_ns(), timeout_ms, params.queue_timeout_ms);
        let until_ns = times.deadlines().min().unwrap_or(u64::MAX);
        let (facts, limits) = (self.facts(), RequestLimits { until_ns, ..self.limits(!params.generates()) });
        params.adapter.as_ref().map_or(Ok(()), |adapted| self.check_adapter(adapted))?;
        let Prompted { ids: prompt, answer, grammar, looser, second, pictures, decider } =
            limits.prompt(params)?;
        let json = params.json;
        let lark = |text: String| Constraint { kind: ConstraintKind::Lark, text: text.into(), json };
        let [lark, looser] = [grammar, looser].map(|text| text.map(lark));
        let constraint = lark.as_ref().or(params.constraint.as_ref());
        let max_new = match params.generates() {
            false => 1,
            true => match (params.max_new_tokens, (self.memory.max_sequence - prompt.len()) as u32) {
                (0, room) => room,
                (asked, room) => asked.min(room),
            },
        };
        let longest = plan::longest_token(&self.shared.loaded);
        let mut bytes = RequestBytes::new(params, prompt.len(), longest, facts.hidden_size);
        bytes.prompt += Drafts::bytes(params, prompt.len(), max_new, facts.vocab_size);
        if self.on_device {
            bytes.prompt += Edits::bytes(&params.sampling, prompt.len() as u64 + u64::from(max_new));
        }
        let drafts = Drafts::new(params, prompt.len(), max_new)?;
        bytes.prompt += answer.as_ref().map_or(0, Answer::bytes);
        bytes.prompt += self.picture_bytes(pictures.as_ref());
        decider.iter().for_each(|decider| bytes.decide(decider));
        let ends = &self.shared.loaded.end_tokens;
        let mut sequence = Box::new(Sequence::new(params, prompt, max_new, bytes, facts, ends, times)?);
        if let Some((pictures, from)) = pictures.as_ref().zip(sequence.request.logits_from) {
            pictures.check_logits(from, self.step_logits)?;
        }
        sequence.drafts = drafts;
        (sequence.second, sequence.decider, sequence.pictures) = (second, decider, pictures.map(Arc::new));
        sequence.drawing.forbid(limits.bad_words(params)?);
        sequence.writer.answer = answer;
        // With a constraint, the grammar decides when end tokens are allowed.
        match constraint {
            Some(constraint) => {
                let until = sequence.times.until();
                sequence.drawing.guide = Some(self.guide_by(constraint, looser.as_ref(), until)?);
            }
            None if params.ignore_eos => sequence.writer.stop.ignore_ends(),
            None => {}
        }
        let before = before.and_then(Work::sequence);
        let before = before.map(|before| (&before.prompt[..], before.request.reuse));
        let (own, block_size) = ((&sequence.prompt[..], sequence.request.reuse), self.kv_block_size as usize);
        sequence.placement.look_up(own, before, &self.shared.kv_events, block_size)?;
        let info = RequestInfo {
            by_id: params.poll_by_id,
            user_data: params.user_data,
            reserved: bytes.reserved(),
            kept: bytes.kept,
            alone: sequence.most(),
            priority: params.priority,
            submitted_ns: sequence.times.submitted,
            prompt_tokens: sequence.prompt.len() as u64,
        };
        Ok((info, Work::Sequence(sequence)))
    }

    /// The guide of a constraint, or of a looser one if that cannot be compiled.
    fn guide_by(&self, constraint: &Constraint, looser: Option<&Constraint>, until_ns: u64) -> Result<Guide> {
        let made = self.guide(constraint, until_ns);
        let wrong = |error: &Error| matches!(error.status, Status::InvalidArgument | Status::Unsupported);
        match looser.filter(|_| made.as_ref().is_err_and(wrong)) {
            Some(looser) => self.guide(looser, until_ns),
            None => made,
        }
    }

    /// Compiles a constraint as `submit` would, so that its errors are known early.
    pub fn check_constraint(&self, constraint: &Constraint) -> Result<()> {
        let checked = self.guide(constraint, u64::MAX).map(drop);
        // Kept grammars may have been evicted for this one.
        self.hub().take_back();
        checked
    }

    fn guide(&self, constraint: &Constraint, until_ns: u64) -> Result<Guide> {
        let vocabulary = self.shared.loaded.vocabulary(free::room)?;
        self.shared.grammars.guide(vocabulary, constraint, until_ns, &|bytes| self.shared.keep(bytes))
    }

    /// Number of elements of an embedding; `Unsupported` if the model makes none.
    pub fn embedding_size(&self) -> Result<usize> {
        self.limits(true).embedding_size()
    }

    /// The most tokens of a prompt and its output. An encoder's text has to fit in a step, too.
    pub(super) fn longest(&self) -> usize {
        self.whole().map_or(self.memory.max_sequence, |most| most.min(self.memory.max_sequence))
    }

    /// The most tokens of a prompt that runs in one step, if all do.
    fn whole(&self) -> Option<usize> {
        self.facts().encodes.then_some(self.max_batch_tokens as usize)
    }

    pub(super) fn limits(&self, quiet: bool) -> RequestLimits<'_> {
        let Loaded { tokenizer, chat, pair, .. } = &self.shared.loaded;
        RequestLimits {
            vocab_size: self.facts().vocab_size,
            hidden_size: self.facts().hidden_size,
            whole: self.whole(),
            scores: self.facts().scores.is_some(),
            new_tokens: usize::from(!quiet),
            max_sequence: self.memory.max_sequence,
            tokenizer: tokenizer.as_deref(),
            chat: chat.as_deref(),
            pair: pair.as_deref(),
            room: self.memory.for_requests(),
            eyes: self.shared.eyes.as_ref(),
            until_ns: u64::MAX,
        }
    }
}

/// Names the request of a batch of `n` that the error is about.
pub fn in_batch(mut error: Error, at: usize, n: usize) -> Error {
    if n > 1 {
        error.message = format!("request {at}: {}", error.message);
    }
    error
}
