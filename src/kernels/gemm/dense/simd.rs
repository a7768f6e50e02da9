//! The dense product's inner loops on sixteen lanes, for weights that are single elements. Each dot product has the
//! order of `super::dot`. Other types are decoded as in the reference.
//!
//! With few tokens, weights are widened in registers and multiplied at once. With more tokens, rows are converted to
//! f32 once, in a panel; tiles of rows and tokens share their loads.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{LANES, Task, add_tail};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::{last_of, widen};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::lanes::{Element, Lanes, Real, Register};
use std::ops::Range;

/// Maximum number of tokens that share one widening of a row in registers.
const FUSED: usize = 4;
/// Maximum rows and tokens of a tile: 12 sums, three weights and an activation take all registers of AVX2. Those of
/// AVX-512 and NEON have room for twice as many rows.
const TILE: usize = 3;
const WIDE: usize = 6;
const TOKENS: usize = 4;
/// Rows and columns of a panel of f32 weights. With TOKENS activations it fits an L1 cache of 32 KiB. Each additional
/// row saves reads of activations from the L2 cache.
const ROWS: usize = 12;
const PART: usize = 384;
/// Maximum number of tokens in a block that a panel is swept over. A panel of whole rows serves all blocks, and small
/// blocks keep the sums in the L1 cache.
const BLOCK: usize = 128;
const SMALL_BLOCK: usize = 16;
const PANEL: usize = ROWS * PART;
const SUMS: usize = BLOCK * ROWS * LANES;

/// Computes the dot products of all tokens with all rows, whose elements are `E`.
pub(super) fn product<E: Element>(isa: Isa, task: &Task, scratch: &mut Vec<f32>) {
    let cols = task.matrix.cols;
    assert!(task.row_bytes == cols * E::BYTES && task.packed.len() == task.rows * task.row_bytes);
    assert!(task.x.len().is_multiple_of(cols));
    if task.x.len() <= FUSED * cols { fused::<E>(isa, task) } else { swept::<E>(isa, task, scratch) }
}

by_isa!(
    /// Computes `task` with 1 to FUSED tokens.
    fn fused<E: Element>(task: &Task) = fused_in_lanes::<lanes>
);

#[inline(always)]
unsafe fn fused_in_lanes<L: Lanes, E: Element>(task: &Task) {
    let tokens = task.x.len() / task.matrix.cols;
    // SAFETY (of all): the caller has the instructions.
    unsafe {
        if L::SUMS >= 16 {
            by_count!(tokens, N in 1 2 3 4, strips::<L, E, 4, N>(task), else {})
        } else {
            // With AVX2 and NEON, a sum takes several registers.
            by_count!(tokens, N in 1 2 3 4, strips::<L, E, { [4, 2, 2, 1][N - 1] }, N>(task), else {})
        }
    }
}

/// Computes all rows: R at a time, and the last ones one by one.
#[inline(always)]
unsafe fn strips<L: Lanes, E: Element, const R: usize, const N: usize>(task: &Task) {
    let cols = task.matrix.cols;
    let x: [&[f32]; N] = std::array::from_fn(|t| &task.x[t * cols..(t + 1) * cols]);
    let whole = task.rows / R * R;
    // SAFETY (of both): the caller has the instructions.
    for first in (0..whole).step_by(R) {
        let dots = unsafe { strip::<L, E, R, N>(task, first, x) };
        dots.iter().enumerate().for_each(|(t, dots)| task.write(t, first, dots));
    }
    for row in whole..task.rows {
        let dots = unsafe { strip::<L, E, 1, N>(task, row, x) };
        dots.iter().enumerate().for_each(|(t, dots)| task.write(t, row, dots));
    }
}

