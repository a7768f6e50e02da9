//! Few tokens with weights in short blocks, with NEON's dot products: eight rows are read as they lie, a lane for each.
//! `quantized::scalar` says what each computes.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use crate::kernels::DType;
use crate::kernels::gemm::formats::short_blocks::{Pairs, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Short};
use crate::kernels::simd::bytes::Neon;
use crate::kernels::simd::neon::{dot, halves};
use std::arch::aarch64::*;

/// `task` with few tokens; false, and nothing done, where unpacking once pays.
#[target_feature(enable = "neon,dotprod")]
pub fn run(task: &Task) -> bool {
    match task.dtype {
        DType::Q8_0 => run_of::<Q8_0>(task),
        DType::Q4_0 => run_of::<Q4_0>(task),
        DType::Q4_1 => run_of::<Q4_1>(task),
        DType::Q5_0 => run_of::<Q5_0>(task),
        DType::Q5_1 => run_of::<Q5_1>(task),
        _ => false,
    }
}

#[target_feature(enable = "neon,dotprod")]
fn run_of<F: Pairs>(task: &Task) -> bool {
    match task.x.tokens() {
        0 => {}
        1 => few::<F, 1>(task),
        2 => few::<F, 2>(task),
        3 => few::<F, 3>(task),
        _ => return false,
    }
    true
}

/// `T` tokens, all there are.
#[target_feature(enable = "neon,dotprod")]
fn few<F: Pairs, const T: usize>(task: &Task) {
    let x = task.tokens::<T>(0, 0..task.x.cols / 32);
    for first in (0..task.rows).step_by(8) {
        // Of a group that the task cuts short the surplus results are dropped.
        let rows = task.group::<8>(first).map(<[u8]>::as_ptr);
        let mut totals = [[vdupq_n_f32(0.0); 2]; T];
        for b in 0..task.x.cols / 32 {
            // SAFETY: block b of each row, and its 32 columns of each token, are there.
            unsafe {
                let blocks = rows.map(|row| row.add(F::BYTES * b));
                let dots = dots::<F, T>(blocks, x.map(|x| x.0.as_ptr().add(32 * b)));
                for v in 0..2 {
                    let four = [0, 1, 2, 3].map(|r| blocks[4 * v + r]);
                    let (d, min) = (four_halves(four, 0), four_halves(four, 2));
                    for t in 0..T {
                        let (_, scales, sums) = x[t];
                        let offset = vdupq_n_s32(F::OFFSET * sums[b] as i32);
                        let dot = vcvtq_f32_s32(vsubq_s32(dots[t][v], offset));
                        totals[t][v] = vfmaq_f32(totals[t][v], dot, vmulq_n_f32(d, scales[b]));
                        if F::MINIMUMS {
                            totals[t][v] = vfmaq_n_f32(totals[t][v], min, scales[b] * sums[b] as f32);
                        }
                    }
                }
            }
        }
        for (t, total) in totals.into_iter().enumerate() {
            let mut values = [0.0; 8];
            // SAFETY: twice four floats are written to eight.
            unsafe {
                vst1q_f32(values.as_mut_ptr(), total[0]);
                vst1q_f32(values.as_mut_ptr().add(4), total[1]);
            }
            task.write(t, first, &values[..(task.rows - first).min(8)]);
        }
    }
}

/// `code · x` of a block of each of eight rows, a lane for each, with `T` tokens.
///
/// # Safety
/// The blocks can be read, and 32 values at each `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dots<F: Pairs, const T: usize>(blocks: [*const u8; 8], x: [*const i8; T]) -> [[int32x4_t; 2]; T] {
    let mut rows = [[[vdupq_n_s32(0); 4]; 2]; T];
    for p in 0..4 {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = F::pair::<Neon>(blocks[p], blocks[p + 4]);
            for t in 0..T {
                let (first, last) = (vld1q_s8(x[t]), vld1q_s8(x[t].add(16)));
                for v in 0..2 {
                    let (low, high) = (vreinterpretq_s8_u8(low.0[v]), vreinterpretq_s8_u8(high.0[v]));
                    rows[t][v][p] = dot(dot(vdupq_n_s32(0), low, first), high, last);
                }
            }
        }
    }
    rows.map(|rows| rows.map(|[a, b, c, d]| vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))))
}

/// The f16 at `at` of four blocks.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn four_halves(blocks: [*const u8; 4], at: usize) -> float32x4_t {
    // SAFETY: the caller's promise; the array is four u16.
    unsafe {
        let bits = blocks.map(|block| block.add(at).cast::<u16>().read_unaligned());
        halves(vld1_u16(bits.as_ptr()))
    }
}
