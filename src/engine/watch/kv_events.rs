//! The contents of the replicas' prefix caches, for choosing a replica; and their changes, for the host.

use crate::base::sync::Mutex;
use crate::base::{Error, Result, Status, reserve, reserved};
use crate::cache::{CacheEvent, PrefixCache};
use std::collections::{HashMap, VecDeque};

/// Changes of the prefix caches. A host that reads too seldom gets everything again, starting with `Cleared`.
pub struct KvEvents {
    state: Mutex<State>,
    /// 0: the host reads no events.
    capacity: usize,
    replicas: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<CacheEvent>,
    /// Number of events that `waiting` has room for. All blocks of the caches fit.
    room: usize,
    /// With several replicas: the blocks that any of them has, by key.
    held: HashMap<u64, Held>,
}

struct Held {
    parent_key: u64,
    /// A bit mask of the replicas that have the block.
    replicas: u64,
}

/// Bytes of the queue and of the cache's own list, for `capacity` events.
pub fn bytes(capacity: u32) -> u64 {
    2 * u64::from(capacity) * size_of::<CacheEvent>() as u64
}

/// Bytes per KV block: room for twice as many events as blocks, and for the block's key.
pub fn block_bytes(capacity: u32, replicas: usize) -> u64 {
    let events = if capacity == 0 && replicas == 1 { 0 } else { 4 * size_of::<CacheEvent>() };
    // A hash table may be half empty, and is copied to one twice as large.
    let keys = if replicas == 1 { 0 } else { 3 * (size_of::<(u64, Held)>() + 1) };
    (events + keys) as u64
}

impl KvEvents {
    pub fn new(capacity: usize, replicas: usize) -> Self {
        Self { state: Mutex::new(State::default()), capacity, replicas }
    }

    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Returns whether the host or the choice of replicas needs the events.
    fn is_on(&self) -> bool {
        self.capacity > 0 || self.replicas > 1
    }

    /// Makes a replica's `cache` log its changes if they are needed. Reserves room for all blocks of the cache
    /// too.
    pub fn begin(&self, cache: &mut PrefixCache) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let blocks = cache.pool().total();
        let capacity = self.capacity.max(2 * blocks);
        state.room += capacity;
        let mut made = state.waiting.try_reserve(state.room);
        if self.replicas > 1 {
            made = made.and(state.held.try_reserve(state.held.len() + state.room / 2));
        }
        reserved(made, "events of the KV cache", state.room.saturating_mul(size_of::<CacheEvent>()))?;
        cache.log_events(capacity)
    }

    /// Called by a replica: takes over the changes of a step.
    pub fn take_from(&self, replica: usize, cache: &mut PrefixCache) {
        if !self.is_on() {
            return;
        }
        let state = &mut *self.state.lock();
        let mut lost = false;
        cache.drain_events(&mut |event| match self.replicas {
            1 => lost |= !state.push(event),
            _ => lost |= !state.merge(replica, event, self.capacity > 0),
        });
        if !lost {
            return;
        }
        state.waiting.clear();
        match self.replicas {
            1 => {
                cache.tell_all_again();
                cache.drain_events(&mut |event| state.waiting.push_back(event));
            }
            _ => state.tell_all(),
        }
    }

    /// Removes all blocks of a replica that has ended.
    pub fn forget(&self, replica: usize) {
        let state = &mut *self.state.lock();
        if self.replicas > 1 && !state.merge(replica, CacheEvent::Cleared, self.capacity > 0) {
            state.waiting.clear();
            state.tell_all();
        }
    }

    /// Number of leading prompt blocks, given by their keys, in the cache of each replica.
    pub fn leading(&self, keys: &[u64]) -> Result<Vec<u32>> {
        let mut counts = Vec::new();
        reserve(&mut counts, self.replicas, "a request")?;
        counts.resize(self.replicas, 0);
        let state = self.state.lock();
        let mut having = u64::MAX;
        for key in keys {
            having &= state.held.get(key).map_or(0, |held| held.replicas);
            if having == 0 {
                break;
            }
            (0..self.replicas)
                .filter(|replica| having >> replica & 1 == 1)
                .for_each(|replica| counts[replica] += 1);
        }
        Ok(counts)
    }

    /// Passes up to `capacity` events to `sink`, oldest first.
    pub fn read(&self, capacity: usize, sink: &mut dyn FnMut(CacheEvent)) -> Result<()> {
        if self.capacity == 0 {
            return Err(Error::new(
                Status::WrongMode,
                "bn_engine_config.kv_events_capacity is 0: changes of the prefix cache are not kept",
            ));
        }
        let waiting = &mut self.state.lock().waiting;
        let n = capacity.min(waiting.len());
        waiting.drain(..n).for_each(sink);
        Ok(())
    }
}

