//! As `avx2`, with AVX-512 VNNI: four products of a lane in one instruction.
//!
//! `vpdpbusd` adds unsigned codes times int8 to i32 lanes. Codes of 8 bits are read as unsigned ones, 128 too large.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use super::avx2::{AHEAD, forms, half, halves};
use super::few_planes::few_avx512 as few_planes;
use crate::kernels::DType;
use crate::kernels::gemm::formats::short_blocks::{Pairs, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Short};
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// What is to be taken from each code, the signed ones made unsigned.
const fn offset<F: Short>() -> i32 {
    if F::SIGNED { 128 } else { F::OFFSET }
}

forms!("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");

/// `unsigned code · x` of a block of each of eight rows, a lane for each, with `T` tokens.
///
/// # Safety
/// The blocks can be read, and 32 values at each `x`.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn pairs<F: Pairs, const T: usize>(blocks: [*const u8; 8], x: [*const i8; T]) -> [__m256i; T] {
    let top = _mm256_set1_epi8(-128);
    let mut sums = [[_mm256_setzero_si256(); 4]; T];
    for p in 0..4 {
        // SAFETY: the caller's promise.
        let codes = unsafe { F::pair::<__m256i>(blocks[p], blocks[p + 4]) };
        for h in 0..2 {
            let codes = if F::SIGNED { _mm256_xor_si256(codes[h], top) } else { codes[h] };
            for t in 0..T {
                // SAFETY: the caller's promise.
                let x = _mm256_broadcastsi128_si256(unsafe { half(x[t].add(16 * h).cast()) });
                sums[t][p] = _mm256_dpbusd_epi32(sums[t][p], codes, x);
            }
        }
    }
    sums.map(|[a, b, c, d]| _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)))
}
