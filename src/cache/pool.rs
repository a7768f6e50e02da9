//! The block pool. A block is free, held by a number of holders, or idle: it has no holder, but its contents
//! may be reused.

use crate::base::{Error, Result};

/// The blocks of one sequence in order of positions: position p is in `table[p / block_size]`.
pub type BlockTable = Vec<u32>;

/// Stands for no block.
pub const NONE: u32 = u32::MAX;
/// Link of a block that is not idle.
const UNLINKED: u32 = u32::MAX - 1;

/// Reference-counted blocks `0..total`. Allocates no memory after `new`.
///
/// A request that held another's block would mix the texts of the two. So releasing a block without holders
/// panics at once. The step loop's guard turns the panic into a dead engine instead of a wrong answer.
pub struct BlockPool {
    /// Number of holders of each block.
    refs: Vec<u32>,
    /// A stack, because the block that was freed last is most likely still in the CPU's caches.
    free: Vec<u32>,
    /// List of the idle blocks, least recently used first: (previous, next) of each block, `UNLINKED` if it is not
    /// idle.
    links: Vec<(u32, u32)>,
    head: u32,
    tail: u32,
    idle: usize,
}

impl BlockPool {
    pub fn new(blocks: u32) -> Result<Self> {
        let count = blocks as usize;
        let (mut refs, mut free, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let reserved = refs.try_reserve_exact(count).and_then(|()| free.try_reserve_exact(count));
        if reserved.and_then(|()| links.try_reserve_exact(count)).is_err() {
            return Err(Error::out_of_memory("the KV block pool", count.saturating_mul(16)));
        }
        refs.resize(count, 0);
        free.extend((0..blocks).rev());
        links.resize(count, (UNLINKED, UNLINKED));
        Ok(Self { refs, free, links, head: NONE, tail: NONE, idle: 0 })
    }

    /// Takes a block, which then has one holder: a free one, or else the least recently used idle one (true), whose
    /// contents are lost. `None` if all blocks are held.
    pub fn take(&mut self) -> Option<(u32, bool)> {
        let (block, idle) = match self.free.pop() {
            Some(block) => (block, false),
            None if self.head == NONE => return None,
            None => (self.head, true),
        };
        if idle {
            self.unlink(block);
        }
        self.refs[block as usize] = 1;
        Some((block, idle))
    }

    /// Adds a holder to a held or idle block.
    pub fn retain(&mut self, block: u32) {
        if self.refs[block as usize] == 0 {
            assert!(self.is_idle(block), "retain of the free KV block {block}");
            self.unlink(block);
        }
        self.refs[block as usize] += 1;
    }

    /// Removes a holder. A block without holders becomes idle if its contents are to be `kept`, else free.
    pub fn release(&mut self, block: u32, kept: bool) {
        let refs = &mut self.refs[block as usize];
        assert!(*refs > 0, "release of the KV block {block}, which nobody holds");
        *refs -= 1;
        match (*refs, kept) {
            (0, true) => self.link(block),
            (0, false) => self.free.push(block),
            _ => {}
        }
    }

    /// Frees an idle block.
    pub fn forget(&mut self, block: u32) {
        self.unlink(block);
        self.free.push(block);
    }

    fn link(&mut self, block: u32) {
        self.links[block as usize] = (self.tail, NONE);
        match self.tail {
            NONE => self.head = block,
            tail => self.links[tail as usize].1 = block,
        }
        self.tail = block;
        self.idle += 1;
    }

    fn unlink(&mut self, block: u32) {
        let links = &mut self.links[block as usize];
        let (previous, next) = std::mem::replace(links, (UNLINKED, UNLINKED));
        match previous {
            NONE => self.head = next,
            previous => self.links[previous as usize].1 = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.links[next as usize].0 = previous,
        }
        self.idle -= 1;
    }

    pub fn is_idle(&self, block: u32) -> bool {
        self.links[block as usize].0 != UNLINKED
    }

    /// The idle block that `take` would give first.
    pub fn least_recent(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub fn total(&self) -> usize {
        self.refs.len()
    }

    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Number of blocks that `take` can give: free and idle ones.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Number of blocks that have holders.
    pub fn held(&self) -> usize {
        self.total() - self.available()
    }

    pub fn references(&self, block: u32) -> u32 {
        self.refs[block as usize]
    }

    /// Checks invariant 1: each block is exactly one of free, idle and held. Takes O(total).
    pub fn check(&self) -> Result<()> {
        let broken = |block: u32, what: &str| Err(Error::internal(format!("KV block {block} {what}")));
        let mut seen = vec![false; self.refs.len()];
        let (mut idle, mut block) = (Vec::new(), self.head);
        while block != NONE && idle.len() <= self.idle {
            idle.push(block);
            block = self.links[block as usize].1;
        }
        if idle.len() != self.idle {
            return broken(self.head, "begins a list of idle blocks of another length");
        }
        for &block in self.free.iter().chain(&idle) {
            if std::mem::replace(&mut seen[block as usize], true) || self.refs[block as usize] != 0 {
                return broken(block, "is free or idle twice, or held at the same time");
            }
        }
        match seen.iter().zip(&self.refs).position(|(&seen, &refs)| !seen && refs == 0) {
            Some(block) => broken(block as u32, "is neither free nor idle nor held"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_free_blocks_first_and_then_the_least_recently_used() {
        let mut pool = BlockPool::new(4).unwrap();
        let blocks: Vec<u32> = (0..4).map(|_| pool.take().unwrap().0).collect();
        assert_eq!((&blocks[..], pool.take(), pool.held()), (&[0, 1, 2, 3][..], None, 4));
        pool.retain(1);
        [2, 1, 3].iter().for_each(|&block| pool.release(block, true));
        pool.release(0, false);
        assert_eq!((pool.available(), pool.idle(), pool.references(1)), (3, 2, 1));
        pool.check().unwrap();
        pool.release(1, true);
        pool.retain(3);
        assert_eq!(
            [pool.take(), pool.take(), pool.take()],
            [Some((0, false)), Some((2, true)), Some((1, true))]
        );
        assert_eq!((pool.take(), pool.held()), (None, 4));
        pool.release(3, true);
        pool.forget(3);
        assert_eq!(pool.take(), Some((3, false)));
        pool.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "release of the KV block 2, which nobody holds")]
    fn a_double_release_is_caught() {
        BlockPool::new(4).unwrap().release(2, true);
    }

    #[test]
    fn check_sees_a_lost_and_a_doubled_block() {
        let mut pool = BlockPool::new(2).unwrap();
        let lost = pool.free.pop().unwrap();
        assert!(pool.check().is_err());
        pool.free.push(1 - lost);
        assert!(pool.check().is_err());
        let mut pool = BlockPool::new(2).unwrap();
        pool.take();
        pool.release(0, true);
        pool.idle += 1;
        assert!(pool.check().is_err());
    }
}
