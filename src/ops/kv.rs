//! Making the KV storage.

use super::KvCache;
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
            let storage = zeroed(elements)?;
            let tensor = Tensor::from_vec(storage, shape, &Device::Cpu);
            tensors.push(tensor.map_err(|error| Error::internal(format!("the KV cache: {error}")))?);
        }
        Ok(Self { layers: tensors, blocks, block_size })
    }
}

/// As `vec![0.0; n]`, but refused instead of aborted where memory is out.
fn zeroed(n: usize) -> Result<Vec<f32>> {
    let refused = || Error::out_of_memory("the KV cache", n.saturating_mul(4));
    let layout = std::alloc::Layout::array::<f32>(n).map_err(|_| refused())?;
    if n == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not empty. A null result is refused; else it is n zeroed floats from the global
    // allocator with the layout of a Vec<f32> of that capacity, and all-zero bits are 0.0.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<f32>();
        if start.is_null() { Err(refused()) } else { Ok(Vec::from_raw_parts(start, n, n)) }
    }
}
