//! The engine thread: inbox, plan, forward, sample, publish; over and over.

use super::api::ShutdownMode;
use super::api::{LOG_ERROR, LOG_WARN};
use super::callback::Log;
use super::event::{Event, FinishReason};
use super::hub::{Hub, Phase};
use super::ids::{RequestId, Which};
use super::inbox::Inbox;
use super::sequence::{Sequence, cancelled, timed_out};
use super::signal::Signal;
use super::stats::{Recorder, StepRecord};
use crate::base::clock::now_ns;
use crate::base::{Error, Result, Status, panics};
use crate::model::{Model, Outputs};
use crate::ops::{FusedOps, KvCache, RaggedBatch, SeqRows};
use crate::sample::Sampler;
use crate::schedule::{Plan, PlanEntry, Scheduler, SeqId};
use crate::text::{ChatTemplate, Tokenizer};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub enum Command {
    Submit(Box<Sequence>),
    Cancel(Which),
    /// Released while live: end it; nobody listens.
    Abandon(RequestId),
    Shutdown(ShutdownMode),
}

/// All that threads share.
pub struct Shared {
    pub hub: Hub<Event, Signal>,
    pub inbox: Inbox<Command>,
    /// Set by a cancelling shutdown; the forward pass looks at it between layers.
    pub stop: AtomicBool,
    /// A request came since `Cancel(Any)` was last sent: so a flood of cancels is one command.
    pub cancellable: AtomicBool,
    pub recorder: Recorder,
    pub log: Log,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub end_tokens: Vec<u32>,
    pub chat: Option<Arc<ChatTemplate>>,
}

/// What the engine thread owns outright.
pub struct Core {
    shared: Arc<Shared>,
    model: Arc<dyn Model>,
    ops: FusedOps,
    kv: KvCache,
    scheduler: Scheduler,
    sampler: Sampler,
    /// Indexed by slot, which is also the scheduler's `SeqId`.
    sequences: Vec<Option<Box<Sequence>>>,
    active: usize,
    draining: bool,
    deadlines: BinaryHeap<Reverse<(u64, RequestId)>>,
    // Reused from step to step.
    plan: Plan,
    batch: Arc<RaggedBatch>,
    outputs: Outputs,
    outbox: Vec<(u32, Event)>,
    /// Ended in this step, by themselves or by an error; they leave the scheduler after its commit.
    ended: Vec<(SeqId, Option<(FinishReason, Error)>)>,
    waits: Vec<u64>,
    gaps: Vec<(bool, u64)>,
}

impl Core {
    pub fn new(
        shared: Arc<Shared>,
        model: Arc<dyn Model>,
        ops: FusedOps,
        kv: KvCache,
        scheduler: Scheduler,
        max_batch_size: usize,
        max_batch_tokens: usize,
    ) -> Result<Self> {
        let (vocab, width) = (model.facts().vocab_size, model.facts().hidden_size);
        let sampler = Sampler::new(vocab)?;
        let mut outputs = Outputs::default();
        for (what, out, most) in [
            ("logits", &mut outputs.logits, max_batch_size.saturating_mul(vocab)),
            ("hidden states", &mut outputs.hidden, max_batch_tokens.saturating_mul(width)),
        ] {
            out.try_reserve_exact(most).map_err(|_| Error::out_of_memory(what, most.saturating_mul(4)))?;
        }
        Ok(Self {
            shared,
            model,
            ops,
            kv,
            scheduler,
            sampler,
            sequences: Vec::new(),
            active: 0,
            draining: false,
            deadlines: BinaryHeap::new(),
            plan: Plan::default(),
            batch: Arc::default(),
            outputs,
            outbox: Vec::new(),
            ended: Vec::new(),
            waits: Vec::new(),
            gaps: Vec::new(),
        })
    }

    /// The engine thread's whole life. Whatever happens, every accepted request gets its terminal event.
    pub fn main(mut self) {
        let outcome = panics::catch(|| self.run());
        self.shared.hub.advance(Phase::Closing);
        if let Err(text) = &outcome {
            self.shared.log.write(LOG_ERROR, format!("the engine thread died: {text}"));
            if let Err(text) = panics::catch(|| self.bury(text)) {
                self.shared.log.write(LOG_ERROR, format!("and left requests without an end: {text}"));
            }
        }
        let phase = if outcome.is_ok() { Phase::Drained } else { Phase::Dead };
        // The model and the KV cache go before anybody can see that the engine is gone.
        let shared = self.shared.clone();
        drop(self);
        shared.hub.advance(phase);
    }

