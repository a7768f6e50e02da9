//! The states of a draft model with recurrent layers.
//!
//! A recurrent state stands for the first tokens of one text, and cannot be taken back to fewer. So a record keeps two
//! states of a sequence: one after tokens that are certain, and a trial that went on from it through drafts. If all
//! these drafts turn out right, the trial takes the other's place; else their tokens are computed again.
//!
//! A record belongs to the block of its last certain position, not to a request: whoever has that block has the same
//! text before it, so requests go on from it after preemption, and so do later ones that find the blocks in the
//! prefix cache.

use super::Wanted;
use crate::base::{Result, reserve};
use crate::engine::memory::states::DRAFT_SLOTS;
use crate::ops::{Memory, Unit};
use crate::schedule::MAX_DRAFT;

const NONE: u32 = u32::MAX;

struct Record {
    /// Slots of the certain state and of the trial.
    slots: [u32; DRAFT_SLOTS],
    /// Number of tokens that the certain state covers; 0: there is none.
    at: u32,
    /// The block of the last of these tokens, and the last copy that was made of it; `NONE`: there is none, or
    /// it has changed since.
    blocks: [u32; 2],
    /// The drafts that the trial went on through, and their number.
    drafts: [u32; MAX_DRAFT],
    tried: u32,
    /// The last pass that used it.
    pass: u64,
}

impl Record {
    fn new(slots: [u32; DRAFT_SLOTS]) -> Self {
        Self { slots, at: 0, blocks: [NONE; 2], drafts: [0; MAX_DRAFT], tried: 0, pass: 0 }
    }

    /// Number of tokens that the trial covers.
    fn end(&self) -> u32 {
        self.at + self.tried
    }

    /// Whether the sequence with this block table begins with the tokens of the certain state.
    fn is_of(&self, table: &[u32], size: u32) -> bool {
        let block = self.at.checked_sub(1).and_then(|last| table.get((last / size) as usize));
        block.is_some_and(|block| self.blocks.contains(block))
    }
}

/// Where the rows of a sequence begin, and the record that they go on from.
#[derive(Clone, Copy)]
pub(super) struct Start {
    record: usize,
    pub first: u32,
}

/// A record as the pass that is being built leaves it.
struct Left {
    record: usize,
    at: u32,
    blocks: [u32; 2],
    tried: u32,
}

pub(super) struct DraftStates {
    records: Vec<Record>,
    /// Number of positions of a block.
    size: u32,
    /// The pass that is being built, and how it leaves records.
    pass: u64,
    left: Vec<Left>,
}

const WHAT: &str = "the draft model's states";

impl DraftStates {
    /// Keeps the states of `count` sequences, in `DRAFT_SLOTS` slots for each. `OutOfMemory`.
    pub(super) fn new(count: usize, block_size: usize) -> Result<Self> {
        let (mut records, mut left) = (Vec::new(), Vec::new());
        reserve(&mut records, count, WHAT)?;
        reserve(&mut left, count, WHAT)?;
        records.extend((0..count as u32).map(|n| Record::new([2 * n, 2 * n + 1])));
        Ok(Self { records, size: block_size as u32, pass: 0, left })
    }

    /// Only the first `filled` positions of a block are what they were.
    pub(super) fn cut(&mut self, block: u32, filled: u8) {
        for record in self.records.iter_mut().filter(|record| record.at > 0) {
            if (record.at - 1) % self.size < filled.into() {
                continue;
            }
            record.blocks.iter_mut().filter(|own| **own == block).for_each(|own| *own = NONE);
            if record.blocks == [NONE; 2] {
                record.at = 0;
            }
        }
    }

    pub(super) fn copied(&mut self, from: u32, to: u32) {
        self.cut(to, 0);
        for record in self.records.iter_mut().filter(|record| record.blocks.contains(&from)) {
            record.blocks[1] = to;
        }
    }

