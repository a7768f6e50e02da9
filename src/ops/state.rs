//! States of sequences, for recurrent layers and for multi-token prediction, and their memory on the CPU.
//!
//! A slot has the states of all layers of one sequence after some number of its tokens. A forward pass updates the
//! slots of its sequences in place. It may save copies to other slots on its way.

use super::batch::{RaggedBatch, SeqRows, StateRows};
use super::tensors::zeroed;
use crate::base::{Error, Result, reserve};
use std::ops::Range;

/// The elements that a model keeps of a sequence beside K and V, in f32: the states of recurrent layers, all of one
/// size, and a hidden state. The default is that of a model that keeps nothing.
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

/// The shape of all states of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    pub shape: StateShape,
    pub slots: usize,
    /// Maximum number of drafted rows of a step.
    pub drafted: usize,
}

impl StateLayout {
    /// Checks that the batch's states exist, that no two writers share one, and that rows are within bounds. Kernels do
    /// not check again. `InvalidArgument`.
    pub fn check(&self, batch: &RaggedBatch) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(why));
        // Padding has none.
        let seqs = batch.seqs.len() - batch.padding;
        if batch.states.len() != seqs {
            return wrong(format!("{} states for {seqs} sequences", batch.states.len()));
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

/// Drafted rows of the last step that turned out right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub slot: u32,
    /// The first of them among all drafted rows of that step, and their number.
    pub first: u32,
    pub rows: u32,
}

/// All states of an engine on the CPU.
pub(super) struct States {
    pub layers: Vec<StatePart>,
    pub hidden: StatePart,
}

/// The states of one layer, or the hidden states.
pub struct StatePart {
    /// `[slots, width]`.
    pub data: Vec<f32>,
    pub kept: Kept,
    width: usize,
}

/// What is kept of the last step's drafted rows: `[drafted, width]`.
pub struct Kept {
    rows: Vec<f32>,
    width: usize,
}

impl Kept {
    /// Keeps what `copy` writes of each of these rows.
    pub(super) fn keep(&mut self, rows: impl Iterator<Item = usize>, copy: impl Fn(usize, &mut [f32])) {
        rows.zip(self.rows.chunks_exact_mut(self.width)).for_each(|(row, to)| copy(row, to));
    }

    /// The accepted rows.
    pub(super) fn of(&self, accepted: &Accepted) -> Result<&[f32]> {
        let (first, rows) = (accepted.first as usize, accepted.rows as usize);
        let own = self.rows.get(first * self.width..(first + rows) * self.width);
        own.ok_or_else(|| Error::internal("drafted rows that were not kept"))
    }
}

impl StatePart {
    /// Zeros. The system provides their pages when they are first written. `OutOfMemory`.
    fn new(layout: &StateLayout, width: usize, row: usize) -> Result<Self> {
        let make = |count: usize, width: usize| {
            let made = count.checked_mul(width).and_then(zeroed::<f32>);
            let bytes = count.saturating_mul(width).saturating_mul(size_of::<f32>());
            made.ok_or_else(|| Error::out_of_memory("states of sequences", bytes))
        };
        let kept = Kept { rows: make(layout.drafted, row)?, width: row };
        Ok(Self { data: make(layout.slots, width)?, kept, width })
    }

    /// The elements of a slot.
    pub(super) fn at(&self, slot: u32) -> Range<usize> {
        slot as usize * self.width..(slot as usize + 1) * self.width
    }
}

impl States {
    /// Zeros. `OutOfMemory`.
    pub(super) fn new(layout: &StateLayout) -> Result<Self> {
        let StateShape { layers, floats, row, hidden } = layout.shape;
        let layers = (0..layers).map(|_| StatePart::new(layout, floats, row)).collect::<Result<_>>()?;
        Ok(Self { layers, hidden: StatePart::new(layout, hidden, hidden)? })
    }

    /// The parts of a slot, in order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &StatePart> {
        self.layers.iter().chain([&self.hidden])
    }

    pub(super) fn parts_mut(&mut self) -> impl Iterator<Item = &mut StatePart> {
        self.layers.iter_mut().chain([&mut self.hidden])
    }

    /// Those of a layer. `Internal` if there is no such layer.
    pub(super) fn layer(&mut self, index: usize) -> Result<&mut StatePart> {
        self.layers.get_mut(index).ok_or_else(|| Error::internal(format!("no state of layer {index}")))
    }

    /// Writes the hidden states of the tokens before the batch's to `out`, `[T, hidden]`: zeros at position 0, those of
    /// the slots for each sequence's first row, and for the others those of the rows before them in `h`. Then the slots
    /// get the last ones that are not drafted. The batch has passed `check`.
    pub(super) fn shift(
        &mut self,
        h: &[f32],
        dims: [usize; 2],
        batch: &RaggedBatch,
        out: &mut [f32],
    ) -> Result<()> {
        let StatePart { data, kept, width } = &mut self.hidden;
        let width = *width;
        if dims != [batch.tokens.len(), width] {
            return Err(Error::internal(format!("hidden states {dims:?}")));
        }
        let at = |slot: u32| slot as usize * width..(slot as usize + 1) * width;
        let row = |row: usize| &h[row * width..(row + 1) * width];
        let pairs = || batch.seqs.iter().zip(&batch.states);
        for (seq, state) in pairs() {
            let (first, rows) = (seq.row as usize, seq.rows as usize);
            let (own, others) = out[first * width..(first + rows) * width].split_at_mut(width);
            match batch.positions[first] {
                0 => own.fill(0.0),
                _ => own.copy_from_slice(&data[at(state.slot)]),
            }
            others.copy_from_slice(&h[first * width..(first + rows - 1) * width]);
            for &(rows, slot) in &batch.saves[state.saves.0 as usize..state.saves.1 as usize] {
                data[at(slot)].copy_from_slice(row(first + rows as usize - 1));
            }
            let certain = rows - state.drafted as usize;
            if certain > 0 {
                data[at(state.slot)].copy_from_slice(row(first + certain - 1));
            }
        }
        let drafted =
            |(seq, state): (&SeqRows, &StateRows)| seq.row + seq.rows - state.drafted..seq.row + seq.rows;
        kept.keep(pairs().flat_map(drafted).map(|at| at as usize), |at, to| to.copy_from_slice(row(at)));
        Ok(())
    }

    /// Advances hidden states by drafted rows of the last step.
    pub(super) fn advance_hidden(&mut self, accepted: &[Accepted]) -> Result<()> {
        for accepted in accepted.iter().filter(|accepted| accepted.rows > 0) {
            let at = self.hidden.at(accepted.slot);
            let StatePart { data, kept, width } = &mut self.hidden;
            let own = kept.of(accepted)?;
            data[at].copy_from_slice(&own[own.len() - *width..]);
        }
        Ok(())
    }
}
