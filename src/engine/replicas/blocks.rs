//! The blocks that the replicas' prefix caches have, for choosing a replica.

use crate::base::{Result, reserve};
use crate::cache::CacheEvent;
use std::collections::{HashMap, TryReserveError};

struct Held {
    parent_key: u64,
    /// A bit mask of the replicas that have the block.
    replicas: u64,
}

pub(crate) struct Blocks {
    replicas: usize,
    /// The blocks that any replica has, by key.
    held: HashMap<u64, Held>,
}

/// Bytes per block: a hash table may be half empty, and is copied to one twice as large.
pub(crate) const BLOCK_BYTES: usize = 3 * (size_of::<(u64, Held)>() + 1);

impl Blocks {
    pub(crate) fn new(replicas: usize) -> Self {
        Self { replicas, held: HashMap::new() }
    }

    pub(crate) fn try_reserve(&mut self, blocks: usize) -> std::result::Result<(), TryReserveError> {
        self.held.try_reserve(self.held.len() + blocks)
    }

    /// Records a change of a replica's cache. Emits an event when the first replica gets a block, and when the last
    /// one loses it.
    pub(crate) fn merge(&mut self, replica: usize, event: CacheEvent, emit: &mut dyn FnMut(CacheEvent)) {
        let bit = 1 << replica;
        match event {
            CacheEvent::Stored { key, parent_key } => {
                let held = self.held.entry(key).or_insert(Held { parent_key, replicas: 0 });
                if held.replicas == 0 {
                    emit(event);
                }
                held.replicas |= bit;
            }
            CacheEvent::Removed { key } => {
                let Some(held) = self.held.get_mut(&key) else { return };
                held.replicas &= !bit;
                if held.replicas == 0 {
                    self.held.remove(&key);
                    emit(event);
                }
            }
            CacheEvent::Cleared => self.held.retain(|&key, held| {
                held.replicas &= !bit;
                let stays = held.replicas != 0;
                if !stays {
                    emit(CacheEvent::Removed { key });
                }
                stays
            }),
        }
    }

    /// Emits events for all blocks, after one that clears the earlier ones.
    pub(crate) fn replay(&self, emit: &mut dyn FnMut(CacheEvent)) {
        emit(CacheEvent::Cleared);
        for (&key, &Held { parent_key, .. }) in &self.held {
            emit(CacheEvent::Stored { key, parent_key });
        }
    }

    /// Number of leading prompt blocks, given by their keys, in the cache of each replica.
    pub(crate) fn leading(&self, keys: &[u64]) -> Result<Vec<u32>> {
        let mut counts = Vec::new();
        reserve(&mut counts, self.replicas, "a request")?;
        counts.resize(self.replicas, 0);
        let mut having = u64::MAX;
        for key in keys {
            having &= self.held.get(key).map_or(0, |held| held.replicas);
            if having == 0 {
                break;
            }
            (0..self.replicas)
                .filter(|replica| having >> replica & 1 == 1)
                .for_each(|replica| counts[replica] += 1);
        }
        Ok(counts)
    }
}
