//! Attention of a whole text in both directions, over rows of q, k and v in memory, without a cache, block by block
//! (Dao et al. 2022, "FlashAttention").
//!
//! Before a row's sums take a block, they are scaled to the largest score so far (Milakov and Gimelshein 2018, "Online
//! normalizer calculation for softmax"). Blocks, and tiles of rows, begin at multiples of their sizes, counted from the
//! text's first row. Positions of a block that a row does not see add zeros (if values are finite). So a row's bits
//! depend on nothing but its text (invariant 3). All instruction sets but `Isa::Amx` add up in one order.

mod lanes;
#[cfg(test)]
mod tests;
#[cfg(any(test, target_arch = "x86_64"))]
mod tiles;

use crate::kernels::Isa;
use crate::kernels::gemm::outer::Tile;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles as amx;
use crate::kernels::pool::buffer::{Line, floats, floats_of, grown};
use crate::kernels::rows::exp::{exp, exp_lanes};
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::simd::lanes::{Lanes, Real};
use std::ops::Range;

/// Lanes of a vector.
const LANES: usize = 16;
/// Positions whose scores are computed together.
const STEP: usize = 2 * LANES;
/// Maximum number of rows of a task. Each packs the keys and values that its rows see, block by block.
const SPAN_ROWS: usize = 512;

/// Number of rows of a task, in whole tiles.
pub fn span_rows(isa: Isa) -> usize {
    let rows = tile_rows(isa);
    SPAN_ROWS / rows * rows
}

fn tile_rows(isa: Isa) -> usize {
    #[cfg(any(test, target_arch = "x86_64"))]
    if with_tiles(isa) {
        return tiles::ROWS;
    }
    Tile::of(isa).rows
}

fn layout(isa: Isa, dim: usize) -> Layout {
    #[cfg(any(test, target_arch = "x86_64"))]
    if with_tiles(isa) {
        return tiles::layout(dim);
    }
    lanes::layout(Tile::of(isa), dim)
}

#[cfg(any(test, target_arch = "x86_64"))]
fn with_tiles(isa: Isa) -> bool {
    isa == Isa::Amx || amx::modelled()
}

/// One head of one text.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// The text's rows of q, k and v, `[rows, width]`. q and k are normed and rotated.
    pub qkv: &'a [f32],
    pub width: usize,
    pub head_dim: usize,
    /// The columns where q, k and v of the head begin.
    pub columns: [usize; 3],
    /// Factor on the scores.
    pub scale: f32,
    /// A row sees rows that are at most this far away. `None`: all.
    pub window: Option<usize>,
}

impl Text<'_> {
    fn rows(&self) -> usize {
        self.qkv.len() / self.width
    }

    /// One of q, k and v of a row.
    fn head(&self, which: usize, row: usize) -> &[f32] {
        &self.qkv[row * self.width + self.columns[which]..][..self.head_dim]
    }

    /// The positions that rows see together.
    fn seen(&self, rows: &Range<usize>) -> Range<usize> {
        match self.window {
            None => 0..self.rows(),
            Some(window) => {
                rows.start.saturating_sub(window)..rows.end.saturating_add(window).min(self.rows())
            }
        }
    }
}

/// Sizes in lines.
struct Layout {
    /// A tile's queries.
    queries: usize,
    /// A block's keys and values.
    keys: usize,
    values: usize,
    /// A row of a tile's scores with a block.
    scores: usize,
    /// A tile's weights.
    weights: usize,
}

/// Lines of the sums of a row's weighted values.
fn sum_lines(dim: usize) -> usize {
    dim.div_ceil(STEP) * (STEP / LANES)
}

/// How scores and weighted values are computed. All functions need the instructions of `Lanes`, and buffers of the
/// sizes of `layout`.
trait Products {
    type Lanes: Lanes;
    /// Rows of a tile.
    const ROWS: usize;
    /// Positions of a block, whose keys and values stay in the second-level cache: whole steps.
    const BLOCK: usize;

    fn layout(dim: usize) -> Layout;

    /// Writes row `t` of a tile of queries.
    unsafe fn query(row: &[f32], t: usize, queries: &mut [Line]);

    /// Packs the keys and values of a block. Values past the text's end are zeros.
    unsafe fn pack(text: &Text, block: &Range<usize>, keys: &mut [Line], values: &mut [Line]);

    /// Computes the scores of a tile with some steps of a block.
    unsafe fn score(dim: usize, queries: &[Line], keys: &[Line], steps: &Range<usize>, scores: &mut [Line]);

