//! Few arranged tokens with weights of one and two bits on x86-64: rows are unpacked in registers, a lane for each.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use super::avx2::{AHEAD, halves};
use crate::kernels::gemm::formats::short_blocks::{Planes, Short};
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// What masks codes out: those of one bit are 0 and 2.
const fn mask(bits: usize) -> i8 {
    if bits == 1 { 2 } else { 3 }
}

/// `word`, whose codes of step `s` are to be masked out: those of one bit are wanted at twice their value.
#[inline]
#[target_feature(enable = "avx2")]
fn at_step<const BITS: usize>(word: __m256i, s: usize) -> __m256i {
    if BITS == 1 && s == 0 { _mm256_add_epi32(word, word) } else { word }
}

/// `word` for the step behind `s`.
#[inline]
#[target_feature(enable = "avx2")]
fn after<const BITS: usize>(word: __m256i, s: usize) -> __m256i {
    match BITS {
        1 if s == 0 => word,
        1 => _mm256_srli_epi32::<1>(word),
        _ => _mm256_srli_epi32::<2>(word),
    }
}

/// Sixteen bytes at `at` of each of eight blocks: the first four of all, the next four, and so on.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn words(blocks: [*const u8; 8], at: usize) -> [__m256i; 4] {
    let mut v = [_mm256_setzero_si256(); 4];
    for r in 0..4 {
        // SAFETY: the caller's promise.
        v[r] = unsafe {
            let (a, b) = (_mm_loadu_si128(blocks[r].add(at).cast()), blocks[r + 4].add(at));
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), _mm_loadu_si128(b.cast()))
        };
    }
    let [a, b] =
        [[v[0], v[1]], [v[2], v[3]]].map(|[a, b]| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)]);
    [
        _mm256_unpacklo_epi64(a[0], b[0]),
        _mm256_unpackhi_epi64(a[0], b[0]),
        _mm256_unpacklo_epi64(a[1], b[1]),
        _mm256_unpackhi_epi64(a[1], b[1]),
    ]
}

