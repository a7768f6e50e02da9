//! Paged K and V: their shape, and their tensors on the CPU.

use super::tensors;
use crate::base::{Error, Result};
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
    /// Layers of another shape, after those.
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

impl KvLayout {
    /// The layers by their shapes, in order.
    pub fn groups(&self) -> impl Iterator<Item = KvLayers> {
        let Self { layers, kv_heads, head_dim, others, .. } = *self;
        [KvLayers { layers, kv_heads, head_dim }].into_iter().chain(others)
    }

    /// Number of parts of a layer's tensor.
    pub(super) fn halves(&self) -> usize {
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

    /// Zeros, whose pages the system provides when they are first written: for each layer one tensor
    /// `[2, blocks, kv_heads, block_size, head_dim]`, K then V, in the tiles of `kernels::attention::kv`, or V alone
    /// where K is V. In int8 or four bits it is a tensor of bytes whose last dimension has the values of a position and
    /// its scales of 2 bytes: `head_dim + 2`, or half of `head_dim`, rounded up, and 2 for each 32 elements.
    /// `OutOfMemory`.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>> {
        let mut tensors = Vec::new();
        for group in self.groups() {
            let shape = self.tensor(&group)?;
            for _ in 0..group.layers {
                tensors.push(match self.kind {
                    KvType::F32 => tensors::zeros::<f32>("the KV cache", &shape)?,
                    KvType::F16 => tensors::zeros::<f16>("the KV cache", &shape)?,
                    KvType::Int8 | KvType::Int4 => tensors::zeros::<u8>("the KV cache", &shape)?,
                });
            }
        }
        Ok(tensors)
    }

    /// The shape of the tensor of one of `layers`. `OutOfMemory` if its size overflows.
    fn tensor(&self, layers: &KvLayers) -> Result<[usize; 5]> {
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
