//! Products with the rows of pictures, which come many at a time. Their sums have another order than those of `matmul`:
//! columns in blocks of `DEPTH`, each summed by itself, and then the blocks. With matrix tiles (`tiles::floats`) they
//! have an order of their own.

#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::driver::{self, Product, Scratch, in_groups};
use crate::kernels::gemm::outer::{DEPTH, LANES, Operands, PITCH, Tile, pack};
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles::{self, floats as tiled, modelled};
use crate::kernels::pool::buffer::{Line, floats, floats_of, grown};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{BF16, Element, F16, F32, Lanes};
use crate::kernels::{DType, Isa, Pool};
use std::ops::Range;

/// Maximum number of weight rows in a task.
const HEIGHT: usize = 128;
/// Tokens whose factors, for a block of columns, stay in the second-level cache beside the task's sums: whole tiles.
const TOGETHER: usize = 336;

/// Calls its second argument with the row of this number.
pub(crate) type EachRow<'a> = dyn Fn(usize, &mut dyn FnMut(&[f32])) + Sync + 'a;

/// Rows of activations that are made one by one: `row(n, then)` calls `then` with row `n`.
pub struct Rows<'a> {
    pub count: usize,
    pub cols: usize,
    pub row: &'a EachRow<'a>,
}

/// Whether `matmul` takes weights of this type.
pub fn takes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Bytes that `matmul` keeps for `rows` rows, on `threads` threads.
pub fn bytes(isa: Isa, threads: usize, [rows, cols]: [usize; 2]) -> usize {
    #[cfg(any(test, target_arch = "x86_64"))]
    if isa == Isa::Amx {
        let kept = threads.saturating_mul(tiled::thread_bytes(cols));
        return kept.saturating_add(tiled::bytes(rows, cols));
    }
    let tile = Tile::of(isa);
    let factors = rows.next_multiple_of(tile.rows).saturating_mul(cols.div_ceil(DEPTH) * PITCH);
    let sums = TOGETHER * tile.padded(HEIGHT) + DEPTH * tile.columns;
    factors.saturating_add(threads.saturating_mul(sums)).saturating_mul(size_of::<f32>())
}

/// As `dense::matmul`, for weights that it `takes`, with another order of sums. A product's bits do not depend on other
/// rows here either. `lines` keeps the factors.
pub fn matmul(
    pool: &Pool,
    isa: Isa,
    x: &Rows,
    parts: &[Part],
    stride: usize,
    lines: &mut Vec<Line>,
    out: &mut [f32],
) {
    assert!(parts.iter().all(|p| takes(p.matrix.dtype) && p.matrix.cols == x.cols));
    let rows: usize = parts.iter().map(|part| part.matrix.rows).sum();
    // Tasks for all threads, of whole tiles.
    let height =
        |most: usize, side: usize| (rows / (2 * pool.threads())).next_multiple_of(side).clamp(side, most);
    #[cfg(any(test, target_arch = "x86_64"))]
    if isa == Isa::Amx || modelled() {
        // SAFETY (of both): `Isa::Amx` stands for permitted tiles; the driver configures them.
        let x = &unsafe { tiled::arrange(pool, [x.count, x.cols], lines, x.row) };
        let (height, depth) = (height(tiled::HEIGHT, 2 * tiles::SIDE), Some(tiles::DEPTH));
        let product = Product { pool, x, tokens: x.tokens, parts, only: None, stride, height, depth };
        return product.run(out, &|task, scratch| unsafe { tiled::run(task, scratch) });
    }
    let tile = Tile::of(isa);
    let x = &Factors { lines: arrange(pool, tile, x, lines), tokens: x.count };
    let height = height(HEIGHT, tile.columns);
    let product = Product { pool, x, tokens: x.tokens, parts, only: None, stride, height, depth: None };
    product.run(out, &|task, scratch| run(isa, task, scratch));
}

/// Activations: for each tile's tokens all blocks of columns, and in each block the tokens, `PITCH` apart. Missing
/// tokens, and columns past the last, have unspecified contents.
struct Factors<'a> {
    lines: &'a [Line],
    tokens: usize,
}

