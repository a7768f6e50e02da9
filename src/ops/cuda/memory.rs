//! Paged K and V and the states of recurrent layers on a device, in the same bytes as on the CPU.

use super::launch::Queue;
use crate::base::{Error, Result, reserve};
use crate::device::Buffer;
use crate::ops::{KvLayout, Memory, MemoryLayout, StateLayout, Unit};
use std::sync::Arc;

pub(super) struct DeviceMemory {
    queue: Arc<Queue>,
    layout: MemoryLayout,
    /// `[layers, 2, blocks]` blocks: K, then V.
    memory: Buffer,
    /// Bytes of K in one block of one layer. V takes as many.
    block: usize,
    /// `None` for a model without recurrent layers.
    states: Option<States>,
}

struct States {
    /// `[slots, layers, floats]`.
    slots: Buffer,
    /// What is kept of the last step's drafted rows: `[layers, drafted, row]`.
    kept: Buffer,
}

/// The states of one layer on the device.
#[derive(Clone, Copy)]
pub(super) struct LayerStates {
    /// Address of the layer's part of the first slot.
    pub slots: u64,
    /// Elements from one slot to the next.
    pub stride: usize,
    /// Address of what is kept of the layer's drafted rows; 0 if no step has any.
    pub kept: u64,
}

impl States {
    fn new(queue: &Queue, layout: &StateLayout) -> Result<Option<Self>> {
        let StateLayout { shape, slots, drafted } = layout;
        let Some(slot) = shape.slot_bytes().filter(|_| !shape.is_empty()) else { return Ok(None) };
        let what = "states of sequences";
        let make = |count: usize, bytes: usize| {
            let all = count.checked_mul(bytes).ok_or_else(|| Error::out_of_memory(what, usize::MAX))?;
            let made = Buffer::new(&queue.opened.device, all, what)?;
            made.fill(&queue.stream, 0)?;
            Ok(made)
        };
        Ok(Some(Self { slots: make(*slots, slot)?, kept: make(*drafted, shape.row_bytes())? }))
    }
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
        let states = States::new(queue, &layout.states)?;
        Ok(Self { queue: queue.clone(), layout, memory, block: both / 2, states })
    }

    /// Addresses of K and V, of states, and of what is kept of drafted rows; 0 for what there is not.
    pub(super) fn addresses(&self) -> Result<[u64; 3]> {
        let States { slots, kept } = match &self.states {
            Some(states) => states,
            None => return Ok([self.memory.address(0)?, 0, 0]),
        };
        Ok([self.memory.address(0)?, slots.address(0)?, kept.address(0)?])
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

    /// The states of a recurrent layer. `Internal` if there are none.
    pub(super) fn states(&self, layer: usize) -> Result<LayerStates> {
        let StateLayout { shape, drafted, .. } = self.layout.states;
        let Some(states) = self.states.as_ref().filter(|_| layer < shape.layers) else {
            return Err(Error::internal(format!("no state of layer {layer}")));
        };
        let at = |floats: usize| floats * size_of::<f32>();
        Ok(LayerStates {
            slots: states.slots.address(at(layer * shape.floats))?,
            stride: shape.layers * shape.floats,
            kept: if drafted == 0 { 0 } else { states.kept.address(at(layer * drafted * shape.row))? },
        })
    }

    /// The memory that has a unit, the byte offsets of its parts there, and their size.
    fn parts(&self, unit: Unit, index: u32) -> Result<(&Buffer, impl Iterator<Item = usize> + use<>, usize)> {
        self.layout.check(unit, index)?;
        let none = || Error::internal("states of a model that has none");
        let (memory, size, count, step) = match unit {
            Unit::Block => (&self.memory, self.block, 2 * self.layout.kv.layers, self.layout.kv.blocks),
            Unit::State => {
                (&self.states.as_ref().ok_or_else(none)?.slots, self.layout.bytes(Unit::State), 1, 0)
            }
        };
        Ok((memory, (0..count).map(move |part| (part * step + index as usize) * size), size))
    }
}

impl Drop for DeviceMemory {
    /// Passes and accepted drafts may still run.
    fn drop(&mut self) {
        let _ = self.queue.stream.synchronize();
    }
}

impl Memory for DeviceMemory {
    fn layout(&self) -> &MemoryLayout {
        &self.layout
    }

    fn copy(&mut self, unit: Unit, pairs: &[(u32, u32)]) -> Result<()> {
        for &(from, to) in pairs.iter().filter(|(from, to)| from != to) {
            let ((memory, from, size), (_, to, _)) = (self.parts(unit, from)?, self.parts(unit, to)?);
            for (from, to) in from.zip(to) {
                memory.copy(&self.queue.stream, from, memory, to, size)?;
            }
        }
        Ok(())
    }

    fn read(&self, unit: Unit, index: u32, out: &mut Vec<u8>) -> Result<()> {
        let (memory, mut parts, size) = self.parts(unit, index)?;
        reserve(out, self.layout.bytes(unit), "the bytes of a sequence's memory")?;
        parts.try_for_each(|at| {
            let from = out.len();
            out.resize(from + size, 0);
            memory.read(&self.queue.stream, at, &mut out[from..])
        })
    }

    fn write(&mut self, unit: Unit, index: u32, bytes: &[u8]) -> Result<()> {
        self.layout.check_bytes(unit, index, bytes)?;
        let (memory, parts, size) = self.parts(unit, index)?;
        let mut parts = parts.zip(bytes.chunks_exact(size.max(1)));
        parts.try_for_each(|(at, part)| memory.write(&self.queue.stream, at, part))
    }

    fn read_hidden(&self, slot: u32, _: &mut Vec<f32>) -> Result<()> {
        self.layout.check(Unit::State, slot)
    }
}