    /// The deepest certain state of a sequence within its first `computed` positions.
    fn best(&self, table: &[u32], computed: u32) -> Option<usize> {
        let fits = |record: &Record| record.at <= computed && record.is_of(table, self.size);
        let found = self.records.iter().enumerate().filter(|(_, record)| fits(record));
        found.max_by_key(|(_, record)| record.at).map(|(n, _)| n)
    }

    /// Number of positions of a sequence that have a certain state, if K and V of the first `computed` are known.
    pub(super) fn reach(&self, table: &[u32], computed: u32) -> u32 {
        self.best(table, computed).map_or(0, |n| self.records[n].at)
    }

    pub(super) fn begin(&mut self) {
        self.pass += 1;
        self.left.clear();
    }

    /// Where the sequence's rows in this pass begin, if K and V of its first `computed` positions are known. None if
    /// this pass uses all records or, after the first draft, if the trial is lost.
    pub(super) fn start(&self, wanted: &Wanted, computed: u32) -> Option<Start> {
        let Wanted { table, last, pass, token, .. } = *wanted;
        if pass > 0 {
            // The record of the pass before, whose rows ended with the draft before this one.
            let goes_on = |record: &Record| {
                record.pass + 1 == self.pass && record.end() == last && record.is_of(table, self.size)
            };
            let record = self.records.iter().position(goes_on).filter(|_| computed == last)?;
            return Some(Start { record, first: last });
        }
        let Some(record) = self.best(table, computed) else {
            let free = self.records.iter().enumerate().filter(|(_, record)| record.pass != self.pass);
            let record = free.min_by_key(|(_, record)| (record.at > 0, record.pass))?.0;
            return Some(Start { record, first: 0 });
        };
        let own = &self.records[record];
        let mut drafts = own.drafts[..own.tried as usize].iter().zip(own.at..);
        let right = own.end() <= computed && drafts.all(|(draft, at)| *draft == token(at));
        Some(Start { record, first: if right { own.end() } else { own.at } })
    }

    /// The slot of the sequence's state in a pass with `rows` rows from `start` on.
    pub(super) fn take(
        &mut self,
        start: Start,
        wanted: &Wanted,
        rows: u32,
        memory: &mut dyn Memory,
    ) -> Result<u32> {
        let Wanted { table, last, pass, token, .. } = *wanted;
        let (number, record) = (start.record, &mut self.records[start.record]);
        record.pass = self.pass;
        // A state that the pass changes is unknown until the pass has run.
        let tried = std::mem::take(&mut record.tried);
        if pass > 0 {
            let [certain, trial] = record.slots;
            if tried == 0 {
                memory.copy(Unit::State, &[(certain, trial)])?;
            }
            record.drafts[tried as usize] = token(last);
            let (at, blocks) = (record.at, record.blocks);
            self.left.push(Left { record: number, at, blocks, tried: tried + 1 });
            return Ok(trial);
        }
        if start.first > record.at {
            record.slots.swap(0, 1);
        }
        record.at = 0;
        let at = start.first + rows;
        let blocks = [table[((at - 1) / self.size) as usize], NONE];
        self.left.push(Left { record: number, at, blocks, tried: 0 });
        Ok(record.slots[0])
    }

