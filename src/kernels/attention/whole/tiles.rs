//! Attention of a whole text on matrix tiles, with q, k, v and weights cut into parts of bf16 (`gemm::tiles::floats`).
//!
//! Rows see the text's positions in blocks, from the first that has one that they see. Before a row's sums take a
//! block, they are scaled to the largest score so far (Milakov and Gimelshein 2018, "Online normalizer calculation
//! for softmax"; Dao et al. 2022, "FlashAttention"). Blocks and tiles begin at multiples of their sizes, counted from
//! the text's first row, so that a row's bits depend on nothing but its text (invariant 3).

use super::{LANES, Text};
use crate::kernels::gemm::tiles::floats::{COLUMNS, LEFT, PARTS, bytes_of, left, multiply, right, zero};
use crate::kernels::gemm::tiles::{DEPTH, SIDE, entry};
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::rows::exp::{exp, exp_lanes};
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::simd::amx::{Set, Tiles, in_parts};
use crate::kernels::simd::lanes::{F32, Real};
use std::ops::Range;

/// Rows of a task. Each packs the keys and values that its rows see, block by block.
pub(super) const SPAN_ROWS: usize = 512;
/// Rows whose scores with a block are in memory: two tiles.
const ROWS: usize = 2 * SIDE;
/// Positions of a block, whose keys and values stay in the second-level cache.
const BLOCK: usize = 256;
/// Distance of rows of scores, in lines. Rows one after the other would share few sets of the first-level cache.
const STRIDE: usize = BLOCK / LANES + 1;

/// Scratch memory of a task, kept from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    /// A row of q, scaled.
    row: Vec<f32>,
    /// Left tiles of all rows, by groups of sixteen.
    queries: Vec<Line>,
    /// A block's right tiles: of keys by sixteen positions, of values by 32 positions and then by sixteen columns.
    keys: Vec<Line>,
    values: Vec<Line>,
    /// Scores of `ROWS` rows with a block.
    scores: Vec<Line>,
    /// Their weights as left tiles, by groups of sixteen rows.
    weights: Vec<Line>,
    /// Sums of weighted values, and for each row the largest score and the sum of weights.
    sums: Vec<Line>,
    totals: Vec<[f32; 2]>,
}

/// Lines of a row of q or k, and of v.
fn widths(dim: usize) -> [usize; 2] {
    [dim.div_ceil(COLUMNS), dim.div_ceil(LANES)]
}

impl Scratch {
    /// Bytes for texts of `rows` rows.
    pub(super) fn bytes(dim: usize, rows: usize) -> usize {
        let ([steps, columns], rows) = (widths(dim), SPAN_ROWS.min(rows.next_multiple_of(ROWS)));
        let packed = rows * steps * PARTS + BLOCK * (steps + columns / 2 + 1) * PARTS;
        let lines = packed + ROWS * (STRIDE + BLOCK / COLUMNS * PARTS) + rows * columns;
        lines * size_of::<Line>() + 4 * dim + 8 * rows
    }

    /// The weighted average of values of row `at` of the task.
    pub(super) fn of_row(&mut self, dim: usize, at: usize) -> impl Iterator<Item = f32> {
        let (width, total) = (widths(dim)[1], self.totals[at][1]);
        let sums = floats(&mut self.sums[at * width..(at + 1) * width]).as_flattened();
        let factor = 1.0 / total;
        sums[..dim].iter().map(move |sum| sum * factor)
    }
}

entry!(
    /// Attends from `rows`, which begin at a multiple of `SPAN_ROWS`, and leaves the sums in `scratch`.
    ///
    /// # Safety
    /// `Isa::Amx` is available, and this thread has tiles of `DEPTH`.
    pub(super) fn attend(text: &Text, rows: Range<usize>, scratch: &mut Scratch) = attended
);

