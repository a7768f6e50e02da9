//! The pure scheduler: state to plan. No threads, no tensors, no clock but the one passed in.
//!
//! A sequence waits, then runs its prompt in chunks, then decodes one row a step:
//! `submit → (admitted by plan) → Prefill → (its last prompt row commits) → Decode → finish`.
//! Admission is strictly first come, first served: the head waits until a batch slot is free and blocks for
//! its prompt and all its new tokens can be reserved, and nobody overtakes it. So a running sequence never
//! lacks a block.

mod list;
mod step_time;

pub use step_time::{StepTime, Work};

use crate::base::{Error, Result, Status};
use crate::cache::{BlockPool, blocks_for};
use list::{Lanes, List, NONE, Slots};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences running at a time; at least 1.
    pub max_batch_size: u32,
    /// Rows in a step; at least max_batch_size, so that every decode row always fits.
    pub max_batch_tokens: u32,
    /// Target upper bound of a step that carries decode rows; at least 1.
    pub max_step_ns: u64,
    /// Positions per KV block; at least 1.
    pub block_size: u32,
    /// KV blocks in all; at least 1.
    pub blocks: u32,
    /// How long an idle engine's first step is held open for company.
    pub max_wait_ns: u64,
}

/// A dense slot index that the engine gives; free for reuse after `finish` or `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

/// Where a sequence is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Waiting,
    Prefill,
    Decode,
}

/// One sequence's rows in a step: positions `start..start + rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    pub seq: SeqId,
    pub start: u32,
    pub rows: u32,
    /// The last row yields logits, and a token is sampled from them.
    pub sample: bool,
    /// The one row is the token sampled last, not the prompt's.
    pub decode: bool,
}

/// A step: decode rows first, then prompt chunks. Reused from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub entries: Vec<PlanEntry>,
    /// Sequences that left the queue with this plan, in order of arrival; each has an entry.
    pub admitted: Vec<SeqId>,
    /// Stays in the queue, as the system has no memory for its block table.
    pub refused: Option<SeqId>,
    pub work: Work,
    /// Entries that decode.
    pub decode_rows: u32,
    /// What the step is expected to take; 0 while nothing is known.
    pub predicted_ns: u64,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.admitted.clear();
        self.refused = None;
        (self.work, self.decode_rows, self.predicted_ns) = (Work::default(), 0, 0);
    }

    fn push(&mut self, entry: PlanEntry) {
        self.work.add(Work::span(entry.start, entry.rows));
        self.decode_rows += u32::from(entry.decode);
        self.entries.push(entry);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: usize,
    /// Prefill and decode.
    pub running: usize,
    pub blocks_used: usize,
    pub blocks_total: usize,
}

pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    slots: Slots,
    lanes: Lanes,
    /// By phase, each oldest first.
    lists: [List; 3],
    step_time: StepTime,
    /// The step after an idle time is held until then for company.
    hold_until: u64,
}

/// What a step of prompts alone may take. Shorter ones serve a burst worse: the first prompt that is done slows all others
/// down to what `max_step_ms` leaves beside its tokens.
const PROMPT_STEP_NS: f64 = 4e9;
/// Its rows all the same: fewer would use weights badly that are read once for all rows.
const LEAST_PROMPT_ROWS: u64 = 64;

/// Positions that a request computes. The last token sampled is never run through the model, so it needs
/// none.
fn positions(prompt_len: u32, max_new: u32) -> u64 {
    (u64::from(prompt_len) + u64::from(max_new)).saturating_sub(1)
}

impl Scheduler {
    pub fn new(config: SchedulerConfig) -> Result<Self> {
        let SchedulerConfig { max_batch_size, max_batch_tokens, max_step_ns, block_size, blocks, .. } =
            config;
        if max_batch_size == 0 || max_step_ns == 0 || block_size == 0 || blocks == 0 {
            return Err(Error::invalid(format!(
                "the scheduler needs max_batch_size, max_step_ns, block_size and blocks of at least 1; got {config:?}"
            )));
        }
        if max_batch_tokens < max_batch_size {
            return Err(Error::invalid(format!(
                "max_batch_tokens ({max_batch_tokens}) must be at least max_batch_size ({max_batch_size})"
            )));
        }
        Ok(Self {
            config,
            pool: BlockPool::new(blocks)?,
            slots: Slots::default(),
            lanes: Lanes::new(max_batch_size, blocks)?,
            lists: [List::new(), List::new(), List::new()],
            step_time: StepTime::default(),
            hold_until: 0,
        })
    }

    /// Blocks that a request reserves when it is admitted.
    pub fn blocks_needed(&self, prompt_len: u32, max_new: u32) -> u64 {
        blocks_for(positions(prompt_len, max_new), self.config.block_size)
    }

