//! Changes of the prefix caches, for the host and for the choice of an engine thread.

use crate::base::sync::Mutex;
use crate::base::{Error, Result, Status, reserved};
use crate::cache::{CacheEvent, PrefixCache};
use crate::engine::replicas::blocks::{BLOCK_BYTES, Blocks};
use std::collections::VecDeque;

/// Changes of the prefix caches. A host that reads too seldom gets everything again, starting with `Cleared`.
pub(crate) struct KvEvents {
    state: Mutex<State>,
    /// 0: the host reads no events.
    capacity: usize,
    /// There are several caches.
    several: bool,
}

struct State {
    waiting: VecDeque<CacheEvent>,
    /// Number of events that `waiting` has room for. All blocks of the caches fit.
    room: usize,
    /// The blocks of several caches.
    blocks: Option<Blocks>,
}

/// Bytes of the queue and of the cache's own list, for `capacity` events.
pub(crate) fn bytes(capacity: u32) -> u64 {
    2 * u64::from(capacity) * size_of::<CacheEvent>() as u64
}

/// Bytes per KV block: room for twice as many events as blocks, and for the block's key.
pub(crate) fn block_bytes(capacity: u32, caches: usize) -> u64 {
    let events = if capacity == 0 && caches == 1 { 0 } else { 4 * size_of::<CacheEvent>() };
    let keys = if caches == 1 { 0 } else { BLOCK_BYTES };
    (events + keys) as u64
}

impl KvEvents {
    /// `caches`: number of engine threads, each with its cache.
    pub(crate) fn new(capacity: usize, caches: usize) -> Self {
        let several = caches > 1;
        let blocks = several.then(|| Blocks::new(caches));
        Self { state: Mutex::new(State { waiting: VecDeque::new(), room: 0, blocks }), capacity, several }
    }

    pub(crate) fn has_several(&self) -> bool {
        self.several
    }

    /// Returns whether the host or the choice of a thread needs the events.
    fn is_on(&self) -> bool {
        self.capacity > 0 || self.several
    }

    /// Makes a `cache` log its changes if they are needed. Reserves room for all blocks of the cache too.
    pub(crate) fn begin(&self, cache: &mut PrefixCache) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let blocks = cache.pool().total();
        let capacity = self.capacity.max(2 * blocks);
        state.room += capacity;
        let mut made = state.waiting.try_reserve(state.room);
        if let Some(blocks) = &mut state.blocks {
            made = made.and(blocks.try_reserve(state.room / 2));
        }
        reserved(made, "events of the KV cache", state.room.saturating_mul(size_of::<CacheEvent>()))?;
        cache.log_events(capacity)
    }

    /// Called by an engine thread: takes over the changes of a step.
    pub(crate) fn take_from(&self, thread: usize, cache: &mut PrefixCache) {
        if !self.is_on() {
            return;
        }
        let state = &mut *self.state.lock();
        let mut lost = false;
        cache.drain_events(&mut |event| lost |= !state.take(thread, event, self.capacity > 0));
        if lost && !state.replay() {
            cache.restart_log();
            cache.drain_events(&mut |event| state.waiting.push_back(event));
        }
    }

    /// Removes all blocks of a thread that has ended.
    pub(crate) fn forget(&self, thread: usize) {
        let state = &mut *self.state.lock();
        if self.several && !state.take(thread, CacheEvent::Cleared, self.capacity > 0) {
            state.replay();
        }
    }

    /// See `Blocks::leading`. Empty with one cache.
    pub(crate) fn leading(&self, keys: &[u64]) -> Result<Vec<u32>> {
        self.state.lock().blocks.as_ref().map_or(Ok(Vec::new()), |blocks| blocks.leading(keys))
    }

    /// Passes up to `capacity` events to `sink`, oldest first.
    pub(crate) fn read(&self, capacity: usize, sink: &mut dyn FnMut(CacheEvent)) -> Result<()> {
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
    /// Takes over an event. Returns false if one was lost because there is no room for it.
    fn take(&mut self, thread: usize, event: CacheEvent, told: bool) -> bool {
        let Self { waiting, room, blocks } = self;
        let mut fits = true;
        let mut emit = |event| {
            fits &= !told || waiting.len() < *room;
            waiting.extend((told && fits).then_some(event));
        };
        match blocks {
            None => emit(event),
            Some(blocks) => blocks.merge(thread, event, &mut emit),
        }
        fits
    }

    /// Replaces the events by all blocks. Returns false with one cache, which has to emit its blocks itself.
    fn replay(&mut self) -> bool {
        let Self { waiting, blocks, .. } = self;
        waiting.clear();
        blocks.as_ref().map(|blocks| blocks.replay(&mut |event| waiting.push_back(event))).is_some()
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
        let take = |replica, event| assert!(events.state.lock().take(replica, event, true));
        let leading = |keys: &[u64]| events.leading(keys).unwrap();
        for (replica, key) in [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2), (1, 2)] {
            take(replica, stored(key));
        }
        believe(&events, &mut believed);
        assert_eq!(believed, HashSet::from([1, 2, 3]));
        // Blocks after a missing one are useless.
        assert_eq!(leading(&[1, 2, 3, 4]), [3, 0, 2]);
        assert_eq!(leading(&[2, 3]), [2, 1, 1]);
        take(0, CacheEvent::Removed { key: 1 });
        take(0, CacheEvent::Removed { key: 3 });
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
        assert!(state.take(1, stored(2), true));
        for n in 0..7 {
            let event = if n % 2 == 0 { stored(1) } else { CacheEvent::Removed { key: 1 } };
            assert!(state.take(0, event, true), "event {n}");
        }
        assert!(!state.take(0, CacheEvent::Removed { key: 1 }, true), "it has room for 8");
        assert!(state.replay());
        drop(state);
        let mut believed = HashSet::new();
        believe(&events, &mut believed);
        assert_eq!(believed, HashSet::from([2]));
    }
}
