//! Changes of the prefix cache on their way to the host.

use crate::base::sync::Mutex;
use crate::base::{Error, Result, Status};
use crate::cache::{CacheEvent, PrefixCache};
use std::collections::VecDeque;

/// Who reads too seldom is told everything anew, beginning with `Cleared`.
pub struct KvEvents {
    waiting: Mutex<VecDeque<CacheEvent>>,
    /// 0: nobody asks.
    capacity: usize,
}

/// Bytes of the queue and of the cache's own list for `capacity` events that the host asked for.
pub fn bytes(capacity: u32) -> u64 {
    2 * u64::from(capacity) * size_of::<CacheEvent>() as u64
}

/// Bytes for each KV block: there is room for twice as many events.
pub fn block_bytes(capacity: u32) -> u64 {
    if capacity == 0 { 0 } else { 4 * size_of::<CacheEvent>() as u64 }
}

impl KvEvents {
    pub fn new(capacity: usize) -> Self {
        Self { waiting: Mutex::new(VecDeque::new()), capacity }
    }

    /// Has `cache` tell its changes, if somebody asks. There is room for all that it can have, too.
    pub fn begin(&self, cache: &mut PrefixCache) -> Result<()> {
        if self.capacity == 0 {
            return Ok(());
        }
        let capacity = self.capacity.max(2 * cache.pool().total());
        let bytes = capacity.saturating_mul(size_of::<CacheEvent>());
        let made = self.waiting.lock().try_reserve(capacity);
        made.map_err(|_| Error::out_of_memory("events of the KV cache", bytes))?;
        cache.log_events(capacity)
    }

    /// Engine thread: takes over what happened in a step.
    pub fn take_from(&self, cache: &mut PrefixCache) {
        if self.capacity == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        let mut lost = false;
        cache.drain_events(&mut |event| match waiting.len() < waiting.capacity() {
            true => waiting.push_back(event),
            false => lost = true,
        });
        if lost {
            waiting.clear();
            cache.tell_all_again();
            cache.drain_events(&mut |event| waiting.push_back(event));
        }
    }

    /// Up to `capacity` events, oldest first.
    pub fn read(&self, capacity: usize, sink: &mut dyn FnMut(CacheEvent)) -> Result<()> {
        if self.capacity == 0 {
            return Err(Error::new(
                Status::WrongMode,
                "bn_engine_config.kv_events_capacity is 0: changes of the prefix cache are not kept",
            ));
        }
        let mut waiting = self.waiting.lock();
        let n = capacity.min(waiting.len());
        waiting.drain(..n).for_each(sink);
        Ok(())
    }
}
