//! Bookkeeping of paged KV: blocks that are held, blocks that are cached by content, and their size; and of the states
//! of recurrent layers. Their memory is an `ops::Memory`.

mod content;
pub mod disk;
mod leaving;
mod pool;
mod prefix;
mod states;

pub use content::{ContentId, Digest, PictureSpan};
pub use leaving::Leaving;
pub use pool::{BlockPool, BlockTable, NONE};
pub use prefix::{CacheCounts, CacheEvent, Found, MAX_BLOCK_SIZE, PrefixCache, TreePosition, chain};
pub use states::{Snapshot, StatePool};

use crate::base::{Error, Result};
use crate::kernels::attention::KvType;
use crate::model::KvShape;

/// Bytes of K and V of one block of `block_size` tokens (whole tiles) in all layers; 0 for a model without KV.
/// `BadModel` if the number overflows 64 bits.
pub fn bytes_per_block(shape: KvShape, kind: KvType, block_size: usize) -> Result<u64> {
    let bytes = shape.layout(kind, 1, block_size).block_bytes();
    bytes.map(|bytes| bytes as u64).ok_or_else(|| {
        Error::bad_model(format!(
            "a KV block of {block_size} tokens x {} layers x {} heads x {} elements passes 64 bits",
            shape.layers, shape.kv_heads, shape.head_dim
        ))
    })
}

/// Number of blocks of `block_size` tokens for `positions` positions.
pub fn blocks_for(positions: u64, block_size: u32) -> u64 {
    positions.div_ceil(u64::from(block_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::KvLayers;

    #[test]
    fn sizes() {
        let shape = KvShape { layers: 3, kv_heads: 4, head_dim: 64, ..KvShape::default() };
        for (kind, head) in
            [(KvType::F32, 64 * 4), (KvType::F16, 64 * 2), (KvType::Int8, 64 + 2), (KvType::Int4, 32 + 4)]
        {
            assert_eq!(bytes_per_block(shape, kind, 32).unwrap(), 2 * 3 * 4 * 32 * head, "{kind:?}");
        }
        assert_eq!(bytes_per_block(KvShape::default(), KvType::F16, 32).unwrap(), 0);
        let others = Some(KvLayers { layers: 2, kv_heads: 1, head_dim: 128 });
        let both = bytes_per_block(KvShape { others, ..shape }, KvType::F16, 32).unwrap();
        assert_eq!(both, 2 * 32 * 2 * (3 * 4 * 64 + 2 * 128));
        let absurd = KvShape { layers: usize::MAX, kv_heads: 2, head_dim: 2, ..KvShape::default() };
        assert!(bytes_per_block(absurd, KvType::F16, 32).is_err());
        assert_eq!([0, 1, 32, 33].map(|n| blocks_for(n, 32)), [0, 1, 1, 2]);
    }
}
