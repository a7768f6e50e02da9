//! Sequences in slots, threaded on linked lists: any of a million can leave in O(1), order kept.

use super::{Phase, SeqId};
use crate::base::{Error, Result};
use crate::cache::BlockTable;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// One sequence. `phase` says which list it is on; None: the slot is empty.
#[derive(Debug)]
pub(super) struct Slot {
    pub phase: Option<Phase>,
    pub prompt_len: u32,
    pub max_new: u32,
    /// Positions whose K and V are in the cache.
    pub computed: u32,
    /// Where its block table is, while it runs.
    pub lane: u32,
    prev: u32,
    next: u32,
}

const EMPTY: Slot =
    Slot { phase: None, prompt_len: 0, max_new: 0, computed: 0, lane: NONE, prev: NONE, next: NONE };

/// Slots by id, growing to the highest id seen.
#[derive(Default)]
pub(super) struct Slots(Vec<Slot>);

impl Slots {
    pub fn get(&self, seq: SeqId) -> Option<&Slot> {
        self.0.get(seq.0 as usize).filter(|slot| slot.phase.is_some())
    }

    pub fn get_mut(&mut self, seq: SeqId) -> Option<&mut Slot> {
        self.0.get_mut(seq.0 as usize).filter(|slot| slot.phase.is_some())
    }

    /// A new sequence in an empty slot, on no list yet.
    pub fn open(&mut self, seq: SeqId, prompt_len: u32, max_new: u32) -> Result<()> {
        let index = seq.0 as usize;
        if index >= self.0.len() {
            let more = index + 1 - self.0.len();
            if seq.0 == NONE || self.0.try_reserve(more).is_err() {
                return Err(Error::out_of_memory("scheduler slots", more.saturating_mul(size_of::<Slot>())));
            }
            self.0.resize_with(index + 1, || EMPTY);
        }
        if self.0[index].phase.is_some() {
            return Err(Error::internal(format!("scheduler slot {index} is taken")));
        }
        self.0[index] = Slot { phase: Some(Phase::Waiting), prompt_len, max_new, ..EMPTY };
        Ok(())
    }

    pub fn close(&mut self, seq: SeqId) {
        self.0[seq.0 as usize] = EMPTY;
    }
}

/// A doubly linked list through `Slots`, oldest first. A slot is on one list at a time.
pub(super) struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl List {
    pub const fn new() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn head(&self) -> Option<SeqId> {
        (self.head != NONE).then_some(SeqId(self.head))
    }

    pub fn next(&self, slots: &Slots, seq: SeqId) -> Option<SeqId> {
        let next = slots.0[seq.0 as usize].next;
        (next != NONE).then_some(SeqId(next))
    }

    pub fn iter<'a>(&'a self, slots: &'a Slots) -> impl Iterator<Item = SeqId> + 'a {
        std::iter::successors(self.head(), |&seq| self.next(slots, seq))
    }

    pub fn push_back(&mut self, slots: &mut Slots, seq: SeqId) {
        let slot = &mut slots.0[seq.0 as usize];
        (slot.prev, slot.next) = (self.tail, NONE);
        match self.tail {
            NONE => self.head = seq.0,
            tail => slots.0[tail as usize].next = seq.0,
        }
        self.tail = seq.0;
        self.len += 1;
    }

    pub fn remove(&mut self, slots: &mut Slots, seq: SeqId) {
        let Slot { prev, next, .. } = slots.0[seq.0 as usize];
        match prev {
            NONE => self.head = next,
            prev => slots.0[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => slots.0[next as usize].prev = prev,
        }
        self.len -= 1;
    }
}

/// Block tables of running sequences, kept for the next one so that admission rarely allocates.
pub(super) struct Lanes {
    tables: Vec<BlockTable>,
    free: Vec<u32>,
    /// Capacity that an idle table may keep, in blocks: bounds all tables by a few bytes per block.
    keep: usize,
}

impl Lanes {
    pub fn new(lanes: u32, blocks: u32) -> Result<Self> {
        let count = lanes as usize;
        let (mut tables, mut free) = (Vec::new(), Vec::new());
        let reserved = tables.try_reserve_exact(count).and_then(|()| free.try_reserve_exact(count));
        if reserved.is_err() {
            return Err(Error::out_of_memory("block tables", count.saturating_mul(size_of::<BlockTable>())));
        }
        tables.resize_with(count, BlockTable::new);
        free.extend((0..lanes).rev());
        Ok(Self { tables, free, keep: (blocks as usize / count).saturating_mul(4).max(64) })
    }

    /// A lane with an empty table.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives back a lane whose table is empty again.
    pub fn give_back(&mut self, lane: u32) {
        let table = &mut self.tables[lane as usize];
        debug_assert!(table.is_empty());
        if table.capacity() > self.keep {
            *table = BlockTable::new();
        }
        self.free.push(lane);
    }

    pub fn table(&self, lane: u32) -> &BlockTable {
        &self.tables[lane as usize]
    }

    pub fn table_mut(&mut self, lane: u32) -> &mut BlockTable {
        &mut self.tables[lane as usize]
    }
}