fn arrange<'a>(pool: &Pool, tile: Tile, x: &Rows, lines: &'a mut Vec<Line>) -> &'a [Line] {
    let &Rows { count: tokens, cols, row } = x;
    let each = cols.div_ceil(DEPTH) * tile.rows * PITCH / LANES;
    in_groups(pool, (tokens, tokens * cols), (tile.rows, each), lines, &|group, out| {
        let out = floats(out).as_flattened_mut();
        for t in 0..tile.rows.min(tokens - group * tile.rows) {
            row(group * tile.rows + t, &mut |row| tile.write_row(row, t, out));
        }
    })
}

type Task<'a> = driver::Task<'a, Factors<'a>>;

by_isa!(
    fn run(task: &Task, scratch: &mut Scratch) = run_in::<lanes>, Scalar
);

#[inline(always)]
unsafe fn run_in<L: Lanes>(task: &Task, scratch: &mut Scratch) {
    // SAFETY (of all): the caller has the instructions.
    unsafe {
        match task.dtype {
            DType::F32 => swept::<L, F32>(task, scratch),
            DType::F16 => swept::<L, F16>(task, scratch),
            DType::BF16 => swept::<L, BF16>(task, scratch),
            other => unreachable!("{other:?} has blocks"),
        }
    }
}

#[inline(always)]
unsafe fn swept<L: Lanes, E: Element>(task: &Task, scratch: &mut Scratch) {
    let (tile, cols, tokens) = (Tile::of_lanes::<L>(), task.matrix.cols, task.x.tokens);
    let (groups, width) = (tokens.div_ceil(tile.rows), tile.padded(task.rows));
    let block = tile.rows * PITCH;
    let factors = floats_of(task.x.lines);
    assert!(factors.len() == groups * cols.div_ceil(DEPTH) * block, "factors of all tokens");
    let strip = floats(grown(&mut scratch.codes, DEPTH * tile.columns / LANES)).as_flattened_mut();
    let sums = floats(grown(&mut scratch.partial, TOGETHER * width / LANES)).as_flattened_mut();
    for start in (0..groups).step_by(TOGETHER / tile.rows) {
        let together = start..groups.min(start + TOGETHER / tile.rows);
        for (b, first) in (0..cols).step_by(DEPTH).enumerate() {
            let depth = DEPTH.min(cols - first);
            for column in (0..width).step_by(tile.columns) {
                // SAFETY (of both): the caller has the instructions.
                unsafe { pack_strip::<L, E>(task, column, first..first + depth, strip) };
                for group in together.clone() {
                    let rows = tile.rows.min(tokens - group * tile.rows);
                    let factors = &factors[(group * cols.div_ceil(DEPTH) + b) * block..][..block];
                    let sums = &mut sums[(group - start) * tile.rows * width + column..];
                    let operands = Operands { factors, strip, depth };
                    unsafe { operands.add::<L>(rows, first == 0, sums, width) };
                }
            }
        }
        let first = start * tile.rows;
        for t in first..tokens.min(together.end * tile.rows) {
            task.write(t, 0, &sums[(t - first) * width..][..task.rows]);
        }
    }
}

/// Packs columns of weights from row `first` on.
#[inline(always)]
unsafe fn pack_strip<L: Lanes, E: Element>(
    task: &Task,
    first: usize,
    columns: Range<usize>,
    strip: &mut [f32],
) {
    let tile = Tile::of_lanes::<L>();
    assert!(strip.len() >= DEPTH * tile.columns && columns.len() <= DEPTH);
    for at in (0..tile.columns).step_by(LANES) {
        let (mut rows, count) = ([&[][..]; LANES], task.rows.saturating_sub(first + at).min(LANES));
        for (r, row) in rows.iter_mut().enumerate().take(count) {
            *row = &task.row(first + at + r)[columns.start * E::BYTES..columns.end * E::BYTES];
        }
        // SAFETY: rows of that many elements, and a strip of whole sixteens of rows; the caller has the instructions.
        unsafe { pack::<L, E>(&rows[..count], columns.len(), strip[at..].as_mut_ptr(), tile.columns) };
    }
}
