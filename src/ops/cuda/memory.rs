//! Paged K and V on a device, in the same bytes as on the CPU.

use super::launch::Queue;
use crate::base::{Error, Result, reserve};
use crate::device::Buffer;
use crate::ops::{KvLayout, Memory, MemoryLayout, Unit};
use std::sync::Arc;

/// Memory of `[layers, 2, blocks]` blocks: K, then V. There are no states: no kernel has them.
pub(super) struct DeviceMemory {
    queue: Arc<Queue>,
    layout: MemoryLayout,
    memory: Buffer,
    /// Bytes of K in one block of one layer. V takes as many.
    block: usize,
}

impl DeviceMemory {
    pub(super) fn new(queue: &Arc<Queue>, layout: MemoryLayout) -> Result<Self> {
        let KvLayout { layers, blocks, .. } = layout.kv;
        let too_large = || Error::out_of_memory("the KV cache", usize::MAX);
        let all = layout.kv.block_bytes().ok_or_else(too_large)?;
        let bytes = all.checked_mul(blocks).ok_or_else(too_large)?;
        let both = all / layers.max(1);
        let memory = Buffer::new(&queue.opened.device, bytes, "the KV cache")?;
        memory.fill(&queue.stream, 0)?;
        Ok(Self { queue: queue.clone(), layout, memory, block: both / 2 })
    }

    /// Address of the first byte.
    pub(super) fn address(&self) -> Result<u64> {
        self.memory.address(0)
    }

    /// Addresses of K and V of a layer.
    pub(super) fn layer(&self, index: usize) -> Result<[u64; 2]> {
        let KvLayout { layers, blocks, .. } = self.layout.kv;
        if index >= layers {
            return Err(Error::internal(format!("no KV cache for layer {index}")));
        }
        let at = |half: usize| self.memory.address((2 * index + half) * blocks * self.block);
        Ok([at(0)?, at(1)?])
    }

    /// Byte offsets of the parts of a unit, which is a block: there is no state.
    fn parts(&self, unit: Unit, index: u32) -> Result<impl Iterator<Item = usize> + use<>> {
        self.layout.check(unit, index)?;
        let (KvLayout { layers, blocks, .. }, size) = (self.layout.kv, self.block);
        Ok((0..2 * layers).map(move |half| (half * blocks + index as usize) * size))
    }
}

impl Memory for DeviceMemory {
    fn layout(&self) -> &MemoryLayout {
        &self.layout
    }

    fn copy(&mut self, unit: Unit, pairs: &[(u32, u32)]) -> Result<()> {
        for &(from, to) in pairs.iter().filter(|(from, to)| from != to) {
            for (from, to) in self.parts(unit, from)?.zip(self.parts(unit, to)?) {
                self.memory.copy(&self.queue.stream, from, &self.memory, to, self.block)?;
            }
        }
        Ok(())
    }

    fn read(&self, unit: Unit, index: u32, out: &mut Vec<u8>) -> Result<()> {
        let mut parts = self.parts(unit, index)?;
        reserve(out, self.layout.bytes(unit), "the bytes of a sequence's memory")?;
        parts.try_for_each(|at| {
            let from = out.len();
            out.resize(from + self.block, 0);
            self.memory.read(&self.queue.stream, at, &mut out[from..])
        })
    }

    fn write(&mut self, unit: Unit, index: u32, bytes: &[u8]) -> Result<()> {
        self.layout.check_bytes(unit, index, bytes)?;
        let mut parts = self.parts(unit, index)?.zip(bytes.chunks_exact(self.block.max(1)));
        parts.try_for_each(|(at, part)| self.memory.write(&self.queue.stream, at, part))
    }

    fn read_hidden(&self, slot: u32, _: &mut Vec<f32>) -> Result<()> {
        self.layout.check(Unit::State, slot)
    }
}
