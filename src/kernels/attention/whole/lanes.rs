//! Attention in f32: keys, and values, lie side by side in strips (`gemm::outer`). A block has as many positions as a
//! sum has products, so weights are factors as they lie.

use super::{LANES, Layout, Products, STEP, Scratch, Text, attended, sum_lines};
use crate::kernels::gemm::outer::{DEPTH, Operands, PITCH, Tile, pack};
use crate::kernels::pool::buffer::{Line, bytes_of, floats, floats_of};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{F32, Lanes};
use std::marker::PhantomData;
use std::ops::Range;

by_isa!(
    /// Attends from `rows`, which begin at a multiple of `span_rows`, and leaves the sums in `scratch`.
    pub(super) fn attend(text: &Text, rows: Range<usize>, scratch: &mut Scratch) = attend_in::<lanes>, Scalar
);

#[inline(always)]
unsafe fn attend_in<L: Lanes>(text: &Text, rows: Range<usize>, scratch: &mut Scratch) {
    // SAFETY: the caller has the instructions.
    unsafe { attended::<Strips<L>>(text, rows, scratch) }
}

/// Products of factors with strips: of keys, `[dim, columns]` for some positions, and of values, `[DEPTH, columns]`
/// for some elements of the head.
struct Strips<L>(PhantomData<L>);

pub(super) fn layout(tile: Tile, dim: usize) -> Layout {
    let rows = tile.rows * PITCH / LANES;
    Layout {
        queries: dim.div_ceil(DEPTH) * rows,
        keys: dim.next_multiple_of(LANES) * DEPTH / LANES,
        values: DEPTH * tile.padded(dim) / LANES,
        scores: PITCH / LANES,
        weights: rows,
    }
}

impl<L: Lanes> Strips<L> {
    const TILE: Tile = Tile::of_lanes::<L>();
}

impl<L: Lanes> Products for Strips<L> {
    type Lanes = L;
    const ROWS: usize = Self::TILE.rows;
    const BLOCK: usize = DEPTH;

    fn layout(dim: usize) -> Layout {
        layout(Self::TILE, dim)
    }

    #[inline(always)]
    unsafe fn query(row: &[f32], t: usize, queries: &mut [Line]) {
        Self::TILE.write_row(row, t, floats(queries).as_flattened_mut());
    }

    #[inline(always)]
    unsafe fn pack(text: &Text, block: &Range<usize>, keys: &mut [Line], values: &mut [Line]) {
        let (dim, columns) = (text.head_dim, Self::TILE.columns);
        let keys = floats(keys).as_flattened_mut();
        let strips = keys.chunks_exact_mut(dim.next_multiple_of(LANES) * columns);
        for (strip, out) in strips.enumerate().take(block.len().next_multiple_of(STEP) / columns) {
            for at in (0..columns).step_by(LANES) {
                let first = block.start + strip * columns + at;
                let (mut rows, count) = ([&[][..]; LANES], block.end.saturating_sub(first).min(LANES));
                for (r, row) in rows.iter_mut().enumerate().take(count) {
                    *row = text.head(1, first + r);
                }
                for from in (0..dim).step_by(DEPTH) {
                    let depth = DEPTH.min(dim - from);
                    let mut parts = [&[][..]; LANES];
                    for (part, row) in parts.iter_mut().zip(&rows[..count]) {
                        *part = bytes_of(&row[from..from + depth]);
                    }
                    let to = out[from * columns + at..].as_mut_ptr();
                    // SAFETY: the strip has `dim` rows, in whole sixteens; the caller has the instructions.
                    unsafe { pack::<L, F32>(&parts[..count], depth, to, columns) };
                }
            }
        }
        let values = floats(values).as_flattened_mut();
        for (strip, out) in values.chunks_exact_mut(DEPTH * columns).enumerate() {
            let elements = strip * columns..dim.min((strip + 1) * columns);
            for (at, out) in out.chunks_exact_mut(columns).enumerate().take(block.len()) {
                out[..elements.len()].copy_from_slice(&text.head(2, block.start + at)[elements.clone()]);
            }
            // Positions past the text's end, whose weights are 0.
            out[block.len() * columns..].fill(0.0);
        }
    }

    #[inline(always)]
    unsafe fn score(dim: usize, queries: &[Line], keys: &[Line], steps: &Range<usize>, scores: &mut [Line]) {
        let (columns, rows) = (Self::TILE.columns, dim.next_multiple_of(LANES));
        let (queries, keys) = (floats_of(queries), floats_of(keys));
        let scores = floats(scores).as_flattened_mut();
        for column in (steps.start * STEP..steps.end * STEP).step_by(columns) {
            let strip = &keys[column / columns * rows * columns..][..rows * columns];
            let blocks = queries.chunks_exact(Self::ROWS * PITCH).zip(strip.chunks(DEPTH * columns));
            for (block, (factors, strip)) in blocks.enumerate() {
                let depth = DEPTH.min(dim - block * DEPTH);
                let operands = Operands { factors, strip, depth };
                // SAFETY: the caller has the instructions.
                unsafe { operands.add::<L>(Self::ROWS, block == 0, &mut scores[column..], PITCH) };
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh([low, above]: [L; 2], t: usize, step: usize, weights: &mut [Line]) {
        let weights = &mut floats(weights).as_flattened_mut()[t * PITCH + step * STEP..][..STEP];
        // SAFETY: two vectors; the caller has the instructions.
        unsafe {
            low.store(weights.as_mut_ptr());
            above.store(weights[LANES..].as_mut_ptr());
        }
    }

    #[inline(always)]
    unsafe fn sum(dim: usize, weights: &[Line], values: &[Line], steps: &Range<usize>, sums: &mut [Line]) {
        let (columns, width) = (Self::TILE.columns, sum_lines(dim) * LANES);
        let (first, depth) = (steps.start * STEP, steps.len() * STEP);
        let factors = &floats_of(weights)[first..];
        let sums = floats(sums).as_flattened_mut();
        let strips = floats_of(values).chunks_exact(DEPTH * columns);
        for (strip, values) in strips.enumerate() {
            let operands = Operands { factors, strip: &values[first * columns..], depth };
            // SAFETY: the caller has the instructions.
            unsafe { operands.add::<L>(Self::ROWS, false, &mut sums[strip * columns..], width) };
        }
    }
}
