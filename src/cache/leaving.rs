//! What leaves memory because its place is taken. Until the engine thread writes there, the bytes are still there to be
//! copied to a lower tier.

use super::disk::Kind;
use super::disk::Place;
use super::pool::NONE;
use super::prefix::{PrefixCache, chain};
use super::states::Snapshot;
use crate::base::{Result, reserve};

/// A unit of memory whose contents are about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub kind: Kind,
    /// The block, or the slot of the state.
    pub unit: u32,
    /// The block of its positions, and how many of that.
    block: u32,
    len: u32,
    salt: u64,
    parent_key: u64,
}

/// Room in the list; what does not fit is lost.
const MOST: usize = 4096;

impl PrefixCache {
    /// From now on, what leaves is noted until it is taken with `next_leaving`. `OutOfMemory`.
    pub fn note_leaving(&mut self) -> Result<()> {
        let mut list = Vec::new();
        reserve(&mut list, MOST, "the list of what leaves the cache")?;
        self.leaving = Some(list);
        self.states.note_leaving()
    }

    /// Notes a block that is in the index, and its snapshots.
    pub(super) fn leaves(&mut self, block: u32) {
        let Some(mut list) = self.leaving.take() else { return };
        list.extend(self.units_of(block).take(MOST - list.len()));
        self.leaving = Some(list);
    }

    /// An indexed block, and its snapshots.
    fn units_of(&self, block: u32) -> impl Iterator<Item = Leaving> + '_ {
        let (salt, parent_key) = self.beginning(block);
        let own = move |kind, unit, len| Leaving { kind, unit, block, len, salt, parent_key };
        let states = self.states.snapshots(block).map(move |(at, slot)| own(Kind::State, slot, at));
        std::iter::once(own(Kind::Block, block, self.indexed(block))).chain(states)
    }

    /// Moves out the next unit that left. Its bytes are lost with the next pass or copy.
    pub fn next_leaving(&mut self) -> Option<Leaving> {
        if let Some((slot, Snapshot { block, at })) = self.states.next_leaving() {
            // The block may have left after it.
            let same = self.leaving.as_ref()?.iter().find(|one| one.block == block);
            let before = match same {
                Some(one) => Some((one.salt, one.parent_key)),
                None if self.indexed(block) >= at => Some(self.beginning(block)),
                None => None,
            };
            if let Some((salt, parent_key)) = before {
                return Some(Leaving { kind: Kind::State, unit: slot, block, len: at, salt, parent_key });
            }
            return self.next_leaving();
        }
        self.leaving.as_mut()?.pop()
    }

    /// What a unit that left is of.
    pub fn place_of(&self, leaving: &Leaving) -> Result<Place> {
        let Leaving { kind, block, len, salt, parent_key, .. } = *leaving;
        let mut contents = Vec::new();
        reserve(&mut contents, len as usize, "the contents of a block")?;
        contents.extend_from_slice(self.contents(block, len));
        Ok(Place { kind, salt, parent_key, key: chain(parent_key, &contents), contents })
    }

    /// Everything in the index, as if it left now: parents before children, so that a part of it is of use too. `each`
    /// returns false to stop.
    pub fn units(&self, each: &mut dyn FnMut(Leaving) -> bool) {
        let mut todo = self.roots();
        while let Some(block) = todo.pop() {
            if !self.units_of(block).all(&mut *each) {
                return;
            }
            let mut child = self.newest_child(block);
            while child != NONE {
                if todo.try_reserve(1).is_err() {
                    return;
                }
                // Another key could be the same.
                if self.parent(child) == block {
                    todo.push(child);
                }
                child = self.older(child);
            }
        }
    }
}
