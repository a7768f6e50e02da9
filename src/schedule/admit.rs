//! Admission: takes sequences from the waiting queue, along with the blocks that the cache has for them.

use super::scheduler::TABLE;
use super::slots::Leader;
use super::*;
use crate::base::{reserve, reserved};
use crate::cache::Found;

/// Maximum number of waiting sequences that a plan tries without success.
const LOOK: usize = 16;
/// Maximum number of late sequences that a plan gives up, and of those waiting for another's prefix that it passes
/// over.
const LOOK_PAST: usize = 256;
/// Number of plans for which a sequence that did not fit is not tried again, unless there is as much room as it
/// needed or another sequence gave blocks back.
const RETRY: u64 = 16;

/// Factor on the predicted time to a first token: prompts that arrive later may go first.
const LATE_MARGIN: f64 = 1.25;

/// Outcome of trying to admit a sequence.
enum Try {
    Admitted,
    /// Not admitted, for this reason.
    No(HeldBack),
}

/// Blocks that admitting a sequence takes.
struct Need {
    /// Blocks that become unavailable: new ones for content that the cache lacks, and idle ones that it
    /// reuses.
    room: usize,
    /// Available blocks that running sequences will need soon.
    promised: usize,
}

impl Scheduler {
    /// Admits waiting sequences while batch slots, blocks and time last.
    pub(super) fn admit(&mut self, plan: &mut Plan, tokens: &dyn Tokens, now: u64) {
        let (mut at, mut passed, mut looks) = (0, false, 0);
        while looks < LOOK
            && let Some(seq) = self.waiting.get(at)
        {
            if self.is_late(seq, tokens, now)
                && at < LOOK_PAST
                && reserve(&mut plan.late, 1, "late sequences").is_ok()
            {
                plan.late.push(seq);
                at += 1;
                continue;
            }
            match self.try_admit(seq, plan, tokens, now) {
                Try::Admitted => self.events.passed += u64::from(passed),
                Try::No(why) => {
                    let on_its_way = matches!(why, HeldBack::Prefix | HeldBack::Lower);
                    looks += usize::from(!on_its_way || at >= LOOK_PAST);
                    if plan.held_back == HeldBack::Nothing {
                        plan.held_back = why;
                    }
                    // Steps become shorter only when fewer sequences run, so others must not pass this one
                    // forever.
                    let out_of_time = why == HeldBack::Time;
                    if plan.refused.is_some() || out_of_time && self.is_patient(seq, now) {
                        break;
                    }
                    passed |= out_of_time || why == HeldBack::Blocks;
                    at += 1;
                }
            }
        }
    }

    /// Whether its first token will be late even if it is admitted now.
    fn is_late(&self, seq: SeqId, tokens: &dyn Tokens, now: u64) -> bool {
        let slot = &self.slots[seq];
        let by = slot.request.first_by_ns;
        if by == 0 || slot.admitted {
            return false;
        }
        let late = |cached: u32| {
            let ns = LATE_MARGIN * self.first_token_ns(seq, cached);
            now.saturating_add(ns as u64) > by
        };
        late(0) && {
            // This is rare, so a new allocation does no harm.
            let found = self.find(seq, tokens, &mut Vec::new());
            late(found.positions(self.config.block_size))
        }
    }

    fn try_admit(&mut self, seq: SeqId, plan: &mut Plan, tokens: &dyn Tokens, now: u64) -> Try {
        if !self.has_time_for(seq) {
            return Try::No(HeldBack::Time);
        }
        if self.running.len() == self.config.max_batch_size as usize && !self.is_urgent(seq) {
            return Try::No(HeldBack::Slots);
        }
        if self.follows(seq) {
            return Try::No(HeldBack::Prefix);
        }
        let slot = &self.slots[seq];
        let may_preempt = self.is_urgent(seq) || self.is_patient(seq, now);
        let same = self.cache.pool().available() < slot.need && self.freed + RETRY < slot.retry;
        if !may_preempt && same && self.plans < slot.retry {
            return Try::No(HeldBack::Blocks);
        }
        let mut table = std::mem::take(&mut self.found);
        table.clear();
        let result = self.try_with(seq, &mut table, plan, tokens, now);
        self.found = table;
        result
    }

