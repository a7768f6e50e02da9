//! Slots for the states of recurrent layers. A slot is free, held by sequences or sessions, or idle with a snapshot.
//!
//! A snapshot is the state after the first positions of a block in the prefix index. A later sequence with that prefix
//! continues from a copy of it. A block's snapshots are dropped with the block.

use super::NONE;
use crate::base::{Error, Result, reserve, reserved};
use std::collections::HashMap;

/// A point in the prefix tree: the state after the first `at` positions of `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub block: u32,
    pub at: u32,
}

#[derive(Clone, Copy)]
struct StateSlot {
    holders: u32,
    snapshot: Option<Snapshot>,
    /// The next snapshot of the same block.
    next: u32,
    /// Time of the last use, see `StatePool::uses`.
    used: u64,
}

const EMPTY: StateSlot = StateSlot { holders: 0, snapshot: None, next: NONE, used: 0 };

/// Allocates no memory after `new`.
#[derive(Default)]
pub struct StatePool {
    slots: Vec<StateSlot>,
    free: Vec<u32>,
    /// The first snapshot of each block that has any.
    by_block: HashMap<u32, u32>,
    uses: u64,
    /// Snapshots that gave way since they were last asked for; `None` if that is not noted.
    leaving: Option<Vec<(u32, Snapshot)>>,
}

impl StatePool {
    pub fn new(slots: u32) -> Result<Self> {
        const WHAT: &str = "slots of states";
        let (mut all, mut free, mut by_block) = (Vec::new(), Vec::new(), HashMap::new());
        reserve(&mut all, slots as usize, WHAT)?;
        reserve(&mut free, slots as usize, WHAT)?;
        reserved(by_block.try_reserve(2 * slots as usize), WHAT, 32 * slots as usize)?;
        all.resize(slots as usize, EMPTY);
        free.extend((0..slots).rev());
        Ok(Self { slots: all, free, by_block, ..Self::default() })
    }

