//! The KV storage: making it, and its bytes.

use super::KvCache;
use super::support::{ours, zeroed};
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::{KvType, TILE};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor, WithDType};
use half::f16;
use std::cell::RefCell;

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
        let Some(shape) = Self::layer_shape(kind, kv_heads, head_dim, blocks, block_size) else {
            return Err(Error::out_of_memory("the KV cache", usize::MAX));
        };
        let layers = (0..layers).map(|_| match kind {
            KvType::F32 => zeros::<f32>(&shape),
            KvType::F16 => zeros::<f16>(&shape),
            KvType::Int8 => zeros::<u8>(&shape),
        });
        Ok(Self { kind, layers: layers.collect::<Result<_>>()?, blocks, block_size })
    }

    /// Bytes of a block in all layers.
    pub fn block_len(&self) -> usize {
        let bytes = |layer: &Tensor| layer.elem_count() * layer.dtype().size_in_bytes();
        self.layers.iter().map(bytes).sum::<usize>() / self.blocks.max(1)
    }

    /// Appends the bytes of a block: K and V of each layer.
    pub fn read_block(&self, block: u32, out: &mut Vec<u8>) -> Result<()> {
        reserve(out, self.block_len(), "a KV block")?;
        self.each_half(block, &mut |half, size| {
            out.extend_from_slice(&half[block as usize * size..][..size]);
        })
    }

    /// Writes what `read_block` gave.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.block_len() {
            return Err(Error::internal(format!(
                "{} bytes for a KV block of {}",
                bytes.len(),
                self.block_len()
            )));
        }
        let mut rest = bytes;
        self.each_half(block, &mut |half, size| {
            let (part, behind) = rest.split_at(size);
            half[block as usize * size..][..size].copy_from_slice(part);
            rest = behind;
        })
    }

    /// Copies blocks, from and to, one pair after the other, in all layers.
    pub fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        let Some(last) = pairs.iter().map(|&(from, to)| from.max(to)).max() else { return Ok(()) };
        self.each_half(last, &mut |half, size| {
            for (from, to) in pairs.iter().map(|&(from, to)| (from as usize * size, to as usize * size)) {
                half.copy_within(from..from + size, to);
            }
        })
    }

    /// Shows the bytes of K and of V of each layer, and the bytes that a block takes there. `last`: the highest block that
    /// is touched.
    fn each_half(&self, last: u32, touch: &mut dyn FnMut(&mut [u8], usize)) -> Result<()> {
        if last as usize >= self.blocks {
            return Err(Error::internal(format!(
                "KV block {last} is out of range; there are {}",
                self.blocks
            )));
        }
        let halves = Halves { blocks: self.blocks, touch: RefCell::new(touch) };
        self.layers.iter().try_for_each(|layer| ours("KV blocks", layer.inplace_op1(&halves)))
    }

    /// Bytes of K and V of `block_size` tokens (whole tiles) in one layer; None where that passes a word.
    pub fn block_bytes(kind: KvType, kv_heads: usize, head_dim: usize, block_size: usize) -> Option<usize> {
        if head_dim > u32::MAX as usize {
            return None;
        }
        let tiles = kv_heads.checked_mul(block_size / TILE)?;
        tiles.checked_mul(kind.tile_bytes(head_dim))?.checked_mul(2)
    }

    /// A layer's shape; None where its size passes a word.
    pub fn layer_shape(
        kind: KvType,
        kv_heads: usize,
        head_dim: usize,
        blocks: usize,
        block_size: usize,
    ) -> Option<[usize; 5]> {
        let bytes = Self::block_bytes(kind, kv_heads, head_dim, block_size)?;
        bytes.checked_mul(blocks).filter(|bytes| *bytes <= isize::MAX as usize)?;
        let row = kind.tile_bytes(head_dim) / TILE;
        let width = match kind {
            KvType::F32 => row / size_of::<f32>(),
            KvType::F16 => row / size_of::<f16>(),
            KvType::Int8 => row,
        };
        Some([2, blocks, kv_heads, block_size, width])
    }
}

/// What `KvCache::each_half` does to the bytes of a half, given those of a block.
type Touch<'a> = dyn FnMut(&mut [u8], usize) + 'a;

/// See `KvCache::each_half`.
struct Halves<'a> {
    blocks: usize,
    touch: RefCell<&'a mut Touch<'a>>,
}

impl InplaceOp1 for Halves<'_> {
    fn name(&self) -> &'static str {
        "kv-blocks"
    }

    fn cpu_fwd(&self, kv: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let kv = bytes_mut(kv, layout)?;
        let (k, v) = kv.split_at_mut(kv.len() / 2);
        let size = k.len() / self.blocks;
        let touch = &mut *self.touch.borrow_mut();
        touch(k, size);
        touch(v, size);
        Ok(())
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
