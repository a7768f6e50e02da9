//! The ternary product's inner loops with NEON's dot products. `ternary::scalar` says what each computes.
//!
//! `sdot` adds four products to an i32 lane. Codes stay where they lie in their byte, up to 16 times too large: then
//! a lane's sum is below 256 times the columns, which is no more than the exact product may be.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use crate::kernels::DType;
use crate::kernels::simd::neon::{dot, half};
use std::arch::aarch64::*;

/// `task` with up to three tokens.
#[target_feature(enable = "neon,dotprod")]
pub fn run(task: &Task) {
    let scaled = task.dtype == DType::TQ2_0;
    match (task.x.rows.len(), scaled) {
        (0, _) => {}
        (1, false) => few::<1, false>(task),
        (1, true) => few::<1, true>(task),
        (2, false) => few::<2, false>(task),
        (2, true) => few::<2, true>(task),
        (3, false) => few::<3, false>(task),
        (3, true) => few::<3, true>(task),
        (n, _) => unreachable!("{n} tokens repay unpacking"),
    }
}

/// As the scalar version.
#[target_feature(enable = "neon,dotprod")]
pub fn block_sums(values: &[i8], sums: &mut [i32]) {
    let ones = vdupq_n_s8(1);
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        let mut lanes = [vdupq_n_s32(0); 2];
        for v in block.as_chunks::<32>().0 {
            // SAFETY: twice 16 bytes of 32.
            let v = unsafe { [vld1q_s8(v.as_ptr()), vld1q_s8(v.as_ptr().add(16))] };
            lanes = [dot(lanes[0], v[0], ones), dot(lanes[1], v[1], ones)];
        }
        *sum = vaddvq_s32(vaddq_s32(lanes[0], lanes[1]));
    }
}

/// `T` tokens, all there are, with the packed codes: few tokens do not repay unpacking.
#[target_feature(enable = "neon,dotprod")]
fn few<const T: usize, const SCALED: bool>(task: &Task) {
    let x: [&[i8]; T] = std::array::from_fn(|t| task.x.row(t));
    for row in 0..task.rows {
        let packed = task.row(row);
        let mut values = [0.0; T];
        if SCALED {
            let totals = packed_scaled(packed, x, std::array::from_fn(|t| task.x.sums(t)));
            for t in 0..T {
                values[t] = totals[t] / task.x.rows[t].scale;
            }
        } else {
            let (dots, scale) = (packed_dots(packed, x), task.scale(row));
            for t in 0..T {
                let token = task.x.rows[t];
                values[t] = (dots[t] - token.sum) as f32 * (scale / token.scale);
            }
        }
        for (t, value) in values.into_iter().enumerate() {
            task.write(t, row, &[value]);
        }
    }
}

/// The running sums of one packed row and one token: of the codes in bits 0 and 1 of each byte, of four times those in
/// bits 2 and 3, of sixteen times those in bits 4 and 5, of those in bits 6 and 7.
#[derive(Clone, Copy)]
struct Sums([int32x4_t; 4]);

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    fn zero() -> Self {
        Self([vdupq_n_s32(0); 4])
    }

    /// All in one, exactly: the products are multiples of four and sixteen.
    #[inline]
    #[target_feature(enable = "neon")]
    fn total(self) -> i32 {
        let [ones, fours, sixteens, top] = self.0;
        vaddvq_s32(vsraq_n_s32::<4>(vsraq_n_s32::<2>(vaddq_s32(ones, top), fours), sixteens))
    }
}

/// Multiplies 128 codes, the 32 bytes at `w`, with 128 values of each token at `x`. Bits 0 and 1 of the bytes are
/// the codes of the last 32 values where `REVERSED`, else those of the first.
///
/// # Safety
/// What is said to be at `w` and `x` can be read.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn multiply<const T: usize, const REVERSED: bool>(
    w: *const u8,
    x: [*const i8; T],
    sums: &mut [Sums; T],
) {
    for part in [0, 16] {
        // SAFETY: the caller's promise.
        let packed = unsafe { vld1q_u8(w.add(part)) };
        let codes = [
            vandq_u8(packed, vdupq_n_u8(3)),
            vandq_u8(packed, vdupq_n_u8(12)),
            vandq_u8(packed, vdupq_n_u8(48)),
            vshrq_n_u8::<6>(packed),
        ];
        for t in 0..T {
            for k in 0..4 {
                let place = part + 32 * if REVERSED { 3 - k } else { k };
                // SAFETY: the caller's promise: 16 bytes of 128.
                let x = unsafe { vld1q_s8(x[t].add(place)) };
                sums[t].0[k] = dot(sums[t].0[k], vreinterpretq_s8_u8(codes[k]), x);
            }
        }
    }
}

/// `code · x` of a row of I2_S codes with tokens of four times as many values.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn packed_dots<const T: usize>(w: &[u8], x: [&[i8]; T]) -> [i32; T] {
    assert!(x.iter().all(|x| x.len() == 4 * w.len()));
    let mut sums = [Sums::zero(); T];
    for (b, w) in w.as_chunks::<32>().0.iter().enumerate() {
        // SAFETY: a whole block, and the 128 values of each token where it is.
        unsafe { multiply::<T, true>(w.as_ptr(), x.map(|x| x.as_ptr().add(128 * b)), &mut sums) };
    }
    let mut dots = [0; T];
    for t in 0..T {
        dots[t] = sums[t].total();
    }
    dots
}

/// `Σ over blocks of (code · x - sum) * scale` of a row of TQ2_0 codes, 66 bytes for each 256 values of a token, with
/// the tokens' `sums` of each block.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn packed_scaled<const T: usize>(w: &[u8], x: [&[i8]; T], sums: [&[i32]; T]) -> [f32; T] {
    let blocks = w.as_chunks::<66>().0;
    assert!(x.iter().all(|x| x.len() == 256 * blocks.len()));
    let mut total = [0.0; T];
    for (b, w) in blocks.iter().enumerate() {
        let x = x.map(|x| x[256 * b..].as_ptr());
        let mut dots = [Sums::zero(); T];
        // SAFETY: twice 32 bytes of 66, and twice 128 values of each token's 256 of this block.
        unsafe {
            multiply::<T, false>(w.as_ptr(), x, &mut dots);
            multiply::<T, false>(w.as_ptr().add(32), x.map(|x| x.add(128)), &mut dots);
        }
        let scale = half(u16::from_le_bytes([w[64], w[65]]));
        for t in 0..T {
            total[t] += (dots[t].total() - sums[t][b]) as f32 * scale;
        }
    }
    total
}