    /// Whether the model has no states.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn total(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot, which then has one holder: a free one, or else the least recently used idle one. `None` if all are
    /// held.
    pub fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let idle = (0..self.slots.len() as u32).filter(|slot| self.slots[*slot as usize].holders == 0);
            let oldest = idle.min_by_key(|slot| self.slots[*slot as usize].used)?;
            if let (Some(list), Some(snapshot)) = (&mut self.leaving, self.slots[oldest as usize].snapshot)
                && list.len() < list.capacity()
            {
                list.push((oldest, snapshot));
            }
            self.forget(oldest);
        }
        let slot = self.free.pop()?;
        self.slots[slot as usize].holders = 1;
        Some(slot)
    }

    /// From now on, snapshots that give way are noted until they are taken with `next_leaving`. `OutOfMemory`.
    pub(super) fn note_leaving(&mut self) -> Result<()> {
        let mut list = Vec::new();
        reserve(&mut list, self.slots.len(), "the list of what leaves the cache")?;
        self.leaving = Some(list);
        Ok(())
    }

    pub(super) fn next_leaving(&mut self) -> Option<(u32, Snapshot)> {
        self.leaving.as_mut()?.pop()
    }

    /// Adds a holder to a slot that is held or idle.
    pub fn hold(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        assert!(state.holders > 0 || state.snapshot.is_some(), "hold of the free state {slot}");
        state.holders += 1;
    }

    /// Removes a holder. A slot without holders becomes idle if it is a snapshot, else free.
    pub fn release(&mut self, slot: u32) {
        let state = &mut self.slots[slot as usize];
        assert!(state.holders > 0, "release of the state {slot}, which nobody holds");
        state.holders -= 1;
        if state.holders == 0 && state.snapshot.is_none() {
            self.free.push(slot);
        }
    }

    /// Makes a held slot a snapshot, which nobody may write to any more. False if there is such a snapshot already.
    pub fn store(&mut self, slot: u32, snapshot: Snapshot) -> bool {
        if self.chain(snapshot.block).any(|other| self.slots[other as usize].snapshot == Some(snapshot)) {
            return false;
        }
        debug_assert!(self.slots[slot as usize].snapshot.is_none(), "state {slot} is a snapshot already");
        let next = self.by_block.insert(snapshot.block, slot).unwrap_or(NONE);
        let state = &mut self.slots[slot as usize];
        (state.snapshot, state.next) = (Some(snapshot), next);
        self.touch(slot);
        true
    }

    /// Marks a slot as used.
    pub fn touch(&mut self, slot: u32) {
        self.uses += 1;
        self.slots[slot as usize].used = self.uses;
    }

    /// The deepest snapshot after at most `most` positions of a block: its depth and its slot.
    pub fn deepest(&self, block: u32, most: u32) -> Option<(u32, u32)> {
        self.snapshots(block).filter(|(at, _)| *at <= most).max_by_key(|(at, _)| *at)
    }

    /// The snapshots of a block: their depths and their slots.
    pub(super) fn snapshots(&self, block: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.chain(block).filter_map(|slot| Some((self.slots[slot as usize].snapshot?.at, slot)))
    }

    fn chain(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        let next = |slot: &u32| Some(self.slots[*slot as usize].next).filter(|slot| *slot != NONE);
        std::iter::successors(self.by_block.get(&block).copied(), next)
    }

    /// Drops the snapshots of a block. Slots that are held stay so.
    pub fn forget_block(&mut self, block: u32) {
        while let Some(&slot) = self.by_block.get(&block) {
            self.forget(slot);
        }
    }

    /// Makes a slot an ordinary one, free if nobody holds it.
    fn forget(&mut self, slot: u32) {
        let Some(Snapshot { block, .. }) = self.slots[slot as usize].snapshot.take() else { return };
        let next = std::mem::replace(&mut self.slots[slot as usize].next, NONE);
        let before = self.chain(block).find(|other| self.slots[*other as usize].next == slot);
        match before {
            Some(before) => self.slots[before as usize].next = next,
            None if next == NONE => {
                self.by_block.remove(&block);
            }
            None => {
                self.by_block.insert(block, next);
            }
        }
        if self.slots[slot as usize].holders == 0 {
            self.free.push(slot);
        }
    }

    /// Checks that each slot is exactly one of free, idle and held, and that each snapshot is found by its block. For
    /// tests.
    pub fn check(&self) -> Result<()> {
        let broken = |slot: usize, what: &str| Err(Error::internal(format!("state {slot} {what}")));
        let mut listed = 0;
        for (at, slot) in self.slots.iter().enumerate() {
            let free = self.free.iter().filter(|free| **free as usize == at).count();
            if free != usize::from(slot.holders == 0 && slot.snapshot.is_none()) {
                return broken(at, "is free and in use, or neither");
            }
            listed += usize::from(slot.snapshot.is_some());
            if slot.snapshot.is_some_and(|s| !self.chain(s.block).any(|other| other as usize == at)) {
                return broken(at, "is not found by its block");
            }
        }
        let chained: usize = self.by_block.keys().map(|block| self.chain(*block).count()).sum();
        match chained == listed {
            true => Ok(()),
            false => broken(0, "or another is miscounted"),
        }
    }

    /// Number of holders of a slot.
    pub fn holders(&self, slot: u32) -> u32 {
        self.slots[slot as usize].holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_found_by_block_and_give_way_by_use() {
        let mut pool = StatePool::new(3).unwrap();
        let at = |block, at| Snapshot { block, at };
        let [a, b, c] = [(); 3].map(|()| pool.take().unwrap());
        assert_eq!(pool.take(), None);
        assert!(pool.store(a, at(7, 4)) && pool.store(b, at(7, 9)) && !pool.store(c, at(7, 9)));
        assert_eq!(
            [3, 4, 8, 9].map(|most| pool.deepest(7, most)),
            [None, Some((4, a)), Some((4, a)), Some((9, b))]
        );
        [a, b, c].into_iter().for_each(|slot| pool.release(slot));
        pool.check().unwrap();
        let idle = pool.slots.iter().filter(|slot| slot.holders == 0 && slot.snapshot.is_some()).count();
        assert_eq!((pool.free.len(), idle), (1, 2));
        pool.touch(a);
        assert_eq!(
            [pool.take(), pool.take()],
            [Some(c), Some(b)],
            "a free one, then the least recently used"
        );
        assert_eq!(pool.deepest(7, 9), Some((4, a)));
        pool.hold(a);
        assert_eq!(pool.take(), None);
        pool.forget_block(7);
        assert_eq!((pool.deepest(7, 9), pool.holders(a)), (None, 1));
        pool.release(a);
        assert_eq!(pool.take(), Some(a));
        pool.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "release of the state 0, which nobody holds")]
    fn a_double_release_is_caught() {
        StatePool::new(1).unwrap().release(0);
    }
}
