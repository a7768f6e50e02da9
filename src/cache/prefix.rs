//! Blocks by content: a prompt that begins like an earlier one reuses its blocks instead of computing them again.
//!
//! A block's key covers all contents before its end:
//! `key(i) = XXH64(contents of block i, seed = key(i - 1))`, where `key(-1)` is the salt. A token is a little-endian
//! u32 there, a given vector its id as u64. Keys only find candidates. Parents and contents are compared too, so a
//! collision of keys costs a miss, but never gives a wrong answer.
//!
//! Full blocks are shared by reference. A block of which only the first positions match (because its sequence ended
//! there, or its contents differ from some position on) is copied, and the copy is continued.
//!
//! A holder of an indexed block also holds its parent, and releases the parent later. So the least recently used
//! block is always a leaf, and no block stays in the index longer than its parent.

use super::content::ContentId;
use super::leaving::Leaving;
use super::pool::{BlockPool, BlockTable, NONE};
use super::states::StatePool;
use crate::base::{Error, Result};
use std::collections::HashMap;
use xxhash_rust::xxh64::xxh64;

/// Number of siblings that a search for a partial block looks at, newest first.
const SIBLINGS: usize = 32;
/// Maximum number of positions in a block.
pub const MAX_BLOCK_SIZE: usize = 128;

/// The entry of a block in the index.
#[derive(Clone, Copy)]
struct Node {
    /// Number of indexed positions from the block's first on; 0 if it is not in the index.
    len: u32,
    /// The block before it; `NONE` for a first block.
    parent: u32,
    salt: u64,
    /// Keys up to its parent, and up to its own end if it is full.
    parent_key: u64,
    key: u64,
    /// Neighbors in the list of blocks with the same parent, newest first.
    newer: u32,
    older: u32,
}

const ABSENT: Node = Node { len: 0, parent: NONE, salt: 0, parent_key: 0, key: 0, newer: NONE, older: NONE };

/// Position of a block in the tree of prefixes.
#[derive(Clone, Copy, Debug)]
pub struct TreePosition {
    pub salt: u64,
    /// The indexed block before it; `NONE` for a first block.
    pub parent: u32,
    /// The key up to the parent; the salt for a first block.
    pub parent_key: u64,
}

/// Result of `find`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of full blocks, which were appended to the table.
    pub blocks: usize,
    /// Number of these that are idle. Holding them makes that many blocks unavailable.
    pub idle: usize,
    /// A block whose first positions match next, and the number of these positions.
    pub part: Option<(u32, u32)>,
    /// The state after these positions, in a model with recurrent layers (`cut_to_state`).
    pub state: Option<u32>,
}

impl Found {
    pub fn positions(&self, block_size: u32) -> u32 {
        self.blocks as u32 * block_size + self.part.map_or(0, |(_, positions)| positions)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Blocks whose contents were dropped to reuse the block.
    pub evictions: u64,
    /// Blocks that were computed twice, and merged.
    pub merged: u64,
}

/// A change of the index, for routers that send a prompt to where its beginning is cached. Keys are those of the
/// module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    Stored {
        key: u64,
        parent_key: u64,
    },
    Removed {
        key: u64,
    },
    /// All that was stored before is void. Events for all blocks in the index follow.
    Cleared,
}

/// All KV blocks of an engine, and their index. Allocates no memory after `new`.
pub struct PrefixCache {
    pool: BlockPool,
    block_size: usize,
    nodes: Vec<Node>,
    /// Those of `block_size` positions for each block.
    contents: Vec<ContentId>,
    /// Full blocks by their keys.
    full: HashMap<u64, u32>,
    /// The newest child by the key of its parent.
    children: HashMap<u64, u32>,
    /// The states of recurrent layers, with the snapshots of indexed blocks.
    pub states: StatePool,
    counts: CacheCounts,
    /// Changes since the last `drain_events`; `None` if they are not logged.
    log: Option<Vec<CacheEvent>>,
    /// What left since it was last asked for; `None` if that is not noted.
    pub(super) leaving: Option<Vec<Leaving>>,
}

