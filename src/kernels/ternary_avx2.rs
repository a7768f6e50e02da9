//! The ternary product's inner loops with AVX2. `ternary::scalar` says what each computes.
//!
//! `vpmaddubsw` multiplies codes 0..=2 with int8 and adds pairs: at most 2·2·128 = 512 in magnitude. 64 of them, 2048
//! elements, add up to -32768..=32512, which an i16 lane holds; then they are widened to i32.

use super::rows::f16_at;
use super::ternary::GROUP;
use std::arch::x86_64::*;

/// Elements whose products an i16 lane can add up.
const NARROW: usize = 2048;

/// # Safety
/// 32 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Pairs of i16 to i32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(narrow: __m256i) -> __m256i {
    _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))
}

/// The sums of the lanes of each of four vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn lane_sums(v: [__m256i; 4]) -> __m128i {
    let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
}

/// The sum of the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn lane_sum(v: __m256i) -> i32 {
    let zero = _mm256_setzero_si256();
    _mm_cvtsi128_si32(lane_sums([v, zero, zero, zero]))
}

/// The four codes of each of 32 packed bytes, highest bits last.
#[inline]
#[target_feature(enable = "avx2")]
fn planes(packed: __m256i) -> [__m256i; 4] {
    let mask = _mm256_set1_epi8(3);
    // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
    [
        _mm256_and_si256(packed, mask),
        _mm256_and_si256(_mm256_srli_epi16::<2>(packed), mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask),
        _mm256_and_si256(_mm256_srli_epi16::<6>(packed), mask),
    ]
}

