//! Making the KV storage.

use super::KvCache;
use super::support::zeroed;
use crate::base::{Error, Result};
use candle_core::{Device, Tensor};

impl KvCache {
    /// `layers` tensors `[2, blocks, kv_heads, block_size, head_dim]` of zeros, whose pages the system gives when they
    /// are first written.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        blocks: usize,
        block_size: usize,
    ) -> Result<Self> {
        let shape = (2, blocks, kv_heads, block_size, head_dim);
        let elements =
            [blocks, kv_heads, block_size, head_dim].iter().try_fold(2usize, |n, d| n.checked_mul(*d));
        let elements = elements.ok_or_else(|| Error::out_of_memory("the KV cache", usize::MAX))?;
        let mut tensors = Vec::new();
        for _ in 0..layers {
            let storage = zeroed(elements)
                .map_err(|_| Error::out_of_memory("the KV cache", elements.saturating_mul(4)))?;
            let tensor = Tensor::from_vec(storage, shape, &Device::Cpu);
            tensors.push(tensor.map_err(|error| Error::internal(format!("the KV cache: {error}")))?);
        }
        Ok(Self { layers: tensors, blocks, block_size })
    }
}
