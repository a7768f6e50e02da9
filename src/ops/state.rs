//! States of sequences, for recurrent layers and for multi-token prediction: their memory, and the bytes of slots.
//!
//! A slot has the states of all layers of one sequence after some number of its tokens. A forward pass updates the
//! slots of its sequences in place. It may save copies to other slots on its way.

use super::batch::RaggedBatch;
use super::tensors::zeroed;
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::{Error, Result, reserve};
use std::ops::Range;

/// The elements that a model keeps of a sequence beside K and V, in f32: the states of recurrent layers, all of one size, and a hidden
/// state. The default is that of a model that keeps nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    pub layers: usize,
    /// Elements of the state of one layer.
    pub floats: usize,
    /// Elements that one layer keeps of a drafted row.
    pub row: usize,
    /// Elements of the last token's hidden state, which multi-token prediction continues from. 0: it is not kept.
    pub hidden: usize,
}

impl StateShape {
    /// Whether sequences have states.
    pub fn is_empty(&self) -> bool {
        self.layers == 0 && self.hidden == 0
    }

    /// Elements of the state of a sequence: each layer's, then the hidden state.
    fn slot(&self) -> Option<usize> {
        self.layers.checked_mul(self.floats)?.checked_add(self.hidden)
    }

    /// Bytes of the state of a sequence. `None` if the number overflows.
    pub fn slot_bytes(&self) -> Option<usize> {
        self.slot()?.checked_mul(size_of::<f32>())
    }

    /// Bytes that are kept of a drafted row.
    pub fn row_bytes(&self) -> usize {
        let floats = self.layers.saturating_mul(self.row).saturating_add(self.hidden);
        floats.saturating_mul(size_of::<f32>())
    }
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
    /// `[slots, layers * floats + hidden]`.
    data: Mutex<Vec<f32>>,
    /// The inputs of the last step's drafted rows: `[layers, drafted, row]`, then `[drafted, hidden]`.
    rows: Mutex<Vec<f32>>,
}

impl States {
    /// Zeros. The system provides their pages when they are first written. `OutOfMemory`.
    pub fn new(shape: StateShape, slots: usize, drafted: usize) -> Result<Self> {
        let make = |what: &str, bytes: Option<usize>| {
            let made = bytes.and_then(|bytes| zeroed::<f32>(bytes / size_of::<f32>()));
            made.ok_or_else(|| Error::out_of_memory(what, bytes.unwrap_or(usize::MAX)))
        };
        let bytes = shape.slot_bytes().and_then(|bytes| bytes.checked_mul(slots));
        let data = Mutex::new(make("states of sequences", bytes)?);
        let rows = Mutex::new(make("drafted rows", shape.row_bytes().checked_mul(drafted))?);
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
        let from = slot as usize * self.slot_floats() + layer * self.shape.floats;
        from..from + self.shape.floats
    }

    fn slot_floats(&self) -> usize {
        self.shape.slot().unwrap_or_default()
    }

    fn slot(&self, slot: u32) -> Result<Range<usize>> {
        if slot as usize >= self.slots {
            return Err(Error::internal(format!("state {slot} is out of range; there are {}", self.slots)));
        }
        let len = self.slot_floats();
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

    /// The elements of the hidden state in a slot.
    fn hidden_at(&self, slot: u32) -> Range<usize> {
        let end = (slot as usize + 1) * self.slot_floats();
        end - self.shape.hidden..end
    }

    /// Appends the hidden state of a slot.
    pub fn read_hidden(&self, slot: u32, out: &mut Vec<f32>) -> Result<()> {
        self.slot(slot)?;
        reserve(out, self.shape.hidden, "a hidden state")?;
        out.extend_from_slice(&self.data()[self.hidden_at(slot)]);
        Ok(())
    }

    /// Writes the hidden states of the tokens before the batch's to `out`, `[T, hidden]`: zeros at position 0, those of the
    /// slots for each sequence's first row, and for the others those of the rows before them in `h`. Then the slots get the
    /// last ones that are not drafted. The batch has passed `check`.
    pub(super) fn shift(&self, h: &[f32], batch: &RaggedBatch, out: &mut [f32]) {
        let (width, mut kept, mut data) = (self.shape.hidden, self.rows(), self.data());
        let mut kept = kept[self.shape.layers * self.drafted * self.shape.row..].chunks_exact_mut(width);
        for (seq, state) in batch.seqs.iter().zip(&batch.states) {
            let (first, rows) = (seq.row as usize, seq.rows as usize);
            let h = &h[first * width..(first + rows) * width];
            let (own, others) = out[first * width..(first + rows) * width].split_at_mut(width);
            match batch.positions[first] {
                0 => own.fill(0.0),
                _ => own.copy_from_slice(&data[self.hidden_at(state.slot)]),
            }
            others.copy_from_slice(&h[..others.len()]);
            let after = |rows: usize| &h[(rows - 1) * width..rows * width];
            for &(rows, slot) in &batch.saves[state.saves.0 as usize..state.saves.1 as usize] {
                data[self.hidden_at(slot)].copy_from_slice(after(rows as usize));
            }
            let certain = rows - state.drafted as usize;
            if certain > 0 {
                data[self.hidden_at(state.slot)].copy_from_slice(after(certain));
            }
            for (h, to) in h[certain * width..].chunks_exact(width).zip(&mut kept) {
                to.copy_from_slice(h);
            }
        }
    }

    /// Keeps what `copy` writes of each of these rows of a layer, for `accepted`.
    pub(super) fn keep(
        &self,
        layer: usize,
        rows: impl Iterator<Item = usize>,
        copy: impl Fn(usize, &mut [f32]),
    ) {
        let (row, mut kept) = (self.shape.row, self.rows());
        let own = kept[layer * self.drafted * row..].chunks_exact_mut(row);
        rows.zip(own).for_each(|(row, to)| copy(row, to));
    }

    /// The inputs that a layer kept of accepted rows, among all that it `kept`.
    pub(super) fn accepted<'a>(
        &self,
        kept: &'a [f32],
        layer: usize,
        accepted: &Accepted,
    ) -> Result<&'a [f32]> {
        let (row, first, rows) = (self.shape.row, accepted.first as usize, accepted.rows as usize);
        let own = &kept[layer * self.drafted * row..(layer + 1) * self.drafted * row];
        let own = own.get(first * row..(first + rows) * row);
        own.ok_or_else(|| Error::internal("drafted rows that were not kept"))
    }

    /// Advances hidden states by drafted rows of the last step.
    pub fn advance_hidden(&self, accepted: &[Accepted]) -> Result<()> {
        let (width, kept, mut data) = (self.shape.hidden, self.rows(), self.data());
        let kept = &kept[self.shape.layers * self.drafted * self.shape.row..];
        for Accepted { slot, first, rows } in accepted.iter().filter(|accepted| accepted.rows > 0) {
            let last = (first + rows - 1) as usize * width;
            let own = kept.get(last..last + width);
            let own = own.ok_or_else(|| Error::internal("drafted rows that were not kept"))?;
            data[self.hidden_at(*slot)].copy_from_slice(own);
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
            let ascending = saves.first().is_none_or(|(rows, _)| *rows > 0)
                && saves.windows(2).all(|pair| pair[0].0 < pair[1].0);
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
