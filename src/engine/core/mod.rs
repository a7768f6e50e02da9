//! An engine thread with its device. It loops over commands, plan, forward pass, sampling and
//! publishing.

use crate::base::clock::{now_ns, unix_ns};
use crate::base::{Error, Result, Status, panics, reserve};
use crate::cache::disk::Store;
use crate::constrain::{Counted, Grammars};
use crate::engine::api::{EngineConfig, LOG_ERROR, LOG_WARN};
use crate::engine::core::backend::Backend;
use crate::engine::core::calls::Work;
use crate::engine::delivery::callback;
use crate::engine::delivery::callback::Log;
use crate::engine::delivery::signal::Signal;
use crate::engine::hub::{Command, Hub, Outbox, Rest};
use crate::engine::memory::plan::{MemoryPlan, logits_rows};
use crate::engine::replicas::replica::Replica;
use crate::engine::request::adapters::Adapted;
use crate::engine::request::ending::{Ending, cancelled, failed, too_late};
use crate::engine::request::event::{Event, FinishReason};
use crate::engine::request::eyes::Eyes;
use crate::engine::request::sequence::Sequence;
use crate::engine::watch::kv_events::KvEvents;
use crate::engine::watch::spans::{SpanSink, spans};
use crate::engine::watch::stats::{Recorder, StepLog};
use crate::model::{Loaded, Outputs};
use crate::ops::{Lora, Memory, RaggedBatch, Unit, Weight};
use crate::schedule::{Admission, HeldBack, Offer, Plan, PlanEntry, Scheduler, SeqId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// State that all threads of the engine share.
pub(super) struct Shared {
    pub hub: Hub<Event, Work, Signal>,
    pub recorder: Recorder,
    pub kv_events: KvEvents,
    pub log: Log,
    pub on_span: Option<SpanSink>,
    pub grammars: Grammars,
    pub released: Released,
    pub tier: Option<Tier>,
    pub eyes: Option<Eyes>,
    pub loaded: Loaded,
}

impl Shared {
    /// Counts the bytes of a kept grammar; see `Hub::keep`.
    pub(super) fn keep(&self, bytes: u64) -> Option<Counted> {
        Some(Box::new(self.hub.keep(bytes)?))
    }
}

/// State that an engine thread owns.
pub(super) struct Core {
    shared: Arc<Shared>,
    /// Number of this thread.
    number: usize,
    replica: Replica,
    backend: Backend,
    memory: Box<dyn Memory>,
    scheduler: Scheduler,
    sampling: Sampling,
    drafting: Drafting,
    looking: Looking,
    sequences: Sequences,
    deadlines: Deadlines,
    idle: Idle,
    /// Sequences that are paused because a grant was refused.
    awaiting_grant: Vec<SeqId>,
    /// Fingerprint of the model, see `sessions::shape`; None until a session call needs it.
    fingerprint: Option<u64>,
    /// The lower tier of the prefix cache.
    store: Option<Arc<Store>>,
    /// The error that ends this thread: its device is lost.
    lost: Option<Error>,
    // Reused from step to step.
    commands: VecDeque<Command<Work>>,
    plan: Plan,
    batch: RaggedBatch,
    outputs: Outputs,
    outbox: Outbox<Event, Work>,
    /// Sequences that ended in this step, with the reason if it was not their own. They leave the scheduler after
    /// the commit.
    ended: Vec<(SeqId, Option<Ending>)>,
    branches: Branches,
    record: StepLog,
}

const QUEUE: &str = "the engine's queue";
const BATCH: &str = "a step's lists";

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: usize,
        backend: Backend,
        memory: Box<dyn Memory>,
        scheduler: Scheduler,
        config: &EngineConfig,
        plan: &MemoryPlan,
    ) -> Result<Self> {
        let (max_batch_size, max_batch_tokens) =
            (config.max_batch_size as usize, config.max_batch_tokens as usize);
        let queue_capacity = config.queue_capacity as usize;
        let facts = shared.loaded.model.facts();
        let (vocab, width) = (facts.vocab_size, facts.hidden_size);
        let drafting = Drafting::new(config, &shared.loaded, &*backend.ops, plan)?;
        let replica = Replica::new(number, shared.hub.threads());
        let idle = Idle::new(config, &shared.loaded);
        let sampling = Sampling::new(config, &backend, vocab, plan.max_sequence)?;
        let mut outputs = Outputs::default();
        for (what, out, most) in [
            ("logits", &mut outputs.logits, logits_rows(config).saturating_mul(vocab)),
            ("hidden states", &mut outputs.hidden, max_batch_tokens.saturating_mul(width)),
        ] {
            out.try_reserve_exact(most).map_err(|_| Error::out_of_memory(what, most.saturating_mul(4)))?;
        }
        let (mut outbox, mut plan) = (Outbox::default(), Plan::default());
        let (mut record, mut ended, mut awaiting_grant) = (StepLog::default(), Vec::new(), Vec::new());
        reserve(&mut awaiting_grant, queue_capacity, QUEUE)?;
        reserve(&mut outbox.slow, queue_capacity, QUEUE)?;
        // Reserved up front, so that terminal events go out even when no memory is left.
        let sequences = Sequences::new(queue_capacity)?;
        reserve(&mut outbox.events, queue_capacity, QUEUE)?;
        reserve(&mut record.ends, queue_capacity, QUEUE)?;
        if shared.hub.threads() > 1 {
            reserve(&mut outbox.share.handed_on, queue_capacity, QUEUE)?;
        }
        reserve(&mut outbox.admitted, max_batch_size, BATCH)?;
        reserve(&mut record.waits, max_batch_size, BATCH)?;
        reserve(&mut record.gaps, logits_rows(config), BATCH)?;
        reserve(&mut ended, max_batch_size, BATCH)?;
        let branches = Branches::new(max_batch_size)?;
        reserve(&mut plan.entries, max_batch_size, BATCH)?;
        reserve(&mut plan.admitted, max_batch_size, BATCH)?;
        Ok(Self {
            shared,
            number,
            replica,
            backend,
            memory,
            scheduler,
            sampling,
            drafting,
            looking: Looking::default(),
            sequences,
            deadlines: Deadlines::default(),
            idle,
            awaiting_grant,
            fingerprint: None,
            store: None,
            lost: None,
            commands: VecDeque::new(),
            plan,
            batch: RaggedBatch::default(),
            outputs,
            outbox,
            ended,
            branches,
            record,
        })
    }

    /// Runs the thread from start to end. Every accepted request gets its terminal event, even after a panic.
    pub(super) fn main(mut self) {
        let outcome = panics::catch(|| {
            let mut rest = Rest::None;
            self.open_tier();
            while let Some(next) = self.turn(rest) {
                rest = next;
            }
        });
        let lost = self.lost.take().map_or(Ok(()), |error| Err(error.message));
        self.close(outcome.and(lost));
    }

    /// One turn of the loop, after `rest`. Returns the rest before the next turn, or None when no work is left.
    fn turn(&mut self, rest: Rest) -> Option<Rest> {
        if self.lost.is_some() || !self.exchange(rest) {
            return None;
        }
        let now = loop {
            let now = now_ns();
            self.expire(now);
            self.pace();
            // Events from commands and deadlines are published before a pass, which may be long.
            if self.outbox.events.is_empty() {
                break now;
            }
            self.exchange(Rest::None);
        };
        let (held, empty) = (self.outbox.held, self.sequences.len() == 0);
        let until = self.idle.look(held || empty, now, &self.shared.released);
        Some(match self.scheduler.ready_at(now).filter(|_| !held) {
            None if empty => {
                self.deadlines.clear();
                match until {
                    u64::MAX => Rest::UntilCommand,
                    until => Rest::Idle(Duration::from_nanos(until - now)),
                }
            }
            None => self.rest_until(until, now),
            Some(at) if at > now => self.rest_until(at, now),
            Some(_) => {
                self.step(now);
                Rest::None
            }
        })
    }

    /// Rests until `at` or the next deadline. Paused requests have deadlines too.
    fn rest_until(&self, at: u64, now: u64) -> Rest {
        let next = self.deadlines.next().map_or(at, |deadline| at.min(deadline));
        match next {
            u64::MAX => Rest::UntilCommand,
            next => Rest::For(Duration::from_nanos(next.saturating_sub(now).max(1))),
        }
    }

    /// Publishes the results of the last step, then takes the queued commands and executes them. Returns false
    /// when no work is left.
    fn exchange(&mut self, rest: Rest) -> bool {
        self.publish();
        let mut commands = std::mem::take(&mut self.commands);
        let (shared, number) = (&self.shared, self.number);
        if rest != Rest::None {
            shared.recorder.idle(number, true);
        }
        let goes_on = shared.hub.exchange(number, &mut self.outbox, &mut commands, rest);
        if rest != Rest::None {
            shared.recorder.idle(number, false);
        }
        commands.drain(..).for_each(|command| self.execute(command));
        self.commands = commands;
        self.collect();
        goes_on
    }

    /// Publishes the load, the statistics and the KV events.
    fn publish(&mut self) {
        self.outbox.share.load = self.replica.load(&self.scheduler, &self.sequences);
        self.record.gates = self.backend.ops.gates();
        self.shared.recorder.record(self.number, &mut self.record, self.scheduler.snapshot());
        self.shared.kv_events.take_from(self.number, self.scheduler.cache_mut());
    }

    fn execute(&mut self, command: Command<Work>) {
        match command {
            Command::Start(Work::Sequence(sequence)) => self.start(sequence),
            Command::Start(Work::Call(call)) => call(self),
            Command::End(id) if self.sequences.holds(id) => {
                self.end(SeqId(id.slot()), Some(cancelled("cancelled by the host")))
            }
            Command::End(_) => {}
            Command::Resume(id) if self.sequences.holds(id) => {
                self.go_on(SeqId(id.slot()), |account| account.unread = false)
            }
            Command::Resume(_) => {}
            Command::EndAll { shutdown: true } => self.end_all("the engine is shutting down"),
            Command::EndAll { shutdown: false } => self.end_all("cancelled by the host"),
        }
    }

    fn start(&mut self, sequence: Box<Sequence>) {
        let (id, seq) = (sequence.id, SeqId(sequence.id.slot()));
        let (deadlines, sequences) = (&mut self.deadlines, &self.sequences);
        let remembered = sequence.times.deadlines().try_for_each(|at| deadlines.push(at, id, sequences));
        if let Some(name) = &sequence.placement.session {
            self.scheduler.touch_session(name);
        }
        let (request, branches) = (sequence.request, sequence.decider.is_some());
        self.sequences.insert(sequence);
        let queued = remembered.and_then(|()| match branches {
            true => Ok(()),
            false => self.scheduler.submit(seq, request, &self.sequences),
        });
        match queued {
            Ok(()) => self.branch_out(seq),
            Err(error) => self.end(seq, Some(failed(error))),
        }
    }

    fn expire(&mut self, now: u64) {
        while let Some(id) = self.deadlines.pop(now, &self.sequences) {
            if let Some(why) = self.sequences.find(id).and_then(|sequence| sequence.times.expired(now)) {
                self.end(SeqId(id.slot()), Some(why));
            }
        }
    }

    fn end_all(&mut self, why: &str) {
        for seq in self.sequences.slots() {
            if self.sequences.get(seq).is_some() {
                self.end(seq, Some(cancelled(why)));
            }
        }
    }

    /// Frees a sequence's blocks and queues its terminal event.
    fn end(&mut self, seq: SeqId, why: Option<Ending>) {
        if why.as_ref().is_none_or(|(reason, _)| *reason != FinishReason::Failed) {
            self.keep_session(seq);
        }
        self.scheduler.cancel(seq, &self.sequences);
        let Some(mut sequence) = self.sequences.remove(seq) else { return };
        if let Some(owner) = sequence.owner() {
            return self.branch_ended(owner, sequence, why);
        }
        self.end_branches(&mut sequence);
        sequence.drafts.iter().for_each(|drafts| self.drafting.learned.learn(drafts));
        if sequence.account.awaits_grant {
            self.awaiting_grant.retain(|&awaiting_grant| awaiting_grant != seq);
        }
        if let Some((FinishReason::Failed, error)) = &why {
            self.shared.log.write(LOG_WARN, format!("request {:#x} failed: {error}", sequence.id.0));
        }
        if sequence.guide().is_some() {
            // The grammar may have grown with this output.
            self.shared.grammars.count(&|bytes| self.shared.keep(bytes));
        }
        let (trace, tokenizer) = (sequence.trace, self.shared.loaded.tokenizer.as_deref());
        let event = sequence.finish(tokenizer, &mut self.outbox.spare, why, now_ns());
        if let (Some(trace), Some(sink)) = (trace, &self.shared.on_span) {
            spans(&event, trace, unix_ns()).for_each(|span| callback::run(|| sink(&span)));
        }
        self.look_away();
        self.record.ends.push(event.usage);
        self.outbox.events.push((seq.0, event));
    }

    fn step(&mut self, now: u64) {
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.plan(&mut plan, &self.sequences, now);
        debug_assert!(
            !plan.is_empty()
                || plan.refused.is_some()
                || !plan.late.is_empty()
                || plan.held_back == HeldBack::Lower,
            "active sequences, and nothing to do"
        );
        self.spill();
        if let Some(seq) = plan.refused {
            self.fail(seq, Error::new(Status::OutOfMemory, "could not allocate a block table"));
        }
        self.ended.extend(plan.late.iter().map(|&seq| (seq, Some(too_late()))));
        let copied = self.copy_blocks(&plan.copies);
        let copied = copied.and_then(|()| self.memory.copy(Unit::State, &plan.state_copies));
        if copied.is_err() {
            self.replica.failed();
        }
        for admission in &plan.admitted {
            if copied.is_err() {
                self.scheduler.ran(admission.seq);
            }
            if let Err(error) = copied.clone().and_then(|()| self.admit(admission, now)) {
                self.fail(admission.seq, error);
            }
        }
        self.drop_failed(&mut plan);
        self.look_at_pictures(&mut plan);
        self.leave_out_late_masks(&mut plan);
        self.ask_for_grants(&mut plan);
        self.draft(&mut plan);
        // Without a commit the sequences keep their state. The sequence that stopped the pass ends before the
        // next one.
        let began = now_ns();
        if !plan.is_empty()
            && let Some(step_ns) = self.run_entries(&mut plan.entries)
        {
            // The cost of a row includes the work on its logits: masks, hooks, samplers.
            let whole_ns = if step_ns > 0 { now_ns() - began } else { 0 };
            self.drop_failed(&mut plan);
            self.scheduler.commit(&plan, whole_ns, &self.sequences);
            let (learned, most_ns) = (self.scheduler.step_time(), self.scheduler.config().max_step_ns);
            self.record.step(&plan, step_ns, most_ns, learned);
        }
        let mut ended = std::mem::take(&mut self.ended);
        for (seq, why) in ended.drain(..) {
            self.end(seq, why);
        }
        self.ended = ended;
        self.branch_on();
        self.plan = plan;
        if self.replica.became_sick(&self.shared.log) {
            self.hand_on();
        }
    }

    fn admit(&mut self, admission: &Admission, now: u64) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(admission.seq) else { return Ok(()) };
        let mut wait = sequence.admit(admission.cached, now)?;
        if wait.is_some() {
            sequence.drafts.iter_mut().for_each(|drafts| drafts.begin(&self.drafting.learned));
        }
        let owner = sequence.owner();
        let seq = owner.unwrap_or(admission.seq);
        if let Some(request) = owner.and_then(|owner| self.sequences.get_mut(owner)) {
            wait = request.admit(admission.cached, now)?;
        }
        if let Some(wait) = wait {
            self.outbox.admitted.push(seq.0);
            self.record.waits.push(wait);
        }
        Ok(())
    }

    /// Removes the entries of failed sequences. Otherwise their rows would run, or be committed and found in
    /// the cache. Entries of late sequences are removed too and keep their state.
    fn drop_failed(&self, plan: &mut Plan) {
        let failed = |seq: SeqId| self.ended.iter().any(|(ended, why)| *ended == seq && why.is_some());
        plan.retain(|entry| !entry.late && !failed(entry.seq));
    }

    /// Runs `entries` in one forward pass and samples. If the pass fails, each entry runs alone, so that only
    /// the culprit fails: a sequence's results are the same in any batch (invariant 3). In a model with recurrent
    /// layers the next steps do that. Returns the duration of the pass in nanoseconds, 0 if it failed. Returns None
    /// if the pass was stopped because its results are not needed any more, or if the device is lost.
    fn run_entries(&mut self, entries: &mut [PlanEntry]) -> Option<u64> {
        let started = now_ns();
        entries.iter().for_each(|entry| self.scheduler.ran(entry.seq));
        let result = self.fill_batch(entries).and_then(|()| self.forward(entries));
        let step_ns = now_ns() - started;
        match result {
            Ok(()) => {
                self.replica.passed();
                self.sample(entries);
                self.pool(entries);
                self.advance_states(entries);
                return Some(step_ns);
            }
            Err(error)
                if error.status == Status::Cancelled
                    && all_ended(&self.shared, self.number, &mut self.sequences, seqs_of(entries)) =>
            {
                return None;
            }
            Err(error) if error.status == Status::EngineDead => {
                self.lost = Some(error);
                return None;
            }
            Err(error) if entries.len() > 1 => {
                self.replica.failed();
                let log = &self.shared.log;
                log.write(LOG_WARN, format!("a step failed, running its sequences alone: {error}"));
                if !self.memory.layout().states.shape.is_empty() {
                    // The states are neither those before nor those after the pass.
                    entries.iter().for_each(|entry| self.scheduler.isolate(entry));
                    return None;
                }
                for entry in entries {
                    if self.run_entries(std::slice::from_mut(entry)).is_none() && self.lost.is_none() {
                        self.stop(entry.seq);
                    }
                }
            }
            Err(error) => {
                self.replica.failed();
                entries.iter().for_each(|entry| self.fail(entry.seq, error.clone()));
            }
        }
        Some(0)
    }

    /// Ends a sequence whose pass was stopped because it was cancelled or expired.
    fn stop(&mut self, seq: SeqId) {
        let expired = self.sequences.get(seq).and_then(|sequence| sequence.times.expired(now_ns()));
        self.ended.push((seq, Some(expired.unwrap_or_else(|| cancelled("cancelled by the host")))));
    }

    fn fail(&mut self, seq: SeqId, error: Error) {
        self.ended.push((seq, Some(failed(error))));
    }

    fn fill_batch(&mut self, entries: &[PlanEntry]) -> Result<()> {
        let (batch, vocab) = (&mut self.batch, self.shared.loaded.model.facts().vocab_size);
        batch.clear();
        let by_grid = self.shared.eyes.as_ref().is_some_and(|eyes| eyes.sight.by_grid);
        let rows = entries.iter().map(|entry| entry.rows as usize).sum();
        let logits = entries.iter().map(|entry| entry.logits as usize).sum();
        batch.reserve(rows, entries.len(), logits)?;
        for entry in entries {
            let Some(sequence) = self.sequences.get_mut(entry.seq) else { continue };
            let table = self.scheduler.block_table(entry.seq);
            let first = batch.push_seq(table, entry.start, entry.rows)?;
            if let Some(Adapted { adapter, scale }) = &sequence.adapter {
                batch.adapt(&adapter.lora, *scale, first, entry.rows);
            }
            let known = entry.start..entry.start + entry.known();
            batch.tokens.extend(known.map(|position| sequence.token_at(position as usize)));
            batch.tokens.extend_from_slice(&sequence.drafted()[..entry.drafts as usize]);
            if let Some(second) = sequence.second {
                reserve(&mut batch.types, batch.tokens.len(), "a step's types")?;
                batch.types.resize(first as usize, 0);
                batch.types.extend((entry.start..entry.start + entry.rows).map(|at| u32::from(at >= second)));
            }
            if let Some(pictures) = &sequence.pictures {
                pictures::fill(pictures, entry, first, by_grid, batch)?;
            }
            push_state(batch, &self.scheduler, entry)?;
            match sequence.hidden_wanted(entry) {
                Some(wanted) => {
                    reserve(&mut batch.hidden_rows, wanted.len(), "a step's rows")?;
                    batch.hidden_rows.extend(first + wanted.start..first + wanted.end);
                }
                None => {
                    let end = batch.tokens.len() as u32;
                    batch.logits_rows.extend(end - entry.logits..end);
                    if self.backend.ops.draws() {
                        draw_there(sequence, entry, vocab, &mut batch.draws)?;
                    }
                }
            }
        }
        if !batch.types.is_empty() {
            batch.types.resize(batch.tokens.len(), 0);
        }
        if !batch.rotations.is_empty() {
            pictures::fill_rotations(batch, batch.tokens.len())?;
        }
        if batch.draws.rows.iter().all(Option::is_none) {
            batch.draws.clear();
        }
        let most = self.scheduler.config().max_batch_size as usize;
        batch.pad(self.backend.ops.decode_rows(batch.tokens.len()).min(most));
        Ok(())
    }

    /// Sets the number of threads that compute the next steps.
    pub(super) fn set_threads(&self, threads: usize) {
        self.backend.pool.set_threads(threads);
    }

    /// Uploads an adapter to the device that runs the passes.
    pub(super) fn hold_adapter(&mut self, lora: &Arc<Lora>) -> Result<()> {
        self.backend.ops.hold(Weight::Adapter(lora))
    }

    fn forward(&mut self, entries: &[PlanEntry]) -> Result<()> {
        if self.batch.tokens.is_empty() {
            return Ok(());
        }
        let Self { number, backend, batch, memory, shared, outputs, sequences, .. } = self;
        let stop = &mut || all_ended(shared, *number, sequences, seqs_of(entries));
        let pass = || shared.loaded.model.forward(&*backend.ops, batch, &mut **memory, stop, outputs);
        panics::checked("the forward pass", pass)
    }

    /// Passes the hidden states to the sequences that asked for them.
    fn pool(&mut self, entries: &[PlanEntry]) {
        let now = now_ns();
        let (model, ops) = (&*self.shared.loaded.model, &*self.backend.ops);
        let after = |score: bool, pooled: &[f32]| model.after_pooling(ops, score, pooled);
        let width = model.facts().hidden_size;
        let mut row = 0;
        for entry in entries {
            let Some(sequence) = self.sequences.get_mut(entry.seq) else { continue };
            let Some(wanted) = sequence.hidden_wanted(entry) else { continue };
            let hidden = &self.outputs.hidden[row * width..][..wanted.len() * width];
            row += wanted.len();
            match sequence.pool(hidden, entry.sample, &after, &mut self.outbox.spare, now) {
                Ok(()) if entry.sample => self.ended.push((entry.seq, None)),
                Ok(()) => {}
                Err(error) => self.ended.push((entry.seq, Some(failed(error)))),
            }
        }
    }
}

pub(super) mod backend;
mod branches;
pub(super) mod calls;
mod deadlines;
pub(super) mod disk;
pub(super) mod drafter;
mod drafts;
mod end;
pub(super) mod idle;
mod pacing;
mod pictures;
pub(super) mod sampling;
pub(super) mod sequences;
pub(super) mod session_file;
mod sessions;
mod states;
mod warm;
use branches::Branches;
use deadlines::Deadlines;
use disk::Tier;
use drafts::Drafting;
use end::{all_ended, seqs_of};
use idle::{Idle, Released};
use pictures::Looking;
use sampling::{Draw, Sampling, draw_there};
use sequences::Sequences;
use states::push_state;

#[cfg(test)]
mod checks;
