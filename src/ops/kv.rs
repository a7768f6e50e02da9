//! The KV storage: making it, and its bytes.

use super::KvCache;
use super::support::{ours, zeroed};
use crate::base::{Error, Result};
use crate::kernels::attention::KvType;
use candle_core::{CpuStorage, Device, Layout, Tensor, WithDType};
use half::f16;

impl KvCache {
    /// `layers` tensors of zeros, whose pages the system gives when they are first written.
    pub fn new(
        kind: KvType,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        blocks: usize,
        block_size: usize,
    ) -> Result<Self> {
        let mut cache = Self { kind, layers: Vec::new(), blocks, block_size };
        let Some(shape) = cache.layer_shape(kv_heads, head_dim) else {
            return Err(Error::out_of_memory("the KV cache", usize::MAX));
        };
        for _ in 0..layers {
            let tensor = match kind {
                KvType::F32 => zeros::<f32>(&shape),
                KvType::F16 => zeros::<f16>(&shape),
                KvType::Int8 => zeros::<u8>(&shape),
            };
            cache.layers.push(tensor?);
        }
        Ok(cache)
    }

    /// A layer's shape; None where its size passes a word.
    pub fn layer_shape(&self, kv_heads: usize, head_dim: usize) -> Option<[usize; 5]> {
        // An int8 row's scale is four more of its bytes.
        let width =
            if self.kind == KvType::Int8 { head_dim.checked_add(size_of::<f32>())? } else { head_dim };
        let shape = [2, self.blocks, kv_heads, self.block_size, width];
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        elements.checked_mul(size_of::<f32>())?;
        Some(shape)
    }
}

fn zeros<T: WithDType>(shape: &[usize; 5]) -> Result<Tensor> {
    let elements: usize = shape.iter().product();
    let bytes = elements.saturating_mul(size_of::<T>());
    let storage = zeroed::<T>(elements).map_err(|_| Error::out_of_memory("the KV cache", bytes))?;
    ours("the KV cache", Tensor::from_vec(storage, &shape[..], &Device::Cpu))
}

fn span(layout: &Layout, len: usize) -> candle_core::Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) if end <= len => Ok(start..end),
        _ => candle_core::bail!("a contiguous KV cache is needed, this one is {layout:?}"),
    }
}

/// The bytes of a layer.
pub(super) fn bytes<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [u8]> {
    fn of<T: WithDType>(data: &[T]) -> &[u8] {
        // SAFETY: numbers without padding, which are read as as many bytes.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
    }
    Ok(match storage {
        CpuStorage::F32(data) => of(&data[span(layout, data.len())?]),
        CpuStorage::F16(data) => of(&data[span(layout, data.len())?]),
        CpuStorage::U8(data) => &data[span(layout, data.len())?],
        _ => candle_core::bail!("a KV cache of F32, F16 or int8 is needed"),
    })
}

/// As `bytes`, to be written to.
pub(super) fn bytes_mut<'a>(
    storage: &'a mut CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a mut [u8]> {
    fn of<T: WithDType>(data: &mut [T]) -> &mut [u8] {
        // SAFETY: numbers without padding, which are read and written as as many bytes; any bits are a number.
        unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
    }
    Ok(match storage {
        CpuStorage::F32(data) => {
            let span = span(layout, data.len())?;
            of(&mut data[span])
        }
        CpuStorage::F16(data) => {
            let span = span(layout, data.len())?;
            of(&mut data[span])
        }
        CpuStorage::U8(data) => {
            let span = span(layout, data.len())?;
            &mut data[span]
        }
        _ => candle_core::bail!("a KV cache of F32, F16 or int8 is needed"),
    })
}
