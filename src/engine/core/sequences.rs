//! The live sequences of an engine thread.

use crate::base::{Result, reserve};
use crate::cache::ContentId;
use crate::engine::hub::ids::RequestId;
use crate::engine::request::sequence::Sequence;
use crate::schedule::{SeqId, Tokens};

#[derive(Default)]
pub(crate) struct Sequences {
    /// Indexed by slot, which is also the scheduler's `SeqId`.
    slots: Vec<Option<Box<Sequence>>>,
    /// Number of sequences, including those that are lent.
    len: usize,
}

impl Sequences {
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let mut slots = Vec::new();
        reserve(&mut slots, capacity, "the engine's queue")?;
        Ok(Self { slots, len: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, sequence: Box<Sequence>) {
        let slot = sequence.id.slot() as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        debug_assert!(self.slots[slot].is_none(), "a slot was reused before its terminal event");
        self.slots[slot] = Some(sequence);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Box<Sequence>> {
        let sequence = self.lend(seq)?;
        self.len -= 1;
        Some(sequence)
    }

    /// Takes a sequence out until `put_back`. It still counts.
    pub(crate) fn lend(&mut self, seq: SeqId) -> Option<Box<Sequence>> {
        self.slots.get_mut(seq.0 as usize)?.take()
    }

    pub(crate) fn put_back(&mut self, sequence: Box<Sequence>) {
        let slot = sequence.id.slot() as usize;
        self.slots[slot] = Some(sequence);
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        self.slots.get(seq.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.slots.get_mut(seq.0 as usize)?.as_deref_mut()
    }

    /// The sequence of a request. Its slot may serve another request already.
    pub(crate) fn find(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.get_mut(SeqId(id.slot())).filter(|sequence| sequence.id == id)
    }

    pub(crate) fn holds(&self, id: RequestId) -> bool {
        self.get(SeqId(id.slot())).is_some_and(|sequence| sequence.id == id)
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten().map(|sequence| &**sequence)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().flatten().map(|sequence| &mut **sequence)
    }

    /// Slots that have had a sequence.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SeqId> + use<> {
        (0..self.slots.len() as u32).map(SeqId)
    }
}

/// The tokens of all sequences, for the scheduler.
impl Tokens for Sequences {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        let sequence = self.get(seq).expect("the scheduler asks for live sequences");
        sequence.token_at(position as usize).into()
    }
}
