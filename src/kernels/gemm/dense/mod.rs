//! f32 products with the weights of every dense type.

mod simd;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::driver::{self, Product};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::simd::lanes::{BF16, F16, F32};
use crate::kernels::{DType, Isa, Pool};

/// Number of partial sums of a dot product. Element i is added to lane i % LANES with every instruction set.
pub(in crate::kernels) const LANES: usize = 16;
/// Weight rows per task.
const TASK_ROWS: usize = 24;
/// Some rows, and activations `[tokens, cols]`.
type Task<'a> = driver::Task<'a, [f32]>;

/// Computes `out[t, column + i] = x[t] · w[i]` for the rows `i` of each of `parts`; other columns of `out` are
/// unchanged.
///
/// `x` is `[tokens, cols]`, `out` is `[tokens, stride]`, and each matrix has `cols` columns. Weights are converted to
/// f32 first. Every dot product is added up in the order of `dot`, whatever else is computed with it.
pub fn matmul(pool: &Pool, isa: Isa, x: &[f32], cols: usize, parts: &[Part], stride: usize, out: &mut [f32]) {
    assert!(cols > 0 && parts.iter().all(|p| p.matrix.cols == cols), "a product of {cols} columns");
    assert!(x.len().is_multiple_of(cols), "activations are [tokens, {cols}]");
    let tokens = x.len() / cols;
    let product = Product { pool, x, tokens, parts, only: None, stride, height: TASK_ROWS, depth: None };
    product.run(out, &|task, scratch| match task.dtype {
        _ if isa == Isa::Scalar => reference(isa, task, &mut scratch.floats),
        DType::F32 => simd::product::<F32>(isa, task, &mut scratch.floats),
        DType::F16 => simd::product::<F16>(isa, task, &mut scratch.floats),
        DType::BF16 => simd::product::<BF16>(isa, task, &mut scratch.floats),
        _ => reference(isa, task, &mut scratch.floats),
    });
}

/// Calls its second argument with the row of this number.
pub(crate) type EachRow<'a> = dyn Fn(usize, &mut dyn FnMut(&[f32])) + Sync + 'a;

/// Rows of activations that are made one by one: `row(n, then)` calls `then` with row `n`.
pub struct Rows<'a> {
    pub count: usize,
    pub cols: usize,
    pub row: &'a EachRow<'a>,
}

/// Whether `matmul_in_parts` multiplies these on matrix tiles.
pub fn in_parts(isa: Isa, parts: &[Part]) -> bool {
    let single = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    has_tiles(isa) && parts.iter().all(|part| single(part.matrix.dtype))
}

/// Bytes that `matmul_in_parts` keeps for `rows` rows, on `threads` threads.
pub fn bytes_in_parts(isa: Isa, threads: usize, [rows, cols]: [usize; 2]) -> usize {
    match has_tiles(isa) {
        true => tiled::bytes(threads, [rows, cols]),
        false => 0,
    }
}

/// As `matmul`, for weights that are `in_parts`, with another order of sums, which pays for many rows. A product's
/// bits do not depend on other rows here either.
pub fn matmul_in_parts(
    pool: &Pool,
    x: &Rows,
    parts: &[Part],
    stride: usize,
    lines: &mut Vec<Line>,
    out: &mut [f32],
) {
    assert!(in_parts(Isa::Amx, parts) && parts.iter().all(|p| p.matrix.cols == x.cols));
    tiled::matmul(pool, x, parts, stride, lines, out);
}

fn has_tiles(isa: Isa) -> bool {
    isa == Isa::Amx
}

#[cfg(any(test, target_arch = "x86_64"))]
mod tiled {
    use super::{Line, Part, Pool, Product, Rows};
    use crate::kernels::gemm::tiles::DEPTH;
    use crate::kernels::gemm::tiles::floats::{self, HEIGHT, SIDE};

    pub(super) fn bytes(threads: usize, [rows, cols]: [usize; 2]) -> usize {
        let kept = threads.saturating_mul(floats::thread_bytes(cols));
        kept.saturating_add(floats::bytes(rows, cols))
    }

    pub(super) fn matmul(
        pool: &Pool,
        x: &Rows,
        parts: &[Part],
        stride: usize,
        lines: &mut Vec<Line>,
        out: &mut [f32],
    ) {
        let &Rows { count: tokens, cols, row } = x;
        // SAFETY (of both): weights are `in_parts` where `Isa::Amx` is available; the driver configures the tiles.
        let x = &unsafe { floats::arrange(pool, [tokens, cols], lines, row) };
        // Tasks for all threads, of whole pairs of tiles.
        let rows: usize = parts.iter().map(|part| part.matrix.rows).sum();
        let height = (rows / (2 * pool.threads())).next_multiple_of(2 * SIDE).clamp(2 * SIDE, HEIGHT);
        let product = Product { pool, x, tokens, parts, only: None, stride, height, depth: Some(DEPTH) };
        product.run(out, &|task, scratch| unsafe { floats::run(task, scratch) });
    }
}

#[cfg(not(any(test, target_arch = "x86_64")))]
mod tiled {
    use super::{Line, Part, Pool, Rows};

    pub(super) fn bytes(_: usize, _: [usize; 2]) -> usize {
        0
    }

    pub(super) fn matmul(_: &Pool, _: &Rows, _: &[Part], _: usize, _: &mut Vec<Line>, _: &mut [f32]) {
        unreachable!("only x86-64 has matrix tiles")
    }
}

fn reference(isa: Isa, task: &Task, w: &mut Vec<f32>) {
    let w = grown(w, task.matrix.cols);
    for row in 0..task.rows {
        dequantize_row(isa, task.matrix, task.first + row, w);
        task.x.chunks_exact(w.len()).enumerate().for_each(|(t, x)| task.write(t, row, &[dot(x, w)]));
    }
}

/// Adds up LANES sums by fused multiply-add, and then adds their halves until one is left.
pub(in crate::kernels) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    a.chunks(LANES).zip(b.chunks(LANES)).for_each(|(a, b)| add_tail(&mut lanes, a, b));
    tree_sum(&lanes)
}

/// Adds the products of up to LANES columns.
#[inline(always)]
fn add_tail(lanes: &mut [f32; LANES], x: &[f32], w: &[f32]) {
    for ((lane, x), w) in lanes.iter_mut().zip(x).zip(w) {
        *lane = x.mul_add(*w, *lane);
    }
}
