//! `bn_kv_event`: what the prefix cache has.

use super::growth::grown;
use crate::engine::api::CacheEvent;

/// A block came into the cache.
pub const BN_KV_EVENT_STORED: i32 = 1;
/// A block left the cache.
pub const BN_KV_EVENT_REMOVED: i32 = 2;
/// Forget all blocks: those that are in the cache follow as `BN_KV_EVENT_STORED`. It comes when
/// changes were lost because they were not read in time, and after `bn_cache_clear`. An engine of
/// several devices reports each removed block instead; it reports a block as stored when the first
/// device has it, and as removed when none has it any more.
pub const BN_KV_EVENT_CLEARED: i32 = 3;

/// XXH64 of a block's tokens as little-endian 32-bit numbers. The seed is the hash of the block
/// before it. The first block's seed is the request's `cache_salt`; with an adapter, it is XXH64 of
/// 12 bytes with `cache_salt` as the seed: `adapter_scale` as a little-endian float, then
/// `bn_adapter_fingerprint` as a little-endian 64-bit number.
pub const BN_HASH_XXH64: i32 = 1;

/// A change of the prefix cache. A block holds the keys and values of `kv_block_size` tokens; only
/// full blocks are reported.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_kv_event {
    /// `BN_KV_EVENT_*`.
    pub kind: i32,
    /// `BN_HASH_*`, the same for all events of an engine.
    pub hash_type: i32,
    /// For `BN_KV_EVENT_STORED` and `BN_KV_EVENT_REMOVED`: the block's hash.
    pub hash: u64,
    /// For `BN_KV_EVENT_STORED`: the hash of the block before it, or the first block's seed.
    pub parent_hash: u64,
}

grown!(bn_kv_event: 24; SIZED = false);

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
