//! The rows of a batch by sequence, for layers with states, and the part of a state that a short convolution needs: the
//! inputs of the last tokens, `[kernel - 1, channels]`, the oldest first.

use super::RaggedBatch;
use super::state::Accepted;
use crate::base::{Result, reserve};
use std::ops::Range;

/// Consecutive rows of one sequence.
pub struct Span<'a> {
    pub rows: Range<usize>,
    pub slot: u32,
    /// The state before them is zero.
    pub fresh: bool,
    /// Number of rows at the end that do not change the state.
    pub drafted: usize,
    /// Slots that receive the state after some number of rows.
    pub saves: &'a [(u32, u32)],
}

impl<'a> Span<'a> {
    /// The spans of a batch.
    pub(super) fn all(batch: &'a RaggedBatch) -> Result<Vec<Self>> {
        let mut spans = Vec::new();
        reserve(&mut spans, batch.seqs.len(), "a step's states")?;
        spans.extend(batch.seqs.iter().zip(&batch.states).map(|(seq, state)| {
            let (row, n) = (seq.row as usize, seq.rows as usize);
            Self {
                rows: row..row + n,
                slot: state.slot,
                fresh: batch.positions[row] == 0,
                drafted: state.drafted as usize,
                saves: &batch.saves[state.saves.0 as usize..state.saves.1 as usize],
            }
        }));
        Ok(spans)
    }

    /// Accepted rows, which their sequence repeats.
    pub(super) fn of_accepted(accepted: &Accepted) -> Self {
        let rows = 0..accepted.rows as usize;
        Self { rows, slot: accepted.slot, fresh: false, drafted: 0, saves: &[] }
    }

    /// The span of a row.
    pub(super) fn of(spans: &[Self], row: usize) -> &Self {
        &spans[spans.partition_point(|span| span.rows.end <= row)]
    }

    /// The drafted rows of all spans.
    pub(super) fn drafted(spans: &[Self]) -> impl Iterator<Item = usize> {
        spans.iter().flat_map(|span| span.rows.end - span.drafted..span.rows.end)
    }
}

/// Inputs of a short convolution.
pub(super) struct Taps<'a, R> {
    pub kernel: usize,
    pub channels: usize,
    /// Some channels of a row.
    pub input: R,
    /// `[kernel, channels]`, the oldest token first.
    pub weights: &'a [f32],
}

impl<'a, R: Fn(usize, Range<usize>) -> &'a [f32]> Taps<'a, R> {
    /// The inputs of these channels that `row` convolves, the oldest first, with their weights.
    pub(super) fn of<'b>(
        &'b self,
        span: &Span,
        row: usize,
        own: Range<usize>,
        state: &'b [f32],
    ) -> impl Iterator<Item = (&'b [f32], &'b [f32])> {
        let before = row - span.rows.start;
        let start = span.rows.start;
        let first = if span.fresh { (self.kernel - 1).saturating_sub(before) } else { 0 };
        (first..self.kernel).map(move |tap| {
            let weights = &self.weights[tap * self.channels..][own.clone()];
            match (before + tap).checked_sub(self.kernel - 1) {
                Some(at) => ((self.input)(start + at, own.clone()), weights),
                None => (&state[(before + tap) * self.channels..][own.clone()], weights),
            }
        })
    }

    /// Appends a span's certain rows to the state in its slot, after copies of it to the slots of saves. `place` is a
    /// slot's part for the convolution.
    pub(super) fn append<'s>(&self, span: &Span, place: impl Fn(u32) -> &'s mut [f32]) {
        let taps = self.kernel - 1;
        let append = |state: &mut [f32], rows: usize| {
            let kept = taps.saturating_sub(rows);
            state.copy_within((taps - kept) * self.channels.., 0);
            for (at, row) in (kept..taps).zip(rows - (taps - kept)..rows) {
                let row = (self.input)(span.rows.start + row, 0..self.channels);
                state[at * self.channels..][..self.channels].copy_from_slice(row);
            }
        };
        let state = place(span.slot);
        if span.fresh {
            state.fill(0.0);
        }
        for &(rows, slot) in span.saves {
            let copy = place(slot);
            copy.copy_from_slice(state);
            append(copy, rows as usize);
        }
        append(state, span.rows.len() - span.drafted);
    }
}
