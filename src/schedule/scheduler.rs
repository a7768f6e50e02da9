//! The scheduler's state, and the operations that change it from outside.

use super::drafts::Account;
use super::fetch::{Below, Fetches};
use super::order::RankedQueue;
use super::sessions::Sessions;
use super::slots::{Lanes, SequenceSlot, fill};
use super::*;
use crate::base::{Error, Result, Status, reserve};
use crate::cache::{
    BlockPool, CacheCounts, ContentId, MAX_BLOCK_SIZE, NONE, PrefixCache, StatePool, TreePosition, blocks_for,
};
use std::collections::HashMap;

pub(super) const TABLE: &str = "a block table";

pub struct Scheduler {
    pub(super) config: SchedulerConfig,
    pub(super) cache: PrefixCache,
    pub(super) slots: SequenceSlots,
    pub(super) lanes: Lanes,
    pub(super) waiting: RankedQueue,
    pub(super) running: RankedQueue,
    paused: usize,
    /// The sequence that computes the block with this key now.
    pub(super) pending: HashMap<u64, SeqId>,
    pub(super) sessions: Sessions,
    pub(super) fetches: Fetches,
    /// Copies of states that the planned step makes.
    pub(super) saves: Vec<Save>,
    pub(super) step_time: StepTime,
    /// Times of the passes of a draft model.
    pub(super) draft_time: StepTime,
    /// Recent mean time that prompts add to a step with decode rows, as a multiple of the decode rows' time,
    /// at most `FLOOR`.
    pub(super) usual_prompts: f64,
    pub(super) events: Events,
    /// After an idle time, the first step waits until then for more requests.
    hold_until: u64,
    tickets: u64,
    /// Number of plans made.
    pub(super) plans: u64,
    /// Number of plans made when a sequence last gave its blocks back.
    pub(super) freed: u64,
    /// Blocks that the cache has of a waiting sequence; kept to reuse the memory.
    pub(super) found: Vec<u32>,
    /// Prompts of a step and their rows; kept to reuse the memory.
    pub(super) chunks: Vec<(SeqId, u32)>,
    /// Number of plans that left out drafts that were likely to be accepted.
    pub(super) declined: u64,
    pub(super) account: Account,
    /// Nanoseconds of the passes that drafted for the planned step, and of those that computed known tokens.
    pub(super) drafting_ns: [u64; 2],
    /// Whether drafts run regardless of their cost.
    pub draft_always: bool,
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
        if config.max_logits_rows < max_batch_size {
            return Err(Error::invalid(format!(
                "max_logits_rows ({}) must be at least max_batch_size ({max_batch_size})",
                config.max_logits_rows
            )));
        }
        if max_batch_tokens < max_batch_size {
            return Err(Error::invalid(format!(
                "max_batch_tokens ({max_batch_tokens}) must be at least max_batch_size ({max_batch_size})"
            )));
        }
        let StateConfig { slots, snapshot_interval, .. } = config.states;
        if slots > 0 && (slots < max_batch_size || !snapshot_interval.is_multiple_of(block_size)) {
            return Err(Error::invalid(format!(
                "{slots} states for {max_batch_size} sequences, and snapshots every {snapshot_interval} tokens"
            )));
        }
        let mut cache = PrefixCache::new(blocks, block_size)?;
        cache.states = StatePool::new(slots)?;
        let (mut running, mut chunks) = (RankedQueue::default(), Vec::new());
        running.reserve(max_batch_size as usize)?;
        reserve(&mut chunks, max_batch_size as usize, "a step's prompts")?;
        Ok(Self {
            config,
            cache,
            slots: SequenceSlots::default(),
            lanes: Lanes::new(max_batch_size, blocks)?,
            waiting: RankedQueue::default(),
            running,
            paused: 0,
            pending: HashMap::new(),
            sessions: Sessions::default(),
            fetches: Fetches::default(),
            saves: Vec::new(),
            step_time: StepTime::default(),
            draft_time: StepTime::default(),
            usual_prompts: 0.0,
            events: Events::default(),
            hold_until: 0,
            tickets: 0,
            plans: 0,
            freed: 0,
            found: Vec::new(),
            chunks,
            declined: 0,
            account: Account::default(),
            drafting_ns: [0; 2],
            draft_always: false,
        })
    }

    pub(super) fn blocks_for(&self, positions: u32) -> usize {
        blocks_for(u64::from(positions), self.config.block_size) as usize
    }

    /// As `blocks_for`, of a sequence: none if it has no KV.
    pub(super) fn blocks_of(&self, seq: SeqId, positions: u32) -> usize {
        if self.slots[seq].request.whole { 0 } else { self.blocks_for(positions) }
    }

    /// Queues a request. `TooLong` if it can never run; `Internal` if the slot is taken.
    pub fn submit(&mut self, seq: SeqId, mut request: Request, tokens: &dyn Tokens) -> Result<()> {
        let (prompt, new) = (u64::from(request.prompt_len), u64::from(request.max_new));
        let blocks = blocks_for((prompt + new).saturating_sub(1), self.config.block_size);
        if prompt == 0 || new == 0 || prompt + new > u64::from(u32::MAX) {
            return Err(Error::invalid(format!("a prompt of {prompt} tokens and {new} new ones")));
        }
        if request.whole && prompt > u64::from(self.config.max_batch_tokens) {
            return Err(Error::new(
                Status::TooLong,
                format!(
                    "a prompt of {prompt} tokens runs in one step, and max_batch_tokens = {}",
                    self.config.max_batch_tokens
                ),
            ));
        }
        if !request.whole && blocks > u64::from(self.config.blocks) {
            return Err(Error::new(
                Status::TooLong,
                format!(
                    "a prompt of {prompt} tokens and {new} new ones needs {blocks} KV blocks, there are {}",
                    self.config.blocks
                ),
            ));
        }
        // There are no blocks to share.
        request.reuse.shared &= !request.whole;
        self.waiting.reserve(self.running.len() + self.paused + 1)?;
        let rank = Rank::new(request.arrived_ns, request.priority, self.config.ageing_ns, self.tickets);
        self.slots.open(seq, request, rank)?;
        if let Err(error) = self.make_keys(seq, tokens) {
            self.slots.close(seq);
            return Err(error);
        }
        self.tickets += 1;
        if self.is_idle() {
            self.hold_until = request.arrived_ns.saturating_add(self.config.max_wait_ns);
        }
        self.waiting.insert(&self.slots, seq);
        Ok(())
    }

    /// Computes the keys of the known tokens, including the last block's if it is not full.
    pub(super) fn make_keys(&mut self, seq: SeqId, tokens: &dyn Tokens) -> Result<()> {
        let (size, slot) = (self.config.block_size, &mut self.slots[seq]);
        if !slot.request.reuse.shared {
            return Ok(());
        }
        let content = |at| tokens.content(seq, at);
        slot.extend_keys(slot.len, size, &content)?;
        let full = slot.len / size;
        let mut tail = [ContentId::default(); MAX_BLOCK_SIZE];
        let tail = fill(&mut tail[..(slot.len % size) as usize], full * size, &content);
        slot.tail_key = crate::cache::chain(slot.key_before(full as usize), tail);
        Ok(())
    }

    /// Removes a sequence in any state, and returns the state. Its computed positions stay in the cache. Must
    /// be called between steps: a running forward pass may still write to its blocks.
    pub fn cancel(&mut self, seq: SeqId, tokens: &dyn Tokens) -> State {
        let state = self.state(seq);
        self.take_out(seq, tokens);
        if state != State::Absent {
            self.slots.close(seq);
        }
        state
    }

    /// Makes a sequence give its blocks back and wait until `resume`. Does nothing if it is paused already.
    pub fn pause(&mut self, seq: SeqId, tokens: &dyn Tokens) {
        if matches!(self.state(seq), State::Waiting | State::Running) {
            self.take_out(seq, tokens);
            self.slots[seq].state = State::Paused;
            self.paused += 1;
            self.events.pauses += 1;
        }
    }

    /// Ends a `pause`: the sequence is queued again with its old rank.
    pub fn resume(&mut self, seq: SeqId, now: u64) {
        if self.state(seq) == State::Paused {
            self.paused -= 1;
            self.put_in_line(seq, now);
        }
    }

    /// Preempts a running sequence.
    pub(super) fn preempt(&mut self, seq: SeqId, tokens: &dyn Tokens, now: u64) {
        self.take_out(seq, tokens);
        self.slots[seq].preemptions += 1;
        self.events.preemptions += 1;
        self.put_in_line(seq, now);
    }

    fn put_in_line(&mut self, seq: SeqId, now: u64) {
        let slot = &mut self.slots[seq];
        (slot.state, slot.since, slot.need, slot.retry) = (State::Waiting, now, 0, 0);
        slot.below = Below::Unknown;
        self.waiting.insert(&self.slots, seq);
    }

    /// Removes a sequence from its queue. Its blocks are given back, and none of its positions count as
    /// computed.
    fn take_out(&mut self, seq: SeqId, tokens: &dyn Tokens) {
        match self.state(seq) {
            State::Absent => {}
            State::Waiting => {
                self.waiting.remove(&self.slots, seq);
                self.drop_fetch_of(seq);
            }
            State::Paused => self.paused -= 1,
            State::Running => {
                self.store_tail(seq, tokens, self.has_states());
                self.leave_state(seq);
                self.forget_pending(seq);
                self.running.remove(&self.slots, seq);
                let slot = &mut self.slots[seq];
                self.cache.release_all(self.lanes.table_mut(slot.lane));
                self.lanes.give_back(slot.lane);
                self.freed = self.plans;
                (slot.lane, slot.computed, slot.indexed) = (NONE, 0, 0);
            }
        }
    }

    /// Time at which the next step may start: `None` if there is nothing to do, at most `now` if it may start at
    /// once, later if an idle engine waits for more requests.
    pub fn ready_at(&self, now: u64) -> Option<u64> {
        if self.is_idle() {
            return None;
        }
        let company = self.waiting.len() >= self.config.max_batch_size as usize;
        let hold = self.running.len() == 0 && !company;
        let reads = self.waits_below_until().map_or(now, |until| until.max(now));
        Some(if hold { self.hold_until.max(reads) } else { reads })
    }

    /// Fills `plan` with the next step: admissions, a row for every decoding sequence (invariant 4), and prompt
    /// chunks in the remaining rows and time. It is empty only if nothing runs, and nothing waits for anything but a
    /// prefix on its way. Without a `commit`, the next
    /// plan starts from the same state, except that admitted sequences stay admitted.
    pub fn plan(&mut self, plan: &mut Plan, tokens: &dyn Tokens, now: u64) {
        plan.clear();
        self.hold_until = 0;
        self.plans += 1;
        self.settle_states(tokens, now);
        self.admit(plan, tokens, now);
        self.plan_decodes(plan, tokens, now);
        self.plan_prompts(plan, tokens, now);
        if plan.held_back == HeldBack::Nothing && self.running.len() < self.config.max_batch_size as usize {
            plan.held_back = HeldBack::Queue;
        }
    }

    fn plan_decodes(&mut self, plan: &mut Plan, tokens: &dyn Tokens, now: u64) {
        let (mut at, only) = (0, self.isolated());
        while let Some(seq) = self.running.get(at) {
            let slot = &self.slots[seq];
            let (start, due) = (slot.computed, slot.decodes() && !slot.is_done());
            let due = due && only.is_none_or(|only| only == seq);
            if due {
                if !self.hold(seq, start + 1, plan, tokens, now) {
                    // It was preempted, so another sequence is at `at` now.
                    continue;
                }
                plan.push(PlanEntry::decode(seq, start));
            }
            at += 1;
        }
    }

    /// Takes blocks for the positions below `to` of a running sequence. If there are none left, preempts the last
    /// running sequence. False if that was `seq` itself, or if the system has no memory for its block table.
    pub(super) fn hold(
        &mut self,
        seq: SeqId,
        to: u32,
        plan: &mut Plan,
        tokens: &dyn Tokens,
        now: u64,
    ) -> bool {
        let (blocks, lane) = (self.blocks_of(seq, to), self.slots[seq].lane);
        while self.lanes.table(lane).len() < blocks {
            if reserve(self.lanes.table_mut(lane), 1, TABLE).is_err() {
                plan.refused = Some(seq);
                self.preempt(seq, tokens, now);
                return false;
            }
            if let Some(block) = self.cache.take() {
                self.lanes.table_mut(lane).push(block);
                continue;
            }
            if self.drop_fetch_beside(seq) || self.running.len() == 1 && self.drop_oldest_session() {
                continue;
            }
            let last = self.running.last().unwrap_or(seq);
            plan.drop_seq(last);
            self.preempt(last, tokens, now);
            if last == seq {
                return false;
            }
        }
        true
    }

    /// Commits a step that took `step_ns`. Its rows are in the cache now. Each entry that samples has given its
    /// sequence one token, and one more for each accepted draft. Rows of other drafts are discarded. Must be called
    /// right after the forward pass, before any cancel or submit. Entries whose rows failed must not be in `plan`.
    pub fn commit(&mut self, plan: &Plan, step_ns: u64, tokens: &dyn Tokens) {
        let decodes = plan.decode_rows as usize == plan.entries.len();
        self.step_time.observe_step(plan.work, decodes, step_ns);
        if decodes {
            self.account(plan, step_ns);
        }
        let price = self.price(plan, decodes, step_ns);
        for entry in &plan.entries {
            let slot = match self.slots.get(entry.seq) {
                Some(slot) if slot.state == State::Running && slot.computed == entry.start => {
                    &mut self.slots[entry.seq]
                }
                _ => {
                    debug_assert!(false, "{entry:?} is not of the current state");
                    continue;
                }
            };
            let (before, end) = (slot.computed, slot.computed + entry.kept());
            self.events.recomputed_rows += u64::from(slot.peak.clamp(before, end) - before);
            (slot.computed, slot.peak, slot.stale) = (end, slot.peak.max(end), false);
            price.settle(entry, slot);
            self.store_full(entry.seq, tokens);
            let saved = self.saves(entry.seq).any(|save| save.at == end);
            if !entry.decode && (entry.sample || saved) {
                self.store_tail(entry.seq, tokens, self.has_states());
            }
            if entry.sample {
                if !entry.decode {
                    self.forget_pending(entry.seq);
                }
                self.slots[entry.seq].len += 1 + entry.accepted;
            }
            self.commit_saves(entry.seq);
        }
    }

    /// Adds the blocks that became full to the index.
    fn store_full(&mut self, seq: SeqId, tokens: &dyn Tokens) {
        let size = self.config.block_size;
        let slot = &mut self.slots[seq];
        if !slot.request.reuse.shared || (slot.indexed + 1) * size > slot.computed {
            return;
        }
        let content = |at| tokens.content(seq, at);
        // Without memory for the keys, nothing is added to the cache.
        if slot.extend_keys(slot.computed, size, &content).is_err() {
            return;
        }
        let mut contents = [ContentId::default(); MAX_BLOCK_SIZE];
        while (slot.indexed + 1) * size <= slot.computed {
            let index = slot.indexed as usize;
            let table = self.lanes.table_mut(slot.lane);
            let key = slot.keys[index];
            let contents = fill(&mut contents[..size as usize], slot.indexed * size, &content);
            let Some(block) = self.cache.store(table[index], place(slot, table, index), contents, key) else {
                // Another sequence's contents have this key, so no later block could be found.
                return;
            };
            table[index] = block;
            slot.indexed += 1;
            if self.pending.get(&key) == Some(&seq) {
                self.pending.remove(&key);
            }
        }
    }

    /// Adds the positions after the last full block to the index; see `PrefixCache::store_part`.
    pub(super) fn store_tail(&mut self, seq: SeqId, tokens: &dyn Tokens, twice: bool) {
        let (size, slot) = (self.config.block_size, &self.slots[seq]);
        let full = slot.computed / size;
        if !slot.request.reuse.shared || slot.computed % size == 0 || slot.indexed != full {
            return;
        }
        let mut contents = [ContentId::default(); MAX_BLOCK_SIZE];
        let contents = &mut contents[..(slot.computed % size) as usize];
        let contents = fill(contents, full * size, &|at| tokens.content(seq, at));
        let table = self.lanes.table(slot.lane);
        let place = place(slot, table, full as usize);
        self.cache.store_part(table[full as usize], place, contents, twice);
    }

    /// Withdraws the announcement of the blocks that `seq` computes.
    fn forget_pending(&mut self, seq: SeqId) {
        if self.pending.is_empty() {
            return;
        }
        let slot = &self.slots[seq];
        for key in slot.keys.iter().skip(slot.indexed as usize).chain([&slot.tail_key]) {
            if self.pending.get(key) == Some(&seq) {
                self.pending.remove(key);
            }
        }
    }

    /// The block table of a running sequence; empty for others.
    pub fn block_table(&self, seq: SeqId) -> &[u32] {
        match self.slots.get(seq) {
            Some(slot) if slot.lane != NONE => self.lanes.table(slot.lane),
            _ => &[],
        }
    }

    pub fn state(&self, seq: SeqId) -> State {
        self.slots.get(seq).map_or(State::Absent, |slot| slot.state)
    }

    /// Number of positions of `seq` that are in its blocks.
    pub fn computed(&self, seq: SeqId) -> Option<u32> {
        self.slots.get(seq).map(|slot| slot.computed)
    }

    /// How often `seq` was preempted.
    pub fn preemptions(&self, seq: SeqId) -> u32 {
        self.slots.get(seq).map_or(0, |slot| slot.preemptions)
    }

    /// Running sequences, each with the number of positions that are in its blocks.
    pub fn running(&self) -> impl Iterator<Item = (SeqId, u32)> + '_ {
        self.running.iter().map(move |seq| (seq, self.slots[seq].computed))
    }

    pub fn counts(&self) -> Counts {
        let pool = self.cache.pool();
        Counts {
            waiting: self.waiting.len(),
            paused: self.paused,
            running: self.running.len(),
            blocks_used: pool.held(),
            blocks_cached: pool.idle(),
            blocks_total: pool.total(),
        }
    }

    pub fn events(&self) -> Events {
        self.events
    }

    pub fn cache_counts(&self) -> CacheCounts {
        self.cache.counts()
    }

    pub fn snapshot(&self) -> Snapshot {
        let (sessions, session_blocks) = self.session_counts();
        let (counts, events, cache) = (self.counts(), self.events, self.cache.counts());
        Snapshot { counts, events, cache, sessions, session_blocks }
    }

    /// The cache, for its events.
    pub fn cache_mut(&mut self) -> &mut PrefixCache {
        &mut self.cache
    }

    pub fn pool(&self) -> &BlockPool {
        self.cache.pool()
    }

    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    pub fn step_time(&self) -> &StepTime {
        &self.step_time
    }

    /// Checks invariant 1, the integrity of the index, and that each block's reference count equals its number of
    /// holders. Takes O(blocks); for tests.
    pub fn check(&self) -> Result<()> {
        self.cache.check()?;
        self.check_states()?;
        let mut holders = vec![0; self.cache.pool().total()];
        let mut states = [0; 4];
        for (seq, slot) in self.slots.iter() {
            states[slot.state as usize] += 1;
            self.block_table(seq).iter().for_each(|&block| holders[block as usize] += 1);
            if slot.lane != NONE && self.blocks_of(seq, slot.computed) > self.block_table(seq).len() {
                return Err(Error::internal(format!("{seq:?} has computed more than its blocks hold")));
            }
        }
        for table in self.session_tables().chain(self.fetch_tables()) {
            table.iter().for_each(|&block| holders[block as usize] += 1);
        }
        let lines = [self.waiting.len(), self.paused, self.running.len()];
        if states[1..] != lines {
            return Err(Error::internal(format!("{states:?} sequences by state, {lines:?} in line")));
        }
        let pool = self.cache.pool();
        match (0u32..).zip(&holders).find(|&(block, &n)| pool.references(block) != n) {
            None => Ok(()),
            Some((block, n)) => Err(Error::internal(format!(
                "{n} tables hold block {block}, and it counts {} holders",
                pool.references(block)
            ))),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.len() + self.running.len() == 0
    }
}

/// Place of block `index` of a sequence in the index. All blocks before it must be in the index.
pub(super) fn place(slot: &SequenceSlot, table: &[u32], index: usize) -> TreePosition {
    let parent = if index == 0 { NONE } else { table[index - 1] };
    TreePosition { salt: slot.request.reuse.salt, parent, parent_key: slot.key_before(index) }
}
