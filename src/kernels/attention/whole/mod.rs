//! Attention of a whole text in both directions, over rows of q, k and v in memory, without a cache. With matrix tiles
//! (`tiles`) sums have another order.
//!
//! Every sum runs in the order of positions, counted from the text's first row: a score along the head, the sum of
//! weights in 16 lanes, position modulo 16, and the weighted values from the first position that a tile of rows sees.
//! Tiles begin at multiples of `TILE_ROWS`, so a row's bits depend on nothing but its text (invariant 3).

#[cfg(any(test, target_arch = "x86_64"))]
mod tiles;

use super::stored::{Product, Unpacked};
use crate::kernels::Isa;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::exp::{exp, exp_lanes};
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;
use std::ops::Range;

/// Lanes of a vector.
const LANES: usize = 16;
/// Rows whose sums are in registers together: with 16 f32 registers of eight lanes, two for each row leave room for the
/// operands.
const TILE_ROWS: usize = 6;
/// Rows of a task without tiles. Each task packs the keys and values that its rows see, so there must be many rows for
/// each.
const SPAN_ROWS: usize = 40 * TILE_ROWS;

/// Number of rows of a task.
pub fn span_rows(isa: Isa) -> usize {
    #[cfg(any(test, target_arch = "x86_64"))]
    if with_tiles(isa) {
        return tiles::SPAN_ROWS;
    }
    SPAN_ROWS
}

#[cfg(any(test, target_arch = "x86_64"))]
fn with_tiles(isa: Isa) -> bool {
    isa == Isa::Amx || crate::kernels::gemm::tiles::modelled()
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

/// Scratch memory of a task, kept from task to task.
#[derive(Default)]
pub struct Scratch {
    /// `[TILE_ROWS, head_dim]`.
    queries: Vec<f32>,
    /// `[head_dim, positions]`.
    keys: Vec<f32>,
    /// `[positions, whole vectors]`.
    values: Vec<f32>,
    /// `[TILE_ROWS, positions]`: scores, then weights.
    weights: Vec<f32>,
    /// `[TILE_ROWS, whole vectors]`: the weighted sums of values.
    sums: Vec<f32>,
    #[cfg(any(test, target_arch = "x86_64"))]
    tiles: tiles::Scratch,
}

impl Scratch {
    /// Bytes for texts of `rows` rows.
    pub fn bytes(head_dim: usize, rows: usize) -> usize {
        let (dim, rows) = (head_dim.next_multiple_of(LANES), rows.next_multiple_of(LANES));
        let floats = rows.saturating_mul(2 * dim + TILE_ROWS).saturating_add(2 * TILE_ROWS * dim);
        let bytes = floats.saturating_mul(size_of::<f32>());
        #[cfg(any(test, target_arch = "x86_64"))]
        let bytes = bytes.max(tiles::Scratch::bytes(head_dim, rows));
        bytes
    }

    /// Attends from `rows`, which begin at a multiple of `span_rows`. `out(row)` returns the slice for the head's
    /// output.
    pub fn attend<'o>(
        &mut self,
        isa: Isa,
        text: &Text,
        rows: Range<usize>,
        mut out: impl FnMut(usize) -> &'o mut [f32],
    ) {
        let dim = text.head_dim;
        #[cfg(any(test, target_arch = "x86_64"))]
        if with_tiles(isa) {
            // SAFETY: `Isa::Amx` stands for permitted tiles, and this thread has no others now.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                let _tiles =
                    crate::kernels::gemm::tiles::configured(true, crate::kernels::gemm::tiles::DEPTH);
                tiles::attend(text, rows.clone(), &mut self.tiles);
            }
            for row in rows.clone() {
                let sums = self.tiles.of_row(dim, row - rows.start);
                out(row)[..dim].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
            }
            return;
        }
        let seen = text.seen(&rows);
        let first = seen.start / LANES * LANES;
        let packed = Packed::new(self, text, first, seen.end);
        let weights = grown(&mut self.weights, TILE_ROWS * packed.positions);
        let queries = grown(&mut self.queries, TILE_ROWS * dim);
        for start in rows.clone().step_by(TILE_ROWS) {
            let tile = start..rows.end.min(start + TILE_ROWS);
            queries.fill(0.0);
            for (at, row) in tile.clone().enumerate() {
                let queries = queries[at * dim..][..dim].iter_mut();
                queries.zip(text.head(0, row)).for_each(|(to, q)| *to = q * text.scale);
            }
            let seen = text.seen(&tile);
            let from = seen.start / LANES * LANES - first;
            let to = seen.end - first;
            let whole = from..to.next_multiple_of(LANES);
            product(isa, (queries, dim), 0..dim, (&self.keys, packed.positions), whole.clone(), weights);
            let mut factors = [0.0; TILE_ROWS];
            for (at, row) in tile.clone().enumerate() {
                let own = text.seen(&(row..row + 1));
                let own = own.start - first - from..own.end - first - from;
                let weights = &mut weights[at * packed.positions..][whole.clone()];
                weights[..own.start].fill(f32::NEG_INFINITY);
                weights[own.end..].fill(f32::NEG_INFINITY);
                let mut lanes = [0.0; LANES];
                weigh(isa, weights.as_chunks_mut().0, &mut lanes);
                factors[at] = 1.0 / tree_sum(&lanes);
            }
            let sums = grown(&mut self.sums, TILE_ROWS * packed.width);
            let (weights, values) = ((&*weights, packed.positions), (&*self.values, packed.width));
            product(isa, weights, from..to, values, 0..packed.width, sums);
            for (at, row) in tile.clone().enumerate() {
                let sums = &sums[at * packed.width..];
                out(row)[..dim].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * factors[at]);
            }
        }
    }
}