    fn run(&mut self) {
        loop {
            while let Some(command) = self.shared.inbox.pop() {
                self.obey(command);
            }
            let now = now_ns();
            self.expire(now);
            if self.active == 0 {
                self.publish();
                match self.draining {
                    true if self.shared.hub.unfinished().is_empty() => return,
                    // Somebody is between taking a slot and sending the request.
                    true => self.shared.inbox.wait(Some(Duration::from_millis(1))),
                    false => self.shared.inbox.wait(None),
                }
                continue;
            }
            match self.scheduler.ready_at(now).filter(|&at| at > now) {
                Some(at) => {
                    self.publish();
                    let next = self.deadlines.peek().map_or(at, |Reverse((deadline, _))| at.min(*deadline));
                    self.shared.inbox.wait(Some(Duration::from_nanos(next.saturating_sub(now).max(1))));
                }
                None => {
                    self.step(now);
                    self.publish();
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(sequence) => self.enter(sequence),
            Command::Cancel(Which::Any) => self.end_all("cancelled by the host"),
            Command::Cancel(Which::One(id)) | Command::Abandon(id) => {
                if self.holds(id) {
                    self.end(SeqId(id.slot()), Some(cancelled("cancelled by the host")));
                }
            }
            Command::Shutdown(mode) => {
                self.draining = true;
                if mode == ShutdownMode::Cancel {
                    self.end_all("the engine is shutting down");
                }
            }
        }
    }

    fn enter(&mut self, sequence: Box<Sequence>) {
        self.shared.cancellable.store(true, Ordering::SeqCst);
        let id = sequence.id;
        let slot = id.slot() as usize;
        if slot >= self.sequences.len() {
            self.sequences.resize_with(slot + 1, || None);
        }
        debug_assert!(self.sequences[slot].is_none(), "a slot was reused before its terminal event");
        let (prompt, new) = (sequence.prompt.len() as u32, sequence.max_new);
        if sequence.deadline_ns != 0 {
            self.remember(sequence.deadline_ns, id);
        }
        let seq = SeqId(id.slot());
        let queued = self.scheduler.submit(seq, prompt, new, sequence.submitted_ns);
        self.sequences[slot] = Some(sequence);
        self.active += 1;
        if let Err(error) = queued {
            self.end(seq, Some((FinishReason::Failed, error)));
        } else if self.shared.stop.load(Ordering::Relaxed) {
            self.end(seq, Some(cancelled("the engine is shutting down")));
        }
    }

    /// Keeps at most twice as many deadlines as there are sequences, however long the earliest one is away.
    fn remember(&mut self, deadline_ns: u64, id: RequestId) {
        if self.deadlines.len() > 2 * self.active + 64 {
            let mut deadlines = std::mem::take(&mut self.deadlines);
            deadlines.retain(|Reverse((_, id))| self.holds(*id));
            self.deadlines = deadlines;
        }
        self.deadlines.push(Reverse((deadline_ns, id)));
    }

    fn holds(&self, id: RequestId) -> bool {
        matches!(self.sequences.get(id.slot() as usize), Some(Some(sequence)) if sequence.id == id)
    }

    fn expire(&mut self, now: u64) {
        while let Some(&Reverse((deadline, id))) = self.deadlines.peek() {
            if deadline > now && self.holds(id) {
                return;
            }
            self.deadlines.pop();
            if self.holds(id) {
                self.end(SeqId(id.slot()), Some(timed_out()));
            }
        }
    }

    fn end_all(&mut self, why: &str) {
        if self.active == 0 {
            return;
        }
        for slot in 0..self.sequences.len() {
            if self.sequences[slot].is_some() {
                self.end(SeqId(slot as u32), Some(cancelled(why)));
            }
        }
    }

    /// Frees a sequence's blocks and queues its terminal event.
    fn end(&mut self, seq: SeqId, why: Option<(FinishReason, Error)>) {
        let Some(sequence) = self.sequences[seq.0 as usize].take() else { return };
        self.scheduler.cancel(seq);
        self.active -= 1;
        if let Some((FinishReason::Failed, error)) = &why {
            self.shared.log.write(LOG_WARN, format!("request {:#x} failed: {error}", sequence.id.0));
        }
        let event = sequence.finish(self.shared.tokenizer.as_deref(), why, now_ns());
        self.shared.recorder.finished(event.finish, event.usage.as_deref().unwrap_or(&Default::default()));
        self.outbox.push((seq.0, event));
    }

    fn publish(&mut self) {
        let counts = self.scheduler.counts();
        self.shared.recorder.gauges(counts.waiting, counts.running, counts.blocks_used);
        if !self.outbox.is_empty() {
            self.shared.hub.publish(&mut self.outbox);
        }
    }

    fn step(&mut self, now: u64) {
        let mut plan = std::mem::take(&mut self.plan);
        self.scheduler.plan(&mut plan);
        debug_assert!(!plan.entries.is_empty(), "active sequences, and nothing to do");
        self.waits.clear();
        self.gaps.clear();
        for &seq in &plan.admitted {
            if let Some(sequence) = self.sequences[seq.0 as usize].as_mut() {
                match sequence.admit(now) {
                    Ok(wait) => self.waits.push(wait),
                    Err(error) => self.fail(seq, error),
                }
            }
        }
        let step_ns = self.run_entries(&plan.entries);
        self.scheduler.commit(&plan, step_ns);
        let mut ended = std::mem::take(&mut self.ended);
        for (seq, why) in ended.drain(..) {
            self.end(seq, why);
        }
        self.ended = ended;
        let prompt_rows = plan.entries.iter().filter(|e| !e.decode).map(|e| e.rows as usize).sum();
        let record =
            StepRecord { sequences: plan.entries.len(), prompt_rows, generated: self.gaps.len(), step_ns };
        self.shared.recorder.step(record, &self.waits, &self.gaps);
        self.plan = plan;
    }

    /// Runs `entries` in one forward pass and samples. Where that fails, each alone, so that only the culprit
    /// does: a sequence's results are the same in any batch (invariant 3). Returns the time of the pass.
    fn run_entries(&mut self, entries: &[PlanEntry]) -> u64 {
        let started = now_ns();
        self.fill_batch(entries);
        let result = self.forward();
        let step_ns = now_ns() - started;
        match result {
            Ok(()) => {
                self.sample(entries);
                self.pool(entries);
            }
            // The shutdown's command may still be on its way, and rows that did not run must not run on.
            Err(error) if error.status == Status::Cancelled => {
                let why = || Some(cancelled("the engine is shutting down"));
                self.ended.extend(entries.iter().map(|entry| (entry.seq, why())));
            }
            Err(error) if entries.len() > 1 => {
                self.shared
                    .log
                    .write(LOG_WARN, format!("a step failed, running its sequences alone: {error}"));
                for entry in entries {
                    self.run_entries(std::slice::from_ref(entry));
                }
            }
            Err(error) => entries.iter().for_each(|entry| self.fail(entry.seq, error.clone())),
        }
        step_ns
    }

    fn fail(&mut self, seq: SeqId, error: Error) {
        self.ended.push((seq, Some((FinishReason::Failed, error))));
    }

    fn fill_batch(&mut self, entries: &[PlanEntry]) {
        // An op that failed half-way may still hold the last one.
        if Arc::get_mut(&mut self.batch).is_none() {
            self.batch = Arc::default();
        }
        let batch = Arc::get_mut(&mut self.batch).expect("nobody else holds it");
        batch.clear();
        for entry in entries {
            let Some(sequence) = &self.sequences[entry.seq.0 as usize] else { continue };
            let table = self.scheduler.block_table(entry.seq);
            batch.seqs.push(SeqRows {
                row: batch.tokens.len() as u32,
                rows: entry.rows,
                table: batch.block_tables.len() as u32,
                table_len: table.len() as u32,
            });
            batch.block_tables.extend_from_slice(table);
            let first = batch.tokens.len() as u32;
            for position in entry.start..entry.start + entry.rows {
                batch.tokens.push(sequence.token_at(position as usize));
                batch.positions.push(position);
            }
            match sequence.hidden_wanted(entry) {
                Some(wanted) => batch.hidden_rows.extend(first + wanted.start..first + wanted.end),
                None if entry.sample => batch.logits_rows.push(batch.tokens.len() as u32 - 1),
                None => {}
            }
        }
    }

    fn forward(&mut self) -> Result<()> {
        if self.batch.tokens.is_empty() {
            return Ok(());
        }
        let Self { model, ops, batch, kv, shared, outputs, .. } = self;
        let stop = &mut || shared.stop.load(Ordering::Relaxed);
        panics::catch(|| model.forward(ops, batch, kv, stop, outputs))
            .unwrap_or_else(|text| Err(Error::internal(format!("the forward pass panicked: {text}"))))
    }

    fn sample(&mut self, entries: &[PlanEntry]) {
        let now = now_ns();
        let vocab = self.model.facts().vocab_size;
        let shared = self.shared.clone();
        let tokenizer = shared.tokenizer.as_deref();
        let mut row = 0;
        for entry in entries.iter().filter(|entry| entry.sample) {
            let Some(sequence) = self.sequences[entry.seq.0 as usize].as_mut() else { continue };
            if sequence.hidden_wanted(entry).is_some() {
                continue;
            }
            let logits = &mut self.outputs.logits[row * vocab..][..vocab];
            row += 1;
            let first = sequence.output.is_empty();
            let sampler = &mut self.sampler;
            let result = panics::catch(|| sequence.advance(logits, sampler, tokenizer, now))
                .unwrap_or_else(|text| Err(Error::internal(format!("sampling panicked: {text}"))));
            match result {
                Ok((gap, event)) => {
                    self.gaps.push((first, gap));
                    self.outbox.extend(event.map(|event| (entry.seq.0, event)));
                    if sequence.finished() != FinishReason::None {
                        self.ended.push((entry.seq, None));
                    }
                }
                Err(error) => self.fail(entry.seq, error),
            }
        }
    }

    /// Hands the hidden states to the sequences that asked for them.
    fn pool(&mut self, entries: &[PlanEntry]) {
        let now = now_ns();
        let width = self.model.facts().hidden_size;
        let mut row = 0;
        for entry in entries {
            let Some(sequence) = self.sequences[entry.seq.0 as usize].as_mut() else { continue };
            let Some(wanted) = sequence.hidden_wanted(entry) else { continue };
            let hidden = &self.outputs.hidden[row * width..][..wanted.len() * width];
            row += wanted.len();
            match sequence.pool(hidden, entry.sample, now) {
                Ok(()) if entry.sample => self.ended.push((entry.seq, None)),
                Ok(()) => {}
                Err(error) => self.fail(entry.seq, error),
            }
        }
    }

    /// After a panic in the loop: a terminal event for everybody, taken from wherever the request is.
    fn bury(&mut self, text: &str) {
        let error = Error::new(Status::EngineDead, format!("the engine thread died: {text}"));
        let why = || Some((FinishReason::Failed, error.clone()));
        let tokenizer = self.shared.tokenizer.clone();
        self.shared.hub.publish(&mut self.outbox);
        self.shared.recorder.gauges(0, 0, 0);
        let mut patience = 1_000;
        loop {
            let mut sequences: Vec<_> = self.sequences.iter_mut().filter_map(Option::take).collect();
            while let Some(command) = self.shared.inbox.pop() {
                if let Command::Submit(sequence) = command {
                    sequences.push(sequence);
                }
            }
            for sequence in sequences {
                let id = sequence.id;
                let event = panics::catch(|| sequence.finish(tokenizer.as_deref(), why(), now_ns()));
                let usage = event.as_ref().ok().and_then(|event| event.usage.as_deref().copied());
                self.shared.recorder.finished(FinishReason::Failed, &usage.unwrap_or_default());
                self.outbox.extend(event.ok().map(|event| (id.slot(), event)));
            }
            self.shared.hub.publish(&mut self.outbox);
            let lost = self.shared.hub.unfinished();
            if lost.is_empty() {
                return;
            }
            patience -= 1;
            if patience == 0 {
                // The panic took the sequence with it; its user_data went too.
                for (slot, id) in lost {
                    let mut event = Event::new(id, 0, 0);
                    (event.finish, event.status) = (FinishReason::Failed, Status::EngineDead);
                    (event.message, event.usage) = (error.message.clone(), Some(Box::default()));
                    self.outbox.push((slot, event));
                }
                return self.shared.hub.publish(&mut self.outbox);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// The delivery thread of callback mode: hands every event to the host with no lock held.
pub fn deliver(shared: &Shared, mut sink: super::api::EventSink) {
    let mut events = Vec::new();
    while shared.hub.take(&mut events) {
        for (_, event) in events.drain(..) {
            // Released meanwhile: the host wants to hear no more of it.
            if shared.hub.check(event.request).is_err() {
                continue;
            }
            if let Err(text) = panics::catch(|| super::callback::run(|| sink(&event))) {
                shared.log.write(LOG_ERROR, format!("the event callback panicked: {text}"));
            }
            if event.finish != FinishReason::None {
                shared.hub.retire(event.request);
            }
        }
    }
}
