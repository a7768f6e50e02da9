//! Few tokens with weights in short blocks, with AVX2, FMA and F16C: eight rows are read as they lie.
//! `quantized::scalar` says what each computes.
//!
//! Lanes are weight rows, so a row's blocks are added up in their order.
//!
//! `vpmaddubsw` multiplies unsigned codes with int8 from -127 to 127 and adds pairs: of 4 bits at most 3810 in magnitude,
//! of 5 bits 7874, of 8 bits, whose sign goes to the activation, 128·127·2 = 32512: an i16 lane holds each, and eight of
//! the first (30480), or four of the second (31496).

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use super::few_planes::few_avx2 as few_planes;
use crate::kernels::DType;
use crate::kernels::gemm::formats::short_blocks::{Pairs, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Short};
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// Bytes behind the next eight rows that are asked for while eight rows are read as they lie.
pub const AHEAD: usize = 4096;

/// # Safety
/// 16 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn half(at: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// Pairs of i16 to i32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(narrow: __m256i) -> __m256i {
    _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))
}

/// `run` of an instruction set. `pairs` and `offset` are its own: the products of a block's codes, and what each of these is
/// too large by. (A macro: the two are free functions of the module that uses it.)
macro_rules! forms {
    ($features:literal) => {
        /// `task` with few tokens; false, and nothing done, where unpacking once pays.
        #[target_feature(enable = $features)]
        pub fn run(task: &Task) -> bool {
            match task.dtype {
                DType::Q8_0 => run_of::<Q8_0>(task),
                DType::Q4_0 => run_of::<Q4_0>(task),
                DType::Q4_1 => run_of::<Q4_1>(task),
                DType::Q5_0 => run_of::<Q5_0>(task),
                DType::Q5_1 => run_of::<Q5_1>(task),
                DType::Q1_0 => planes::<1, 4>(task),
                DType::Q2_0 => planes::<2, 2>(task),
                DType::Q2_0_128 => planes::<2, 4>(task),
                other => unreachable!("{other:?} has no short blocks"),
            }
        }

        #[target_feature(enable = $features)]
        fn run_of<F: Pairs>(task: &Task) -> bool {
            match task.x.tokens() {
                0 => {}
                1 => few::<F, 1>(task),
                2 => few::<F, 2>(task),
                3 => few::<F, 3>(task),
                // Where codes fill their bytes, transposing pays later.
                4 if F::SIGNED => few::<F, 4>(task),
                _ => return false,
            }
            true
        }

        #[target_feature(enable = $features)]
        fn planes<const BITS: usize, const COUNT: usize>(task: &Task) -> bool {
            match task.x.tokens() {
                0 => {}
                1 => few_planes::<BITS, COUNT, 1>(task),
                2 => few_planes::<BITS, COUNT, 2>(task),
                3 => few_planes::<BITS, COUNT, 3>(task),
                4 => few_planes::<BITS, COUNT, 4>(task),
                5 => few_planes::<BITS, COUNT, 5>(task),
                6 => few_planes::<BITS, COUNT, 6>(task),
                7 => few_planes::<BITS, COUNT, 7>(task),
                8 => few_planes::<BITS, COUNT, 8>(task),
                _ => return false,
            }
            true
        }

        /// `T` tokens, with eight rows at once.
        #[target_feature(enable = $features)]
        fn few<F: Pairs, const T: usize>(task: &Task) {
            let x = task.tokens::<T>(0, 0..task.x.cols / 32);
            for first in (0..task.rows).step_by(8) {
                // Of a group that the task cuts short the surplus results are dropped.
                let w = task.group::<8>(first).map(<[u8]>::as_ptr);
                let mut totals = [_mm256_setzero_ps(); T];
                for b in 0..task.x.cols / 32 {
                    let at = b * F::BYTES;
                    // As much of the next rows as is used of these: memory is fastest in its own order.
                    fetch(w[0].wrapping_add(AHEAD + 8 * (task.row_bytes + at)), 8 * F::BYTES);
                    // SAFETY: block b of eight rows, and its 32 values of each token.
                    unsafe {
                        let blocks = w.map(|w| w.add(at));
                        let [scales, minimums] = halves(blocks);
                        let dots = pairs::<F, T>(blocks, x.map(|x| x.0.as_ptr().add(32 * b)));
                        for t in 0..T {
                            let (_, scale, sum) = x[t];
                            let (scale, sum) = (*scale.get_unchecked(b), *sum.get_unchecked(b));
                            let offset = _mm256_set1_epi32(offset::<F>() * sum as i32);
                            let dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[t], offset));
                            let both = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
                            totals[t] = _mm256_fmadd_ps(dot, both, totals[t]);
                            if F::MINIMUMS {
                                let sum = _mm256_set1_ps(scale * sum as f32);
                                totals[t] = _mm256_fmadd_ps(minimums, sum, totals[t]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    let mut values = [0.0; 8];
                    // SAFETY: eight floats.
                    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), totals[t]) };
                    task.write(t, first, &values[..(task.rows - first).min(8)]);
                }
            }
        }
    };
}
pub(super) use forms;

forms!("avx2,fma,f16c");

/// What is to be taken from each code.
const fn offset<F: Short>() -> i32 {
    F::OFFSET
}

/// The first f16 of each block, and the second.
///
/// # Safety
/// 16 bytes of each can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn halves(blocks: [*const u8; 8]) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d, e, f, g, h] = blocks.map(|block| unsafe { half(block) });
    let four = |a, b, c, d| _mm_unpacklo_epi32(_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
    let (low, high) = (four(a, b, c, d), four(e, f, g, h));
    [_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)), _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high))]
}

/// `code · x` of a block of each of eight rows, a lane for each, with `T` tokens.
///
/// # Safety
/// The blocks can be read, and 32 values at each `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs<F: Pairs, const T: usize>(blocks: [*const u8; 8], x: [*const i8; T]) -> [__m256i; T] {
    let mut sums = [[_mm256_setzero_si256(); 4]; T];
    for p in 0..4 {
        // SAFETY: the caller's promise.
        let codes = unsafe { F::pair::<__m256i>(blocks[p], blocks[p + 4]) };
        for t in 0..T {
            let mut products = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                // SAFETY: the caller's promise.
                let x = _mm256_broadcastsi128_si256(unsafe { half(x[t].add(16 * h).cast()) });
                products[h] = multiply::<F>(codes[h], x);
            }
            // Of 4 bits an i16 holds all that is added up here; others are widened first.
            sums[t][p] = match F::STEPS {
                8 => _mm256_add_epi16(products[0], products[1]),
                4 => widen(_mm256_add_epi16(products[0], products[1])),
                _ => _mm256_add_epi32(widen(products[0]), widen(products[1])),
            };
        }
    }
    sums.map(|[a, b, c, d]| match F::STEPS {
        8 => widen(_mm256_hadd_epi16(_mm256_hadd_epi16(a, b), _mm256_hadd_epi16(c, d))),
        _ => _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)),
    })
}

/// Products of codes and values, pairs of them added to an i16.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply<F: Short>(codes: __m256i, x: __m256i) -> __m256i {
    if F::SIGNED {
        // -128 is 128 as an unsigned number.
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}
