//! The ternary product's inner loops with NEON's dot products. `ternary::scalar` says what each computes.
//!
//! `sdot` adds four products to an i32 lane. Codes stay where they lie in their byte, up to 16 times too large: then
//! a lane's sum is below 256 times the columns, which is no more than the exact product may be.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::{Packed, Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::neon::{dot, dot_lane, half, transpose};
use std::arch::aarch64::*;

/// From this many tokens on, unpacked codes pay for being written.
const SWEEP_TOKENS: usize = 4;
/// Weight rows that are unpacked together and swept over the tokens: four vectors of four.
const LANES: usize = 16;
/// Columns that are unpacked at once: their codes take a quarter or half of the first-level cache. A multiple of 256.
const DEPTH: usize = 1024;
/// Tokens that share the loads of codes: 16 sums, 4 activations and 4 codes of 32 registers.
const TILE: usize = 4;

/// `task` with any number of tokens.
#[target_feature(enable = "neon,dotprod")]
pub fn run(task: &Task, scratch: &mut Scratch) {
    let scaled = task.weights.dtype == DType::TQ2_0;
    match (task.x.rows.len(), scaled) {
        (0, _) => {}
        (1, false) => few::<1, false>(task),
        (1, true) => few::<1, true>(task),
        (2, false) => few::<2, false>(task),
        (2, true) => few::<2, true>(task),
        (3, false) => few::<3, false>(task),
        (3, true) => few::<3, true>(task),
        (SWEEP_TOKENS.., false) => sweep::<false>(task, scratch),
        (SWEEP_TOKENS.., true) => sweep::<true>(task, scratch),
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
    for row in task.block.rows.clone() {
        let packed = task.weights.row(row);
        let mut values = [0.0; T];
        if SCALED {
            let totals = packed_scaled(packed, x, std::array::from_fn(|t| task.sums(t)));
            for t in 0..T {
                values[t] = totals[t] / task.x.rows[t].scale;
            }
        } else {
            let (dots, scale) = (packed_dots(packed, x), task.weights.scale(row));
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

/// Unpacks `LANES` rows at a time, `DEPTH` columns of them, and multiplies those with all tokens.
#[target_feature(enable = "neon,dotprod")]
fn sweep<const SCALED: bool>(task: &Task, scratch: &mut Scratch) {
    let (cols, tokens, rows) = (task.x.cols, task.x.rows.len(), task.block.rows.clone());
    let (depth, blocks) = (DEPTH.min(cols), if SCALED { cols / 256 } else { 1 });
    // Codes, a line of dot products of each token so far, i32 or f32 of TQ2_0, and a line of scales of each block.
    let (codes, rest) = grown(&mut scratch.codes, depth / 4 + tokens + blocks).split_at_mut(depth / 4);
    let (partial, scales) = rest.split_at_mut(tokens);
    for first in rows.clone().step_by(LANES) {
        // A group that the block cuts short repeats its last row; the surplus results are dropped.
        let row = |r: usize| (first + r).min(rows.end - 1);
        let w: [&[u8]; LANES] = std::array::from_fn(|r| task.weights.row(row(r)));
        fill_scales::<SCALED>(&task.weights, row, scales);
        partial.fill(Line::default());
        for start in (0..cols).step_by(DEPTH) {
            let depth = DEPTH.min(cols - start);
            let codes = &mut codes[..depth / 4];
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

/// A line of the rows' scales, or of those of each of their TQ2_0 blocks.
#[target_feature(enable = "neon")]
fn fill_scales<const SCALED: bool>(weights: &Packed, row: impl Fn(usize) -> usize, scales: &mut [Line]) {
    let put = |line: &mut Line, r: usize, scale: f32| {
        line.0.as_chunks_mut::<4>().0[r] = scale.to_ne_bytes();
    };
    for r in 0..LANES {
        if !SCALED {
            put(&mut scales[0], r, weights.scale(row(r)));
            continue;
        }
        let blocks = weights.row(row(r)).as_chunks::<66>().0;
        for (line, block) in scales.iter_mut().zip(blocks) {
            put(line, r, half(u16::from_le_bytes([block[64], block[65]])));
        }
    }
}

/// The outputs of token `t` from its dot products.
#[target_feature(enable = "neon")]
fn finish<const SCALED: bool>(task: &Task, t: usize, partial: &Line, scales: &Line) -> [f32; LANES] {
    let token = task.x.rows[t];
    let divisor = vdupq_n_f32(token.scale);
    let mut values = [0.0; LANES];
    for v in 0..4 {
        // SAFETY: 16 bytes at 16v of 64, and four of 16 floats.
        unsafe {
            let at = partial.0.as_ptr().add(16 * v);
            let value = if SCALED {
                vdivq_f32(vld1q_f32(at.cast()), divisor)
            } else {
                let dots = vsubq_s32(vld1q_s32(at.cast()), vdupq_n_s32(token.sum));
                let scale = vdivq_f32(vld1q_f32(scales.0.as_ptr().add(16 * v).cast()), divisor);
                vmulq_f32(vcvtq_f32_s32(dots), scale)
            };
            vst1q_f32(values.as_mut_ptr().add(4 * v), value);
        }
    }
    values
}

/// Columns `start..` of packed rows as codes: line n holds those of four columns, `start + 4 n ..`, row by row.
#[target_feature(enable = "neon")]
fn unpack<const TQ2: bool>(w: [&[u8]; LANES], start: usize, codes: &mut [Line]) {
    let end = start + 4 * codes.len();
    let bytes = if TQ2 { end.div_ceil(256) * 66 } else { end / 4 };
    assert!(w.iter().all(|w| w.len() >= bytes) && start.is_multiple_of(256) && end.is_multiple_of(128));
    let mask = vdupq_n_u8(3);
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if TQ2 { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        for (v, part) in [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)] {
            // SAFETY: at + 32 <= bytes, which every row has.
            let rows = [0, 1, 2, 3].map(|r| unsafe { vld1q_u8(w[4 * v + r].as_ptr().add(at + 16 * part)) });
            for (j, packed) in transpose(rows).into_iter().enumerate() {
                let planes = [
                    vandq_u8(packed, mask),
                    vandq_u8(vshrq_n_u8::<2>(packed), mask),
                    vandq_u8(vshrq_n_u8::<4>(packed), mask),
                    vshrq_n_u8::<6>(packed),
                ];
                for (k, plane) in planes.into_iter().enumerate() {
                    let line = 8 * (if TQ2 { k } else { 3 - k }) + 4 * part + j;
                    // SAFETY: 16 bytes at 16v of 64.
                    unsafe { vst1q_u8(codes[line].0.as_mut_ptr().add(16 * v), plane) };
                }
            }
        }
    }
}

/// Unpacked codes of columns `start..` and the tokens `first..` that they meet.
#[derive(Clone, Copy)]
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    /// A line for each block of TQ2_0.
    scales: &'a [Line],
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Adds to the dot products of `T` tokens.
    #[target_feature(enable = "neon,dotprod")]
    fn tile<const T: usize, const SCALED: bool>(&self, partial: [&mut Line; T]) {
        let x: [&[i8]; T] = std::array::from_fn(|t| {
            &self.task.x.row(self.first + t)[self.start..self.start + 4 * self.codes.len()]
        });
        // A block with its scales, or all.
        let lines = if SCALED { 64 } else { self.codes.len() };
        for (b, codes) in self.codes.chunks(lines).enumerate() {
            // SAFETY: four values for each of the lines before and of these, which each token has.
            let dots = unsafe { dots(codes, x.map(|x| x.as_ptr().add(4 * lines * b))) };
            let block = self.start / 256 + b;
            for t in 0..T {
                for v in 0..4 {
                    // SAFETY: 16 bytes at 16v of 64.
                    unsafe {
                        let at = partial[t].0.as_mut_ptr().add(16 * v);
                        if SCALED {
                            let sum = vdupq_n_s32(self.task.sums(self.first + t)[block]);
                            let scales = self.scales[block].0.as_ptr().add(16 * v);
                            let dots = vcvtq_f32_s32(vsubq_s32(dots[t][v], sum));
                            let value = vmulq_f32(dots, vld1q_f32(scales.cast()));
                            let at = at.cast::<f32>();
                            vst1q_f32(at, vaddq_f32(vld1q_f32(at), value));
                        } else {
                            let at = at.cast::<i32>();
                            vst1q_s32(at, vaddq_s32(vld1q_s32(at), dots[t][v]));
                        }
                    }
                }
            }
        }
    }
}

/// Dot products of each token with the 16 rows of some lines of codes, a multiple of four.
///
/// # Safety
/// Four values for each line can be read at each x.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dots<const T: usize>(codes: &[Line], x: [*const i8; T]) -> [[int32x4_t; 4]; T] {
    let mut sums = [[vdupq_n_s32(0); 4]; T];
    for (n, [a, b, c, d]) in codes.as_chunks::<4>().0.iter().enumerate() {
        // SAFETY: the caller's promise: 16 values for four lines.
        let x = x.map(|x| unsafe { vld1q_s8(x.add(16 * n)) });
        line::<T, 0>(a, x, &mut sums);
        line::<T, 1>(b, x, &mut sums);
        line::<T, 2>(c, x, &mut sums);
        line::<T, 3>(d, x, &mut sums);
    }
    sums
}

/// One line of codes with values 4 LANE.. of each token's sixteen.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn line<const T: usize, const LANE: usize>(codes: &Line, x: [int8x16_t; T], sums: &mut [[int32x4_t; 4]; T]) {
    for v in 0..4 {
        // SAFETY: 16 bytes at 16v of 64.
        let codes = unsafe { vld1q_s8(codes.0.as_ptr().add(16 * v).cast()) };
        for t in 0..T {
            sums[t][v] = dot_lane::<LANE>(sums[t][v], codes, x[t]);
        }
    }
}
