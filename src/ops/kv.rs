//! Paged K and V: their shape, their memory, and the bytes of blocks.

use super::cuda::DeviceKv;
use super::state::States;
use super::tensors;
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::{KvType, TILE};
use candle_core::Tensor;
use half::f16;

/// The shape of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    pub kind: KvType,
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Layers of another shape, behind those.
    pub others: Option<KvLayers>,
    /// V is K, and stored once (`AttentionShape::joint`).
    pub joint: bool,
    pub blocks: usize,
    /// Tokens per block; a multiple of the attention tile (16).
    pub block_size: usize,
}

/// Layers of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayers {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// Paged K and V: for each layer one tensor `[2, blocks, kv_heads, block_size, head_dim]`, K then V, in the tiles of
/// `kernels::attention::kv`, or V alone where K is V. A cache in int8 or four bits is a tensor of bytes whose last
/// dimension has the values of a position and its scales of 2 bytes: `head_dim + 2`, or half of `head_dim`, rounded up,
/// and 2 for each 32 elements.
pub struct KvCache {
    pub layout: KvLayout,
    /// Tokens that a sequence may have at most, whatever memory allows. It decides between a model's rotations for
    /// short and for long contexts, so that all K of a cache are rotated alike.
    pub longest: usize,
    storage: Storage,
    /// Only a model with recurrent layers has them.
    states: Option<States>,
}

enum Storage {
    Host(Vec<Tensor>),
    Device(DeviceKv),
}

impl KvLayout {
    /// The layers by their shapes, in order.
    pub fn groups(&self) -> impl Iterator<Item = KvLayers> {
        let Self { layers, kv_heads, head_dim, others, .. } = *self;
        [KvLayers { layers, kv_heads, head_dim }].into_iter().chain(others)
    }

    /// Number of parts of a layer's tensor.
    fn halves(&self) -> usize {
        if self.joint { 1 } else { 2 }
    }

    /// Bytes of K and V of one block in one of `layers`. `None` if the number overflows a `usize`.
    pub fn layer_bytes(&self, layers: &KvLayers) -> Option<usize> {
        if layers.head_dim > u32::MAX as usize {
            return None;
        }
        let tiles = layers.kv_heads.checked_mul(self.block_size / TILE)?;
        tiles.checked_mul(self.kind.tile_bytes(layers.head_dim))?.checked_mul(self.halves())
    }

    /// As `layer_bytes`, in all layers.
    pub fn block_bytes(&self) -> Option<usize> {
        let of = |layers: KvLayers| self.layer_bytes(&layers)?.checked_mul(layers.layers);
        self.groups().try_fold(0usize, |sum, layers| sum.checked_add(of(layers)?))
    }

    /// The shape of the tensor of one of `layers`. `OutOfMemory` if its size overflows.
    fn layer(&self, layers: &KvLayers) -> Result<[usize; 5]> {
        let bytes = self.layer_bytes(layers).and_then(|bytes| bytes.checked_mul(self.blocks));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::out_of_memory("the KV cache", usize::MAX));
        }
        let row = self.kind.tile_bytes(layers.head_dim) / TILE;
        let width = match self.kind {
            KvType::F32 => row / size_of::<f32>(),
            KvType::F16 => row / size_of::<f16>(),
            KvType::Int8 | KvType::Int4 => row,
        };
        Ok([self.halves(), self.blocks, layers.kv_heads, self.block_size, width])
    }
}

impl KvCache {
    /// Zeros. The system provides their pages when they are first written.
    pub fn new(layout: KvLayout) -> Result<Self> {
        let mut tensors = Vec::new();
        for group in layout.groups() {
            let shape = layout.layer(&group)?;
            for _ in 0..group.layers {
                tensors.push(match layout.kind {
                    KvType::F32 => tensors::zeros::<f32>("the KV cache", &shape)?,
                    KvType::F16 => tensors::zeros::<f16>("the KV cache", &shape)?,
                    KvType::Int8 | KvType::Int4 => tensors::zeros::<u8>("the KV cache", &shape)?,
                });
            }
        }
        Ok(Self { layout, longest: usize::MAX, storage: Storage::Host(tensors), states: None })
    }

