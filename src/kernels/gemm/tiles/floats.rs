//! Products of floats, cut into parts of bf16 that sum to them (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16
//! Artificial Intelligence Datatype For Higher-Precision Computations").
//!
//! A float has three parts, a weight in F16 two, one in BF16 one. All products of parts are summed whose orders,
//! counted from 0, sum to at most two. What is left out of a product is below 2^-21 of it. Parts that are subnormal
//! numbers count as zeros; infinite numbers become NaN.
//!
//! A left tile has 32 columns of sixteen tokens, a right tile those of sixteen rows of weights, both as pairs of
//! columns that are sixteen apart. Every sum has one order: columns in steps of 32, in each of these the products of
//! `PATHS`.

use super::{SIDE, columns, write};
use crate::kernels::gemm::dense::whole::EachRow;
use crate::kernels::gemm::driver::{self, Scratch, in_groups};
use crate::kernels::pool::buffer::{Line, bytes_of, grown};
use crate::kernels::simd::amx::{Set, Tiles, in_parts};
use crate::kernels::simd::lanes::{BF16, Element, F16, F32, Real};
use crate::kernels::{DType, Pool};
use std::ops::Range;

/// Columns of a tile.
pub(crate) const COLUMNS: usize = 32;
/// Parts of an activation.
pub(crate) const PARTS: usize = 3;
/// Lines of the parts of sixteen activations' tile.
pub(crate) const LEFT: usize = PARTS * SIDE;
/// Steps of columns, and groups of tokens, after which others of a task's weights are read. These parts of both
/// operands, with the weights of a task, fit the second-level cache of a core that two threads share.
const SPAN: usize = 32;
const BLOCK: usize = 16;

/// Activations as left tiles: for each sixteen tokens all steps, of each the parts. Lines of missing tokens have
/// unspecified contents.
pub(crate) struct Split<'a> {
    lines: &'a [Line],
    pub tokens: usize,
    pub cols: usize,
}

/// Arranges rows of activations; `row(n, then)` calls `then` with row `n`.
///
/// # Safety
/// `Isa::Amx` is available.
pub(crate) unsafe fn arrange<'a>(
    pool: &Pool,
    [tokens, cols]: [usize; 2],
    lines: &'a mut Vec<Line>,
    row: &EachRow,
) -> Split<'a> {
    let each = cols.div_ceil(COLUMNS) * LEFT;
    let lines = in_groups(pool, (tokens, tokens * cols), (SIDE, each), lines, &|group, out| {
        for t in 0..SIDE.min(tokens - group * SIDE) {
            // SAFETY: the caller's promise.
            row(group * SIDE + t, &mut |row| unsafe { left_row(row, t, out) });
        }
    });
    Split { lines, tokens, cols }
}

/// Bytes of `tokens` rows of activations.
pub(crate) fn bytes(tokens: usize, cols: usize) -> usize {
    let lines = tokens.div_ceil(SIDE).saturating_mul(cols.div_ceil(COLUMNS) * LEFT);
    lines.saturating_mul(size_of::<Line>())
}

/// Bytes that a thread keeps for products with weights of `cols` columns.
pub(crate) fn thread_bytes(cols: usize) -> usize {
    let strips = HEIGHT / SIDE;
    let panel = strips.saturating_mul(cols.div_ceil(COLUMNS)).saturating_mul(PARTS * SIDE);
    panel.saturating_add(BLOCK * strips * SIDE).saturating_mul(size_of::<Line>())
}

/// Maximum number of weight rows in a task.
pub(crate) const HEIGHT: usize = 128;

type Task<'a> = driver::Task<'a, Split<'a>>;

entry!(
    /// Writes row `t` of left tiles.
    ///
    /// # Safety
    /// `Isa::Amx` is available.
    fn left_row(row: &[f32], t: usize, out: &mut [Line]) = left
);
entry!(
    /// Computes `task`, whose weights are single elements.
    ///
    /// # Safety
    /// As for `arrange`, which has made `task.x`; this thread has tiles of `DEPTH`.
    pub(crate) fn run(task: &Task, scratch: &mut Scratch) = product
);

#[inline(always)]
unsafe fn product<S: Set>(task: &Task, scratch: &mut Scratch) {
    // SAFETY (of all): the caller's promise.
    unsafe {
        match task.dtype {
            DType::F32 => multiplied::<S, F32, 3>(task, scratch),
            DType::F16 => multiplied::<S, F16, 2>(task, scratch),
            DType::BF16 => multiplied::<S, BF16, 1>(task, scratch),
            other => unreachable!("{other:?} has blocks"),
        }
    }
}