#[inline(always)]
unsafe fn attended<S: Set>(text: &Text, rows: Range<usize>, scratch: &mut Scratch) {
    let [steps, columns] = widths(text.head_dim);
    let groups = rows.len().div_ceil(ROWS) * 2;
    let queries = grown(&mut scratch.queries, groups * steps * LEFT);
    let row = grown(&mut scratch.row, text.head_dim);
    for at in rows.clone() {
        row.iter_mut().zip(text.head(0, at)).for_each(|(to, q)| *to = q * text.scale);
        let (group, t) = ((at - rows.start) / SIDE, (at - rows.start) % SIDE);
        // SAFETY: the caller's promise.
        unsafe { left::<S>(row, t, &mut queries[group * steps * LEFT..][..steps * LEFT]) };
    }
    grown(&mut scratch.sums, groups * SIDE * columns).fill(Line::default());
    grown(&mut scratch.totals, groups * SIDE).fill([f32::NEG_INFINITY, 0.0]);
    let seen = text.seen(&rows);
    for start in (seen.start / BLOCK * BLOCK..seen.end).step_by(BLOCK) {
        let block = start..text.rows().min(start + BLOCK);
        // SAFETY (of both): the caller's promise.
        unsafe { pack::<S>(text, &block, scratch) };
        for first in rows.clone().step_by(ROWS) {
            let tile = first..rows.end.min(first + ROWS);
            let seen = text.seen(&tile);
            let (from, to) = (seen.start.max(block.start), seen.end.min(block.end));
            if from < to {
                let steps = (from - start) / COLUMNS..(to - start).div_ceil(COLUMNS);
                let view = View { text, rows: tile, at: first - rows.start, start, steps };
                unsafe { view.attend::<S>(scratch) };
            }
        }
    }
}

/// Packs keys and values of a block.
#[inline(always)]
unsafe fn pack<S: Set>(text: &Text, block: &Range<usize>, scratch: &mut Scratch) {
    let [steps, columns] = widths(text.head_dim);
    let keys = grown(&mut scratch.keys, BLOCK / SIDE * steps * LEFT);
    // The last group of a step of 32 positions may be past the text's end.
    let whole = block.len().next_multiple_of(COLUMNS);
    for (group, out) in keys.chunks_exact_mut(steps * LEFT).enumerate().take(whole / SIDE) {
        let first = block.start + group * SIDE;
        let (mut rows, count) = ([&[][..]; SIDE], block.end.saturating_sub(first).min(SIDE));
        for (r, row) in rows.iter_mut().enumerate().take(count) {
            *row = bytes_of(text.head(1, first + r));
        }
        // SAFETY: the caller's promise.
        unsafe { right::<S, F32, PARTS>(&rows[..count], out) };
    }
    let values = grown(&mut scratch.values, BLOCK / COLUMNS * columns * LEFT);
    for (step, out) in values.chunks_exact_mut(columns * LEFT).enumerate().take(whole / COLUMNS) {
        for k in 0..SIDE {
            let first = block.start + step * COLUMNS + k;
            let pair = [first, first + SIDE];
            let rows = pair.map(|row| if row < block.end { text.head(2, row) } else { &[] });
            for (column, out) in out.as_chunks_mut::<LEFT>().0.iter_mut().enumerate() {
                // SAFETY: the caller's promise; lines of sixteen floats.
                unsafe {
                    let two = [lanes_at::<S>(rows[0], column), lanes_at::<S>(rows[1], column)];
                    for (p, part) in in_parts::<S::Lanes, PARTS>(two).iter().enumerate() {
                        part.store(out[p * SIDE + k].0.as_mut_ptr().cast());
                    }
                }
            }
        }
    }
}