impl State {
    /// Returns false if there is no room for the event.
    fn push(&mut self, event: CacheEvent) -> bool {
        let fits = self.waiting.len() < self.room;
        if fits {
            self.waiting.push_back(event);
        }
        fits
    }

    /// With several replicas, the host learns when the first one gets a block, and when the last one loses it.
    /// Returns false if an event was lost.
    fn merge(&mut self, replica: usize, event: CacheEvent, told: bool) -> bool {
        let bit = 1 << replica;
        match event {
            CacheEvent::Stored { key, parent_key } => {
                let held = self.held.entry(key).or_insert(Held { parent_key, replicas: 0 });
                let first = held.replicas == 0;
                held.replicas |= bit;
                !(first && told) || self.push(event)
            }
            CacheEvent::Removed { key } => {
                let Some(held) = self.held.get_mut(&key) else { return true };
                held.replicas &= !bit;
                let last = held.replicas == 0;
                if last {
                    self.held.remove(&key);
                }
                !(last && told) || self.push(event)
            }
            CacheEvent::Cleared => {
                let Self { held, waiting, room } = self;
                let mut fits = true;
                held.retain(|&key, held| {
                    held.replicas &= !bit;
                    let gone = held.replicas == 0;
                    if gone && told {
                        fits &= waiting.len() < *room;
                        waiting.extend(fits.then_some(CacheEvent::Removed { key }));
                    }
                    !gone
                });
                fits
            }
        }
    }

    fn tell_all(&mut self) {
        self.waiting.push_back(CacheEvent::Cleared);
        let all = self.held.iter().map(|(&key, held)| (key, held.parent_key));
        self.waiting.extend(all.map(|(key, parent_key)| CacheEvent::Stored { key, parent_key }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn stored(key: u64) -> CacheEvent {
        CacheEvent::Stored { key, parent_key: key - 1 }
    }

    /// Updates the blocks that a router knows after it reads all events.
    fn believe(events: &KvEvents, believed: &mut HashSet<u64>) {
        let take = &mut |event| match event {
            CacheEvent::Stored { key, .. } => _ = believed.insert(key),
            CacheEvent::Removed { key } => assert!(believed.remove(&key), "{key} goes twice"),
            CacheEvent::Cleared => believed.clear(),
        };
        events.read(usize::MAX, take).unwrap();
    }

    #[test]
    fn a_block_is_there_as_long_as_any_replica_has_it() {
        let events = KvEvents::new(8, 3);
        events.state.lock().room = 8;
        let mut believed = HashSet::new();
        let tell = |replica, event| assert!(events.state.lock().merge(replica, event, true));
        let leading = |keys: &[u64]| events.leading(keys).unwrap();
        for (replica, key) in [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2), (1, 2)] {
            tell(replica, stored(key));
        }
        believe(&events, &mut believed);
        assert_eq!(believed, HashSet::from([1, 2, 3]));
        // Blocks after a missing one are useless.
        assert_eq!(leading(&[1, 2, 3, 4]), [3, 0, 2]);
        assert_eq!(leading(&[2, 3]), [2, 1, 1]);
        tell(0, CacheEvent::Removed { key: 1 });
        tell(0, CacheEvent::Removed { key: 3 });
        believe(&events, &mut believed);
        assert_eq!(believed, HashSet::from([1, 2]));
        events.forget(2);
        believe(&events, &mut believed);
        assert_eq!((believed, leading(&[2])), (HashSet::from([2]), vec![1, 1, 0]));
    }

    #[test]
    fn who_reads_too_seldom_is_told_of_all_replicas_blocks() {
        let events = KvEvents::new(1, 2);
        let mut caches = [0, 1].map(|_| PrefixCache::new(2, 16).unwrap());
        caches.iter_mut().for_each(|cache| events.begin(cache).unwrap());
        let mut state = events.state.lock();
        assert_eq!(state.room, 8);
        assert!(state.merge(1, stored(2), true));
        for n in 0..7 {
            let event = if n % 2 == 0 { stored(1) } else { CacheEvent::Removed { key: 1 } };
            assert!(state.merge(0, event, true), "event {n}");
        }
        assert!(!state.merge(0, CacheEvent::Removed { key: 1 }, true), "it has room for 8");
        state.waiting.clear();
        state.tell_all();
        drop(state);
        let mut believed = HashSet::new();
        believe(&events, &mut believed);
        assert_eq!(believed, HashSet::from([2]));
    }
}
