//! Paged K and V on a device, in the same bytes as on the CPU.

use super::launch::Queue;
use crate::base::{Error, Result, reserve};
use crate::device::Buffer;
use crate::ops::KvLayout;
use std::sync::Arc;

/// Memory of `[layers, 2, blocks]` blocks: K, then V.
pub(crate) struct DeviceKv {
    queue: Arc<Queue>,
    memory: Buffer,
    layers: usize,
    blocks: usize,
    /// Bytes of K in one block of one layer. V takes as many.
    block: usize,
}

impl DeviceKv {
    pub(crate) fn new(queue: &Arc<Queue>, layout: &KvLayout) -> Result<Self> {
        let &KvLayout { layers, blocks, .. } = layout;
        let too_large = || Error::out_of_memory("the KV cache", usize::MAX);
        let all = layout.block_bytes().ok_or_else(too_large)?;
        let bytes = all.checked_mul(blocks).ok_or_else(too_large)?;
        let both = all / layers.max(1);
        let memory = Buffer::new(&queue.opened.device, bytes, "the KV cache")?;
        memory.fill(&queue.stream, 0)?;
        Ok(Self { queue: queue.clone(), memory, layers, blocks, block: both / 2 })
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> Result<u64> {
        self.memory.address(0)
    }

    /// Addresses of K and V of a layer.
    pub(crate) fn layer(&self, index: usize) -> Result<[u64; 2]> {
        if index >= self.layers {
            return Err(Error::internal(format!("no KV cache for layer {index}")));
        }
        let at = |half: usize| self.memory.address((2 * index + half) * self.blocks * self.block);
        Ok([at(0)?, at(1)?])
    }

    /// Byte offsets of the parts of a block, in the order of `KvCache::read_block`.
    fn parts(&self, block: u32) -> Result<impl Iterator<Item = usize> + use<>> {
        let &Self { layers, blocks, block: size, .. } = self;
        if block as usize >= blocks {
            return Err(Error::internal(format!("KV block {block} is out of range; there are {blocks}")));
        }
        Ok((0..2 * layers).map(move |half| (half * blocks + block as usize) * size))
    }

    pub(crate) fn read_block(&self, block: u32, out: &mut Vec<u8>) -> Result<()> {
        reserve(out, 2 * self.layers * self.block, "a KV block")?;
        for at in self.parts(block)? {
            let from = out.len();
            out.resize(from + self.block, 0);
            self.memory.read(&self.queue.stream, at, &mut out[from..])?;
        }
        Ok(())
    }

    pub(crate) fn write_block(&self, block: u32, bytes: &[u8]) -> Result<()> {
        if self.block == 0 {
            return Ok(());
        }
        let mut parts = self.parts(block)?.zip(bytes.chunks_exact(self.block));
        parts.try_for_each(|(at, part)| self.memory.write(&self.queue.stream, at, part))
    }

    pub(crate) fn copy_blocks(&self, pairs: &[(u32, u32)]) -> Result<()> {
        for &(from, to) in pairs.iter().filter(|(from, to)| from != to) {
            for (from, to) in self.parts(from)?.zip(self.parts(to)?) {
                self.memory.copy(&self.queue.stream, from, &self.memory, to, self.block)?;
            }
        }
        Ok(())
    }
}