/// Loads 32 elements, zeros past the end.
#[inline(always)]
unsafe fn two<S: Set, E: Element>(from: &[u8]) -> [S::Lanes; 2] {
    // SAFETY: 32 elements of at most four bytes.
    unsafe {
        if from.len() >= COLUMNS * E::BYTES {
            let from = from.as_ptr();
            return [E::load::<S::Lanes>(from), E::load::<S::Lanes>(from.add(SIDE * E::BYTES))];
        }
        let mut padded = [0u8; 4 * COLUMNS];
        padded[..from.len()].copy_from_slice(from);
        [E::load::<S::Lanes>(padded.as_ptr()), E::load::<S::Lanes>(padded[SIDE * E::BYTES..].as_ptr())]
    }
}

/// Writes row `t` of left tiles: of each step of columns the parts.
///
/// # Safety
/// `S`'s instructions are available.
#[inline(always)]
pub(crate) unsafe fn left<S: Set>(row: &[f32], t: usize, out: &mut [Line]) {
    for (columns, out) in row.chunks(COLUMNS).zip(out.as_chunks_mut::<LEFT>().0) {
        // SAFETY: the caller's promise; a line has sixteen lanes.
        unsafe {
            let parts = in_parts::<S::Lanes, PARTS>(two::<S, F32>(bytes_of(columns)));
            for (p, part) in parts.iter().enumerate() {
                part.store(out[p * SIDE + t].0.as_mut_ptr().cast());
            }
        }
    }
}

/// Writes up to sixteen rows of elements as right tiles: of each step of columns the parts. Missing rows are zeros.
///
/// # Safety
/// `S`'s instructions are available.
#[inline(always)]
pub(crate) unsafe fn right<S: Set, E: Element, const P: usize>(rows: &[&[u8]], out: &mut [Line]) {
    for (step, out) in out.chunks_exact_mut(P * SIDE).enumerate() {
        let mut lines = [[Line::default(); SIDE]; P];
        for (r, row) in rows.iter().enumerate().take(SIDE) {
            // SAFETY: the caller's promise; a line has sixteen lanes.
            unsafe {
                let parts = in_parts::<S::Lanes, P>(two::<S, E>(&row[step * COLUMNS * E::BYTES..]));
                for (part, lines) in parts.iter().zip(&mut lines) {
                    part.store(lines[r].0.as_mut_ptr().cast());
                }
            }
        }
        for (lines, out) in lines.iter().zip(out.as_chunks_mut::<SIDE>().0) {
            let mut from = [lines.as_ptr().cast::<u8>(); SIDE];
            for (from, line) in from.iter_mut().zip(lines) {
                *from = line.0.as_ptr();
            }
            for (n, four) in out.as_chunks_mut().0.iter_mut().enumerate() {
                // SAFETY: a quarter of each line; the caller has the instructions.
                unsafe { columns::<S>(&from, 16 * n, four) };
            }
        }
    }
}

/// The products of parts of a left with parts of a right tile, by the number of the right's: in the order in which
/// fewest tiles are loaded.
const PATHS: [&[[usize; 2]]; 3] = [
    &[[2, 0], [1, 0], [0, 0]],
    &[[2, 0], [0, 0], [0, 1], [1, 1], [1, 0]],
    &[[2, 0], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0]],
];

/// Adds the products of two left tiles with two right tiles, in all their parts, to tiles 2 l + r. Prefetches what lies
/// `ahead` lines behind both.
///
/// # Safety
/// `S`'s instructions are available, and all parts can be read.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Set, const P: usize>(
    tiles: &mut S::Tiles,
    left: [*const Line; 2],
    right: [*const Line; 2],
    ahead: [usize; 2],
) {
    let mut at = [usize::MAX; 2];
    for &[a, b] in PATHS[P - 1] {
        let [left, right] = [left.map(|x| x.wrapping_add(a * SIDE)), right.map(|x| x.wrapping_add(b * SIDE))];
        // SAFETY (of all): the caller's promise.
        unsafe {
            if a != at[0] {
                tiles.load::<4>(left[0].cast(), 64);
                tiles.load::<5>(left[1].cast(), 64);
            }
            if b != at[1] {
                tiles.load::<6>(right[0].cast(), 64);
                tiles.load::<7>(right[1].cast(), 64);
            }
        }
        tiles.dot_bf16::<0, 4, 6>();
        if a != at[0] {
            fetch::<S>(left[0].wrapping_add(ahead[0]));
        }
        tiles.dot_bf16::<1, 4, 7>();
        if a != at[0] {
            fetch::<S>(left[1].wrapping_add(ahead[0]));
        }
        tiles.dot_bf16::<2, 5, 6>();
        if b != at[1] {
            fetch::<S>(right[0].wrapping_add(ahead[1]));
        }
        tiles.dot_bf16::<3, 5, 7>();
        if b != at[1] {
            fetch::<S>(right[1].wrapping_add(ahead[1]));
        }
        at = [a, b];
    }
}

/// Prefetches a tile.
#[inline(always)]
fn fetch<S: Set>(tile: *const Line) {
    for line in 0..SIDE {
        S::Tiles::fetch(tile.wrapping_add(line).cast());
    }
}