/// Computes R rows with N tokens.
#[inline(always)]
unsafe fn strip<L: Lanes, E: Element, const R: usize, const N: usize>(
    task: &Task,
    first: usize,
    x: [&[f32]; N],
) -> [[f32; R]; N] {
    let mut rows: [&[u8]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = task.row(first + r);
    }
    let whole = task.matrix.cols / LANES * LANES;
    let mut lanes = [[[0.0; LANES]; R]; N];
    // SAFETY: k + 16 <= cols, which each row and token has; the caller has the instructions. Prefetched memory need
    // not exist.
    unsafe {
        let mut sums = [[L::splat(0.0); R]; N];
        for k in (0..whole).step_by(LANES) {
            for r in 0..R {
                let at = rows[r].as_ptr().add(k * E::BYTES);
                // Prefetch the row that is read next.
                L::fetch(at.wrapping_add(R * task.row_bytes));
                let weights = E::load::<L>(at);
                for t in 0..N {
                    sums[t][r] = L::load(x[t].as_ptr().add(k)).fma(weights, sums[t][r]);
                }
            }
        }
        for t in 0..N {
            for r in 0..R {
                sums[t][r].store(lanes[t][r].as_mut_ptr());
            }
        }
    }
    let mut out = [[0.0; R]; N];
    for r in 0..R {
        let rest = last_of::<E>(&rows[r][whole * E::BYTES..]);
        for t in 0..N {
            add_tail(&mut lanes[t][r], &x[t][whole..], &rest);
            out[t][r] = tree_sum(&lanes[t][r]);
        }
    }
    out
}

/// Widens ROWS rows in parts that stay in the L1 cache, and sweeps each part over up to BLOCK tokens. Lanes are kept
/// apart to the end; their sums are in memory between the parts.
fn swept<E: Element>(isa: Isa, task: &Task, scratch: &mut Vec<f32>) {
    let cols = task.matrix.cols;
    let scratch = grown(scratch, PANEL + SUMS + LANES);
    // Align to cache lines; otherwise half of all loads cross a line.
    let start = scratch.as_ptr().align_offset(64).min(LANES);
    let (panel, sums) = scratch[start..start + PANEL + SUMS].split_at_mut(PANEL);
    let block = if cols <= PART { SMALL_BLOCK } else { BLOCK };
    for first in (0..task.rows).step_by(ROWS) {
        let count = ROWS.min(task.rows - first);
        for (b, x) in task.x.chunks(block * cols).enumerate() {
            let sums = &mut sums.as_chunks_mut::<LANES>().0[..x.len() / cols * ROWS];
            for from in (0..cols).step_by(PART) {
                let columns = from..cols.min(from + PART);
                let held = cols <= PART && b > 0;
                for (r, out) in panel.chunks_exact_mut(PART).take(if held { 0 } else { count }).enumerate() {
                    let row = task.row(first + r);
                    // The next part of this row, or the first part of the row that takes its place.
                    let next =
                        if columns.end < cols { columns.end * E::BYTES } else { ROWS * task.row_bytes };
                    let next = row.as_ptr().wrapping_add(next);
                    let source = &row[columns.start * E::BYTES..columns.end * E::BYTES];
                    widen::<E>(isa, source, &mut out[..columns.len()], next);
                }
                part(isa, task, b * block, first, columns, panel, sums);
            }
            finish(isa, task, b * block, first, sums);
        }
    }
}

by_isa!(
    /// Adds the products of some columns to `sums`, `[tokens, ROWS]`, and begins them with the first column: of the
    /// tokens from `start` on, with the panel's rows, which are those from `first` on.
    fn part(
        task: &Task,
        start: usize,
        first: usize,
        columns: Range<usize>,
        panel: &[f32],
        sums: &mut [[f32; LANES]],
    ) = part_in_lanes::<lanes>
);

#[inline(always)]
unsafe fn part_in_lanes<L: Lanes>(
    task: &Task,
    start: usize,
    first: usize,
    columns: Range<usize>,
    panel: &[f32],
    sums: &mut [[f32; LANES]],
) {
    let (cols, len, rows) = (task.matrix.cols, columns.len(), ROWS.min(task.rows - first));
    for (n, sums) in sums.chunks_mut(TOKENS * ROWS).enumerate() {
        let (start, tokens) = (start + n * TOKENS, sums.len() / ROWS);
        let x = &task.x[start * cols + columns.start..];
        let mut row = 0;
        while row < rows {
            let (w, sums) = (&panel[row * PART..], &mut sums[row..]);
            let tile = Tile { x, cols, w, len, begins: columns.start == 0 };
            // SAFETY: the caller has the instructions.
            row += unsafe {
                match (tokens, rows - row) {
                    (4, WIDE..) if L::Register::COUNT >= 32 => tile.add::<L, 4, WIDE>(sums),
                    (4, TILE..) => tile.add::<L, 4, TILE>(sums),
                    (3, TILE..) => tile.add::<L, 3, TILE>(sums),
                    (2, TILE..) => tile.add::<L, 2, TILE>(sums),
                    (1, TILE..) => tile.add::<L, 1, TILE>(sums),
                    _ => {
                        for t in 0..tokens {
                            let x = &x[t * cols..];
                            Tile { x, ..tile }.add::<L, 1, 1>(&mut sums[t * ROWS..]);
                        }
                        1
                    }
                }
            };
        }
    }
}

