//! Few tokens with super-blocks on NEON: rows are unpacked in registers, one after the other.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use crate::kernels::gemm::formats::f16_at;
use crate::kernels::gemm::formats::super_blocks::{Super, packed};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::simd::bytes::{Bits, Bytes, Neon};
use crate::kernels::simd::neon::dot;
use std::arch::aarch64::*;

/// `T` tokens, all there are.
///
/// # Safety
/// The machine has NEON and its dot products; the task's lengths were `check`ed.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn few<K: Super, const T: usize>(task: &Task) {
    let x: [_; T] = std::array::from_fn(|t| task.x.row(t));
    for row in 0..task.rows {
        let mut totals = [0.0f32; T];
        for (b, block) in task.row(row).chunks_exact(K::BYTES).enumerate() {
            let [scales, minima] = K::scales(block);
            let scales = scales.map(|scale| scale as i8 as i32);
            // SAFETY: a whole block.
            let codes = unsafe { unpacked::<K>(block) };
            let (d, min) = (f16_at(&block[K::D..]), f16_at(&block[K::MIN..]));
            for t in 0..T {
                let (values, factors, columns) = x[t];
                let (values, columns) = (&values[256 * b..][..256], &columns[16 * b..][..16]);
                let mut sums = vdupq_n_s32(0);
                for n in 0..16 {
                    // SAFETY: sixteen of 256 values and codes.
                    let own = unsafe {
                        let w = vld1q_s8(codes.as_ptr().add(16 * n));
                        dot(vdupq_n_s32(0), w, vld1q_s8(values.as_ptr().add(16 * n)))
                    };
                    sums = vmlaq_n_s32(sums, own, scales[n]);
                }
                let mut dots = vaddvq_s32(sums);
                let mut low = 0;
                for n in 0..16 {
                    let scale = if K::MINIMA { minima[n] as i32 } else { -K::OFFSET as i32 * scales[n] };
                    low += scale * columns[n] as i32;
                }
                if !K::MINIMA {
                    (dots, low) = (dots + low, 0);
                }
                let scale = factors[b];
                totals[t] = (dots as f32).mul_add(d * scale, totals[t]);
                if K::MINIMA {
                    totals[t] = (low as f32).mul_add(-(min * scale), totals[t]);
                }
            }
        }
        for (t, total) in totals.into_iter().enumerate() {
            task.write(t, row, &[total]);
        }
    }
}

/// # Safety
/// A whole block can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn unpacked<K: Super>(block: &[u8]) -> [i8; 256] {
    let mut codes = [0i8; 256];
    // SAFETY: the caller's promise; eight times 32 bytes.
    unsafe {
        for (k, v) in K::codes::<Neon>(packed::<K, _>(block.as_ptr())).into_iter().enumerate() {
            v.store(codes.as_mut_ptr().add(32 * k).cast());
        }
    }
    codes
}