    /// Writes the weights of row `t` for a step.
    unsafe fn weigh(two: [Self::Lanes; 2], t: usize, step: usize, weights: &mut [Line]);

    /// Adds the weighted values of some steps of a block to a tile's sums.
    unsafe fn sum(dim: usize, weights: &[Line], values: &[Line], steps: &Range<usize>, sums: &mut [Line]);
}

/// Scratch memory of a task, kept from task to task.
#[derive(Default)]
pub struct Scratch {
    /// A row of q, scaled.
    row: Vec<f32>,
    /// The queries of all tiles.
    queries: Vec<Line>,
    keys: Vec<Line>,
    values: Vec<Line>,
    scores: Vec<Line>,
    weights: Vec<Line>,
    /// Sums of weighted values of all rows, and for each row the largest score and the sum of weights.
    sums: Vec<Line>,
    totals: Vec<[f32; 2]>,
}

impl Scratch {
    /// Bytes for texts of `rows` rows.
    pub fn bytes(isa: Isa, head_dim: usize, rows: usize) -> usize {
        let (tile, layout) = (tile_rows(isa), layout(isa, head_dim));
        let rows = SPAN_ROWS.min(rows).next_multiple_of(tile);
        let block = layout.keys + layout.values + tile * layout.scores + layout.weights;
        let lines = rows / tile * layout.queries + rows * sum_lines(head_dim) + block;
        lines * size_of::<Line>() + 4 * head_dim + 8 * rows
    }

    /// Attends from `rows`, which begin at a multiple of `span_rows` and are at most as many. `out(row)` returns the
    /// slice for the head's output.
    pub fn attend<'o>(
        &mut self,
        isa: Isa,
        text: &Text,
        rows: Range<usize>,
        mut out: impl FnMut(usize) -> &'o mut [f32],
    ) {
        #[cfg(any(test, target_arch = "x86_64"))]
        if with_tiles(isa) {
            #[cfg(target_arch = "x86_64")]
            let _tiles = amx::configured(true, amx::DEPTH);
            // SAFETY: `Isa::Amx` stands for permitted tiles, and this thread has no others now.
            unsafe { tiles::attend(text, rows.clone(), self) };
        } else {
            lanes::attend(isa, text, rows.clone(), self);
        }
        #[cfg(not(any(test, target_arch = "x86_64")))]
        lanes::attend(isa, text, rows.clone(), self);
        let (width, sums) = (sum_lines(text.head_dim) * LANES, floats_of(&self.sums));
        for ((row, [_, total]), sums) in rows.zip(&self.totals).zip(sums.chunks_exact(width)) {
            let factor = 1.0 / total;
            out(row)[..text.head_dim].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * factor);
        }
    }
}

/// Attends from `rows`, and leaves sums and totals in `scratch`.
///
/// # Safety
/// The instructions of `A::Lanes` are available.
#[inline(always)]
unsafe fn attended<A: Products>(text: &Text, rows: Range<usize>, scratch: &mut Scratch) {
    let (layout, tiles) = (A::layout(text.head_dim), rows.len().div_ceil(A::ROWS));
    let queries = grown(&mut scratch.queries, tiles * layout.queries);
    let row = grown(&mut scratch.row, text.head_dim);
    for (at, position) in rows.clone().enumerate() {
        row.iter_mut().zip(text.head(0, position)).for_each(|(to, q)| *to = q * text.scale);
        let queries = &mut queries[at / A::ROWS * layout.queries..][..layout.queries];
        // SAFETY: the caller's promise.
        unsafe { A::query(row, at % A::ROWS, queries) };
    }
    grown(&mut scratch.sums, tiles * A::ROWS * sum_lines(text.head_dim)).fill(Line::default());
    grown(&mut scratch.totals, tiles * A::ROWS).fill([f32::NEG_INFINITY, 0.0]);
    grown(&mut scratch.scores, A::ROWS * layout.scores);
    grown(&mut scratch.weights, layout.weights);
    let seen = text.seen(&rows);
    for start in (seen.start / A::BLOCK * A::BLOCK..seen.end).step_by(A::BLOCK) {
        let block = start..text.rows().min(start + A::BLOCK);
        let keys = grown(&mut scratch.keys, layout.keys);
        let values = grown(&mut scratch.values, layout.values);
        // SAFETY (of both): the caller's promise.
        unsafe { A::pack(text, &block, keys, values) };
        for (tile, first) in rows.clone().step_by(A::ROWS).enumerate() {
            let rows = first..rows.end.min(first + A::ROWS);
            let seen = text.seen(&rows);
            let (from, to) = (seen.start.max(block.start), seen.end.min(block.end));
            if from < to {
                let steps = (from - start) / STEP..(to - start).div_ceil(STEP);
                unsafe { TileBlock { text, rows, tile, start, steps }.attend::<A>(scratch) };
            }
        }
    }
}

