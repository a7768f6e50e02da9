//! The block pool: which blocks are free, and how many sequences hold each of the others.

use crate::base::{Error, Result};

/// The blocks of one sequence in order of position: position p lies in `table[p / block_size]`.
pub type BlockTable = Vec<u32>;

/// Reference-counted blocks `0..total`. Allocates nothing after `new`.
///
/// Holding a block that isn't one's own would mix two requests' texts, so a release or retain of a free
/// block panics at once (the step loop's guard turns that into a dead engine, not into a wrong answer).
pub struct BlockPool {
    /// References to each block; 0: free.
    refs: Vec<u32>,
    /// A stack: what was freed last is warmest in the caches.
    free: Vec<u32>,
}

impl BlockPool {
    pub fn new(blocks: u32) -> Result<Self> {
        let count = blocks as usize;
        let (mut refs, mut free) = (Vec::new(), Vec::new());
        let reserved = refs.try_reserve_exact(count).and_then(|()| free.try_reserve_exact(count));
        if reserved.is_err() {
            return Err(Error::out_of_memory("the KV block pool", count.saturating_mul(8)));
        }
        refs.resize(count, 0);
        free.extend((0..blocks).rev());
        Ok(Self { refs, free })
    }

    /// Appends `count` blocks, each with one reference, to `table`; false, and nothing has happened, when
    /// fewer are free. Allocates only where `table` lacks capacity.
    #[must_use]
    pub fn alloc(&mut self, count: usize, table: &mut BlockTable) -> bool {
        let Some(rest) = self.free.len().checked_sub(count) else { return false };
        if table.try_reserve(count).is_err() {
            return false;
        }
        for block in self.free.drain(rest..).rev() {
            self.refs[block as usize] = 1;
            table.push(block);
        }
        true
    }

    /// One more holder of a block that somebody holds.
    pub fn retain(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        assert!(*refs > 0, "retain of the free KV block {block}");
        *refs += 1;
    }

    /// One holder less; the block is free when it was the last.
    pub fn release(&mut self, block: u32) {
        let refs = &mut self.refs[block as usize];
        assert!(*refs > 0, "release of the free KV block {block}");
        *refs -= 1;
        if *refs == 0 {
            self.free.push(block);
        }
    }

    /// Releases every block of `table` and empties it.
    pub fn release_all(&mut self, table: &mut BlockTable) {
        for block in table.drain(..).rev() {
            self.release(block);
        }
    }

    pub fn total(&self) -> usize {
        self.refs.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn used(&self) -> usize {
        self.refs.len() - self.free.len()
    }

    /// References to `block`; 0: free, or no such block.
    pub fn references(&self, block: u32) -> u32 {
        self.refs.get(block as usize).copied().unwrap_or(0)
    }

    /// Invariant 1: free and referenced blocks are all blocks, and none is both or free twice. O(total).
    pub fn check(&self) -> Result<()> {
        let mut seen = vec![false; self.refs.len()];
        for &block in &self.free {
            let twice = std::mem::replace(&mut seen[block as usize], true);
            if twice || self.refs[block as usize] != 0 {
                return Err(Error::internal(format!("KV block {block} is free twice, or free and held")));
            }
        }
        match seen.iter().zip(&self.refs).position(|(&free, &refs)| !free && refs == 0) {
            Some(block) => Err(Error::internal(format!("KV block {block} is neither free nor held"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocates_all_or_nothing_and_counts_references() {
        let mut pool = BlockPool::new(4).unwrap();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.alloc(3, &mut a));
        assert_eq!(a, [0, 1, 2]);
        assert!(!pool.alloc(2, &mut b));
        assert!(b.is_empty() && pool.free() == 1);
        pool.retain(1);
        pool.release_all(&mut a);
        assert_eq!((pool.used(), pool.references(1)), (1, 1));
        pool.check().unwrap();
        pool.release(1);
        assert!(pool.alloc(4, &mut b));
        b.sort();
        assert_eq!(b, [0, 1, 2, 3]);
        pool.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "release of the free KV block 2")]
    fn a_double_release_is_caught() {
        BlockPool::new(4).unwrap().release(2);
    }

    #[test]
    fn check_sees_a_lost_and_a_doubled_block() {
        let mut pool = BlockPool::new(2).unwrap();
        let lost = pool.free.pop().unwrap();
        assert!(pool.check().is_err());
        pool.free.push(1 - lost);
        assert!(pool.check().is_err());
    }
}