#[target_feature(enable = "avx2")]
pub fn unpack_i2s(packed: &[u8], codes: &mut [u8]) {
    for (codes, block) in codes.as_chunks_mut::<128>().0.iter_mut().zip(packed.as_chunks::<32>().0) {
        // SAFETY: 32 bytes are read from an array of 32, and four times 32 written to one of 128.
        unsafe {
            for (k, plane) in planes(load(block.as_ptr())).into_iter().rev().enumerate() {
                _mm256_storeu_si256(codes.as_mut_ptr().add(32 * k).cast(), plane);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
pub fn unpack_tq2_0(packed: &[u8], codes: &mut [u8]) {
    for (codes, block) in codes.as_chunks_mut::<256>().0.iter_mut().zip(packed.as_chunks::<66>().0) {
        for half in 0..2 {
            // SAFETY: bytes up to 64 are read from an array of 66, and up to 256 written to one of 256.
            unsafe {
                for (k, plane) in planes(load(block.as_ptr().add(32 * half))).into_iter().enumerate() {
                    _mm256_storeu_si256(codes.as_mut_ptr().add(128 * half + 32 * k).cast(), plane);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2")]
pub fn block_sums(values: &[i8], sums: &mut [i32]) {
    let ones = _mm256_set1_epi8(1);
    for (sum, block) in sums.iter_mut().zip(values.as_chunks::<256>().0) {
        let mut narrow = _mm256_setzero_si256();
        for k in 0..8 {
            // SAFETY: 32 bytes at 32k of 256, k < 8.
            let v = unsafe { load(block.as_ptr().add(32 * k).cast()) };
            narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(ones, v));
        }
        *sum = lane_sum(widen(narrow));
    }
}

/// `codes` is `[GROUP, cols]`; both activations have `cols` elements, a multiple of 32.
#[target_feature(enable = "avx2")]
pub fn dots(codes: &[u8], first: &[i8], second: &[i8]) -> [[i32; GROUP]; 2] {
    let cols = first.len();
    assert!(second.len() == cols && codes.len() == GROUP * cols && cols.is_multiple_of(32));
    let zero = _mm256_setzero_si256();
    let mut wide = [[zero; GROUP]; 2];
    for start in (0..cols).step_by(NARROW) {
        let mut narrow = [[zero; GROUP]; 2];
        for k in (start..cols.min(start + NARROW)).step_by(32) {
            // SAFETY: k + 32 <= cols, the length of both activations and of each of the GROUP rows of codes.
            unsafe {
                let (a, b) = (load(first.as_ptr().add(k).cast()), load(second.as_ptr().add(k).cast()));
                #[allow(clippy::needless_range_loop)] // r also counts rows of codes
                for r in 0..GROUP {
                    let w = load(codes.as_ptr().add(r * cols + k));
                    narrow[0][r] = _mm256_add_epi16(narrow[0][r], _mm256_maddubs_epi16(w, a));
                    narrow[1][r] = _mm256_add_epi16(narrow[1][r], _mm256_maddubs_epi16(w, b));
                }
            }
        }
        for (wide, narrow) in wide.iter_mut().flatten().zip(narrow.iter().flatten()) {
            *wide = _mm256_add_epi32(*wide, widen(*narrow));
        }
    }
    let mut sums = [[0; GROUP]; 2];
    for (sums, wide) in sums.iter_mut().zip(wide) {
        // SAFETY: four i32 are written to an array of four.
        unsafe { _mm_storeu_si128(sums.as_mut_ptr().cast(), lane_sums(wide)) };
    }
    sums
}

/// `codes` is `[GROUP, cols]`, `scales` `[blocks, GROUP]`, `sums` `[blocks]`, where `cols` is 256 for each block.
#[target_feature(enable = "avx2")]
pub fn dots_scaled(codes: &[u8], scales: &[f32], x: &[i8], sums: &[i32]) -> [f32; GROUP] {
    let cols = x.len();
    assert!(cols == 256 * sums.len() && codes.len() == GROUP * cols && scales.len() == GROUP * sums.len());
    let mut total = _mm_setzero_ps();
    for (b, sum) in sums.iter().enumerate() {
        let mut narrow = [_mm256_setzero_si256(); GROUP];
        for k in (256 * b..256 * (b + 1)).step_by(32) {
            // SAFETY: k + 32 <= cols, the length of x and of each of the GROUP rows of codes.
            unsafe {
                let a = load(x.as_ptr().add(k).cast());
                for (r, narrow) in narrow.iter_mut().enumerate() {
                    let w = load(codes.as_ptr().add(r * cols + k));
                    *narrow = _mm256_add_epi16(*narrow, _mm256_maddubs_epi16(w, a));
                }
            }
        }
        let [n0, n1, n2, n3] = narrow;
        let dots =
            _mm_sub_epi32(lane_sums([widen(n0), widen(n1), widen(n2), widen(n3)]), _mm_set1_epi32(*sum));
        // SAFETY: four scales at 4b of 4 * blocks.
        let scale = unsafe { _mm_loadu_ps(scales.as_ptr().add(GROUP * b)) };
        total = _mm_add_ps(total, _mm_mul_ps(_mm_cvtepi32_ps(dots), scale));
    }
    let mut totals = [0.0; GROUP];
    // SAFETY: four f32 are written to an array of four.
    unsafe { _mm_storeu_ps(totals.as_mut_ptr(), total) };
    totals
}

#[target_feature(enable = "avx2")]
pub fn packed_i2s(packed: &[u8], x: &[i8]) -> i32 {
    let mut wide = _mm256_setzero_si256();
    for (packed, x) in packed.chunks(NARROW / 4).zip(x.chunks(NARROW)) {
        let mut narrow = _mm256_setzero_si256();
        for (packed, x) in packed.as_chunks::<32>().0.iter().zip(x.as_chunks::<128>().0) {
            // SAFETY: 32 bytes of an array of 32.
            let planes = planes(unsafe { load(packed.as_ptr()) });
            for (k, plane) in planes.into_iter().rev().enumerate() {
                // SAFETY: 32 bytes at 32k of 128, k < 4.
                let v = unsafe { load(x.as_ptr().add(32 * k).cast()) };
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(plane, v));
            }
        }
        wide = _mm256_add_epi32(wide, widen(narrow));
    }
    lane_sum(wide)
}

#[target_feature(enable = "avx2")]
pub fn packed_tq2_0(packed: &[u8], x: &[i8], sums: &[i32]) -> f32 {
    let mut total = 0.0;
    let blocks = packed.as_chunks::<66>().0.iter().zip(x.as_chunks::<256>().0);
    for ((block, x), sum) in blocks.zip(sums) {
        let mut narrow = _mm256_setzero_si256();
        for half in 0..2 {
            // SAFETY: bytes up to 64 of an array of 66.
            let planes = planes(unsafe { load(block.as_ptr().add(32 * half)) });
            for (k, plane) in planes.into_iter().enumerate() {
                // SAFETY: 32 bytes at 128·half + 32k of 256.
                let v = unsafe { load(x.as_ptr().add(128 * half + 32 * k).cast()) };
                narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(plane, v));
            }
        }
        total += (lane_sum(widen(narrow)) - sum) as f32 * f16_at(&block[64..]);
    }
    total
}
