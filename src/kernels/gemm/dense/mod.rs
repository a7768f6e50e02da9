//! f32 products with weights of every dense type.

mod simd;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::{Part, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::formats::{dequantize_row, packed_rows};
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::norm::tree_sum;
use crate::kernels::{Isa, Matrix, Pool};
use std::cell::RefCell;
use std::ops::Range;

/// Partial sums of a dot product: element i goes to lane i % LANES, whatever the instruction set.
pub(in crate::kernels) const LANES: usize = 16;
/// Weight rows of a task.
const TASK_ROWS: usize = 24;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 17;

/// Where dot products go: token, first row, values.
pub(in crate::kernels) type Put<'a> = &'a dyn Fn(usize, usize, &[f32]);

thread_local! {
    /// Some f32 weight rows.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `out[t, column + i] = x[t] · w[i]` for the rows `i` of each of `parts`; other columns of `out` stay as they are.
///
/// `x` is `[tokens, cols]`, `out` `[tokens, stride]`, each matrix has `cols` columns. Weights become f32 first;
/// every dot product is added up in the one order of `dot`, whatever else is computed with it.
pub fn matmul(pool: &Pool, isa: Isa, x: &[f32], cols: usize, parts: &[Part], stride: usize, out: &mut [f32]) {
    let weights = &matrices_of(parts)[..parts.len()];
    assert!(cols > 0 && weights.iter().all(|m| m.cols == cols), "a product of {cols} columns");
    let tokens = x.len() / cols;
    assert_eq!(x.len(), tokens * cols, "activations are [tokens, {cols}]");
    assert_eq!(out.len(), tokens * stride, "a product is [tokens, stride]");
    assert!(parts.iter().all(|p| p.column + p.matrix.rows <= stride), "a matrix past the end of the rows");
    let outputs = tokens * weights.iter().map(|m| m.rows).sum::<usize>();
    let small = outputs.saturating_mul(cols) < SMALL;
    let out = SharedOut::new(out);
    let one = |n: usize| {
        let block = nth_block(weights, TASK_ROWS, n);
        let (first, end) = (block.rows.start, block.rows.end);
        let column = parts[block.matrix].column + first;
        product(isa, weights[block.matrix], first..end, x, &|t, r, dots| {
            let at = t * stride + column + r;
            // SAFETY: the columns lie in this task's own row block, blocks do not overlap, and the slice ends here.
            unsafe { out.slice(at..at + dots.len()) }.copy_from_slice(dots);
        });
    };
    let tasks = block_count(weights, TASK_ROWS);
    let bytes = weights.iter().map(|m| m.data.len()).sum();
    if small { (0..tasks).for_each(one) } else { pool.run_in_order(tasks, bytes, tokens, &one) }
}

/// Dot products `[tokens, rows]` with `rows` of `m`, at most TASK_ROWS, handed to `put` in parts of one token: its
/// number, that of the first row (from 0), and the parts' values.
fn product(isa: Isa, m: &Matrix, rows: Range<usize>, x: &[f32], put: Put) {
    SCRATCH.with_borrow_mut(|scratch| {
        let (bytes, stride) = packed_rows(m, rows.clone());
        let w = simd::PackedRows { bytes, stride, rows: rows.len(), cols: m.cols };
        if isa != Isa::Scalar && simd::product(isa, m.dtype, w, x, grown(scratch, simd::SCRATCH), put) {
            return;
        }
        let w = grown(scratch, m.cols);
        for (r, row) in rows.enumerate() {
            dequantize_row(isa, m, row, w);
            x.chunks_exact(m.cols).enumerate().for_each(|(t, x)| put(t, r, &[dot(x, w)]));
        }
    });
}

/// LANES running sums by fused multiply-add, then halves added until one is left.
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