/// The shape of packed keys and values.
struct Packed {
    /// Positions, in whole vectors.
    positions: usize,
    /// Elements of a row of values, in whole vectors.
    width: usize,
}

impl Packed {
    /// Packs k and v of the rows `first..end`.
    fn new(scratch: &mut Scratch, text: &Text, first: usize, end: usize) -> Self {
        let dim = text.head_dim;
        let (positions, width) = ((end - first).next_multiple_of(LANES), dim.next_multiple_of(LANES));
        let keys = grown(&mut scratch.keys, dim * positions);
        let values = grown(&mut scratch.values, positions * width);
        // Packs a vector of positions at a time, a cache line from each of the head's rows.
        for from in (0..end - first).step_by(LANES) {
            let rows = from..(from + LANES).min(end - first);
            let mut lines = [&[][..]; LANES];
            rows.clone().zip(&mut lines).for_each(|(at, line)| *line = text.head(1, first + at));
            for d in 0..dim {
                let keys = &mut keys[d * positions + from..][..rows.len()];
                keys.iter_mut().zip(&lines).for_each(|(key, line)| *key = line[d]);
            }
            for at in rows {
                values[at * width..][..dim].copy_from_slice(text.head(2, first + at));
            }
        }
        Self { positions, width }
    }
}

by_isa!(
    /// The columns `columns` of the product of `TILE_ROWS` rows of factors with the rows `rows` of a matrix. Both come
    /// with the length of their rows; `out` has rows as long as the matrix. The columns are whole vectors.
    fn product(
        factors: (&[f32], usize), rows: Range<usize>, matrix: (&[f32], usize), columns: Range<usize>, out: &mut [f32],
    ) = product_lanes::<lanes>, product_scalars
);

