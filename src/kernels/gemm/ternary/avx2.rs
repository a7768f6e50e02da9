//! The ternary product's inner loop with AVX2 and more than a few tokens; `ternary_256` has that of fewer.
//! `ternary::scalar` says what it computes.
//!
//! Four bytes of each of eight rows lie side by side in a register, so that two i16 lanes are a row and nothing is to
//! be added up across lanes. For that sixteen rows are transposed and unpacked once for all tokens, some columns at a
//! time.
//!
//! `vpmaddubsw` multiplies codes 0..=2 with int8 and adds pairs: at most 2·2·128 = 512 in magnitude, far from where it
//! saturates. 64 of them, of 256 columns, add up to -32768..=32512, which an i16 lane holds; then they are widened.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::x86::{fetch, load, pinned};
use std::arch::x86_64::*;

/// From this many tokens on, unpacked codes pay for being written: of TQ2_0, and where only whole rows have a scale, so
/// that `ternary_256` adds up lanes but once a row.
const SCALED_TOKENS: usize = 8;
const PLAIN_TOKENS: usize = 16;
/// Weight rows that are unpacked together: two registers of eight.
const LANES: usize = 16;
/// Columns that are unpacked at once: their codes take half of the first-level cache. A multiple of 256.
const DEPTH: usize = 1024;
/// Tokens that share the loads of codes: with four more they fill the registers.
const TILE: usize = 4;

/// Whether `run` is faster than `ternary_256`; the results are the same.
pub fn pays(task: &Task) -> bool {
    let scaled = task.weights.dtype == DType::TQ2_0;
    task.x.rows.len() >= if scaled { SCALED_TOKENS } else { PLAIN_TOKENS }
}

/// `task` with any number of tokens.
#[target_feature(enable = "avx2,f16c")]
pub fn run(task: &Task, scratch: &mut Scratch) {
    match task.weights.dtype {
        DType::TQ2_0 => sweep::<true>(task, scratch),
        _ => sweep::<false>(task, scratch),
    }
}

/// Unpacks `LANES` rows at a time, `DEPTH` columns of them, and multiplies those with all tokens.
#[target_feature(enable = "avx2,f16c")]
fn sweep<const SCALED: bool>(task: &Task, scratch: &mut Scratch) {
    let (cols, tokens, rows) = (task.x.cols, task.x.rows.len(), task.block.rows.clone());
    let codes = grown(&mut scratch.codes, DEPTH.min(cols) / 4);
    let partial = grown(&mut scratch.partial, tokens);
    let scales = grown(&mut scratch.scales, if SCALED { cols / 256 } else { 1 });
    for first in rows.clone().step_by(LANES) {
        // Of a group that the block cuts short the surplus results are dropped.
        let w = task.group::<LANES>(first);
        if SCALED {
            block_scales(w, scales);
        } else {
            scales[0] = task.scales(first);
        }
        partial.fill(Line::default());
        for start in (0..cols).step_by(DEPTH) {
            let codes = &mut codes[..DEPTH.min(cols - start) / 4];
            unpack::<SCALED>(w, start, codes);
            for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                let step = Step { task, codes, scales, start, first: n * TILE };
                match partial {
                    [a] => step.tile::<1, SCALED>([a]),
                    [a, b] => step.tile::<2, SCALED>([a, b]),
                    [a, b, c] => step.tile::<3, SCALED>([a, b, c]),
                    [a, b, c, d] => step.tile::<TILE, SCALED>([a, b, c, d]),
                    _ => unreachable!("a chunk of tokens"),
                }
            }
        }
        for (t, partial) in partial.iter().enumerate() {
            let values = finish::<SCALED>(task, t, partial, &scales[0]);
            task.write(t, first, &values[..LANES.min(rows.end - first)]);
        }
    }
}

/// The scales of each block of TQ2_0 rows.
#[target_feature(enable = "avx2,f16c")]
fn block_scales(w: [&[u8]; LANES], scales: &mut [[f32; LANES]]) {
    assert!(w.iter().all(|w| w.len() == 66 * scales.len()));
    for (b, scales) in scales.iter_mut().enumerate() {
        let mut halves = [0i16; LANES];
        // SAFETY: two bytes behind a block's codes; arrays of sixteen.
        unsafe {
            for (half, w) in halves.iter_mut().zip(w) {
                *half = w.as_ptr().add(66 * b + 64).cast::<i16>().read_unaligned();
            }
            for at in [0, 8] {
                let values = _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().add(at).cast()));
                _mm256_storeu_ps(scales.as_mut_ptr().add(at), values);
            }
        }
    }
}

/// The outputs of token `t` from what all its columns add up to; `scales` are those of rows.
#[target_feature(enable = "avx2")]
fn finish<const SCALED: bool>(task: &Task, t: usize, partial: &Line, scales: &[f32; LANES]) -> [f32; LANES] {
    let token = task.x.rows[t];
    let mut values = [0.0; LANES];
    for at in [0, 8] {
        // SAFETY: 32 bytes at 4 at of 64, and 8 of 16 elements at `at`.
        unsafe {
            let partial = partial.0.as_ptr().add(4 * at);
            let value = if SCALED {
                _mm256_div_ps(_mm256_loadu_ps(partial.cast()), _mm256_set1_ps(token.scale))
            } else {
                let dots = _mm256_sub_epi32(load(partial), _mm256_set1_epi32(token.sum));
                let scale = _mm256_loadu_ps(scales.as_ptr().add(at));
                _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_div_ps(scale, _mm256_set1_ps(token.scale)))
            };
            _mm256_storeu_ps(values.as_mut_ptr().add(at), value);
        }
    }
    values
}

