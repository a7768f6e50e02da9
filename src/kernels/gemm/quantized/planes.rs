//! Products with weights of one and two bits on x86-64: `quantized::scalar` says what each computes.
//!
//! A lane is a weight row. Four bytes hold 32 of its columns, or 16 of two bits; shifted and masked, they are the codes of
//! four of these at once. So a shift and a mask unpack as many codes as a register has bytes, if the activations stand in
//! that order: `arrange` puts them so, once a product.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::Task;
use super::avx2::{AHEAD, halves};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::x86::fetch;
use crate::kernels::{DType, Pool};
use std::arch::x86_64::*;

/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 17;

/// Bits of a weight; None of types that are not unpacked here.
pub fn bits(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q1_0 => Some(1),
        DType::Q2_0 | DType::Q2_0_128 => Some(2),
        _ => None,
    }
}

/// `x` with the columns of each 32 in the order in which weights of `bits` bits are unpacked: those of the lowest bits of
/// each of four bytes, those of the next bits, and so on.
#[target_feature(enable = "avx2")]
pub fn arrange<'a>(
    pool: &Pool,
    bits: usize,
    x: &BlockActivations<'a>,
    to: &'a mut Vec<i8>,
) -> BlockActivations<'a> {
    let values = grown(to, x.values.len());
    {
        let shared = SharedOut::new(values);
        let one = |t: usize| {
            let range = t * x.cols..(t + 1) * x.cols;
            // SAFETY: each task has a row of its own.
            let to = unsafe { shared.slice(range.clone()) };
            for (block, to) in x.values[range].as_chunks::<32>().0.iter().zip(to.as_chunks_mut::<32>().0) {
                arrange_block(bits, block, to);
            }
        };
        if x.values.len() < SMALL { (0..x.tokens()).for_each(one) } else { pool.run(x.tokens(), &one) }
    }
    BlockActivations { values, ..*x }
}

#[inline]
#[target_feature(enable = "avx2")]
fn arrange_block(bits: usize, block: &[i8; 32], to: &mut [i8; 32]) {
    let (ones, twos) = (
        _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15),
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
    );
    // SAFETY: 16 bytes at 0 and at 16 of 32.
    unsafe {
        let [a, b] = [0, 16].map(|at| _mm_loadu_si128(block.as_ptr().add(at).cast()));
        let halves = if bits == 1 {
            let (a, b) = (_mm_shuffle_epi8(a, ones), _mm_shuffle_epi8(b, ones));
            [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)]
        } else {
            [_mm_shuffle_epi8(a, twos), _mm_shuffle_epi8(b, twos)]
        };
        for (at, half) in [0, 16].into_iter().zip(halves) {
            _mm_storeu_si128(to.as_mut_ptr().add(at).cast(), half);
        }
    }
}

/// Bytes of a block of `blocks` times 32 columns: an f16 scale, then codes.
const fn bytes(bits: usize, blocks: usize) -> usize {
    2 + 4 * bits * blocks
}

/// The bits of a code within its byte. One bit becomes 0 or 2, since a code stands for 1 less, as one of two bits does.
const fn mask(bits: usize) -> i8 {
    if bits == 1 { 2 } else { 3 }
}

/// `word`, of which `mask` leaves the codes of step `s`: those of one bit at twice their value.
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

/// `task`, whose tokens are arranged. Its blocks are `BLOCKS` times 32 columns of `BITS` bits.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn avx2<const BITS: usize, const BLOCKS: usize>(task: &Task) {
    const TILE: usize = 8;
    let tokens = task.x.tokens();
    assert_eq!(task.row_bytes, task.x.cols / 32 / BLOCKS * bytes(BITS, BLOCKS), "rows of whole blocks");
    for begin in (0..tokens).step_by(TILE) {
        match tokens - begin {
            1 => tile_avx2::<BITS, BLOCKS, 1>(task, begin),
            2 => tile_avx2::<BITS, BLOCKS, 2>(task, begin),
            3 => tile_avx2::<BITS, BLOCKS, 3>(task, begin),
            4 => tile_avx2::<BITS, BLOCKS, 4>(task, begin),
            5 => tile_avx2::<BITS, BLOCKS, 5>(task, begin),
            6 => tile_avx2::<BITS, BLOCKS, 6>(task, begin),
            7 => tile_avx2::<BITS, BLOCKS, 7>(task, begin),
            _ => tile_avx2::<BITS, BLOCKS, TILE>(task, begin),
        }
    }
}