    /// Whether a request of at least one prompt token and one new token fits an otherwise empty engine.
    pub fn can_ever_run(&self, prompt_len: u32, max_new: u32) -> bool {
        prompt_len > 0
            && max_new > 0
            && positions(prompt_len, max_new) <= u64::from(u32::MAX)
            && self.blocks_needed(prompt_len, max_new) <= u64::from(self.config.blocks)
    }

    /// Puts a request at the end of the queue. `TooLong` where it can never run; `Internal` where the slot is
    /// taken.
    pub fn submit(&mut self, seq: SeqId, prompt_len: u32, max_new: u32, now: u64) -> Result<()> {
        if !self.can_ever_run(prompt_len, max_new) {
            return Err(Error::new(
                Status::TooLong,
                format!(
                    "a prompt of {prompt_len} tokens and {max_new} new ones needs {} KV blocks, there are {}",
                    self.blocks_needed(prompt_len, max_new),
                    self.config.blocks
                ),
            ));
        }
        self.slots.open(seq, prompt_len, max_new)?;
        if self.is_idle() {
            self.hold_until = now.saturating_add(self.config.max_wait_ns);
        }
        self.lists[Phase::Waiting as usize].push_back(&mut self.slots, seq);
        Ok(())
    }

    /// Takes a sequence out and frees its blocks, whatever its phase, which it returns; None where the slot is
    /// empty. Between steps only: a forward pass that is running may still write to the blocks.
    pub fn cancel(&mut self, seq: SeqId) -> Option<Phase> {
        let slot = self.slots.get(seq)?;
        let (phase, lane) = (slot.phase?, slot.lane);
        self.lists[phase as usize].remove(&mut self.slots, seq);
        if lane != NONE {
            self.pool.release_all(self.lanes.table_mut(lane));
            self.lanes.give_back(lane);
        }
        self.slots.close(seq);
        Some(phase)
    }

    /// The sequence has its last token. The same as `cancel`, under the name for a good end; after `commit`.
    pub fn finish(&mut self, seq: SeqId) {
        let phase = self.cancel(seq);
        debug_assert!(phase != Some(Phase::Waiting), "{seq:?} finished before it ran");
    }

    /// When the next step may start: None while there is nothing to do, `now` (or less) for at once, later
    /// while an idle engine waits for company.
    pub fn ready_at(&self, now: u64) -> Option<u64> {
        if self.is_idle() {
            return None;
        }
        let company = self.list(Phase::Waiting).len() >= self.config.max_batch_size as usize;
        let hold = self.running() == 0 && !company;
        Some(if hold { self.hold_until.max(now) } else { now })
    }

    /// Fills `plan` with the next step: a row of every decoding sequence (invariant 4), then prompt chunks,
    /// oldest first, in what `max_batch_tokens` and `max_step_ns` leave, without decode rows some seconds; then admits
    /// from the queue. Empty only when there is nothing to do. Without a `commit` the next plan starts from the
    /// same state, and admitted sequences stay admitted.
    pub fn plan(&mut self, plan: &mut Plan) {
        plan.clear();
        self.hold_until = 0;
        for seq in self.list(Phase::Decode).iter(&self.slots) {
            let Some(slot) = self.slots.get(seq) else { continue };
            // All its tokens are sampled, and the engine owes a finish: there is no position reserved for more.
            if u64::from(slot.computed) < positions(slot.prompt_len, slot.max_new) {
                plan.push(PlanEntry { seq, start: slot.computed, rows: 1, sample: true, decode: true });
            }
        }
        let mut next = self.list(Phase::Prefill).head();
        while let Some(seq) = next
            && self.plan_chunk(seq, plan)
        {
            next = self.list(Phase::Prefill).next(&self.slots, seq);
        }
        if next.is_none() {
            self.admit(plan);
        }
        plan.predicted_ns = self.step_time.predict(plan.work) as u64;
    }

    /// Adds the next chunk of a prompt; false when there was no room for any of it.
    fn plan_chunk(&self, seq: SeqId, plan: &mut Plan) -> bool {
        let Some(slot) = self.slots.get(seq) else { return false };
        let rows = self.chunk_rows(slot.computed, plan).min(slot.prompt_len - slot.computed);
        if rows == 0 {
            return false;
        }
        let sample = slot.computed + rows == slot.prompt_len;
        plan.push(PlanEntry { seq, start: slot.computed, rows, sample, decode: false });
        true
    }

    /// Prompt rows from `start` on that may join `plan`.
    fn chunk_rows(&self, start: u32, plan: &Plan) -> u32 {
        let room = u64::from(self.config.max_batch_tokens).saturating_sub(plan.work.rows) as u32;
        if plan.decode_rows == 0 {
            return room.min(self.prompt_rows(start, plan));
        }
        // An eighth is left for what the prediction doesn't know.
        let target = self.config.max_step_ns as f64 * 0.875;
        let rows = self.step_time.rows_within(start, target - self.step_time.predict(plan.work));
        // The oldest prompt moves by one row even when decoding alone takes too long: nobody starves.
        let first = plan.entries.len() == plan.decode_rows as usize;
        room.min(rows.max(u32::from(first)))
    }

