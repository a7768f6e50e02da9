//! f32 products with weights of every dense type.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(test)]
mod tests;

use crate::kernels::gemm::blocks::{Part, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::formats::dequantize_row;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::kernels::gemm::formats::packed_rows;
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
    #[cfg(target_arch = "x86_64")]
    // SAFETY: such a set stands for a machine that has AVX2, FMA and F16C.
    if isa.has_avx2() && unsafe { product_avx2(m, rows.clone(), x, put) } {
        return;
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: `Isa::Neon` stands for a machine that has NEON.
    if isa == Isa::Neon && unsafe { product_neon(m, rows.clone(), x, put) } {
        return;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let w = grown(scratch, m.cols);
        for (r, row) in rows.enumerate() {
            dequantize_row(isa, m, row, w);
            x.chunks_exact(m.cols).enumerate().for_each(|(t, x)| put(t, r, &[dot(x, w)]));
        }
    });
}

/// As `product`; false, and nothing done, for a type that is not decoded there.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
unsafe fn product_avx2(m: &Matrix, rows: Range<usize>, x: &[f32], put: Put) -> bool {
    let count = rows.len();
    let (bytes, stride) = packed_rows(m, rows);
    let w = avx2::PackedRows { dtype: m.dtype, bytes, stride, rows: count, cols: m.cols };
    if x.len() / m.cols > avx2::FUSED {
        // SAFETY: the caller's promise.
        return SCRATCH.with_borrow_mut(|s| unsafe { avx2::swept(w, x, grown(s, avx2::SCRATCH), put) });
    }
    let mut dots = [0.0; avx2::FUSED * TASK_ROWS];
    let dots = &mut dots[..x.len() / m.cols * count];
    // SAFETY: the caller's promise.
    let done = unsafe { avx2::fused(w, x, dots) };
    if done {
        dots.chunks_exact(count).enumerate().for_each(|(t, dots)| put(t, 0, dots));
    }
    done
}

/// As `product`; false, and nothing done, for a type that is not widened there.
///
/// # Safety
/// The machine has NEON.
#[cfg(target_arch = "aarch64")]
unsafe fn product_neon(m: &Matrix, rows: Range<usize>, x: &[f32], put: Put) -> bool {
    let count = rows.len();
    let (bytes, stride) = packed_rows(m, rows);
    let w = neon::PackedRows { dtype: m.dtype, bytes, stride, rows: count, cols: m.cols };
    if x.len() / m.cols > neon::FUSED {
        // SAFETY: the caller's promise.
        return SCRATCH.with_borrow_mut(|s| unsafe { neon::swept(w, x, grown(s, neon::SCRATCH), put) });
    }
    // SAFETY: the caller's promise.
    unsafe { neon::fused(w, x, put) }
}

/// LANES running sums by fused multiply-add, then halves added until one is left.
pub(in crate::kernels) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    tree_sum(&lanes)
}
