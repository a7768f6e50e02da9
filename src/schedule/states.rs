//! States of recurrent layers: the slot of each running sequence, and the snapshots that later sequences continue from.
//!
//! A running sequence holds a slot, which a step updates in place. On its way through a prompt a step also saves
//! copies: every `snapshot_interval` tokens, where another sequence's text is known to diverge from this one's, and
//! before the prompt's last token. When the sequence leaves, its slot itself becomes a snapshot.

use super::slots::{BRANCHES, SequenceSlot};
use super::{Plan, PlanEntry, Scheduler, SeqId, Tokens, WORTH};
use crate::base::reserve;
use crate::cache::{BlockTable, Found, NONE, Snapshot};

/// A copy of a state that a step makes on its way through a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Save {
    pub seq: SeqId,
    /// Number of the sequence's tokens that it covers.
    pub at: u32,
    pub slot: u32,
}

impl Scheduler {
    pub(super) fn has_states(&self) -> bool {
        !self.cache.states.is_empty()
    }

    /// The slot of a running sequence's state. `None` in a model without recurrent layers.
    pub fn state_slot(&self, seq: SeqId) -> Option<u32> {
        self.slots.get(seq).map(|slot| slot.recurrent).filter(|state| *state != NONE)
    }

    /// The copies that the planned step makes of a sequence's state, in ascending order.
    pub fn saves(&self, seq: SeqId) -> impl Iterator<Item = &Save> {
        self.saves.iter().filter(move |save| save.seq == seq)
    }

    /// Records that a pass with rows of `seq` begins. Without a commit its state is unknown afterwards, and it computes
    /// all its positions again.
    pub fn ran(&mut self, seq: SeqId) {
        if self.state_slot(seq).is_some() {
            self.slots[seq].stale = true;
        }
    }

    /// Makes a sequence run in steps of its own until it has computed the rows of `entry` again: a pass with them
    /// failed, and this finds out whether the rows of this sequence were the cause.
    pub fn isolate(&mut self, entry: &PlanEntry) {
        self.slots[entry.seq].alone_until = entry.start + entry.known();
    }

    /// The running sequence that must have the next step alone, if there is one.
    pub(super) fn isolated(&self) -> Option<SeqId> {
        let runs_alone = |seq: &SeqId| self.slots[*seq].computed < self.slots[*seq].alone_until;
        self.running.iter().filter(|_| self.has_states()).find(runs_alone)
    }

    /// Preempts the sequences of a pass that was not committed.
    pub(super) fn settle_states(&mut self, tokens: &dyn Tokens, now: u64) {
        self.drop_saves();
        let mut at = 0;
        while let Some(seq) = self.running.get(at).filter(|_| self.has_states()) {
            match self.slots[seq].stale {
                true => self.preempt(seq, tokens, now),
                false => at += 1,
            }
        }
    }

    /// Gives back the slots of copies that no commit took.
    pub(super) fn drop_saves(&mut self) {
        while let Some(save) = self.saves.pop() {
            self.cache.states.release(save.slot);
        }
    }

    /// Cuts the cached prefix of a sequence to the deepest snapshot, and notes where its text diverges from the
    /// cached one.
    pub(super) fn cut_to_state(&mut self, seq: SeqId, found: Found, table: &mut BlockTable) -> Found {
        if !self.has_states() {
            return found;
        }
        let matched = found.positions(self.config.block_size);
        self.branches_at(seq, matched);
        self.cache.cut_to_state(found, table)
    }

    /// Other sequences continue differently after `at` tokens of `seq`: a snapshot at the block's start will serve
    /// them.
    pub(super) fn branches_at(&mut self, seq: SeqId, at: u32) {
        let at = at - at % self.config.block_size;
        let branches = &mut self.slots[seq].branches;
        if self.cache.states.is_empty() || at < WORTH || branches.contains(&at) {
            return;
        }
        let last = branches.iter().position(|branch| *branch == 0).unwrap_or(BRANCHES - 1);
        branches[last] = at;
    }

