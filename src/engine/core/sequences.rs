//! The live sequences of an engine thread.

use crate::base::{Result, reserve};
use crate::cache::{ContentId, PictureSpan};
use crate::engine::hub::ids::RequestId;
use crate::engine::request::sequence::Sequence;
use crate::schedule::{SeqId, Tokens};
use std::ops::Range;

#[derive(Default)]
pub(crate) struct Sequences {
    /// Indexed by slot, which is also the scheduler's `SeqId`; and the branches of requests with questions.
    slots: [Vec<Option<Box<Sequence>>>; 2],
    /// Number of requests, including those that are lent.
    len: usize,
}

impl Sequences {
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        let mut slots = Vec::new();
        reserve(&mut slots, capacity, "the engine's queue")?;
        Ok(Self { slots: [slots, Vec::new()], len: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, sequence: Box<Sequence>) {
        let (range, slot) = sequence.seq().place();
        let slots = &mut self.slots[range];
        if slot >= slots.len() {
            slots.resize_with(slot + 1, || None);
        }
        debug_assert!(slots[slot].is_none(), "a slot was reused before its terminal event");
        slots[slot] = Some(sequence);
        self.len += 1 - range;
    }

    /// Reserves room for a branch, so that `insert` allocates nothing.
    pub(crate) fn make_room(&mut self, branch: SeqId) -> Result<()> {
        let (range, slot) = branch.place();
        let slots = &mut self.slots[range];
        reserve(slots, (slot + 1).saturating_sub(slots.len()), "the branches of questions")
    }

    pub(crate) fn remove(&mut self, seq: SeqId) -> Option<Box<Sequence>> {
        let sequence = self.lend(seq)?;
        self.len -= usize::from(sequence.owner().is_none());
        Some(sequence)
    }

    /// Takes a sequence out until `put_back`. It still counts.
    pub(crate) fn lend(&mut self, seq: SeqId) -> Option<Box<Sequence>> {
        let (range, slot) = seq.place();
        self.slots[range].get_mut(slot)?.take()
    }

    pub(crate) fn put_back(&mut self, sequence: Box<Sequence>) {
        let (range, slot) = sequence.seq().place();
        self.slots[range][slot] = Some(sequence);
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Sequence> {
        let (range, slot) = seq.place();
        self.slots[range].get(slot)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        let (range, slot) = seq.place();
        self.slots[range].get_mut(slot)?.as_deref_mut()
    }

    /// The sequence of a request. Its slot may serve another request already.
    pub(crate) fn find(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.get_mut(SeqId(id.slot())).filter(|sequence| sequence.id == id)
    }

    pub(crate) fn holds(&self, id: RequestId) -> bool {
        self.get(SeqId(id.slot())).is_some_and(|sequence| sequence.id == id)
    }

    /// Whether its request was neither cancelled nor has expired at `now`.
    pub(crate) fn lives(&self, seq: SeqId, now: u64) -> bool {
        let lives = |own: &Sequence| !own.doomed && own.times.expired(now).is_none();
        let Some(sequence) = self.get(seq) else { return false };
        lives(sequence) && sequence.owner().is_none_or(|owner| self.get(owner).is_some_and(lives))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots[0].iter().flatten().map(|sequence| &**sequence)
    }

    /// The requests, without their branches.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots[0].iter_mut().flatten().map(|sequence| &mut **sequence)
    }

    /// Slots that have had a request.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SeqId> + use<> {
        (0..self.slots[0].len() as u32).map(SeqId)
    }
}

/// The tokens of all sequences, for the scheduler.
impl Tokens for Sequences {
    fn content(&self, seq: SeqId, position: u32) -> ContentId {
        let sequence = self.get(seq).expect("the scheduler asks for live sequences");
        sequence.content_at(position)
    }

    fn undivided(&self, seq: SeqId, position: u32) -> Option<Range<u32>> {
        self.get(seq)?.undivided(position)
    }

    fn pictures(&self, seq: SeqId, positions: u32) -> Result<Vec<PictureSpan>> {
        let pictures = self.get(seq).and_then(|sequence| sequence.pictures.as_ref());
        pictures.map_or(Ok(Vec::new()), |pictures| pictures.spans(positions))
    }
}
