//! The memory of sequences from step to step, K and V in blocks and states in slots, where a backend keeps it.

use super::kv::KvLayout;
use super::state::{StateLayout, States};
use super::tensors;
use crate::base::{Error, Result, reserve};
use candle_core::Tensor;
use std::any::Any;

/// The shape of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    pub kv: KvLayout,
    pub states: StateLayout,
    /// Tokens that a sequence may have at most, whatever memory allows. It decides between a model's rotations for
    /// short and for long contexts, so that all K of a memory are rotated alike.
    pub longest: usize,
}

/// A unit of memory that is copied, read and written whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A block: K and V of some positions in all layers.
    Block,
    /// A slot: the states of all layers, and the hidden state.
    State,
}

impl MemoryLayout {
    /// Without states.
    pub fn of(kv: KvLayout) -> Self {
        Self { kv, states: StateLayout::default(), longest: usize::MAX }
    }

    /// Bytes of a unit, as `Memory::read` gives them.
    pub fn bytes(&self, unit: Unit) -> usize {
        let bytes = match unit {
            Unit::Block => self.kv.block_bytes(),
            Unit::State => self.states.shape.slot_bytes(),
        };
        bytes.unwrap_or_default()
    }

    /// `Internal` if there is no such unit.
    pub(super) fn check(&self, unit: Unit, index: u32) -> Result<()> {
        let (what, count) = match unit {
            Unit::Block => ("KV block", self.kv.blocks),
            Unit::State => ("state", self.states.slots),
        };
        match (index as usize) < count {
            true => Ok(()),
            false => Err(Error::internal(format!("{what} {index} is out of range; there are {count}"))),
        }
    }

    /// As `check`, for the bytes that a unit gets.
    pub(super) fn check_bytes(&self, unit: Unit, index: u32, bytes: &[u8]) -> Result<()> {
        match (bytes.len(), self.bytes(unit)) {
            (given, wanted) if given == wanted => self.check(unit, index),
            (given, wanted) => Err(Error::internal(format!("{given} bytes for a {unit:?} of {wanted}"))),
        }
    }
}

/// K, V and states, made by the backend that runs passes on them (`OpSet::memory`).
pub trait Memory: Any + Send {
    fn layout(&self) -> &MemoryLayout;
    /// Copies units. Each pair is (from, to); pairs are copied in order.
    fn copy(&mut self, unit: Unit, pairs: &[(u32, u32)]) -> Result<()>;
    /// Appends a unit's bytes: of a block K and V of each layer, of a slot little-endian f32.
    fn read(&self, unit: Unit, index: u32, out: &mut Vec<u8>) -> Result<()>;
    /// Writes bytes that `read` gave.
    fn write(&mut self, unit: Unit, index: u32, bytes: &[u8]) -> Result<()>;
    /// Appends the hidden state of a slot.
    fn read_hidden(&self, slot: u32, out: &mut Vec<f32>) -> Result<()>;
}

impl dyn Memory {
    /// The memory as its backend made it. `Internal` if that of another backend is given.
    pub fn of<M: Memory>(&mut self) -> Result<&mut M> {
        let any: &mut dyn Any = self;
        any.downcast_mut().ok_or_else(|| Error::internal("the memory of another backend"))
    }
}

/// Memory on the CPU.
pub struct HostMemory {
    layout: MemoryLayout,
    layers: Vec<Layer>,
    pub(super) states: States,
}

/// K and V of a layer.
struct Layer {
    /// As `KvLayout::tensors` makes it.
    whole: Tensor,
    /// For `tensors::update_bytes`.
    first: Tensor,
}

impl HostMemory {
    /// Zeros. `OutOfMemory`.
    pub fn new(layout: MemoryLayout) -> Result<Self> {
        let layer = |whole| Ok(Layer { first: tensors::first(&whole)?, whole });
        let layers = layout.kv.tensors()?.into_iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { layout, layers, states: States::new(&layout.states)? })
    }

    /// K and V of a layer. `Internal` if there is no such layer.
    pub fn layer(&self, index: usize) -> Result<&Tensor> {
        self.kv(index).map(|layer| &layer.whole)
    }

    fn kv(&self, index: usize) -> Result<&Layer> {
        self.layers.get(index).ok_or_else(|| Error::internal(format!("no KV cache for layer {index}")))
    }

    /// Calls `f` with the bytes of K and V of a layer. `Internal` if there is no such layer.
    pub(super) fn update(&self, index: usize, f: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        tensors::update_bytes(&self.kv(index)?.first, f)
    }

    /// Calls `touch` for K and for V of each layer, or for what is both, with their bytes and the bytes per block.
    fn each_half(&self, touch: &mut dyn FnMut(&mut [u8], usize)) -> Result<()> {
        let (blocks, halves) = (self.layout.kv.blocks, self.layout.kv.halves());
        self.layers.iter().try_for_each(|layer| {
            tensors::update_bytes(&layer.first, |kv| {
                let len = kv.len() / halves;
                kv.chunks_exact_mut(len.max(1)).for_each(|half| touch(half, len / blocks));
                Ok(())
            })
        })
    }
}