/// The sixteen columns number `column` of a row, zeros past its end.
#[inline(always)]
unsafe fn lanes_at<S: Set>(row: &[f32], column: usize) -> S::Lanes {
    let row = row.get(column * LANES..).unwrap_or(&[]);
    // SAFETY: sixteen floats; the caller's promise.
    unsafe {
        if row.len() >= LANES {
            return S::Lanes::load(row.as_ptr());
        }
        let mut padded = [0.0; LANES];
        padded[..row.len()].copy_from_slice(row);
        S::Lanes::load(padded.as_ptr())
    }
}

/// Up to `ROWS` rows of a text, which are the task's from `at` on, and steps of 32 positions of the block at `start`.
struct View<'a> {
    text: &'a Text<'a>,
    rows: Range<usize>,
    at: usize,
    start: usize,
    steps: Range<usize>,
}

impl View<'_> {
    #[inline(always)]
    unsafe fn attend<S: Set>(&self, scratch: &mut Scratch) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let mut tiles = S::Tiles::new(DEPTH);
            self.score::<S>(&mut tiles, scratch);
            self.weigh::<S>(scratch);
            self.sum::<S>(&mut tiles, scratch);
        }
    }

    /// Computes the scores.
    #[inline(always)]
    unsafe fn score<S: Set>(&self, tiles: &mut S::Tiles, scratch: &mut Scratch) {
        let each = widths(self.text.head_dim)[0] * LEFT;
        let scores = grown(&mut scratch.scores, ROWS * STRIDE);
        let queries = &scratch.queries[self.at / SIDE * each..][..2 * each];
        for step in self.steps.clone() {
            let keys = &scratch.keys[2 * step * each..][..2 * each];
            zero::<S>(tiles);
            // SAFETY (of both): the operands have all parts of these tiles; there is a line for each row.
            for tile in (0..each).step_by(LEFT) {
                let [left, right] = [queries, keys].map(|x| [x[tile..].as_ptr(), x[each + tile..].as_ptr()]);
                unsafe { multiply::<S, PARTS>(tiles, left, right, [LEFT, LEFT]) };
            }
            let to = scores[2 * step..].as_mut_ptr();
            unsafe { store::<S>(tiles, to, STRIDE) };
        }
    }

    /// Turns scores into weights, and scales the rows' sums.
    #[inline(always)]
    unsafe fn weigh<S: Set>(&self, scratch: &mut Scratch) {
        let width = widths(self.text.head_dim)[1];
        let weights = grown(&mut scratch.weights, ROWS * BLOCK / COLUMNS * PARTS);
        for (r, row) in self.rows.clone().enumerate() {
            let scores = &mut scratch.scores[r * STRIDE..][..BLOCK / LANES];
            let scores = &mut floats(scores)[2 * self.steps.start..2 * self.steps.end];
            self.hide(row, scores.as_flattened_mut());
            let weights = &mut weights[r / SIDE * (BLOCK / COLUMNS) * LEFT..][self.steps.start * LEFT..];
            // SAFETY (of both): the caller's promise.
            let keep = unsafe { weigh::<S>(scores, &mut scratch.totals[self.at + r], r % SIDE, weights) };
            if keep != 1.0 {
                let sums = floats(&mut scratch.sums[(self.at + r) * width..][..width]);
                for sums in sums {
                    unsafe {
                        S::Lanes::load(sums.as_ptr()).mul(S::Lanes::splat(keep)).store(sums.as_mut_ptr())
                    };
                }
            }
        }
    }

    /// Scores of positions that a row does not see become -infinity.
    fn hide(&self, row: usize, scores: &mut [f32]) {
        let first = self.start + self.steps.start * COLUMNS;
        let own = self.text.seen(&(row..row + 1));
        let place = |position: usize| position.saturating_sub(first).min(scores.len());
        let (from, to) = (place(own.start), place(own.end));
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to..].fill(f32::NEG_INFINITY);
    }

    /// Adds the weighted values.
    #[inline(always)]
    unsafe fn sum<S: Set>(&self, tiles: &mut S::Tiles, scratch: &mut Scratch) {
        let width = widths(self.text.head_dim)[1];
        let sums = scratch.sums[self.at * width..][..ROWS * width].as_mut_ptr();
        let weights = scratch.weights[..ROWS * BLOCK / COLUMNS * PARTS].as_chunks::<LEFT>().0;
        let values = scratch.values.as_chunks::<LEFT>().0;
        for column in (0..width).step_by(2) {
            // The last column takes the place of a missing one.
            let pair = [column, (column + 1).min(width - 1)];
            // SAFETY (of all): the operands have all parts of these tiles; there are sums for each row.
            unsafe {
                let places = pair.map(|column| sums.add(column).cast::<u8>());
                let below = SIDE * width * size_of::<Line>();
                tiles.load::<0>(places[0], width * size_of::<Line>());
                tiles.load::<1>(places[1], width * size_of::<Line>());
                tiles.load::<2>(places[0].add(below), width * size_of::<Line>());
                tiles.load::<3>(places[1].add(below), width * size_of::<Line>());
                for step in self.steps.clone() {
                    let left = [weights[step].as_ptr(), weights[BLOCK / COLUMNS + step].as_ptr()];
                    let right =
                        [values[step * width + pair[0]].as_ptr(), values[step * width + pair[1]].as_ptr()];
                    multiply::<S, PARTS>(tiles, left, right, [LEFT, width * LEFT]);
                }
                tiles.store::<0>(places[0], width * size_of::<Line>());
                tiles.store::<1>(places[1], width * size_of::<Line>());
                tiles.store::<2>(places[0].add(below), width * size_of::<Line>());
                tiles.store::<3>(places[1].add(below), width * size_of::<Line>());
            }
        }
    }
}