/// Rows of a text, which are a tile, and steps of positions of the block at `start`.
struct TileBlock<'a> {
    text: &'a Text<'a>,
    rows: Range<usize>,
    tile: usize,
    start: usize,
    steps: Range<usize>,
}

impl TileBlock<'_> {
    #[inline(always)]
    unsafe fn attend<A: Products>(&self, scratch: &mut Scratch) {
        let (dim, steps) = (self.text.head_dim, &self.steps);
        let (layout, width) = (A::layout(dim), A::ROWS * sum_lines(dim));
        let Scratch { queries, keys, values, scores, weights, sums, totals, .. } = scratch;
        let queries = &queries[self.tile * layout.queries..][..layout.queries];
        let (keys, values) = (&keys[..layout.keys], &values[..layout.values]);
        let (scores, weights) = (&mut scores[..A::ROWS * layout.scores], &mut weights[..layout.weights]);
        let sums = &mut sums[self.tile * width..][..width];
        let totals = &mut totals[self.tile * A::ROWS..][..A::ROWS];
        // SAFETY (of all): the caller's promise.
        unsafe {
            A::score(dim, queries, keys, steps, scores);
            for (t, row) in self.rows.clone().enumerate() {
                let scores = &mut floats(&mut scores[t * layout.scores..][..layout.scores]);
                let scores = &mut scores[steps.start * STEP / LANES..steps.end * STEP / LANES];
                self.hide(row, scores.as_flattened_mut());
                let keep = soften::<A>(scores, &mut totals[t], (t, steps.start), weights);
                if keep != 1.0 {
                    for sum in floats(&mut sums[t * sum_lines(dim)..][..sum_lines(dim)]) {
                        let kept = A::Lanes::load(sum.as_ptr()).mul(A::Lanes::splat(keep));
                        kept.store(sum.as_mut_ptr());
                    }
                }
            }
            A::sum(dim, weights, values, steps, sums);
        }
    }

    /// Scores of positions that a row does not see become -infinity.
    #[inline(always)]
    fn hide(&self, row: usize, scores: &mut [f32]) {
        let first = self.start + self.steps.start * STEP;
        let own = self.text.seen(&(row..row + 1));
        let place = |position: usize| position.saturating_sub(first).min(scores.len());
        let (from, to) = (place(own.start), place(own.end));
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to..].fill(f32::NEG_INFINITY);
    }
}

/// Writes the weights of a row's scores: row and first step are `at`. `total` has the largest score and the sum of
/// weights so far. Returns the factor of earlier sums. A score of -infinity gets no weight. A NaN does not change the
/// maximum; it reaches the output through its weight.
#[inline(always)]
unsafe fn soften<A: Products>(
    scores: &[[f32; LANES]],
    total: &mut [f32; 2],
    at: (usize, usize),
    weights: &mut [Line],
) -> f32 {
    // SAFETY: arrays of sixteen; the caller's promise.
    unsafe {
        let mut high = A::Lanes::splat(total[0]);
        for part in scores {
            high = A::Lanes::load(part.as_ptr()).above(high);
        }
        let high = high.largest();
        // Without any score so far, so that weights are 0.
        let base = if high == f32::NEG_INFINITY { 0.0 } else { high };
        let (by, mut sum) = (A::Lanes::splat(base), A::Lanes::splat(0.0));
        for (step, two) in scores.as_chunks::<2>().0.iter().enumerate() {
            let low = exp_lanes(A::Lanes::load(two[0].as_ptr()).sub(by));
            let above = exp_lanes(A::Lanes::load(two[1].as_ptr()).sub(by));
            sum = sum.add(low).add(above);
            A::weigh([low, above], at.0, at.1 + step, weights);
        }
        let mut lanes = [0.0; LANES];
        sum.store(lanes.as_mut_ptr());
        let keep = exp(total[0] - base);
        *total = [high, total[1] * keep + tree_sum(&lanes)];
        keep
    }
}
