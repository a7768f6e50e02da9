//! States of recurrent layers: their memory, and the bytes of slots.
//!
//! A slot has the states of all layers of one sequence after some number of its tokens. A forward pass updates the
//! slots of its sequences in place. It may save copies to other slots on its way.

use super::RaggedBatch;
use super::tensors::zeroed;
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::{Error, Result, reserve};
use std::ops::Range;

/// What a model's recurrent layers keep of a sequence, in f32. All layers have states of one size. The default is that
/// of a model without such layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    pub layers: usize,
    /// Elements of the state of one layer.
    pub floats: usize,
    /// Elements that one layer keeps of a drafted row.
    pub row: usize,
}

impl StateShape {
    /// Bytes of the state of a sequence. `None` if the number overflows.
    pub fn slot_bytes(&self) -> Option<usize> {
        self.layers.checked_mul(self.floats)?.checked_mul(size_of::<f32>())
    }

    /// Bytes that are kept of a drafted row.
    pub fn row_bytes(&self) -> usize {
        self.layers.saturating_mul(self.row).saturating_mul(size_of::<f32>())
    }
}

/// Rows of a step that one state passes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateRows {
    /// The state before the rows, and after those that are not drafted. Its contents do not matter at position 0, where
    /// every state is zero.
    pub slot: u32,
    /// Number of rows at the end that are of drafted tokens. They do not change the slot; see `Model::advance`.
    pub drafted: u32,
    /// Entries of `RaggedBatch::saves`, as first and end index.
    pub saves: (u32, u32),
}

/// Drafted rows of the last step that turned out right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub slot: u32,
    /// The first of them among all drafted rows of that step, and their number.
    pub first: u32,
    pub rows: u32,
}

/// All states of an engine.
pub struct States {
    pub shape: StateShape,
    pub slots: usize,
    /// Maximum number of drafted rows of a step.
    pub drafted: usize,
    /// `[slots, layers, floats]`.
    data: Mutex<Vec<f32>>,
    /// The inputs of the last step's drafted rows: `[layers, drafted, row]`.
    rows: Mutex<Vec<f32>>,
}

impl States {
    /// Zeros. The system provides their pages when they are first written. `OutOfMemory`.
    pub fn new(shape: StateShape, slots: usize, drafted: usize) -> Result<Self> {
        let make = |what: &str, [a, b, c]: [usize; 3]| {
            let elements = a.checked_mul(b).and_then(|n| n.checked_mul(c));
            let made = elements.and_then(zeroed::<f32>);
            made.ok_or_else(|| Error::out_of_memory(what, elements.unwrap_or(usize::MAX).saturating_mul(4)))
        };
        let data = Mutex::new(make("states of recurrent layers", [slots, shape.layers, shape.floats])?);
        let rows = Mutex::new(make("drafted rows", [shape.layers, drafted, shape.row])?);
        Ok(Self { shape, slots, drafted, data, rows })
    }

    pub(super) fn data(&self) -> MutexGuard<'_, Vec<f32>> {
        self.data.lock()
    }

    pub(super) fn rows(&self) -> MutexGuard<'_, Vec<f32>> {
        self.rows.lock()
    }

    /// The elements of a layer's state in a slot.
    pub(super) fn at(&self, slot: u32, layer: usize) -> Range<usize> {
        let from = (slot as usize * self.shape.layers + layer) * self.shape.floats;
        from..from + self.shape.floats
    }

    fn slot(&self, slot: u32) -> Result<Range<usize>> {
        if slot as usize >= self.slots {
            return Err(Error::internal(format!("state {slot} is out of range; there are {}", self.slots)));
        }
        let len = self.shape.layers * self.shape.floats;
        Ok(slot as usize * len..(slot as usize + 1) * len)
    }

    /// Copies slots. Each pair is (from, to); pairs are copied in order.
    pub fn copy(&self, pairs: &[(u32, u32)]) -> Result<()> {
        let mut data = self.data();
        for &(from, to) in pairs {
            let (from, to) = (self.slot(from)?, self.slot(to)?);
            data.copy_within(from, to.start);
        }
        Ok(())
    }

    /// Number of bytes that `read` appends and `write` takes.
    pub fn slot_len(&self) -> usize {
        self.shape.slot_bytes().unwrap_or_default()
    }

    /// Appends a slot's bytes, little-endian f32.
    pub fn read(&self, slot: u32, out: &mut Vec<u8>) -> Result<()> {
        let slot = self.slot(slot)?;
        reserve(out, self.slot_len(), "a state")?;
        out.extend(self.data()[slot].iter().flat_map(|x| x.to_le_bytes()));
        Ok(())
    }

    /// Writes bytes that `read` gave.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> Result<()> {
        let slot = self.slot(slot)?;
        if bytes.len() != self.slot_len() {
            return Err(Error::internal(format!("{} bytes for a state of {}", bytes.len(), self.slot_len())));
        }
        let mut data = self.data();
        for (x, bytes) in data[slot].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// Checks that the batch's states exist, that no two writers share one, and that rows are within bounds. Kernels do
    /// not check again. `InvalidArgument`.
    pub fn check(&self, batch: &RaggedBatch) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(why));
        if batch.states.len() != batch.seqs.len() {
            return wrong(format!("{} states for {} sequences", batch.states.len(), batch.seqs.len()));
        }
        let mut written = Vec::new();
        reserve(&mut written, batch.states.len() + batch.saves.len(), "a step's states")?;
        let mut drafted = 0;
        for (state, seq) in batch.states.iter().zip(&batch.seqs) {
            drafted += state.drafted as usize;
            let Some(saves) = batch.saves.get(state.saves.0 as usize..state.saves.1 as usize) else {
                return wrong(format!("saves {:?} of {}", state.saves, batch.saves.len()));
            };
            let ascending = saves.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let last = saves.last().map_or(0, |(rows, _)| *rows);
            if state.drafted > seq.rows || last > seq.rows - state.drafted || !ascending {
                return wrong(format!(
                    "{} rows, {} of them drafted, and saves {saves:?}",
                    seq.rows, state.drafted
                ));
            }
            written.push(state.slot);
            written.extend(saves.iter().map(|(_, slot)| *slot));
        }
        written.sort_unstable();
        if written.windows(2).any(|pair| pair[0] == pair[1]) {
            return wrong("two sequences of a step write to one state".into());
        }
        match written.last().is_none_or(|last| (*last as usize) < self.slots) && drafted <= self.drafted {
            true => Ok(()),
            false => wrong(format!(
                "states {written:?} of {}, {drafted} drafted rows of {}",
                self.slots, self.drafted
            )),
        }
    }
}