/// Stores four tiles, as two by two, to rows that are `stride` lines apart.
#[inline(always)]
unsafe fn store<S: Set>(tiles: &mut S::Tiles, to: *mut Line, stride: usize) {
    let bytes = stride * size_of::<Line>();
    // SAFETY (of all): the caller has the rows.
    unsafe {
        let below = to.add(SIDE * stride);
        tiles.store::<0>(to.cast(), bytes);
        tiles.store::<1>(to.add(1).cast(), bytes);
        tiles.store::<2>(below.cast(), bytes);
        tiles.store::<3>(below.add(1).cast(), bytes);
    }
}

/// Writes the weights of a row's scores, row `t` of left tiles. `total` has the largest score and the sum of weights so
/// far. Returns the factor of earlier sums. A score of -infinity gets no weight. A NaN does not change the maximum; it
/// reaches the output through its weight.
#[inline(always)]
unsafe fn weigh<S: Set>(scores: &[[f32; LANES]], total: &mut [f32; 2], t: usize, out: &mut [Line]) -> f32 {
    // SAFETY: arrays of sixteen; the caller's promise.
    unsafe {
        let mut high = S::Lanes::splat(total[0]);
        for part in scores {
            high = S::Lanes::load(part.as_ptr()).above(high);
        }
        let high = high.largest();
        // Without any score so far, so that weights are 0.
        let base = if high == f32::NEG_INFINITY { 0.0 } else { high };
        let (by, mut sum) = (S::Lanes::splat(base), S::Lanes::splat(0.0));
        for (two, out) in scores.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<LEFT>().0) {
            let low = exp_lanes(S::Lanes::load(two[0].as_ptr()).sub(by));
            let above = exp_lanes(S::Lanes::load(two[1].as_ptr()).sub(by));
            sum = sum.add(low).add(above);
            for (p, part) in in_parts::<S::Lanes, PARTS>([low, above]).iter().enumerate() {
                part.store(out[p * SIDE + t].0.as_mut_ptr().cast());
            }
        }
        let mut lanes = [0.0; LANES];
        sum.store(lanes.as_mut_ptr());
        let keep = exp(total[0] - base);
        *total = [high, total[1] * keep + tree_sum(&lanes)];
        keep
    }
}