    /// `table` receives the blocks that the cache has.
    fn try_with(
        &mut self,
        seq: SeqId,
        table: &mut Vec<u32>,
        plan: &mut Plan,
        tokens: &dyn Tokens,
        now: u64,
    ) -> Try {
        let room = self.make_keys(seq, tokens);
        if room.and_then(|()| reserve(table, self.slots[seq].keys.len() + 1, TABLE)).is_err() {
            plan.refused = Some(seq);
            return Try::No(HeldBack::Blocks);
        }
        let whole = self.find(seq, tokens, table);
        let found = self.cut_to_state(seq, whole, table);
        if self.find_leader(seq, whole.blocks, &found) {
            self.events.followed += 1;
            return Try::No(HeldBack::Prefix);
        }
        if self.fetches.lower.is_some() && self.looks_below(seq, &found, table, tokens, now) {
            return Try::No(HeldBack::Lower);
        }
        let need = self.need(seq, &found);
        if !self.make_room(seq, &need, tokens, now) {
            let slot = &mut self.slots[seq];
            (slot.need, slot.retry) = (need.room + need.promised, self.plans + RETRY);
            return Try::No(HeldBack::Blocks);
        }
        // A preempted sequence may have held the blocks that were found, or have left new ones.
        table.clear();
        let found = self.find(seq, tokens, table);
        let found = self.cut_to_state(seq, found, table);
        match self.start(seq, table, &found, plan) {
            true => Try::Admitted,
            false => Try::No(HeldBack::Blocks),
        }
    }

    /// Whether it ranks before the last running sequence and has a higher priority.
    fn is_urgent(&self, seq: SeqId) -> bool {
        self.running.last().is_some_and(|last| self.outranks(seq, last))
    }

    /// Whether it has waited long enough to preempt those that passed it.
    fn is_patient(&self, seq: SeqId, now: u64) -> bool {
        now.saturating_sub(self.slots[seq].since) >= PATIENCE_NS
    }

    fn outranks(&self, seq: SeqId, other: SeqId) -> bool {
        let (a, b) = (&self.slots[seq], &self.slots[other]);
        a.rank < b.rank && a.request.priority > b.request.priority
    }

    /// Whether a batch with `seq` keeps `target_itl_ns`, with the usual share of prompts in its steps.
    fn has_time_for(&self, seq: SeqId) -> bool {
        if self.config.target_itl_ns == 0 || self.running.len() == 0 {
            return true;
        }
        let mut work = Work::default();
        for seq in self.running.iter().chain([seq]) {
            work.add(Work::span(self.slots[seq].len, 1));
        }
        self.step_time.predict(work) * (1.0 + self.usual_prompts) <= self.config.target_itl_ns as f64
    }

    /// Whether the sequence that `seq` waits for is still computing their common prefix.
    fn follows(&mut self, seq: SeqId) -> bool {
        let Some(Leader { seq: leader, ticket, until }) = self.slots[seq].leader else { return false };
        let goes_on = self
            .slots
            .get(leader)
            .is_some_and(|l| l.state == State::Running && l.rank.ticket == ticket && l.computed < until);
        if !goes_on {
            self.slots[seq].leader = None;
        }
        goes_on
    }

    pub(super) fn find(&self, seq: SeqId, tokens: &dyn Tokens, table: &mut Vec<u32>) -> Found {
        let slot = &self.slots[seq];
        let reuse = slot.request.reuse;
        if !reuse.shared {
            return Found::default();
        }
        let mut limit = slot.reusable();
        loop {
            let found = self.cache.find(reuse.salt, &slot.keys, &|at| tokens.content(seq, at), limit, table);
            match tokens.undivided(seq, found.positions(self.config.block_size)) {
                Some(rows) => limit = rows.start,
                None => return found,
            }
            table.clear();
        }
    }

    /// Looks for a running sequence of higher rank that computes the next positions of `seq` now. The cache has the
    /// first `known` blocks of `seq`, which can go on from `found`.
    fn find_leader(&mut self, seq: SeqId, known: usize, found: &Found) -> bool {
        let (slot, size) = (&self.slots[seq], self.config.block_size);
        if self.pending.is_empty() || !slot.request.reuse.shared {
            return false;
        }
        let key = |index: usize| slot.keys.get(index).unwrap_or(&slot.tail_key);
        let Some(&leader) = self.pending.get(key(known)) else { return false };
        let last = slot.keys.len();
        let mut common = known;
        while common <= last && self.pending.get(key(common)) == Some(&leader) {
            common += 1;
        }
        let until = (common as u32).saturating_mul(size).min(slot.reusable());
        let have = found.positions(size);
        let front = &self.slots[leader];
        // Only a block's end, or the end of the leader's prompt, gets a snapshot.
        let until = match self.has_states() && until + 1 != front.request.prompt_len {
            true => until - until % size,
            false => until,
        };
        if front.rank > slot.rank || front.computed >= until || until < have + WORTH {
            return false;
        }
        self.slots[seq].leader = Some(Leader { seq: leader, ticket: front.rank.ticket, until });
        self.branches_at(leader, until);
        true
    }

    fn need(&self, seq: SeqId, found: &Found) -> Need {
        let slot = &self.slots[seq];
        let blocks = self.blocks_of(seq, slot.len) - found.blocks;
        let promised = self.all_promised();
        // A sequence that was preempted often starts again only with room to get further.
        let growth = self.blocks_of(seq, slot.bound()) - self.blocks_of(seq, slot.len);
        let ahead = match slot.preemptions {
            0 => 0,
            n => 1usize << n.min(20),
        };
        Need { room: blocks + found.idle + growth.min(ahead), promised }
    }

