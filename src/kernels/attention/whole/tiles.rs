//! Attention of a whole text on matrix tiles, with q, k, v and weights cut into parts of bf16 (`gemm::tiles::floats`).

use super::{LANES, Layout, Products, Scratch, Text, attended, sum_lines};
use crate::kernels::gemm::tiles::floats::{COLUMNS, LEFT, PARTS, left, multiply, right, zero};
use crate::kernels::gemm::tiles::{DEPTH, SIDE, entry};
use crate::kernels::pool::buffer::{Line, bytes_of};
use crate::kernels::simd::amx::{Set, Tiles, in_parts};
use crate::kernels::simd::lanes::{F32, Real};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a tile: two tiles of queries.
pub(super) const ROWS: usize = 2 * SIDE;
/// Positions of a block.
const BLOCK: usize = 256;
/// Distance of rows of scores, in lines. Rows one after the other would share few sets of the first-level cache.
const STRIDE: usize = BLOCK / LANES + 1;

/// Queries and weights are left tiles, by groups of sixteen rows. Keys and values are right tiles: of keys by sixteen
/// positions, of values by 32 positions and then by sixteen columns.
struct OnTiles<S>(PhantomData<S>);

/// Tiles of a row of q or k, and of v.
fn widths(dim: usize) -> [usize; 2] {
    [dim.div_ceil(COLUMNS), dim.div_ceil(LANES)]
}

pub(super) fn layout(dim: usize) -> Layout {
    let [steps, columns] = widths(dim);
    Layout {
        queries: ROWS / SIDE * steps * LEFT,
        keys: BLOCK / SIDE * steps * LEFT,
        values: BLOCK / COLUMNS * columns * LEFT,
        scores: STRIDE,
        weights: ROWS / SIDE * (BLOCK / COLUMNS) * LEFT,
    }
}

entry!(
    /// Attends from `rows`, which begin at a multiple of `span_rows`, and leaves the sums in `scratch`.
    ///
    /// # Safety
    /// `Isa::Amx` is available, and this thread has tiles of `DEPTH`.
    pub(super) fn attend(text: &Text, rows: Range<usize>, scratch: &mut Scratch) = attend_on
);

#[inline(always)]
unsafe fn attend_on<S: Set>(text: &Text, rows: Range<usize>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { attended::<OnTiles<S>>(text, rows, scratch) }
}

impl<S: Set> Products for OnTiles<S> {
    type Lanes = S::Lanes;
    const ROWS: usize = ROWS;
    const BLOCK: usize = BLOCK;

    fn layout(dim: usize) -> Layout {
        layout(dim)
    }

    #[inline(always)]
    unsafe fn query(row: &[f32], t: usize, queries: &mut [Line]) {
        let each = queries.len() / (ROWS / SIDE);
        // SAFETY: the caller's promise.
        unsafe { left::<S>(row, t % SIDE, &mut queries[t / SIDE * each..][..each]) };
    }

    #[inline(always)]
    unsafe fn pack(text: &Text, block: &Range<usize>, keys: &mut [Line], values: &mut [Line]) {
        let [steps, columns] = widths(text.head_dim);
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

    #[inline(always)]
    unsafe fn score(dim: usize, queries: &[Line], keys: &[Line], steps: &Range<usize>, scores: &mut [Line]) {
        let each = widths(dim)[0] * LEFT;
        assert!(queries.len() == 2 * each && scores.len() >= ROWS * STRIDE);
        // SAFETY (of all): the operands have all parts of these tiles, and there is a line for each row; the caller's
        // promise.
        let mut tiles = unsafe { S::Tiles::new(DEPTH) };
        for step in steps.clone() {
            let keys = &keys[2 * step * each..][..2 * each];
            zero::<S>(&mut tiles);
            for tile in (0..each).step_by(LEFT) {
                let [left, right] = [queries, keys].map(|x| [x[tile..].as_ptr(), x[each + tile..].as_ptr()]);
                unsafe { multiply::<S, PARTS>(&mut tiles, left, right, [LEFT, LEFT]) };
            }
            unsafe { store::<S>(&mut tiles, scores[2 * step..].as_mut_ptr(), STRIDE) };
        }
    }

    #[inline(always)]
    unsafe fn weigh(two: [S::Lanes; 2], t: usize, step: usize, weights: &mut [Line]) {
        let tile = &mut weights[(t / SIDE * (BLOCK / COLUMNS) + step) * LEFT..][..LEFT];
        // SAFETY: the caller's promise; a line has sixteen lanes.
        unsafe {
            for (p, part) in in_parts::<S::Lanes, PARTS>(two).iter().enumerate() {
                part.store(tile[p * SIDE + t % SIDE].0.as_mut_ptr().cast());
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(dim: usize, weights: &[Line], values: &[Line], steps: &Range<usize>, sums: &mut [Line]) {
        let (columns, width) = (widths(dim)[1], sum_lines(dim));
        assert!(sums.len() == ROWS * width, "sums of all rows");
        let weights = weights[..ROWS / SIDE * (BLOCK / COLUMNS) * LEFT].as_chunks::<LEFT>().0;
        let (values, bytes) = (values.as_chunks::<LEFT>().0, width * size_of::<Line>());
        for column in (0..columns).step_by(2) {
            // The last column takes the place of a missing one.
            let pair = [column, (column + 1).min(columns - 1)];
            // SAFETY (of all): the operands have all parts of these tiles; there are sums for each row.
            unsafe {
                let mut tiles = S::Tiles::new(DEPTH);
                let places = pair.map(|column| sums[column..].as_mut_ptr().cast::<u8>());
                let below = places.map(|place| place.add(SIDE * bytes));
                tiles.load::<0>(places[0], bytes);
                tiles.load::<1>(places[1], bytes);
                tiles.load::<2>(below[0], bytes);
                tiles.load::<3>(below[1], bytes);
                for step in steps.clone() {
                    let left = [weights[step].as_ptr(), weights[BLOCK / COLUMNS + step].as_ptr()];
                    let right = pair.map(|column| values[step * columns + column].as_ptr());
                    multiply::<S, PARTS>(&mut tiles, left, right, [LEFT, columns * LEFT]);
                }
                tiles.store::<0>(places[0], bytes);
                tiles.store::<1>(places[1], bytes);
                tiles.store::<2>(below[0], bytes);
                tiles.store::<3>(below[1], bytes);
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