#[inline(always)]
unsafe fn product_lanes<L: Lanes>(
    factors: (&[f32], usize),
    rows: Range<usize>,
    (matrix, width): (&[f32], usize),
    columns: Range<usize>,
    out: &mut [f32],
) {
    assert!(rows.end <= factors.1 && factors.0.len() >= TILE_ROWS * factors.1, "factors of all rows");
    assert!(matrix.len() >= rows.end * width && out.len() >= TILE_ROWS * width, "whole rows");
    assert!(columns.end <= width && columns.len().is_multiple_of(LANES), "whole vectors");
    let mut at = columns.start;
    while at < columns.end {
        // SAFETY: as many vectors are left. Two of AVX-512 hide the latency of its sums.
        at += LANES
            * unsafe {
                match L::SUMS >= 2 * TILE_ROWS && at + 2 * LANES <= columns.end {
                    true => vectors::<L, 2>(factors, rows.clone(), (matrix, width), at, out),
                    false => vectors::<L, 1>(factors, rows.clone(), (matrix, width), at, out),
                }
            };
    }
}

/// Computes `V` vectors of columns from `at` on; returns V.
#[inline(always)]
unsafe fn vectors<L: Lanes, const V: usize>(
    (factors, stride): (&[f32], usize),
    rows: Range<usize>,
    (matrix, width): (&[f32], usize),
    at: usize,
    out: &mut [f32],
) -> usize {
    let from = std::array::from_fn(|v| matrix[at + v * LANES..].as_ptr().cast());
    let product = Product { factors: (factors.as_ptr(), stride), from, next: from, width };
    // SAFETY: the caller has V vectors of columns in all rows of the matrix and of the output.
    unsafe {
        let mut sums = [[L::splat(0.0); V]; TILE_ROWS];
        product.add::<L, Unpacked, TILE_ROWS>(rows, &mut sums);
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                sum.store(out.as_mut_ptr().add(row * width + at + v * LANES));
            }
        }
    }
    V
}

fn product_scalars(
    (factors, stride): (&[f32], usize),
    rows: Range<usize>,
    (matrix, width): (&[f32], usize),
    columns: Range<usize>,
    out: &mut [f32],
) {
    for (factors, out) in factors.chunks_exact(stride).zip(out.chunks_exact_mut(width)) {
        let out = &mut out[columns.clone()];
        out.fill(0.0);
        for row in rows.clone() {
            let values = &matrix[row * width..][columns.clone()];
            out.iter_mut().zip(values).for_each(|(sum, value)| *sum = factors[row].mul_add(*value, *sum));
        }
    }
}

by_isa!(
    /// Turns scores into weights, and sums them in lanes. A score of -infinity gets no weight. A NaN does not change
    /// the maximum; it reaches the output through its weight.
    fn weigh(weights: &mut [[f32; LANES]], sums: &mut [f32; LANES]) = weigh_lanes::<lanes>, weigh_scalars
);

#[inline(always)]
unsafe fn weigh_lanes<L: Lanes>(weights: &mut [[f32; LANES]], sums: &mut [f32; LANES]) {
    // SAFETY: arrays of sixteen.
    unsafe {
        let lowest = L::splat(f32::NEG_INFINITY);
        let high = weights.iter().fold(lowest, |high, part| L::load(part.as_ptr()).above(high)).largest();
        let (high, mut sum) = (L::splat(high), L::splat(0.0));
        for part in weights {
            let weight = exp_lanes(L::load(part.as_ptr()).sub(high));
            weight.store(part.as_mut_ptr());
            sum = sum.add(weight);
        }
        sum.store(sums.as_mut_ptr());
    }
}