/// Eight rows of eight 32-bit lanes to columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: [__m256i; 8]) -> [__m256i; 8] {
    // Columns c and c + 4 of four rows.
    let four = |n: usize| {
        let (ab, cd) = (_mm256_unpacklo_epi32(v[n], v[n + 1]), _mm256_unpacklo_epi32(v[n + 2], v[n + 3]));
        let (ab_high, cd_high) =
            (_mm256_unpackhi_epi32(v[n], v[n + 1]), _mm256_unpackhi_epi32(v[n + 2], v[n + 3]));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    };
    let (a, b) = (four(0), four(4));
    let mut columns = [_mm256_setzero_si256(); 8];
    for c in 0..4 {
        columns[c] = _mm256_permute2x128_si256::<0x20>(a[c], b[c]);
        columns[4 + c] = _mm256_permute2x128_si256::<0x31>(a[c], b[c]);
    }
    columns
}

/// Columns `start..` of packed rows as codes: line n holds those of four columns, `start + 4 n ..`, row by row.
#[target_feature(enable = "avx2")]
fn unpack<const TQ2: bool>(w: [&[u8]; LANES], start: usize, codes: &mut [Line]) {
    let end = start + 4 * codes.len();
    let bytes = if TQ2 { end.div_ceil(256) * 66 } else { end / 4 };
    assert!(w.iter().all(|w| w.len() >= bytes) && start.is_multiple_of(256) && end.is_multiple_of(128));
    let mask = _mm256_set1_epi8(3);
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if TQ2 { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        // As much of the next rows as is used of these: memory is fastest in its own order.
        let next = w[0].as_ptr().wrapping_add(LANES * (w[0].len() + at));
        fetch(next, LANES * 32 + 64);
        for v in [0, 1] {
            let mut rows = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                // SAFETY: at + 32 <= bytes, which every row has.
                rows[r] = unsafe { load(w[8 * v + r].as_ptr().add(at)) };
            }
            for (j, packed) in transpose(rows).into_iter().enumerate() {
                // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
                let planes = [
                    _mm256_and_si256(packed, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<2>(packed), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<6>(packed), mask),
                ];
                for (k, plane) in planes.into_iter().enumerate() {
                    let line = &mut codes[8 * (if TQ2 { k } else { 3 - k }) + j];
                    // SAFETY: 32 bytes at 32v of 64.
                    unsafe { _mm256_storeu_si256(line.0.as_mut_ptr().add(32 * v).cast(), plane) };
                }
            }
        }
    }
}

/// Unpacked codes of columns `start..` and the tokens `first..` that they meet.
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    /// Of each block of TQ2_0.
    scales: &'a [[f32; LANES]],
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Adds to what `T` tokens have so far, a line each: i32, or f32 of TQ2_0.
    #[target_feature(enable = "avx2")]
    fn tile<const T: usize, const SCALED: bool>(&self, partial: [&mut Line; T]) {
        let columns = self.start..self.start + 4 * self.codes.len();
        let x = self.task.values::<T>(self.first, columns);
        for (b, codes) in self.codes.chunks(64).enumerate() {
            // SAFETY: 256 values at 256 b, or as many as there are codes, of each token.
            let narrow = unsafe { narrow_dots(codes, x.map(|x| x.as_ptr().add(256 * b))) };
            let block = self.start / 256 + b;
            for t in 0..T {
                let sum = if SCALED { self.task.sums(self.first + t)[block] } else { 0 };
                for v in [0, 1] {
                    let dots = _mm256_madd_epi16(narrow[t][v], _mm256_set1_epi16(1));
                    // SAFETY: 32 bytes at 32v of 64, and 8 of 16 f32 at 8v.
                    unsafe {
                        let at = partial[t].0.as_mut_ptr().add(32 * v);
                        if SCALED {
                            let dots = _mm256_sub_epi32(dots, _mm256_set1_epi32(sum));
                            let scale = _mm256_loadu_ps(self.scales[block].as_ptr().add(8 * v));
                            let value = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale);
                            let at = at.cast::<f32>();
                            _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), value));
                        } else {
                            _mm256_storeu_si256(at.cast(), _mm256_add_epi32(load(at), dots));
                        }
                    }
                }
            }
        }
    }
}

/// Dot products of sixteen rows and `T` tokens, two i16 lanes a row, of at most 64 lines of codes.
///
/// # Safety
/// Four values for each line can be read at each x.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn narrow_dots<const T: usize>(codes: &[Line], x: [*const i8; T]) -> [[__m256i; 2]; T] {
    let mut narrow = [[_mm256_setzero_si256(); 2]; T];
    // Four lines a round, of the 32 or 64: the loop itself costs instructions.
    for (n, lines) in codes.as_chunks::<4>().0.iter().enumerate() {
        for (i, line) in lines.iter().enumerate() {
            // SAFETY: a line's 64 bytes, and the caller's promise.
            unsafe {
                let w = [load(line.0.as_ptr()), load(line.0.as_ptr().add(32))];
                for t in 0..T {
                    let x = _mm256_set1_epi32(x[t].add(16 * n + 4 * i).cast::<i32>().read_unaligned());
                    for v in [0, 1] {
                        narrow[t][v] = pinned(_mm256_add_epi16(narrow[t][v], _mm256_maddubs_epi16(w[v], x)));
                    }
                }
            }
        }
    }
    narrow
}