    /// Takes a slot for a sequence that is admitted, which continues from `from`. None may be left only if the model
    /// has no states.
    pub(super) fn begin_state(&mut self, seq: SeqId, from: Option<u32>, plan: &mut Plan) {
        from.into_iter().for_each(|from| self.cache.states.touch(from));
        let Some(slot) = self.cache.states.take() else { return };
        if let Some(from) = from {
            // The slot of the snapshot itself may have been taken; its contents are still there.
            if from != slot {
                plan.state_copies.push((from, slot));
            }
        }
        (self.slots[seq].recurrent, self.slots[seq].stale) = (slot, false);
    }

    /// Plans copies of the state within the next `rows` rows of a prompt.
    pub(super) fn plan_saves(&mut self, seq: SeqId, rows: u32) {
        let slot = &self.slots[seq];
        if slot.recurrent == NONE || !slot.request.reuse.shared {
            return;
        }
        let (start, end) = (slot.computed, slot.computed + rows);
        let mut from = start.max(WORTH - 1);
        while let Some(at) = self.next_save(seq, from).filter(|at| *at <= end) {
            from = at;
            if reserve(&mut self.saves, 1, "snapshots").is_err() {
                return;
            }
            let Some(slot) = self.cache.states.take() else { return };
            self.saves.push(Save { seq, at, slot });
        }
    }

    /// The first position after `from` where a snapshot is wanted.
    fn next_save(&self, seq: SeqId, from: u32) -> Option<u32> {
        let (slot, interval) = (&self.slots[seq], self.config.states.snapshot_interval);
        let regular = from.checked_div(interval).map(|n| (n + 1) * interval);
        let last = slot.request.prompt_len - 1;
        let wanted = slot.branches.iter().copied().chain(regular).chain([last]);
        wanted.filter(|at| *at > from && *at <= last).min()
    }

    /// Makes the copies that the committed step made of a sequence's state snapshots.
    pub(super) fn commit_saves(&mut self, seq: SeqId) {
        let mut at = 0;
        while let Some(save) = self.saves.get(at).copied() {
            if save.seq != seq || save.at > self.slots[seq].computed {
                at += 1;
                continue;
            }
            self.saves.remove(at);
            self.store_state(seq, save.at, save.slot);
            self.cache.states.release(save.slot);
        }
    }

    /// Makes a slot the snapshot after `at` positions of `seq`, if the prefix index has these.
    pub(super) fn store_state(&mut self, seq: SeqId, at: u32, state: u32) -> bool {
        let slot = &self.slots[seq];
        let Some(index) = at.checked_sub(1).map(|last| last / self.config.block_size) else { return false };
        let at = at - index * self.config.block_size;
        let block = self.lanes.table(slot.lane).get(index as usize).copied();
        let block = block.filter(|block| slot.request.reuse.shared && self.cache.indexed(*block) >= at);
        block.is_some_and(|block| self.cache.states.store(state, Snapshot { block, at }))
    }

    /// Gives back the slot of a sequence that leaves. Its state becomes a snapshot if it is known.
    pub(super) fn leave_state(&mut self, seq: SeqId) {
        let SequenceSlot { recurrent: state, stale, computed, .. } = self.slots[seq];
        if state == NONE {
            return;
        }
        if !stale {
            self.store_state(seq, computed, state);
        }
        self.cache.states.release(state);
        (self.slots[seq].recurrent, self.slots[seq].stale) = (NONE, false);
    }

    /// Checks that the holders of each state are counted, and that running sequences have one each. For tests.
    pub(super) fn check_states(&self) -> crate::base::Result<()> {
        let states = &self.cache.states;
        let mut holders = vec![0; states.total()];
        let running = self.slots.iter().filter(|(_, slot)| slot.recurrent != NONE);
        running.for_each(|(_, slot)| holders[slot.recurrent as usize] += 1);
        self.session_states().chain(self.fetch_states()).for_each(|slot| holders[slot as usize] += 1);
        self.saves.iter().for_each(|save| holders[save.slot as usize] += 1);
        let wrong = (0u32..).zip(&holders).find(|(slot, n)| states.holders(*slot) != **n);
        let without = self.running.iter().find(|seq| self.has_states() && self.slots[*seq].recurrent == NONE);
        match (wrong, without) {
            (None, None) => Ok(()),
            (wrong, without) => {
                let message = format!("holders of states {wrong:?}, running without one {without:?}");
                Err(crate::base::Error::internal(message))
            }
        }
    }
}
