//! The order of sequences: ranks, and queues sorted by rank.

use super::{SeqId, SequenceSlots};
use crate::base::{Result, reserved};
use std::collections::VecDeque;

/// A sequence's rank; the lowest comes first. It never changes, so a sequence that waits long enough comes first:
/// each level of priority is worth a fixed waiting time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The arrival time that would give a sequence of the highest priority this rank.
    at: u64,
    /// Order of arrival.
    pub ticket: u64,
}

impl Rank {
    /// Rank of a sequence. `ageing_ns` is the waiting time that the highest priority is worth against the lowest.
    pub fn new(arrived_ns: u64, priority: u8, ageing_ns: u64, ticket: u64) -> Self {
        let behind = u64::from(u8::MAX - priority) * (ageing_ns / u64::from(u8::MAX));
        Self { at: arrived_ns.saturating_add(behind), ticket }
    }
}

/// Sequences sorted by rank. Insertion at either end is cheap.
#[derive(Default)]
pub(super) struct RankedQueue(VecDeque<SeqId>);

impl RankedQueue {
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let bytes = more.saturating_mul(size_of::<SeqId>());
        reserved(self.0.try_reserve(more), "the scheduler's queue", bytes)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<SeqId> {
        self.0.get(at).copied()
    }

    pub(super) fn last(&self) -> Option<SeqId> {
        self.0.back().copied()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = SeqId> + '_ {
        self.0.iter().copied()
    }

    fn place(&self, slots: &SequenceSlots, rank: Rank) -> usize {
        self.0.partition_point(|&seq| slots[seq].rank < rank)
    }

    pub(super) fn insert(&mut self, slots: &SequenceSlots, seq: SeqId) {
        let at = self.place(slots, slots[seq].rank);
        self.0.insert(at, seq);
    }

    pub(super) fn remove(&mut self, slots: &SequenceSlots, seq: SeqId) {
        let at = self.place(slots, slots[seq].rank);
        debug_assert_eq!(self.get(at), Some(seq), "a sequence is not in the line of its state");
        self.0.remove(at);
    }
}