    /// Of a step of prompts alone: nobody waits for its tokens, but who comes next does, and who has cancelled.
    fn prompt_rows(&self, start: u32, plan: &Plan) -> u32 {
        let least = LEAST_PROMPT_ROWS.saturating_sub(plan.work.rows) as u32;
        self.step_time.rows_within(start, PROMPT_STEP_NS - self.step_time.predict(plan.work)).max(least)
    }

    /// Admits from the head of the queue while rows, batch slots and blocks last.
    fn admit(&mut self, plan: &mut Plan) {
        while let Some(seq) = self.list(Phase::Waiting).head() {
            let Some(slot) = self.slots.get(seq) else { return };
            let blocks = self.blocks_needed(slot.prompt_len, slot.max_new) as usize;
            if blocks > self.pool.free() || self.chunk_rows(0, plan) == 0 {
                return;
            }
            let Some(lane) = self.lanes.take() else { return };
            if !self.pool.alloc(blocks, self.lanes.table_mut(lane)) {
                self.lanes.give_back(lane);
                plan.refused = Some(seq);
                return;
            }
            self.enter(seq, Phase::Prefill);
            if let Some(slot) = self.slots.get_mut(seq) {
                slot.lane = lane;
            }
            plan.admitted.push(seq);
            self.plan_chunk(seq, plan);
        }
    }

    /// The step ran in `step_ns`: its rows are in the cache, and each sampled row has given its sequence one
    /// more token to run. Right after the forward pass, before any finish, cancel or submit.
    pub fn commit(&mut self, plan: &Plan, step_ns: u64) {
        self.step_time.observe(plan.work, step_ns);
        for entry in &plan.entries {
            let Some(slot) = self.slots.get_mut(entry.seq) else { continue };
            if slot.phase == Some(Phase::Waiting) || slot.computed != entry.start {
                debug_assert!(false, "{entry:?} is not of the current state");
                continue;
            }
            slot.computed += entry.rows;
            if entry.sample && !entry.decode {
                self.enter(entry.seq, Phase::Decode);
            }
        }
    }

    /// Block table of a running sequence, all its blocks; empty for others.
    pub fn block_table(&self, seq: SeqId) -> &[u32] {
        match self.slots.get(seq) {
            Some(slot) if slot.lane != NONE => self.lanes.table(slot.lane),
            _ => &[],
        }
    }

    pub fn phase(&self, seq: SeqId) -> Option<Phase> {
        self.slots.get(seq).and_then(|slot| slot.phase)
    }

    /// Positions of `seq` that are in the cache.
    pub fn computed(&self, seq: SeqId) -> Option<u32> {
        self.slots.get(seq).map(|slot| slot.computed)
    }

    pub fn counts(&self) -> Counts {
        Counts {
            waiting: self.list(Phase::Waiting).len(),
            running: self.running(),
            blocks_used: self.pool.used(),
            blocks_total: self.pool.total(),
        }
    }

    /// Every sequence: decoding, in prefill, waiting, each oldest first.
    pub fn for_each_active(&self, mut f: impl FnMut(SeqId, Phase)) {
        for phase in [Phase::Decode, Phase::Prefill, Phase::Waiting] {
            self.list(phase).iter(&self.slots).for_each(|seq| f(seq, phase));
        }
    }

    pub fn step_time(&self) -> &StepTime {
        &self.step_time
    }

    /// Invariant 1, and that what is referenced is what the tables hold. O(blocks); for tests.
    pub fn check(&self) -> Result<()> {
        self.pool.check()?;
        let mut held = 0;
        self.for_each_active(|seq, _| held += self.block_table(seq).len());
        match held == self.pool.used() {
            true => Ok(()),
            false => {
                Err(Error::internal(format!("tables hold {held} blocks, {} are used", self.pool.used())))
            }
        }
    }

    fn list(&self, phase: Phase) -> &List {
        &self.lists[phase as usize]
    }

    /// Moves a sequence to the end of the next phase's list.
    fn enter(&mut self, seq: SeqId, next: Phase) {
        let Some(slot) = self.slots.get_mut(seq) else { return };
        let Some(last) = slot.phase.replace(next) else { return };
        self.lists[last as usize].remove(&mut self.slots, seq);
        self.lists[next as usize].push_back(&mut self.slots, seq);
    }

    fn is_idle(&self) -> bool {
        self.list(Phase::Waiting).len() + self.running() == 0
    }

    fn running(&self) -> usize {
        self.list(Phase::Prefill).len() + self.list(Phase::Decode).len()
    }
}

#[cfg(test)]
mod tests;