    /// Blocks that running sequences will need soon.
    pub(super) fn all_promised(&self) -> usize {
        self.running.iter().map(|seq| self.promised(seq)).sum()
    }

    /// Blocks that a running sequence still needs for its known tokens and one block more.
    fn promised(&self, seq: SeqId) -> usize {
        let slot = &self.slots[seq];
        let to = slot.bound().min(slot.len.saturating_add(self.config.block_size));
        self.blocks_of(seq, to).saturating_sub(self.lanes.table(slot.lane).len())
    }

    /// Makes room for `seq`, by preemption if needed. False if that is impossible.
    fn make_room(&mut self, seq: SeqId, need: &Need, tokens: &dyn Tokens, now: u64) -> bool {
        let slots = self.config.max_batch_size as usize;
        let alone = self.running.len() == 0;
        // Sessions are dropped only as far as needed, the oldest first: this request may continue one of them.
        while alone
            && self.cache.pool().available() < need.room
            && (self.drop_fetch_beside(seq) || self.drop_oldest_session())
        {}
        let available = self.cache.pool().available();
        let fits = available >= need.room + need.promised || alone;
        if fits && self.running.len() < slots {
            return true;
        }
        let patient = self.is_patient(seq, now);
        // Choose the victims, from the end of the queue on, until there is enough room.
        let (mut victims, mut gained) = (0, 0);
        for victim in self.running.iter().rev() {
            let passed = patient && !fits && self.slots[seq].rank < self.slots[victim].rank;
            if !passed && !self.outranks(seq, victim) {
                return false;
            }
            victims += 1;
            gained += self.gain(victim);
            let last = victims == self.running.len();
            if last || available + gained >= need.room + need.promised {
                break;
            }
        }
        if victims == 0 {
            return false;
        }
        for _ in 0..victims {
            if let Some(victim) = self.running.last() {
                self.preempt(victim, tokens, now);
                self.events.preempted_for_others += 1;
            }
        }
        true
    }

    /// Blocks that preempting `seq` makes available or unpromised.
    fn gain(&self, seq: SeqId) -> usize {
        let pool = self.cache.pool();
        let table = self.lanes.table(self.slots[seq].lane);
        let own = table.iter().filter(|&&block| pool.references(block) == 1).count();
        own + self.promised(seq)
    }

    /// Moves `seq` from the waiting queue to the running one, with the blocks that the cache has for it. False,
    /// with nothing changed, if the system has no memory for its block table.
    fn start(&mut self, seq: SeqId, found: &[u32], what: &Found, plan: &mut Plan) -> bool {
        let blocks = self.blocks_of(seq, self.slots[seq].len);
        let Some(lane) = self.lanes.take() else { return false };
        let table = self.lanes.table_mut(lane);
        let pending = self.slots[seq].keys.len() + 1;
        let made = reserve(table, blocks, TABLE);
        if made.and_then(|()| reserved(self.pending.try_reserve(pending), TABLE, 16 * pending)).is_err() {
            self.lanes.give_back(lane);
            plan.refused = Some(seq);
            return false;
        }
        self.cache.retain(found);
        table.extend_from_slice(found);
        let size = self.config.block_size;
        let mut cached = what.blocks as u32 * size;
        let whole = what.positions(size);
        // This is right even if the block taken for the copy is the source itself: its contents stay until they are
        // overwritten.
        if let Some((part, positions)) = what.part
            && let Some(block) = self.cache.take()
        {
            table.push(block);
            cached += positions;
            if block != part {
                plan.copies.push((part, block));
            }
            self.events.copies += 1;
        }
        self.waiting.remove(&self.slots, seq);
        self.drop_fetch_of(seq);
        self.begin_state(seq, what.state, plan);
        let slot = &mut self.slots[seq];
        slot.stale = cached < whole;
        let resumed = std::mem::replace(&mut slot.admitted, true);
        (slot.state, slot.lane, slot.computed) = (State::Running, lane, cached);
        (slot.indexed, slot.leader) = (what.blocks as u32, None);
        self.running.insert(&self.slots, seq);
        self.announce(seq);
        self.events.resumed += u64::from(resumed);
        if !resumed {
            self.events.cached_positions += u64::from(cached);
            self.events.prompt_positions += u64::from(self.slots[seq].len);
        }
        plan.admitted.push(Admission { seq, cached, resumed });
        true
    }

    /// Announces the blocks that `seq` computes now, so that others that need them may wait.
    fn announce(&mut self, seq: SeqId) {
        let slot = &self.slots[seq];
        if !slot.request.reuse.shared || slot.decodes() {
            return;
        }
        for &key in slot.keys.iter().skip(slot.indexed as usize).chain([&slot.tail_key]) {
            self.pending.entry(key).or_insert(seq);
        }
    }
}