impl Memory for HostMemory {
    fn layout(&self) -> &MemoryLayout {
        &self.layout
    }

    fn copy(&mut self, unit: Unit, pairs: &[(u32, u32)]) -> Result<()> {
        let mut ends = pairs.iter().flat_map(|&(from, to)| [from, to]);
        ends.try_for_each(|index| self.layout.check(unit, index))?;
        match unit {
            Unit::Block if pairs.is_empty() => {}
            Unit::Block => self.each_half(&mut |half, size| {
                for (from, to) in pairs.iter().map(|&(from, to)| (from as usize * size, to as usize * size)) {
                    half.copy_within(from..from + size, to);
                }
            })?,
            Unit::State => self.states.parts_mut().for_each(|part| {
                for &(from, to) in pairs {
                    let (from, to) = (part.at(from), part.at(to));
                    part.data.copy_within(from, to.start);
                }
            }),
        }
        Ok(())
    }

    fn read(&self, unit: Unit, index: u32, out: &mut Vec<u8>) -> Result<()> {
        self.layout.check(unit, index)?;
        reserve(out, self.layout.bytes(unit), "the bytes of a sequence's memory")?;
        match unit {
            Unit::Block => self.each_half(&mut |half, size| {
                out.extend_from_slice(&half[index as usize * size..][..size]);
            })?,
            Unit::State => {
                let floats = self.states.parts().flat_map(|part| &part.data[part.at(index)]);
                out.extend(floats.flat_map(|x| x.to_le_bytes()));
            }
        }
        Ok(())
    }

    fn write(&mut self, unit: Unit, index: u32, bytes: &[u8]) -> Result<()> {
        self.layout.check_bytes(unit, index, bytes)?;
        match unit {
            Unit::Block => {
                let mut rest = bytes;
                self.each_half(&mut |half, size| {
                    let (part, behind) = rest.split_at(size);
                    half[index as usize * size..][..size].copy_from_slice(part);
                    rest = behind;
                })?;
            }
            Unit::State => {
                let mut floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                for part in self.states.parts_mut() {
                    let at = part.at(index);
                    part.data[at].iter_mut().zip(&mut floats).for_each(|(to, x)| *to = x);
                }
            }
        }
        Ok(())
    }

    fn read_hidden(&self, slot: u32, out: &mut Vec<f32>) -> Result<()> {
        self.layout.check(Unit::State, slot)?;
        let hidden = &self.states.hidden;
        reserve(out, self.layout.states.shape.hidden, "a hidden state")?;
        out.extend_from_slice(&hidden.data[hidden.at(slot)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::KvType;
    use crate::ops::StateShape;

    #[test]
    fn units_are_copied_read_and_written() {
        let (kind, joint, others) = (KvType::F16, false, None);
        let kv =
            KvLayout { kind, layers: 2, kv_heads: 1, head_dim: 4, others, joint, blocks: 3, block_size: 16 };
        let shape = StateShape { layers: 2, floats: 5, row: 1, hidden: 3 };
        let states = StateLayout { shape, slots: 4, drafted: 2 };
        let mut memory = HostMemory::new(MemoryLayout { states, ..MemoryLayout::of(kv) }).unwrap();
        for (unit, count, len) in [(Unit::Block, 3, 2 * 2 * 16 * 4 * 2), (Unit::State, 4, (2 * 5 + 3) * 4)] {
            assert_eq!(memory.layout().bytes(unit), len);
            let read = |memory: &HostMemory, index| {
                let mut bytes = Vec::new();
                memory.read(unit, index, &mut bytes).unwrap();
                bytes
            };
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            memory.write(unit, 1, &bytes).unwrap();
            memory.copy(unit, &[(1, 2), (0, 1)]).unwrap();
            assert!(read(&memory, 2) == bytes && read(&memory, 1) == vec![0; len]);
            assert!(
                memory.write(unit, 1, &bytes[1..]).is_err() && memory.write(unit, count, &bytes).is_err()
            );
            assert!(memory.copy(unit, &[(0, count)]).is_err() && memory.copy(unit, &[(count, 0)]).is_err());
            assert!(memory.read(unit, count, &mut Vec::new()).is_err());
            assert!(read(&memory, 2) == bytes && read(&memory, 0) == vec![0; len]);
        }
        let mut hidden = Vec::new();
        memory.read_hidden(2, &mut hidden).unwrap();
        let bytes: Vec<u8> = hidden.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes, (40..52).collect::<Vec<u8>>());
        assert!(memory.read_hidden(4, &mut hidden).is_err());
    }
}
