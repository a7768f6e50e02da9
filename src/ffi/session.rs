//! `bn_kv_event`: changes of the prefix cache.

use super::growth::grown;
use crate::engine::api::CacheEvent;

/// A block came into the cache.
pub const BN_KV_EVENT_STORED: u32 = 1;
/// A block left the cache.
pub const BN_KV_EVENT_REMOVED: u32 = 2;
/// Forget all blocks: those that are there follow as `BN_KV_EVENT_STORED`. It comes when changes
/// were not read in time, and after `bn_cache_clear`. An engine of several devices reports removed
/// blocks instead; a block is stored when the first device has it, removed when none has it any
/// more.
pub const BN_KV_EVENT_CLEARED: u32 = 3;

/// XXH64 of a block's tokens as little-endian 32-bit numbers. The seed is the hash of the block
/// before it, for the first block the request's `cache_salt`, or with an adapter XXH64 of 12 bytes
/// with `cache_salt` as the seed: `adapter_scale` as a little-endian float, then
/// `bn_adapter_fingerprint` as a little-endian 64-bit number.
pub const BN_HASH_XXH64: u32 = 1;

/// A change of the prefix cache. Only full blocks, of `kv_block_size` tokens, are reported.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_kv_event {
    /// `BN_KV_EVENT_*`.
    pub kind: u32,
    /// `BN_HASH_*`, the same for all events of an engine.
    pub hash_type: u32,
    /// The block's; 0 for `BN_KV_EVENT_CLEARED`.
    pub hash: u64,
    /// For `BN_KV_EVENT_STORED`: the hash of the block before it, or the first block's seed.
    pub parent_hash: u64,
}

grown!(bn_kv_event { kind, hash_type, hash, parent_hash }; SIZED = false);

impl bn_kv_event {
    pub(super) fn of(event: CacheEvent) -> Self {
        let (kind, hash, parent_hash) = match event {
            CacheEvent::Stored { key, parent_key } => (BN_KV_EVENT_STORED, key, parent_key),
            CacheEvent::Removed { key } => (BN_KV_EVENT_REMOVED, key, 0),
            CacheEvent::Cleared => (BN_KV_EVENT_CLEARED, 0, 0),
        };
        Self { kind, hash_type: BN_HASH_XXH64, hash, parent_hash }
    }
}