    /// The pass has run.
    pub(super) fn ran(&mut self) {
        for Left { record, at, blocks, tried } in self.left.drain(..) {
            let record = &mut self.records[record];
            (record.at, record.blocks, record.tried) = (at, blocks, tried);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::KvType;
    use crate::ops::{HostMemory, KvLayout, MemoryLayout, StateLayout, StateShape};

    const SIZE: u32 = 16;

    fn memory(slots: usize) -> HostMemory {
        let (kind, joint, others) = (KvType::F32, false, None);
        let (blocks, block_size) = (1, SIZE as usize);
        let kv = KvLayout { kind, layers: 0, kv_heads: 1, head_dim: 4, others, joint, blocks, block_size };
        let shape = StateShape { layers: 1, floats: 1, row: 1, hidden: 0 };
        HostMemory::new(MemoryLayout {
            states: StateLayout { shape, slots, drafted: 0 },
            ..MemoryLayout::of(kv)
        })
        .unwrap()
    }

    /// Runs a pass of one sequence, if a record is free: where its rows begin, and their slot.
    fn pass(states: &mut DraftStates, table: &[u32], text: &[u32], pass: u32) -> Option<(u32, u32)> {
        states.begin();
        let begun = add(states, table, text, pass);
        states.ran();
        begun
    }

    fn add(states: &mut DraftStates, table: &[u32], text: &[u32], pass: u32) -> Option<(u32, u32)> {
        let last = text.len() as u32 - 1;
        let token = &|at| text[at as usize];
        let wanted = Wanted { table, last, pass, state: None, rotation: None, token };
        let start = states.start(&wanted, last)?;
        let memory = &mut memory(DRAFT_SLOTS * states.records.len());
        Some((start.first, states.take(start, &wanted, last + 1 - start.first, memory).unwrap()))
    }

    #[test]
    fn a_trial_whose_drafts_stood_replaces_the_state() {
        let mut states = DraftStates::new(1, SIZE as usize).unwrap();
        let (table, mut text) = ([5, 6], (0..20).collect::<Vec<u32>>());
        let mut step = |text: &[u32], drafts: &[u32]| {
            let mut text = text.to_vec();
            let first = pass(&mut states, &table, &text, 0).unwrap();
            for (n, draft) in (1..).zip(drafts) {
                text.push(*draft);
                let last = text.len() as u32 - 1;
                assert_eq!(pass(&mut states, &table, &text, n), Some((last, 1 - first.1)), "a copy of it");
            }
            first
        };
        assert_eq!(step(&text, &[40, 41]), (0, 0));
        text.extend([40, 50, 51]);
        // The second draft was wrong, so the first one is computed again.
        assert_eq!(step(&text, &[42, 43]), (20, 0));
        text.extend([42, 43, 44]);
        assert_eq!(step(&text, &[]), (25, 1));
        text.push(45);
        assert_eq!(step(&text, &[]), (26, 1));
    }

    #[test]
    fn a_record_lasts_as_long_as_its_block_or_a_copy_of_it() {
        let mut states = DraftStates::new(1, SIZE as usize).unwrap();
        let text: Vec<u32> = (0..20).collect();
        pass(&mut states, &[5, 6], &text, 0);
        states.copied(6, 9);
        states.cut(9, 4);
        states.cut(6, 5);
        assert_eq!([&[5, 6], &[5, 9]].map(|table| states.reach(table, 20)), [20, 20]);
        assert_eq!((states.reach(&[5, 6], 19), states.reach(&[5, 7], 20)), (0, 0));
        states.cut(6, 3);
        assert_eq!([&[5, 6], &[5, 9]].map(|table| states.reach(table, 20)), [0, 20]);
        states.cut(9, 0);
        assert_eq!(states.reach(&[5, 9], 20), 0);
    }

    #[test]
    fn the_oldest_record_goes_but_none_of_this_pass() {
        let mut states = DraftStates::new(2, SIZE as usize).unwrap();
        let text: Vec<u32> = (0..10).collect();
        for block in [1, 2, 1] {
            pass(&mut states, &[block], &text[..9], 0);
        }
        states.begin();
        assert_eq!(
            [3, 4, 5].map(|block| add(&mut states, &[block], &text, 0).is_some()),
            [true, true, false]
        );
        // That pass failed.
        assert_eq!([1, 2, 3, 4].map(|block| states.reach(&[block], 9)), [0; 4]);
        pass(&mut states, &[1], &text[..9], 0);
        pass(&mut states, &[2], &text[..9], 0);
        pass(&mut states, &[1], &text, 0);
        pass(&mut states, &[3], &text, 0);
        assert_eq!([1, 2, 3].map(|block| states.reach(&[block], 10)), [10, 0, 10]);
    }
}
