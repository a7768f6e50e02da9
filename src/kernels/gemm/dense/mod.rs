//! f32 products with the weights of every dense type.

mod simd;
#[cfg(test)]
mod tests;
pub mod whole;

use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::driver::{self, Product};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pool::buffer::grown;
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
