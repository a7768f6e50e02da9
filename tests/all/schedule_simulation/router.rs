//! A router that learns from events which prefixes the cache has.

use super::world::World;
use bn_engine::cache::{CacheEvent, chain};
use bn_engine::schedule::Tokens;
use std::collections::HashMap;

/// Keys of blocks, and their parents'.
#[derive(Default)]
pub struct Router(HashMap<u64, u64>);

impl World {
    /// Takes the events of a step, and asserts that they describe the cache.
    pub fn check_router(&mut self) {
        let (keys, cleared) = (&mut self.router.0, &mut self.tally.cleared);
        self.scheduler.cache_mut().drain_events(&mut |event| match event {
            CacheEvent::Stored { key, parent_key } => {
                assert_eq!(keys.insert(key, parent_key), None, "stored twice");
            }
            CacheEvent::Removed { key } => assert!(keys.remove(&key).is_some(), "removed, and never stored"),
            CacheEvent::Cleared => {
                keys.clear();
                *cleared += 1;
            }
        });
        let keys = &self.router.0;
        assert!(keys.len() <= self.setting.config.blocks as usize);
        // Salts are 0 and 1.
        let rooted = keys.values().all(|parent| *parent < 2 || keys.contains_key(parent));
        assert!(rooted, "a block without its parent");
        let size = self.setting.config.block_size as usize;
        for (seq, live) in self.requests.iter().filter(|(_, live)| live.request.reuse.shared) {
            let mut key = live.request.reuse.salt;
            let contents = (0..live.computed).map(|at| self.requests.content(seq, at)).collect::<Vec<_>>();
            for contents in contents.chunks_exact(size) {
                key = chain(key, contents);
                assert!(keys.contains_key(&key), "the router doesn't know what {seq:?} computed");
            }
        }
    }
}
