//! Sessions and the prefix cache.
use crate::engine::Engine;
use crate::error::Result;
use crate::{sys, text};
use std::mem::size_of;

/// The kind of a change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvEventKind {
    /// A block was added to the cache.
    Stored,
    /// A block left the cache.
    Removed,
    /// Forget all blocks: those that are there follow as `Stored`.
    Cleared,
    /// A kind that this package does not know.
    Unknown(u32),
}

/// A change of the prefix cache: a full block of tokens was added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct KvEvent {
    /// The kind of the change.
    pub kind: KvEventKind,
    /// The type of hashes: 1 is XXH64, as described at `BN_HASH_XXH64` in the C header.
    pub hash_type: u32,
    /// The hash of the block.
    pub hash: u64,
    /// The hash of the block before it, or the first block's seed.
    pub parent_hash: u64,
}

fn kv_event(raw: &sys::bn_kv_event) -> KvEvent {
    let kind = match raw.kind {
        sys::BN_KV_EVENT_STORED => KvEventKind::Stored,
        sys::BN_KV_EVENT_REMOVED => KvEventKind::Removed,
        sys::BN_KV_EVENT_CLEARED => KvEventKind::Cleared,
        other => KvEventKind::Unknown(other),
    };
    KvEvent { kind, hash_type: raw.hash_type, hash: raw.hash, parent_hash: raw.parent_hash }
}

impl Engine {
    /// A session as bytes, for [`Engine::session_restore`] of an engine with the same model. It waits for the end of a step.
    pub fn session_save(&self, name: &str) -> Result<Vec<u8>> {
        text::sized::<u8>(0, |data, capacity, length| {
            // SAFETY: the name lives, and the buffer has the room that is said.
            self.0.call(|engine, error| unsafe {
                sys::bn_session_save(engine, text::view(name), data, capacity, length, error)
            })
        })
    }

    /// Restores a session from the result of [`Engine::session_save`]. Load only sessions that you have saved yourself.
    /// It waits for the end of a step.
    pub fn session_restore(&self, name: &str, data: &[u8]) -> Result<()> {
        let (data, size) = (text::array(data), data.len());
        // SAFETY: name and data live until the call returns.
        self.0.call(|engine, error| unsafe {
            sys::bn_session_restore(engine, text::view(name), data, size, error)
        })
    }

    /// Forgets a session. It waits for the end of a step.
    pub fn session_free(&self, name: &str) -> Result<()> {
        // SAFETY: the name lives until the call returns.
        self.0.call(|engine, error| unsafe { sys::bn_session_free(engine, text::view(name), error) })
    }

    /// Forgets every prefix that no request and no session uses. It waits for the end of a step.
    pub fn cache_clear(&self) -> Result<()> {
        // SAFETY: any handle may be passed.
        self.0.call(|engine, error| unsafe { sys::bn_cache_clear(engine, error) })
    }

    /// Changes of the prefix cache since the last call, oldest first. It needs
    /// [`EngineOptions::kv_events_capacity`](crate::EngineOptions::kv_events_capacity).
    pub fn kv_events(&self) -> Result<Vec<KvEvent>> {
        let none = sys::bn_kv_event { kind: 0, hash_type: 0, hash: 0, parent_hash: 0 };
        let mut room = [none; 256];
        let (size, capacity) = (size_of::<sys::bn_kv_event>(), room.len());
        let mut all = Vec::new();
        loop {
            let mut count = 0;
            let events = room.as_mut_ptr();
            // SAFETY: there is room for `capacity` events.
            self.0.call(|engine, error| unsafe {
                sys::bn_kv_events(engine, events, size, capacity, &mut count, error)
            })?;
            all.extend(room[..count].iter().map(kv_event));
            if count < capacity {
                return Ok(all);
            }
        }
    }
}