/// The key of a block with these `contents`, at most `MAX_BLOCK_SIZE`, after the key `previous`.
pub fn chain(previous: u64, contents: &[impl Copy + Into<ContentId>]) -> u64 {
    let (mut all, mut len) = ([0; size_of::<ContentId>() * MAX_BLOCK_SIZE], 0);
    for content in contents {
        (*content).into().with_bytes(|bytes| {
            all[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        });
    }
    xxh64(&all[..len], previous)
}

impl PrefixCache {
    /// Creates a cache in which all blocks are free. `block_size` is at most `MAX_BLOCK_SIZE`.
    pub fn new(blocks: u32, block_size: u32) -> Result<Self> {
        let (count, size) = (blocks as usize, block_size as usize);
        if size == 0 || size > MAX_BLOCK_SIZE {
            return Err(Error::invalid(format!("KV blocks of {size} tokens: 1 to {MAX_BLOCK_SIZE}")));
        }
        let out_of_memory =
            || Error::out_of_memory("the index of KV blocks", count.saturating_mul(Self::block_bytes(size)));
        let (mut nodes, mut contents) = (Vec::new(), Vec::new());
        let (mut full, mut children) = (HashMap::new(), HashMap::new());
        let positions = count.checked_mul(size).ok_or_else(out_of_memory)?;
        nodes.try_reserve_exact(count).map_err(|_| out_of_memory())?;
        contents.try_reserve_exact(positions).map_err(|_| out_of_memory())?;
        full.try_reserve(2 * count).map_err(|_| out_of_memory())?;
        children.try_reserve(2 * count).map_err(|_| out_of_memory())?;
        nodes.resize(count, ABSENT);
        contents.resize(positions, ContentId::default());
        let pool = BlockPool::new(blocks)?;
        Ok(Self {
            pool,
            block_size: size,
            nodes,
            contents,
            full,
            children,
            states: StatePool::default(),
            counts: CacheCounts::default(),
            log: None,
            leaving: None,
        })
    }

    /// Bytes of bookkeeping per block, including the pool's.
    pub fn block_bytes(block_size: usize) -> usize {
        // Two hash tables of 17-byte entries with room for twice as many. Removed entries take room until the table
        // is half empty, and then it is cleaned in place. Tables are at most seven eighths full, and at least half of
        // that.
        16 + size_of::<Node>() + size_of::<ContentId>() * block_size + 2 * 80
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Takes a block with unknown contents, which then has one holder. `None` if all blocks are held.
    pub fn take(&mut self) -> Option<u32> {
        let (block, idle) = self.pool.take()?;
        if idle {
            self.counts.evictions += 1;
            self.leaves(block);
            self.leave(block);
        }
        Some(block)
    }

    /// Number of positions of `block` that are in the index.
    pub fn indexed(&self, block: u32) -> u32 {
        self.nodes[block as usize].len
    }

    /// The salt and the key before an indexed block.
    pub(super) fn beginning(&self, block: u32) -> (u64, u64) {
        let node = &self.nodes[block as usize];
        (node.salt, node.parent_key)
    }

    /// The first `len` contents that the block had in the index, as long as nothing else was written there.
    pub(super) fn contents(&self, block: u32, len: u32) -> &[ContentId] {
        &self.contents[block as usize * self.block_size..][..len as usize]
    }

    /// The indexed first blocks.
    pub(super) fn roots(&self) -> Vec<u32> {
        let indexed = (0..).zip(&self.nodes).filter(|(_, node)| node.len > 0 && node.parent == NONE);
        indexed.map(|(block, _)| block).collect()
    }

    /// A child of an indexed block, from which `older` leads to the others; `NONE` if it has none.
    pub(super) fn newest_child(&self, block: u32) -> u32 {
        let node = &self.nodes[block as usize];
        match node.len as usize == self.block_size {
            true => self.children.get(&node.key).copied().unwrap_or(NONE),
            false => NONE,
        }
    }

    pub(super) fn parent(&self, block: u32) -> u32 {
        self.nodes[block as usize].parent
    }

    pub(super) fn older(&self, block: u32) -> u32 {
        self.nodes[block as usize].older
    }

    /// Adds a holder to blocks that are held or in the index.
    pub fn retain(&mut self, blocks: &[u32]) {
        blocks.iter().for_each(|&block| self.pool.retain(block));
    }

    /// Releases a sequence's blocks, the last one first, and empties its table.
    pub fn release_all(&mut self, table: &mut BlockTable) {
        while let Some(block) = table.pop() {
            self.release(block);
        }
    }

    pub fn release(&mut self, block: u32) {
        self.pool.release(block, self.nodes[block as usize].len > 0);
    }

    /// Finds the longest indexed prefix, of at most `limit` positions, of the sequence with the contents
    /// `content(position)`, whose full blocks have `keys`. Appends the full blocks to `table` without holding them.
    pub fn find(
        &self,
        salt: u64,
        keys: &[u64],
        content: &dyn Fn(u32) -> ContentId,
        limit: u32,
        table: &mut BlockTable,
    ) -> Found {
        let mut found = Found::default();
        let (size, limit) = (self.block_size, limit as usize);
        let (mut parent, mut parent_key) = (NONE, salt);
        for &key in keys.iter().take(limit / size) {
            let Some(&block) = self.full.get(&key) else { break };
            let place = TreePosition { salt, parent, parent_key };
            if !self.is_at(block, place) || self.common(block, found.blocks, size, content) < size {
                break;
            }
            table.push(block);
            found.blocks += 1;
            found.idle += usize::from(self.pool.is_idle(block));
            (parent, parent_key) = (block, key);
        }
        let most = size.min(limit - found.blocks * size);
        found.part = self.find_part(TreePosition { salt, parent, parent_key }, found.blocks, most, content);
        found
    }

    /// Cuts the result of `find` to the deepest position with a snapshot of the state. Without a snapshot it becomes
    /// empty.
    pub fn cut_to_state(&self, found: Found, table: &mut BlockTable) -> Found {
        let (size, first) = (self.block_size as u32, table.len() - found.blocks);
        let part = found.part.map(|(block, most)| (found.blocks, block, most));
        let full = table[first..].iter().enumerate().map(|(index, &block)| (index, block, size)).rev();
        let mut deepest = part.into_iter().chain(full).filter_map(|(index, block, most)| {
            let (at, state) = self.states.deepest(block, most)?;
            Some((index, block, at, state))
        });
        let Some((index, block, at, state)) = deepest.next() else {
            table.truncate(first);
            return Found::default();
        };
        drop(deepest);
        let blocks = index + usize::from(at == size);
        table.truncate(first + blocks);
        let idle = table[first..].iter().filter(|block| self.pool.is_idle(**block)).count();
        Found { blocks, idle, part: (at < size).then_some((block, at)), state: Some(state) }
    }

    /// Finds the child of `place` that shares the longest beginning, of at most `most` positions, with block `index` of
    /// the sequence.
    fn find_part(
        &self,
        place: TreePosition,
        index: usize,
        most: usize,
        content: &dyn Fn(u32) -> ContentId,
    ) -> Option<(u32, u32)> {
        let mut best = (NONE, 0);
        let mut next = *self.children.get(&place.parent_key)?;
        for _ in 0..SIBLINGS {
            if next == NONE || best.1 == most {
                break;
            }
            if self.is_at(next, place) {
                let common = self.common(next, index, most, content);
                if common > best.1 {
                    best = (next, common);
                }
            }
            next = self.nodes[next as usize].older;
        }
        (best.1 > 0).then_some((best.0, best.1 as u32))
    }

    fn is_at(&self, block: u32, place: TreePosition) -> bool {
        let node = &self.nodes[block as usize];
        node.parent == place.parent && node.salt == place.salt && node.parent_key == place.parent_key
    }

    /// Number of leading contents, of the first `most`, that `block` shares with block `index` of the sequence.
    fn common(&self, block: u32, index: usize, most: usize, content: &dyn Fn(u32) -> ContentId) -> usize {
        let known =
            &self.contents[block as usize * self.block_size..][..self.nodes[block as usize].len as usize];
        let first = (index * self.block_size) as u32;
        known.iter().take(most).zip(first..).take_while(|&(&known, at)| known == content(at)).count()
    }

    /// Adds a full, held block to the index. Returns the block that has these contents from now on, which the caller
    /// holds in its place: another one if they were known already. `None` if the key belongs to other contents; no
    /// later block of the sequence can be indexed then.
    pub fn store(
        &mut self,
        block: u32,
        place: TreePosition,
        contents: &[ContentId],
        key: u64,
    ) -> Option<u32> {
        debug_assert_eq!(contents.len(), self.block_size);
        let Some(&known) = self.full.get(&key) else {
            self.write(block, place, contents);
            self.nodes[block as usize].key = key;
            self.full.insert(key, block);
            self.log_event(CacheEvent::Stored { key, parent_key: place.parent_key });
            return Some(block);
        };
        if known == block {
            return Some(block);
        }
        let wanted = |at: u32| contents[at as usize];
        if !self.is_at(known, place) || self.common(known, 0, self.block_size, &wanted) < self.block_size {
            return None;
        }
        self.leave(block);
        self.pool.retain(known);
        self.pool.release(block, false);
        self.counts.merged += 1;
        Some(known)
    }

    /// Adds the first positions of a held block, which its sequence may continue to fill, to the index. If
    /// another block has the same positions, adds them only if `twice`, in case the other block is evicted
    /// first.
    pub fn store_part(&mut self, block: u32, place: TreePosition, contents: &[ContentId], twice: bool) {
        debug_assert!(contents.len() < self.block_size);
        let others = || {
            let known = self.find_part(place, 0, contents.len(), &|at| contents[at as usize]);
            known.is_some_and(|(other, n)| other != block && n as usize == contents.len())
        };
        if !contents.is_empty() && (twice || !others()) {
            self.write(block, place, contents);
        }
    }

    fn write(&mut self, block: u32, place: TreePosition, contents: &[ContentId]) {
        let at = block as usize;
        self.contents[at * self.block_size..][..contents.len()].copy_from_slice(contents);
        let known = self.nodes[at].len > 0;
        if known {
            debug_assert!(self.is_at(block, place), "KV block {block} changed its place");
            self.nodes[at].len = contents.len() as u32;
            return;
        }
        let older = self.children.insert(place.parent_key, block).unwrap_or(NONE);
        if older != NONE {
            self.nodes[older as usize].newer = block;
        }
        let TreePosition { salt, parent, parent_key } = place;
        self.nodes[at] =
            Node { len: contents.len() as u32, parent, salt, parent_key, key: 0, newer: NONE, older };
    }

    /// Removes a block from the index.
    fn leave(&mut self, block: u32) {
        let node = std::mem::replace(&mut self.nodes[block as usize], ABSENT);
        if node.len == 0 {
            return;
        }
        self.states.forget_block(block);
        if node.len as usize == self.block_size {
            debug_assert!(!self.has_child(node.key, block), "KV block {block} leaves before its child");
            self.full.remove(&node.key);
            self.log_event(CacheEvent::Removed { key: node.key });
        }
        match (node.newer, node.older) {
            (NONE, NONE) => {
                self.children.remove(&node.parent_key);
            }
            (NONE, older) => {
                self.children.insert(node.parent_key, older);
            }
            (newer, older) => self.nodes[newer as usize].older = older,
        }
        if node.older != NONE {
            self.nodes[node.older as usize].newer = node.newer;
        }
    }

    /// Starts a log of up to `capacity` changes.
    pub fn log_events(&mut self, capacity: usize) -> Result<()> {
        let mut log = Vec::new();
        crate::base::reserve(&mut log, capacity, "events of the KV cache")?;
        self.log = Some(log);
        Ok(())
    }

    fn log_event(&mut self, event: CacheEvent) {
        if let Some(log) = &mut self.log {
            if log.len() == log.capacity() {
                // Changes were lost, so the reader gets everything again.
                log.clear();
                log.push(CacheEvent::Cleared);
            } else if log.first() != Some(&CacheEvent::Cleared) {
                log.push(event);
            }
        }
    }

    /// Makes the next `drain_events` start over.
    pub fn restart_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.clear();
            self.log_event(CacheEvent::Cleared);
        }
    }

    /// Passes the changes since the last call to `sink`. If there were too many, passes the whole index instead.
    pub fn drain_events(&mut self, sink: &mut dyn FnMut(CacheEvent)) {
        let Some(log) = &mut self.log else { return };
        let all = log.first() == Some(&CacheEvent::Cleared);
        log.drain(..).for_each(&mut *sink);
        if all {
            let full = self.full.values().map(|&block| &self.nodes[block as usize]);
            full.for_each(|node| sink(CacheEvent::Stored { key: node.key, parent_key: node.parent_key }));
        }
    }

    fn has_child(&self, key: u64, block: u32) -> bool {
        self.children.get(&key).is_some_and(|&child| self.nodes[child as usize].parent == block)
    }

    /// Drops the contents of all idle blocks.
    pub fn clear(&mut self) {
        while let Some(block) = self.pool.least_recent() {
            self.leave(block);
            self.pool.forget(block);
        }
        self.restart_log();
    }

    /// Checks invariant 1, and that each block of the index can be found there, with a parent that is in the index
    /// too and is held at least as long. Takes O(blocks); for tests.
    pub fn check(&self) -> Result<()> {
        self.pool.check()?;
        self.states.check()?;
        let broken = |block: usize, what: &str| Err(Error::internal(format!("KV block {block} {what}")));
        let mut listed = 0;
        for (&key, &first) in &self.children {
            let (mut block, mut newer) = (first, NONE);
            while block != NONE {
                let node = &self.nodes[block as usize];
                if node.len == 0 || node.parent_key != key || node.newer != newer || listed > self.nodes.len()
                {
                    return broken(block as usize, "is on the wrong list of siblings");
                }
                listed += 1;
                (newer, block) = (block, node.older);
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let (block, held) = (at as u32, self.pool.references(at as u32));
            if node.len == 0 {
                if self.pool.is_idle(block) {
                    return broken(at, "is idle and not in the index");
                }
                continue;
            }
            listed -= 1;
            let full = node.len as usize == self.block_size;
            if held == 0 && !self.pool.is_idle(block) {
                return broken(at, "is free and in the index");
            }
            if full && self.full.get(&node.key) != Some(&block) {
                return broken(at, "is full and not in the index by its key");
            }
            let parent = self.nodes.get(node.parent as usize);
            if parent.is_some_and(|p| p.len as usize != self.block_size || p.key != node.parent_key) {
                return broken(at, "has lost its parent");
            }
            if parent.is_some() && self.pool.references(node.parent) < held.min(1) {
                return broken(at, "is held and its parent is not");
            }
        }
        match listed {
            0 => Ok(()),
            _ => broken(0, "or another is on two lists of siblings"),
        }
    }
}

#[cfg(test)]
mod tests;
