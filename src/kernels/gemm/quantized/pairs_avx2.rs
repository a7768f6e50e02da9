//! Products of Q8_0 with several tokens on AVX2, with half of the multiplications (S. Winograd, "A New Algorithm for
//! Inner Product", 1968): `w0 x0 + w1 x1 = (w0 + x1) (w1 + x0) - w0 w1 - x0 x1`.
//!
//! What is taken away is a number of the weights, made as they are transposed, and one of the activations, made once a
//! product. Both factors have 9 bits: of 16 pairs of i16, `vpmaddwd` multiplies what stands for 32 products, which with
//! 8 bits and a sign on both sides takes `vpmaddubsw`, `vpmaddwd` and `vpsignb`, all of them on the same two ports.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::sweep::{ROWS as LANES, SWEPT};
use super::{Scratch, Task};
use crate::kernels::Pool;
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::formats::short_blocks::{Q8_0, Short};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::lanes::Register;
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Tokens from which on this is faster than `avx2`, whose codes are sooner transposed.
pub const TOKENS: usize = 12;
/// Blocks that are transposed at once: their codes take half of the first-level cache.
const DEPTH: usize = 16;
/// Lines of a block's codes.
const LINES: usize = 16;
/// Tokens that share the loads of codes.
const TILE: usize = 4;
/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 17;

/// What `arrange` makes; it grows to the largest product and stays.
#[derive(Default)]
pub struct Arranged {
    values: Vec<Line>,
    sums: Vec<i32>,
}

/// A product's activations.
#[derive(Clone, Copy, Default)]
pub struct Pairs<'a> {
    /// `[tokens, blocks]`: of each four columns those at 1, 3, 0 and 2, as i16.
    values: &'a [Line],
    /// `[tokens, blocks]`: minus the sum of the products of columns 0 and 1, 2 and 3, and so on.
    sums: &'a [i32],
}

/// Blocks of 32 columns as `run` reads them.
#[target_feature(enable = "avx2")]
pub fn arrange<'a>(pool: &Pool, x: &BlockActivations, to: &'a mut Arranged) -> Pairs<'a> {
    let (tokens, blocks) = (x.tokens(), x.cols / 32);
    let values = grown(&mut to.values, tokens * blocks);
    let sums = grown(&mut to.sums, tokens * blocks);
    {
        let (values, sums) = (SharedOut::new(values), SharedOut::new(sums));
        let one = |t: usize| {
            let range = t * blocks..(t + 1) * blocks;
            // SAFETY: each task has blocks of its own.
            let (values, sums) = unsafe { (values.slice(range.clone()), sums.slice(range)) };
            for ((block, value), sum) in x.row(t).0.as_chunks::<32>().0.iter().zip(values).zip(sums) {
                *sum = arrange_block(block, value);
            }
        };
        if x.values.len() < SMALL { (0..tokens).for_each(one) } else { pool.run(tokens, &one) }
    }
    Pairs { values, sums }
}

#[inline]
#[target_feature(enable = "avx2")]
fn arrange_block(block: &[i8; 32], to: &mut Line) -> i32 {
    let order = _mm_setr_epi8(1, 3, 0, 2, 5, 7, 4, 6, 9, 11, 8, 10, 13, 15, 12, 14);
    let mut products = _mm256_setzero_si256();
    for h in 0..2 {
        // SAFETY: 16 of 32 bytes are read, 32 of 64 written.
        unsafe {
            let bytes = _mm_loadu_si128(block.as_ptr().add(16 * h).cast());
            let wide = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
            _mm256_store_si256(to.0.as_mut_ptr().add(32 * h).cast(), wide);
            let others = _mm256_shuffle_epi32::<0b10_11_00_01>(wide);
            products = _mm256_add_epi32(products, _mm256_madd_epi16(wide, others));
        }
    }
    // Each product is there twice, in lanes side by side.
    let four = _mm_add_epi32(_mm256_castsi256_si128(products), _mm256_extracti128_si256::<1>(products));
    -(_mm_cvtsi128_si32(four) + _mm_extract_epi32::<2>(four))
}

/// `task` with any number of tokens, `pairs` of its activations; its type is Q8_0.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn run(task: &Task, pairs: Pairs, scratch: &mut Scratch) {
    let (blocks, tokens) = (task.x.cols / 32, task.x.tokens());
    assert!(pairs.values.len() == tokens * blocks && pairs.sums.len() == tokens * blocks);
    let codes = grown(&mut scratch.codes, LINES * DEPTH.min(blocks));
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
                let (codes, scales) = (&mut codes[..LINES * depth], &mut scales[..2 * depth]);
                transpose(w, start, codes, scales);
                for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                    // The next rows, nobody's perhaps, are asked for while the first tokens are multiplied.
                    let next = w[0].as_ptr().wrapping_add(LANES * (w[0].len() + start * Q8_0::BYTES));
                    let next = (n == 0).then_some(next);
                    let step = Step { task, pairs, codes, scales, next, start, first: begin + n * TILE };
                    match partial.len() {
                        1 => step.tile::<1>(partial),
                        2 => step.tile::<2>(partial),
                        3 => step.tile::<3>(partial),
                        _ => step.tile::<TILE>(partial),
                    }
                }
            }
            for (t, partial) in partial.iter().enumerate() {
                task.write(begin + t, first, &partial.floats()[..count]);
            }
        }
    }
}