    pub(super) fn on_device(layout: KvLayout, kv: DeviceKv) -> Self {
        Self { layout, longest: usize::MAX, storage: Storage::Device(kv), states: None }
    }

    /// Adds the states of recurrent layers.
    pub fn with_states(self, states: States) -> Self {
        Self { states: Some(states), ..self }
    }

    /// The states of recurrent layers. `Internal` if there are none.
    pub fn states(&self) -> Result<&States> {
        self.states.as_ref().ok_or_else(|| Error::internal("no states of recurrent layers"))
    }

    /// K and V of a layer. `Internal` if there is no such layer, or if the cache is on a device.
    pub fn layer(&self, index: usize) -> Result<&Tensor> {
        let none = || Error::internal(format!("no KV cache for layer {index}"));
        self.layers()?.get(index).ok_or_else(none)
    }

    fn layers(&self) -> Result<&[Tensor]> {
        match &self.storage {
            Storage::Host(layers) => Ok(layers),
            Storage::Device(_) => Err(Error::internal("a KV cache on a device, given to the CPU")),
        }
    }

    /// `Internal` for a cache on the CPU.
    pub(super) fn device(&self) -> Result<&DeviceKv> {
        match &self.storage {
            Storage::Device(kv) => Ok(kv),
            Storage::Host(_) => Err(Error::internal("a KV cache on the CPU, given to a device")),
        }
    }

    /// Bytes of a block in all layers.
    pub fn block_len(&self) -> usize {
        self.layout.block_bytes().unwrap_or_default()
    }

    /// Appends the bytes of a block: K and V of each layer.
    pub fn read_block(&self, block: u32, out: &mut Vec<u8>) -> Result<()> {
        if let Storage::Device(kv) = &self.storage {
            return kv.read_block(block, out);
        }
        reserve(out, self.block_len(), "a KV block")?;
        self.each_half(block, &mut |half, size| {
            out.extend_from_slice(&half[block as usize * size..][..size]);
        })
    }

    /// Writes bytes that `read_block` gave.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.block_len() {
            return Err(Error::internal(format!(
                "{} bytes for a KV block of {}",
                bytes.len(),
                self.block_len()
            )));
        }
        if let Storage::Device(kv) = &self.storage {
            return kv.write_block(block, bytes);
        }
        let mut rest = bytes;
        self.each_half(block, &mut |half, size| {
            let (part, behind) = rest.split_at(size);
            half[block as usize * size..][..size].copy_from_slice(part);
            rest = behind;
        })
    }

    /// Copies blocks in all layers. Each pair is (from, to); pairs are copied in order.
    pub fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        if let Storage::Device(kv) = &self.storage {
            return kv.copy_blocks(pairs);
        }
        let Some(last) = pairs.iter().map(|&(from, to)| from.max(to)).max() else { return Ok(()) };
        self.each_half(last, &mut |half, size| {
            for (from, to) in pairs.iter().map(|&(from, to)| (from as usize * size, to as usize * size)) {
                half.copy_within(from..from + size, to);
            }
        })
    }

    /// Calls `touch` for K and for V of each layer, or for what is both, with their bytes and the bytes per block.
    /// `last` is the highest block that is touched.
    fn each_half(&self, last: u32, touch: &mut dyn FnMut(&mut [u8], usize)) -> Result<()> {
        let (blocks, halves) = (self.layout.blocks, self.layout.halves());
        if last as usize >= blocks {
            return Err(Error::internal(format!("KV block {last} is out of range; there are {blocks}")));
        }
        self.layers()?.iter().try_for_each(|layer| {
            tensors::update_bytes(layer, |kv| {
                let len = kv.len() / halves;
                kv.chunks_exact_mut(len.max(1)).for_each(|half| touch(half, len / blocks));
                Ok(())
            })
        })
    }
}
