//! `bn_kv_event`: what the prefix cache has.

use super::growth::grown;
use crate::engine::api::CacheEvent;

/// A block came into the cache.
pub const BN_KV_STORED: i32 = 1;
/// A block left the cache.
pub const BN_KV_REMOVED: i32 = 2;
/// Forget all blocks; what is in the cache follows as `BN_KV_STORED`. When changes were lost because
/// they were not read in time, and after `bn_cache_clear`; but an engine of several devices tells
/// then of each block that has gone, and of others what the first device stores and the last one
/// removes.
pub const BN_KV_CLEARED: i32 = 3;

/// A change of what is in the prefix cache, for `bn_kv_events`. A block holds the keys and values
/// of `kv_block_size` tokens; only full blocks are told. A block's hash is XXH64 of its tokens as
/// little-endian 32-bit numbers, with the hash of the block before it as the seed; for the first
/// block, the seed is the request's `cache_salt`. So a router that knows a prompt's tokens can tell
/// how much of it an engine has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_kv_event {
    /// `sizeof(bn_kv_event)` of the library, or of the caller where that is smaller.
    pub struct_size: u32,
    /// `BN_KV_*`.
    pub kind: i32,
    /// For `BN_KV_STORED` and `BN_KV_REMOVED`: the block's hash.
    pub hash: u64,
    /// For `BN_KV_STORED`: the hash of the block before it, or the salt.
    pub parent_hash: u64,
}

grown!(bn_kv_event: 24);

impl bn_kv_event {
    pub(super) fn of(event: CacheEvent) -> Self {
        let (kind, hash, parent_hash) = match event {
            CacheEvent::Stored { key, parent_key } => (BN_KV_STORED, key, parent_key),
            CacheEvent::Removed { key } => (BN_KV_REMOVED, key, 0),
            CacheEvent::Cleared => (BN_KV_CLEARED, 0, 0),
        };
        Self { struct_size: 0, kind, hash, parent_hash }
    }
}