by_isa!(
    /// Writes the dot products of the tokens from `start` on with the rows from `first` on; `sums` has their lanes.
    fn finish(task: &Task, start: usize, first: usize, sums: &[[f32; LANES]]) = finish_in::<lanes>
);

#[inline(always)]
unsafe fn finish_in<L: Lanes>(task: &Task, start: usize, first: usize, sums: &[[f32; LANES]]) {
    let rows = ROWS.min(task.rows - first);
    (0..sums.len() / ROWS).for_each(|t| L::fetch(task.place(start + t, first)));
    for (n, sums) in sums.chunks(TOKENS * ROWS).enumerate() {
        let mut dots = [[0.0; ROWS]; TOKENS];
        for (sums, dots) in sums.chunks(LANES).zip(dots.as_flattened_mut().as_chunks_mut::<LANES>().0) {
            match sums.as_chunks().0.first() {
                // SAFETY: sixteen arrays, and as many sums; the caller has the instructions.
                Some(sums) => unsafe { tree_sums::<L>(sums, dots) },
                None => sums.iter().zip(dots).for_each(|(sums, dot)| *dot = tree_sum(sums)),
            }
        }
        for (t, dots) in dots.iter().enumerate().take(sums.len() / ROWS) {
            if rows == ROWS {
                task.write(start + n * TOKENS + t, first, dots); // of a length that the compiler knows
            } else {
                task.write(start + n * TOKENS + t, first, &dots[..rows]);
            }
        }
    }
}

#[inline(always)]
unsafe fn tree_sums<L: Lanes>(arrays: &[[f32; LANES]; LANES], sums: &mut [f32; LANES]) {
    // SAFETY: arrays of those sizes; the caller has the instructions.
    unsafe { L::tree_sums(arrays.as_flattened().as_ptr(), sums.as_mut_ptr()) }
}

/// Rows of `x`, `cols` apart, and of `w`, PART apart, over `len` columns.
#[derive(Clone, Copy)]
struct Tile<'a> {
    x: &'a [f32],
    cols: usize,
    w: &'a [f32],
    len: usize,
    /// The sums begin here, regardless of the contents of their memory.
    begins: bool,
}

impl Tile<'_> {
    /// Multiplies N rows of `x` with R rows of `w`, and returns R. It handles one register of lanes after another, so
    /// that N * R sums, R weights and an activation fit the registers.
    #[inline(always)]
    unsafe fn add<L: Lanes, const N: usize, const R: usize>(self, sums: &mut [[f32; LANES]]) -> usize {
        let Self { x, cols, w, len, begins } = self;
        let whole = len / LANES * LANES;
        assert!(
            x.len() >= (N - 1) * cols + len
                && w.len() >= (R - 1) * PART + len
                && sums.len() >= (N - 1) * ROWS + R
        );
        for lane in (0..LANES).step_by(L::Register::WIDTH) {
            // SAFETY: sums are LANES floats; a register of floats at k + lane ends before `whole`, which each row has.
            unsafe {
                let mut acc = [[L::Register::splat(0.0); R]; N];
                if !begins {
                    for t in 0..N {
                        for r in 0..R {
                            acc[t][r] = L::Register::load(sums[t * ROWS + r].as_ptr().add(lane));
                        }
                    }
                }
                for k in (lane..whole).step_by(LANES) {
                    let mut weights = [L::Register::splat(0.0); R];
                    for r in 0..R {
                        weights[r] = L::Register::load(w.as_ptr().add(r * PART + k));
                    }
                    for t in 0..N {
                        let x = L::Register::load(x.as_ptr().add(t * cols + k));
                        for r in 0..R {
                            acc[t][r] = x.fma(weights[r], acc[t][r]);
                        }
                    }
                }
                for t in 0..N {
                    for r in 0..R {
                        acc[t][r].store(sums[t * ROWS + r].as_mut_ptr().add(lane));
                    }
                }
            }
        }
        if whole < len {
            for (t, r) in (0..N).flat_map(|t| (0..R).map(move |r| (t, r))) {
                add_tail(
                    &mut sums[t * ROWS + r],
                    &x[t * cols + whole..t * cols + len],
                    &w[r * PART + whole..],
                );
            }
        }
        R
    }
}
