//! Requests with questions: their branches are sequences of their own, which the host does not see. A request is in
//! no line itself, and ends with its last branch.

use super::*;
use crate::engine::api::{RequestParams, ScoreParams};
use crate::engine::request::account::RequestBytes;
use crate::engine::request::decision::BRANCH_BYTES;
use crate::model::Facts;
use crate::sample::SamplingParams;

const _: () = assert!(size_of::<Sequence>() + size_of::<Event>() < BRANCH_BYTES / 2);

/// The numbers of branches, which are dense.
pub(super) struct Branches {
    free: Vec<u32>,
    count: u32,
    /// Requests of which branches ended in this step.
    again: Vec<SeqId>,
}

impl Branches {
    pub(super) fn new(max_batch_size: usize) -> Result<Self> {
        let mut again = Vec::new();
        reserve(&mut again, max_batch_size, BATCH)?;
        Ok(Self { free: Vec::new(), count: 0, again })
    }

    /// The number for a branch. Giving it back allocates nothing.
    fn take(&mut self) -> Result<u32> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        // None is free, so all that there are may come back.
        reserve(&mut self.free, self.count as usize + 1, "the branches of questions")?;
        self.count += 1;
        Ok(self.count - 1)
    }
}

impl Core {
    /// Starts branches of `seq`, as many as are to be in line at a time. Does nothing for other requests.
    pub(super) fn branch_out(&mut self, seq: SeqId) {
        while self.sequences.get(seq).is_some_and(|request| request.decider.is_some()) {
            match self.start_branch(seq) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.end(seq, Some(failed(error))),
            }
        }
    }

    /// Returns false if no branch is to be started now.
    fn start_branch(&mut self, seq: SeqId) -> Result<bool> {
        let Self { sequences, branches, shared, .. } = self;
        let Some(request) = sequences.get_mut(seq) else { return Ok(false) };
        let loaded = &shared.loaded;
        let Some(mut branch) = request.make_branch(loaded.model.facts(), &loaded.end_tokens)? else {
            return Ok(false);
        };
        let number = branches.take()?;
        // From here on the number comes back with the request's end.
        request.decider.iter_mut().for_each(|decider| decider.began(number));
        let (own, scheduled) = (SeqId(SeqId::BRANCHES + number), branch.request);
        sequences.make_room(own)?;
        branch.branch = Some(number);
        sequences.insert(Box::new(branch));
        self.scheduler.submit(own, scheduled, &self.sequences)?;
        Ok(true)
    }

    /// Takes the results of a branch of `owner`, which has left the scheduler.
    pub(super) fn branch_ended(&mut self, owner: SeqId, branch: Box<Sequence>, why: Option<Ending>) {
        let Some(number) = branch.branch else { return };
        let Some(request) = self.sequences.get_mut(owner) else { return };
        let Some(decider) = &mut request.decider else { return };
        if let Some((reason, mut error)) = why {
            if reason == FinishReason::Failed {
                error.message = format!("{}: {}", decider.label(number), error.message);
            }
            return self.end(owner, Some((reason, error)));
        }
        let now = now_ns();
        let event = branch.finish(None, &mut self.outbox.spare, None, now);
        let last = decider.add(number, &event.logprobs, event.logprobs_per_token as usize);
        self.branches.free.push(number);
        match last {
            Ok(false) => self.branches.again.push(owner),
            Ok(true) => {
                let made = request.decided(&mut self.outbox.spare, now);
                self.end(owner, made.err().map(failed));
            }
            Err(error) => self.end(owner, Some(failed(error))),
        }
    }

    /// Starts more branches, after a step in which some ended. Not before its end: the lists of the step name branches
    /// by numbers, which would be used again.
    pub(super) fn branch_on(&mut self) {
        let mut again = std::mem::take(&mut self.branches.again);
        again.drain(..).for_each(|seq| self.branch_out(seq));
        self.branches.again = again;
    }

    /// Ends the branches of a request that has left `sequences`.
    pub(super) fn end_branches(&mut self, request: &mut Sequence) {
        let Some(decider) = &mut request.decider else { return };
        while let Some(live) = decider.take_live() {
            let seq = SeqId(SeqId::BRANCHES + live.number);
            self.scheduler.cancel(seq, &self.sequences);
            self.sequences.remove(seq);
            self.branches.free.push(live.number);
        }
    }
}

impl Sequence {
    /// The next branch to start, if the line has room for one.
    fn make_branch(&self, facts: &Facts, end_tokens: &[u32]) -> Result<Option<Self>> {
        let Some(decider) = &self.decider else { return Ok(None) };
        let Some(next) = decider.next()? else { return Ok(None) };
        let mut ids = Vec::new();
        let from = self.prompt.len() + next.rest.len();
        reserve(&mut ids, from + next.option.len(), "a branch of questions")?;
        for part in [&self.prompt[..], next.rest, next.option] {
            ids.extend_from_slice(part);
        }
        let params = RequestParams {
            scores: Some(ScoreParams { from: from as u32, generates: false }),
            sampling: SamplingParams { logprobs: true, logprob_tokens: next.listed, ..Default::default() },
            stream: false,
            cache: self.request.reuse.shared,
            adapter: self.adapter.clone(),
            priority: self.request.priority,
            ..RequestParams::default()
        };
        let bytes = RequestBytes::default();
        let mut branch = Self::new(&params, ids, 1, bytes, facts, end_tokens, self.times.part())?;
        (branch.id, branch.pictures) = (self.id, self.pictures.clone());
        branch.request.reuse.salt = self.request.reuse.salt;
        branch.request.first_by_ns = if next.is_first { self.request.first_by_ns } else { 0 };
        Ok(Some(branch))
    }
}