fn weigh_scalars(weights: &mut [[f32; LANES]], sums: &mut [f32; LANES]) {
    let scores = weights.as_flattened().iter();
    let high = scores.fold(f32::NEG_INFINITY, |high, w| if *w > high { *w } else { high });
    for part in weights {
        for (weight, sum) in part.iter_mut().zip(&mut *sums) {
            *weight = exp(*weight - high);
            *sum += *weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::available;
    use crate::kernels::gemm::tiles::modelling;

    /// Two heads of q, k and v in a row of six heads.
    fn rows(count: usize, dim: usize) -> Vec<f32> {
        (0..count * 6 * dim).map(|i| ((i * 37 + i / 7 * 11) % 101) as f32 * 0.02 - 1.0).collect()
    }

    fn attended(isa: Isa, count: usize, dim: usize, window: Option<usize>) -> Vec<f32> {
        let qkv = rows(count, dim);
        let columns = [dim, 3 * dim, 5 * dim];
        let text = Text { qkv: &qkv, width: 6 * dim, head_dim: dim, columns, scale: 0.3, window };
        let (mut out, mut scratch) = (vec![vec![f32::NAN; dim]; count], Scratch::default());
        // Memory as an earlier task may have left it.
        for buffer in [&mut scratch.keys, &mut scratch.values, &mut scratch.weights] {
            buffer.resize(count * 64, f32::NAN);
        }
        let span = span_rows(isa);
        for start in (0..count).step_by(span) {
            let end = count.min(start + span);
            let mut parts: Vec<_> = out[start..end].iter_mut().map(Vec::as_mut_slice).collect();
            scratch.attend(isa, &text, start..end, |row| {
                let part = &mut parts[row - start];
                // SAFETY: the slices outlive the call, and one is used at a time.
                unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr(), part.len()) }
            });
        }
        out.concat()
    }

    #[test]
    fn it_is_the_formula_in_every_instruction_set() {
        for (count, dim, window) in [
            (1, 4, None),
            (7, 6, None),
            (33, 32, None),
            (40, 20, Some(3)),
            (130, 16, Some(17)),
            (250, 8, None),
        ] {
            let got = attended(Isa::Scalar, count, dim, window);
            for isa in available().iter().filter(|isa| !with_tiles(**isa)) {
                let other = attended(*isa, count, dim, window);
                assert!(
                    got.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{isa:?}, {count} rows"
                );
            }
            check(&got, count, dim, window);
        }
    }

    /// In the model of tiles, and on the processor if it has them.
    #[test]
    fn tiles_compute_the_formula() {
        let shapes = [(1, 4, None), (33, 34, None), (40, 20, Some(3)), (300, 6, Some(17))];
        for (count, dim, window) in shapes {
            let sets = available().iter().filter(|isa| **isa != Isa::Scalar);
            let model = |isa: &Isa| modelling(*isa, || attended(*isa, count, dim, window));
            let mut all: Vec<_> = sets.map(model).collect();
            all.extend(here().then(|| attended(Isa::Amx, count, dim, window)));
            for got in &all {
                check(got, count, dim, window);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(bits(got) == bits(&all[0]), "{count} rows");
            }
        }
        // Several tasks and blocks.
        for (count, dim, window) in [(1100, 72, None), (700, 16, Some(300))] {
            if here() {
                check(&attended(Isa::Amx, count, dim, window), count, dim, window);
            }
        }
    }

    fn here() -> bool {
        available().contains(&Isa::Amx) && Isa::Amx.permitted()
    }

    fn check(got: &[f32], count: usize, dim: usize, window: Option<usize>) {
        let qkv = rows(count, dim);
        let head = |which: usize, row: usize| &qkv[row * 6 * dim + (2 * which + 1) * dim..][..dim];
        for row in 0..count {
            let sees = |other: &usize| window.is_none_or(|window| row.abs_diff(*other) <= window);
            let dot = |other| -> f64 {
                head(0, row).iter().zip(head(1, other)).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
            };
            let weights: Vec<(usize, f64)> =
                (0..count).filter(sees).map(|other| (other, (dot(other) * 0.3).exp())).collect();
            let total: f64 = weights.iter().map(|(_, w)| w).sum();
            for d in 0..dim {
                let want: f64 =
                    weights.iter().map(|(other, w)| w * f64::from(head(2, *other)[d])).sum::<f64>() / total;
                let got = f64::from(got[row * dim + d]);
                assert!((got - want).abs() < 2e-6, "row {row} of {count}: {got} for {want}");
            }
        }
    }
}