/// `T` tokens from `begin` on, with eight rows at once.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_avx2<const BITS: usize, const BLOCKS: usize, const T: usize>(task: &Task, begin: usize) {
    let x = task.tokens::<T>(begin, 0..task.x.cols / 32);
    let (bytes, of_quad) = (bytes(BITS, BLOCKS), 4 / BITS);
    let (mask, one) = (_mm256_set1_epi8(mask(BITS)), _mm256_set1_epi16(1));
    for first in (0..task.rows).step_by(8) {
        // Of a group that the task cuts short the surplus results are dropped.
        let w = task.group::<8>(first).map(<[u8]>::as_ptr);
        let mut totals = [_mm256_setzero_ps(); T];
        for n in 0..task.row_bytes / bytes {
            if begin == 0 {
                fetch(w[0].wrapping_add(AHEAD + 8 * (task.row_bytes + n * bytes)), 8 * bytes);
            }
            // SAFETY: block n of eight rows, and its values of each token.
            unsafe {
                let blocks = w.map(|w| w.add(n * bytes));
                let [scales, _] = halves(blocks);
                for quad in 0..BLOCKS / of_quad {
                    let words = words(blocks, 2 + 16 * quad);
                    for i in 0..of_quad {
                        let b = n * BLOCKS + quad * of_quad + i;
                        let mut dots = [_mm256_setzero_si256(); T];
                        for h in 0..BITS {
                            let mut word = words[i * BITS + h];
                            for s in 0..8 / BITS {
                                let codes = _mm256_and_si256(at_step::<BITS>(word, s), mask);
                                for t in 0..T {
                                    let at = x[t].0.as_ptr().add(32 * b + 4 * (8 / BITS * h + s));
                                    let x = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
                                    // Eight times two products of at most 381 in magnitude.
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
            task.write(begin + t, first, &values[..(task.rows - first).min(8)]);
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
            let four = [0, 4, 8, 12].map(|n| _mm_loadu_si128(blocks[r + n].add(at).cast()));
            let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(four[0]), four[1]);
            v[r] = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, four[2]), four[3]);
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

/// As `avx2`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub fn avx512<const BITS: usize, const BLOCKS: usize>(task: &Task) {
    const TILE: usize = 8;
    let tokens = task.x.tokens();
    assert_eq!(task.row_bytes, task.x.cols / 32 / BLOCKS * bytes(BITS, BLOCKS), "rows of whole blocks");
    for begin in (0..tokens).step_by(TILE) {
        match tokens - begin {
            1 => tile_avx512::<BITS, BLOCKS, 1>(task, begin),
            2 => tile_avx512::<BITS, BLOCKS, 2>(task, begin),
            3 => tile_avx512::<BITS, BLOCKS, 3>(task, begin),
            4 => tile_avx512::<BITS, BLOCKS, 4>(task, begin),
            5 => tile_avx512::<BITS, BLOCKS, 5>(task, begin),
            6 => tile_avx512::<BITS, BLOCKS, 6>(task, begin),
            7 => tile_avx512::<BITS, BLOCKS, 7>(task, begin),
            _ => tile_avx512::<BITS, BLOCKS, TILE>(task, begin),
        }
    }
}

/// `T` tokens from `begin` on, with sixteen rows at once.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile_avx512<const BITS: usize, const BLOCKS: usize, const T: usize>(task: &Task, begin: usize) {
    let x = task.tokens::<T>(begin, 0..task.x.cols / 32);
    let (bytes, of_quad) = (bytes(BITS, BLOCKS), 4 / BITS);
    let mask = _mm512_set1_epi8(mask(BITS));
    for first in (0..task.rows).step_by(16) {
        // Of a group that the task cuts short the surplus results are dropped.
        let w = task.group::<16>(first).map(<[u8]>::as_ptr);
        let mut totals = [_mm512_setzero_ps(); T];
        for n in 0..task.row_bytes / bytes {
            if begin == 0 {
                fetch(w[0].wrapping_add(AHEAD + 16 * (task.row_bytes + n * bytes)), 16 * bytes);
            }
            // SAFETY: block n of sixteen rows, and its values of each token.
            unsafe {
                let blocks = w.map(|w| w.add(n * bytes));
                let [low, high] = *blocks.as_chunks::<8>().0 else { unreachable!("sixteen") };
                let low = _mm512_castps256_ps512(halves(low)[0]);
                let high = _mm256_castps_pd(halves(high)[0]);
                let scales = _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castps_pd(low), high));
                for quad in 0..BLOCKS / of_quad {
                    let words = wide_words(blocks, 2 + 16 * quad);
                    for i in 0..of_quad {
                        let b = n * BLOCKS + quad * of_quad + i;
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
            task.write(begin + t, first, &values[..(task.rows - first).min(16)]);
        }
    }
}
