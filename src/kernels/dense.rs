//! f32 products with weights of every dense type.

use super::blocks::{SharedOut, block_count, nth_block};
#[cfg(target_arch = "x86_64")]
use super::dense_avx2 as avx2;
use super::norm::tree_sum;
use super::rows::dequantize_row;
use super::ternary::grown;
use super::{Isa, Matrix, Pool};
use std::cell::RefCell;

/// Weight rows of one task.
const TASK_ROWS: usize = 16;
/// Weight rows that are dequantized together and swept over the tokens.
pub(super) const GROUP: usize = 2;
/// Tokens that share the loads of the weights.
pub(super) const SHARED: usize = 3;
/// Partial sums of a dot product: element i goes to lane i % LANES, whatever the instruction set.
pub(super) const LANES: usize = 16;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 17;

thread_local! {
    /// `[GROUP, cols]` weights.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `out[t, i] = x[t] · w[i]` for the rows `i` of all of `weights`, side by side in their order.
///
/// `x` is `[tokens, cols]`, `out` `[tokens, sum of rows]`, each matrix has `cols` columns. Weights become f32 first;
/// every dot product is added up in the one order of `dot`, whatever else is computed with it.
pub fn matmul(pool: &Pool, isa: Isa, x: &[f32], cols: usize, weights: &[&Matrix], out: &mut [f32]) {
    let stride: usize = weights.iter().map(|m| m.rows).sum();
    assert!(weights.iter().all(|m| m.cols == cols), "a product of {cols} columns with weights of others");
    if cols == 0 || out.is_empty() {
        return out.fill(0.0);
    }
    let tokens = x.len() / cols;
    assert_eq!(x.len(), tokens * cols, "activations are [tokens, {cols}]");
    assert_eq!(out.len(), tokens * stride, "a product is [tokens, sum of rows]");
    let small = out.len().saturating_mul(cols) < SMALL;
    let out = SharedOut::new(out);
    let one = |n: usize| {
        let block = nth_block(weights, TASK_ROWS, n);
        let m = weights[block.matrix];
        SCRATCH.with_borrow_mut(|scratch| {
            let w = grown(scratch, GROUP * cols);
            for first in block.rows.clone().step_by(GROUP) {
                let rows = GROUP.min(block.rows.end - first);
                for (r, w) in w.chunks_exact_mut(cols).enumerate() {
                    // An odd last row is taken twice; the surplus result is dropped.
                    dequantize_row(isa, m, first + r.min(rows - 1), w);
                }
                for (i, x) in x.chunks(SHARED * cols).enumerate() {
                    let dots = dots(isa, x, w, cols);
                    for (j, dots) in dots.iter().take(x.len() / cols).enumerate() {
                        let at = (i * SHARED + j) * stride + block.column + first;
                        // SAFETY: the columns lie in this task's own row block, blocks do not overlap, and the slice
                        // ends here.
                        unsafe { out.slice(at..at + rows) }.copy_from_slice(&dots[..rows]);
                    }
                }
            }
        });
    };
    let tasks = block_count(weights, TASK_ROWS);
    if small { (0..tasks).for_each(one) } else { pool.run(tasks, &one) }
}

/// Up to SHARED tokens `[n, cols]` with GROUP weight rows; results of missing tokens mean nothing.
fn dots(isa: Isa, x: &[f32], w: &[f32], cols: usize) -> [[f32; GROUP]; SHARED] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2 and FMA.
        Isa::Avx2 => unsafe { avx2::dots(x, w, cols) },
        _ => {
            let mut dots = [[0.0; GROUP]; SHARED];
            for (dots, x) in dots.iter_mut().zip(x.chunks_exact(cols)) {
                for (out, w) in dots.iter_mut().zip(w.chunks_exact(cols)) {
                    *out = dot(x, w);
                }
            }
            dots
        }
    }
}

/// LANES running sums by fused multiply-add, then halves added until one is left.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    tree_sum(&lanes)
}