/// Blocks `start..` of packed rows. Of block b, lines 16 b + 2 k and the next of `codes` have columns 4 k to 4 k + 3 as
/// i16, row by row: 0 and 2 of them in the first, 1 and 3 in the second. Line 2 b of `scales` has the rows' scales, the
/// next one minus the sums of the products of those columns, i32.
#[target_feature(enable = "avx2,f16c")]
fn transpose(w: [&[u8]; LANES], start: usize, codes: &mut [Line], scales: &mut [Line]) {
    let end = start + codes.len() / LINES;
    assert!(w.iter().all(|w| w.len() >= end * Q8_0::BYTES) && scales.len() == 2 * (end - start));
    let lines = codes.as_chunks_mut::<LINES>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (b, (codes, [scales, sums])) in (start..end).zip(lines) {
        for v in 0..2 {
            // SAFETY: block b of each row; 32 bytes at 32 v of each line's 64.
            unsafe {
                let blocks: [_; 8] = std::array::from_fn(|r| w[8 * v + r].as_ptr().add(b * Q8_0::BYTES));
                let mut sum = _mm256_setzero_si256();
                for (lines, column) in codes.as_chunks_mut::<2>().0.iter_mut().zip(Q8_0::words(&blocks, 0).0)
                {
                    let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(column));
                    let odd = _mm256_srai_epi16::<8>(column);
                    sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(even, odd));
                    _mm256_store_si256(lines[0].0.as_mut_ptr().add(32 * v).cast(), even);
                    _mm256_store_si256(lines[1].0.as_mut_ptr().add(32 * v).cast(), odd);
                }
                _mm256_store_si256(sums.0.as_mut_ptr().add(32 * v).cast(), sum);
                _mm256_store_ps(scales.0.as_mut_ptr().add(32 * v).cast(), __m256::halves(&blocks, 0));
            }
        }
    }
}

/// Transposed codes of blocks `start..` and the tokens `first..` that they meet.
struct Step<'a> {
    task: &'a Task<'a>,
    pairs: Pairs<'a>,
    codes: &'a [Line],
    scales: &'a [Line],
    /// What to ask memory for meanwhile: as much as the blocks had of rows.
    next: Option<*const u8>,
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Adds to the sums of `T` tokens, a line for each, block by block.
    #[target_feature(enable = "avx2,fma")]
    fn tile<const T: usize>(&self, partial: &mut [Line]) {
        let depth = self.codes.len() / LINES;
        let blocks = self.task.x.cols / 32;
        let scales = self.task.tokens::<T>(self.first, self.start..self.start + depth);
        let mut x: [(&[Line], &[f32], &[i32]); T] = [(&[], &[], &[]); T];
        for t in 0..T {
            let at = (self.first + t) * blocks + self.start;
            x[t] = (&self.pairs.values[at..at + depth], scales[t].1, &self.pairs.sums[at..at + depth]);
        }
        assert!(partial.len() == T);
        let lines = self.codes.as_chunks::<LINES>().0.iter().zip(self.scales.as_chunks::<2>().0);
        // A number that the compiler does not know: it would write out the whole block, and run out of registers.
        let steps = black_box(8);
        for (b, (codes, [scales, sums])) in lines.enumerate() {
            if let Some(next) = self.next {
                fetch(next.wrapping_add(LANES * b * Q8_0::BYTES), LANES * Q8_0::BYTES);
            }
            // SAFETY: block b of each token, its scale and sum; a line has two vectors.
            unsafe {
                let own: [__m256i; 2] = [0, 32].map(|at| _mm256_load_si256(sums.0.as_ptr().add(at).cast()));
                let mut dots = [own; T];
                for t in 0..T {
                    let sum = _mm256_set1_epi32(*x[t].2.get_unchecked(b));
                    dots[t] = own.map(|own| _mm256_add_epi32(own, sum));
                }
                add_block(codes, x.map(|x| x.0.as_ptr().add(b).cast()), steps, &mut dots);
                // Sums stay in memory: there are no registers for them, and to give them some costs more moves.
                let partial = black_box(partial.as_mut_ptr());
                let own: [__m256; 2] = [0, 32].map(|at| _mm256_load_ps(scales.0.as_ptr().add(at).cast()));
                for t in 0..T {
                    let scale = _mm256_broadcast_ss(x[t].1.get_unchecked(b));
                    for v in 0..2 {
                        let at = partial.add(t).cast::<f32>().add(8 * v);
                        let both = _mm256_mul_ps(own[v], scale);
                        let dot = _mm256_cvtepi32_ps(dots[t][v]);
                        _mm256_store_ps(at, _mm256_fmadd_ps(dot, both, _mm256_load_ps(at)));
                    }
                }
            }
        }
    }
}

/// Adds the products of a block's sums of sixteen rows and `T` tokens to two vectors of lanes for each; `steps` is 8.
///
/// # Safety
/// A line can be read at each `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_block<const T: usize>(
    codes: &[Line; LINES],
    x: [*const i32; T],
    steps: usize,
    dots: &mut [[__m256i; 2]; T],
) {
    for k in 0..steps {
        // SAFETY: two lines of sixteen, and the caller's promise.
        unsafe {
            let line = codes.as_ptr().add(2 * k).cast::<__m256i>();
            let [even, odd] =
                [0, 2].map(|at| [_mm256_load_si256(line.add(at)), _mm256_load_si256(line.add(at + 1))]);
            for t in 0..T {
                let (x_odd, x_even) =
                    (_mm256_set1_epi32(*x[t].add(2 * k)), _mm256_set1_epi32(*x[t].add(2 * k + 1)));
                for v in 0..2 {
                    let (a, b) = (_mm256_add_epi16(even[v], x_odd), _mm256_add_epi16(odd[v], x_even));
                    dots[t][v] = _mm256_add_epi32(dots[t][v], _mm256_madd_epi16(a, b));
                }
            }
        }
    }
}