/// A task's operands. Sums are tiles of a block's groups of tokens, each of all strips of sixteen weight rows.
struct Sweep<'a, const P: usize> {
    x: &'a [Line],
    panel: &'a [Line],
    sums: &'a mut [[Line; SIDE]],
    steps: usize,
    strips: usize,
}

#[inline(always)]
unsafe fn multiplied<S: Set, E: Element, const P: usize>(task: &Task, scratch: &mut Scratch) {
    let (steps, strips) = (task.matrix.cols.div_ceil(COLUMNS), task.rows.div_ceil(SIDE));
    let groups = task.x.tokens.div_ceil(SIDE);
    assert!(
        task.x.cols == task.matrix.cols && task.x.lines.len() == groups * steps * LEFT,
        "tokens in order"
    );
    let panel = grown(&mut scratch.codes, strips * steps * P * SIDE);
    for (strip, out) in panel.chunks_exact_mut(steps * P * SIDE).enumerate() {
        let (mut rows, count) = ([&[][..]; SIDE], SIDE.min(task.rows - strip * SIDE));
        for (r, row) in rows.iter_mut().enumerate().take(count) {
            *row = task.row(strip * SIDE + r);
        }
        // SAFETY: the caller's promise.
        unsafe { right::<S, E, P>(&rows[..count], out) };
    }
    let sums = grown(&mut scratch.partial, BLOCK * strips * SIDE).as_chunks_mut().0;
    let mut sweep = Sweep::<P> { x: task.x.lines, panel, sums, steps, strips };
    for start in (0..groups).step_by(BLOCK) {
        let block = start..groups.min(start + BLOCK);
        for from in (0..steps).step_by(SPAN) {
            let span = from..steps.min(from + SPAN);
            for group in block.clone().step_by(2) {
                // SAFETY (of both): the caller's promise.
                unsafe { sweep.add::<S>(&block, group, span.clone()) };
                if span.end < steps {
                    continue;
                }
                for (group, strip) in
                    (group..block.end.min(group + 2)).flat_map(|g| (0..strips).map(move |s| (g, s)))
                {
                    let sums = &sweep.sums[(group - start) * strips + strip];
                    unsafe { write::<S, true, _>(task, sums, (strip * SIDE, group * SIDE), task.x.tokens) };
                }
            }
        }
    }
}

impl<const P: usize> Sweep<'_, P> {
    /// Adds the products of some columns of two groups of tokens with all strips, to sums that the first columns
    /// begin. The last group and the last strip take the place of missing ones.
    #[inline(always)]
    unsafe fn add<S: Set>(&mut self, block: &Range<usize>, group: usize, span: Range<usize>) {
        let &mut Self { x, panel, steps, strips, .. } = self;
        // SAFETY (of all): the caller's promise; the operands have all parts of these tiles.
        unsafe {
            let mut tiles = S::Tiles::new(super::DEPTH);
            for strip in (0..strips).step_by(2) {
                let (groups, pair) =
                    ([group, (group + 1).min(block.end - 1)], [strip, (strip + 1).min(strips - 1)]);
                let place = |l: usize, r: usize| (groups[l] - block.start) * strips + pair[r];
                let sums = [place(0, 0), place(0, 1), place(1, 0), place(1, 1)];
                if span.start == 0 {
                    zero::<S>(&mut tiles);
                } else {
                    let from = |n: usize| self.sums[sums[n]].as_ptr().cast();
                    tiles.load::<0>(from(0), 64);
                    tiles.load::<1>(from(1), 64);
                    tiles.load::<2>(from(2), 64);
                    tiles.load::<3>(from(3), 64);
                }
                let mut left = [&x[groups[0] * steps * LEFT..], &x[groups[1] * steps * LEFT..]];
                let mut right = [&panel[pair[0] * steps * P * SIDE..], &panel[pair[1] * steps * P * SIDE..]];
                left = [&left[0][..steps * LEFT], &left[1][..steps * LEFT]];
                right = [&right[0][..steps * P * SIDE], &right[1][..steps * P * SIDE]];
                for step in span.clone() {
                    let (a, b) = (step * LEFT, step * P * SIDE);
                    multiply::<S, P>(
                        &mut tiles,
                        [left[0][a..].as_ptr(), left[1][a..].as_ptr()],
                        [right[0][b..].as_ptr(), right[1][b..].as_ptr()],
                        [LEFT, P * SIDE],
                    );
                }
                let mut to = |n: usize| self.sums[sums[n]].as_mut_ptr().cast();
                tiles.store::<0>(to(0), 64);
                tiles.store::<1>(to(1), 64);
                tiles.store::<2>(to(2), 64);
                tiles.store::<3>(to(3), 64);
            }
        }
    }
}

/// Zeros the tiles of sums.
#[inline(always)]
pub(crate) fn zero<S: Set>(tiles: &mut S::Tiles) {
    tiles.zero::<0>();
    tiles.zero::<1>();
    tiles.zero::<2>();
    tiles.zero::<3>();
}