/// `T` arranged tokens, with eight rows at once.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn few_avx2<const BITS: usize, const BLOCKS: usize, const T: usize>(task: &Task) {
    let x = task.tokens::<T>(0, 0..task.x.cols / 32);
    let bytes = Planes::<BITS, BLOCKS>::BYTES;
    let (mask, one) = (_mm256_set1_epi8(mask(BITS)), _mm256_set1_epi16(1));
    for first in (0..task.rows).step_by(8) {
        // Of a group that the task cuts short the surplus results are dropped.
        let w = task.group::<8>(first).map(<[u8]>::as_ptr);
        let mut totals = [_mm256_setzero_ps(); T];
        for n in 0..task.row_bytes / bytes {
            fetch(w[0].wrapping_add(AHEAD + 8 * (task.row_bytes + n * bytes)), 8 * bytes);
            // SAFETY: block n of eight rows, and its values of each token.
            unsafe {
                let blocks = w.map(|w| w.add(n * bytes));
                let [scales, _] = halves(blocks);
                for quad in 0..BITS * BLOCKS / 4 {
                    let words = words(blocks, 2 + 16 * quad);
                    for i in 0..4 / BITS {
                        let b = n * BLOCKS + quad * 4 / BITS + i;
                        let mut dots = [_mm256_setzero_si256(); T];
                        for h in 0..BITS {
                            let mut word = words[i * BITS + h];
                            for s in 0..8 / BITS {
                                let codes = _mm256_and_si256(at_step::<BITS>(word, s), mask);
                                for t in 0..T {
                                    let at = x[t].0.as_ptr().add(32 * b + 4 * (8 / BITS * h + s));
                                    let x = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
                                    dots[t] = _mm256_add_epi16(dots[t], _mm256_maddubs_epi16(codes, x));
                                }
                                word = after::<BITS>(word, s);
                            }
                        }
                        for t in 0..T {
                            let (scale, sum) = (*x[t].1.get_unchecked(b), *x[t].2.get_unchecked(b));
                            let dot = _mm256_madd_epi16(dots[t], one);
                            let dot =
                                _mm256_cvtepi32_ps(_mm256_sub_epi32(dot, _mm256_set1_epi32(sum as i32)));
                            let both = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
                            totals[t] = _mm256_fmadd_ps(dot, both, totals[t]);
                        }
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

/// `words` of sixteen blocks.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2,avx512f")]
unsafe fn wide_words(blocks: [*const u8; 16], at: usize) -> [__m512i; 4] {
    let mut v = [_mm512_setzero_si512(); 4];
    for r in 0..4 {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_castsi128_si512(_mm_loadu_si128(blocks[r].add(at).cast()));
            let low = _mm512_inserti32x4::<1>(low, _mm_loadu_si128(blocks[r + 4].add(at).cast()));
            let low = _mm512_inserti32x4::<2>(low, _mm_loadu_si128(blocks[r + 8].add(at).cast()));
            v[r] = _mm512_inserti32x4::<3>(low, _mm_loadu_si128(blocks[r + 12].add(at).cast()));
        }
    }
    let [a, b] =
        [[v[0], v[1]], [v[2], v[3]]].map(|[a, b]| [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)]);
    [
        _mm512_unpacklo_epi64(a[0], b[0]),
        _mm512_unpackhi_epi64(a[0], b[0]),
        _mm512_unpacklo_epi64(a[1], b[1]),
        _mm512_unpackhi_epi64(a[1], b[1]),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide_at_step<const BITS: usize>(word: __m512i, s: usize) -> __m512i {
    if BITS == 1 && s == 0 { _mm512_add_epi32(word, word) } else { word }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide_after<const BITS: usize>(word: __m512i, s: usize) -> __m512i {
    match BITS {
        1 if s == 0 => word,
        1 => _mm512_srli_epi32::<1>(word),
        _ => _mm512_srli_epi32::<2>(word),
    }
}

/// `T` arranged tokens, with sixteen rows at once.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub fn few_avx512<const BITS: usize, const BLOCKS: usize, const T: usize>(task: &Task) {
    let x = task.tokens::<T>(0, 0..task.x.cols / 32);
    let bytes = Planes::<BITS, BLOCKS>::BYTES;
    let mask = _mm512_set1_epi8(mask(BITS));
    for first in (0..task.rows).step_by(16) {
        // Of a group that the task cuts short the surplus results are dropped.
        let w = task.group::<16>(first).map(<[u8]>::as_ptr);
        let mut totals = [_mm512_setzero_ps(); T];
        for n in 0..task.row_bytes / bytes {
            fetch(w[0].wrapping_add(AHEAD + 16 * (task.row_bytes + n * bytes)), 16 * bytes);
            // SAFETY: block n of sixteen rows, and its values of each token.
            unsafe {
                // A loop, not a closure: compilers leave `map` of so many as a call.
                let mut blocks = w;
                for r in 0..16 {
                    blocks[r] = w[r].add(n * bytes);
                }
                let [low, high] = *blocks.as_chunks::<8>().0 else { unreachable!("sixteen") };
                let low = _mm512_castps256_ps512(halves(low)[0]);
                let high = _mm256_castps_pd(halves(high)[0]);
                let scales = _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castps_pd(low), high));
                for quad in 0..BITS * BLOCKS / 4 {
                    let words = wide_words(blocks, 2 + 16 * quad);
                    for i in 0..4 / BITS {
                        let b = n * BLOCKS + quad * 4 / BITS + i;
                        let mut dots = [_mm512_setzero_si512(); T];
                        for t in 0..T {
                            dots[t] = _mm512_set1_epi32(-(*x[t].2.get_unchecked(b) as i32));
                        }
                        for h in 0..BITS {
                            let mut word = words[i * BITS + h];
                            for s in 0..8 / BITS {
                                let codes = _mm512_and_si512(wide_at_step::<BITS>(word, s), mask);
                                for t in 0..T {
                                    let at = x[t].0.as_ptr().add(32 * b + 4 * (8 / BITS * h + s));
                                    let x = _mm512_set1_epi32(at.cast::<i32>().read_unaligned());
                                    dots[t] = _mm512_dpbusd_epi32(dots[t], codes, x);
                                }
                                word = wide_after::<BITS>(word, s);
                            }
                        }
                        for t in 0..T {
                            let both = _mm512_mul_ps(scales, _mm512_set1_ps(*x[t].1.get_unchecked(b)));
                            totals[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), both, totals[t]);
                        }
                    }
                }
            }
        }
        for t in 0..T {
            let mut values = [0.0; 16];
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), totals[t]) };
            task.write(t, first, &values[..(task.rows - first).min(16)]);
        }
    }
}
