//! As `quantized_avx2`, with AVX-512 VNNI: four products of a lane in one instruction; sixteen rows a register where
//! codes are transposed.
//!
//! `vpdpbusd` adds unsigned codes times int8 to i32 lanes. Codes of 8 bits are read as unsigned ones, 128 too large.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::avx2::{
    AHEAD, DEPTH, Five, Format, Four, LANES, Q8_0, SWEPT, floats, forms, half, halves, transpose,
};
use super::planes::avx512 as planes;
use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// Tokens that share the loads of codes.
const TILE: usize = 8;
/// From this many tokens on the next rows are asked for while these are multiplied; before, while they are transposed.
const LATE: usize = 8;

/// What is to be taken from each code, the signed ones made unsigned.
const fn offset<F: Format>() -> i32 {
    if F::SIGNED { 128 } else { F::OFFSET as i32 }
}

forms!("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni");

/// `unsigned code · x` of a block of each of eight rows, a lane for each, with `T` tokens.
///
/// # Safety
/// The blocks can be read, and 32 values at each `x`.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn pairs<F: Format, const T: usize>(blocks: [*const u8; 8], x: [*const i8; T]) -> [__m256i; T] {
    let top = _mm256_set1_epi8(-128);
    let mut sums = [[_mm256_setzero_si256(); 4]; T];
    for p in 0..4 {
        // SAFETY: the caller's promise.
        let codes = unsafe { F::pair(blocks[p], blocks[p + 4]) };
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

/// Transposes the codes of `LANES` rows, `DEPTH` blocks of them at a time, and multiplies those with all tokens.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn sweep<F: Format>(task: &Task, scratch: &mut Scratch) {
    let (blocks, tokens) = (task.x.cols / 32, task.x.tokens());
    let codes = grown(&mut scratch.codes, 8 * DEPTH.min(blocks));
    let scales = grown(&mut scratch.scales, 2 * DEPTH.min(blocks));
    let partial = grown(&mut scratch.partial, tokens.min(SWEPT));
    for begin in (0..tokens).step_by(SWEPT) {
        let partial = &mut partial[..SWEPT.min(tokens - begin)];
        for first in (0..task.rows).step_by(LANES) {
            let count = LANES.min(task.rows - first);
            // Of a group that the task cuts short the surplus results are dropped.
            let w = task.group::<LANES>(first);
            partial.fill(Line::default());
            for start in (0..blocks).step_by(DEPTH) {
                let depth = DEPTH.min(blocks - start);
                let (codes, scales) = (&mut codes[..8 * depth], &mut scales[..2 * depth]);
                transpose::<F, true>(w, start, codes, scales, tokens < LATE);
                for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                    let late = tokens >= LATE && n == 0;
                    let next = w[0].as_ptr().wrapping_add(LANES * (task.row_bytes + start * F::BYTES));
                    let next = late.then_some(next);
                    let step = Step { task, codes, scales, start, first: begin + n * TILE, next };
                    match partial.len() {
                        1 => step.tile::<F, 1>(partial),
                        2 => step.tile::<F, 2>(partial),
                        3 => step.tile::<F, 3>(partial),
                        4 => step.tile::<F, 4>(partial),
                        5 => step.tile::<F, 5>(partial),
                        6 => step.tile::<F, 6>(partial),
                        7 => step.tile::<F, 7>(partial),
                        _ => step.tile::<F, TILE>(partial),
                    }
                }
            }
            for (t, partial) in partial.iter().enumerate() {
                task.write(begin + t, first, &floats(partial)[..count]);
            }
        }
    }
}

/// Transposed codes of blocks `start..` and the tokens `first..` that they meet.
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    scales: &'a [Line],
    start: usize,
    first: usize,
    /// The next rows, to be asked for meanwhile.
    next: Option<*const u8>,
}

impl Step<'_> {
    /// Adds to the sums of `T` tokens, block by block.
    #[target_feature(enable = "avx2,avx512f,avx512vnni")]
    fn tile<F: Format, const T: usize>(&self, partial: &mut [Line]) {
        let partial = partial.first_chunk_mut::<T>().expect("a line for each token");
        let x = self.task.tokens::<T>(self.first, self.start..self.start + self.codes.len() / 8);
        let mut totals = [_mm512_setzero_ps(); T];
        for t in 0..T {
            // SAFETY: a line is sixteen floats.
            totals[t] = unsafe { _mm512_load_ps(partial[t].0.as_ptr().cast()) };
        }
        let lines = self.codes.as_chunks::<8>().0.iter().zip(self.scales.as_chunks::<2>().0);
        for (b, (codes, [scales, minimums])) in lines.enumerate() {
            if let Some(next) = self.next {
                fetch(next.wrapping_add(LANES * b * F::BYTES), LANES * F::BYTES);
            }
            // SAFETY: 32 values of block b of each token, its scale and sum; lines of 64 bytes.
            unsafe {
                let mut dots = [_mm512_setzero_si512(); T];
                for t in 0..T {
                    let sum = *x[t].2.get_unchecked(b) as i32;
                    dots[t] = _mm512_set1_epi32(-offset::<F>() * sum);
                }
                for k in 0..8 {
                    let w = _mm512_load_si512(codes[k].0.as_ptr().cast());
                    for t in 0..T {
                        let at = x[t].0.as_ptr().add(32 * b + 4 * k).cast::<i32>();
                        dots[t] = _mm512_dpbusd_epi32(dots[t], w, _mm512_set1_epi32(at.read_unaligned()));
                    }
                }
                let scales = _mm512_load_ps(scales.0.as_ptr().cast());
                for t in 0..T {
                    let scale = *x[t].1.get_unchecked(b);
                    let both = _mm512_mul_ps(scales, _mm512_set1_ps(scale));
                    totals[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), both, totals[t]);
                    if F::MINIMUMS {
                        let sum = *x[t].2.get_unchecked(b);
                        let low = _mm512_load_ps(minimums.0.as_ptr().cast());
                        totals[t] = _mm512_fmadd_ps(low, _mm512_set1_ps(scale * sum as f32), totals[t]);
                    }
                }
            }
        }
        for t in 0..T {
            // SAFETY: a line is sixteen floats.
            unsafe { _mm512_store_ps(partial[t].0.as_mut_ptr().cast(), totals[t]) };
        }
    }
}
