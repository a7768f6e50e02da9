//! Products of quantized weights with NEON's dot products. `quantized::scalar` says what each computes.
//!
//! Integers are exact. The float sum of each row and token is one lane, to which blocks add as their columns follow
//! each other. Few tokens: rows are decoded in registers. More tokens: eight rows are decoded once, to a panel.

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::gemm::formats::neon::{NONE, Packed, with_packed};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::neon::{dot, dot_lane, halves, transpose};
use std::arch::aarch64::*;

/// From this many tokens on, decoded rows pay for being written.
const SWEEP_TOKENS: usize = 4;
/// Weight rows of a panel: two vectors of four.
const LANES: usize = 8;
/// Columns of a panel, which takes a fifth of the first-level cache. A multiple of 256.
const DEPTH: usize = 1024;
/// Tokens that share the loads of codes: eight sums of integers, of those times scales, of floats.
const TILE: usize = 4;

/// `task` with any number of tokens.
#[target_feature(enable = "neon,dotprod")]
pub fn run(task: &Task, scratch: &mut Scratch) {
    with_packed!(task.dtype, P => packed::<P>(task, scratch))
}

#[target_feature(enable = "neon,dotprod")]
fn packed<P: Packed>(task: &Task, scratch: &mut Scratch) {
    let x = task.x;
    assert!(x.block == P::UNIT && x.cols / P::ELEMENTS * P::BYTES == task.row_bytes, "rows of blocks");
    match (x.tokens(), P::UNIT) {
        (0, _) => {}
        (1, 32) => few_short::<P, 1>(task),
        (2, 32) => few_short::<P, 2>(task),
        (3, 32) => few_short::<P, 3>(task),
        (1, _) => few_long::<P, 1>(task),
        (2, _) => few_long::<P, 2>(task),
        (3, _) => few_long::<P, 3>(task),
        (SWEEP_TOKENS.., _) => sweep::<P>(task, scratch),
    }
}

/// `T` tokens, all there are, with rows of short blocks, four rows at a time: a lane for each.
#[target_feature(enable = "neon,dotprod")]
fn few_short<P: Packed, const T: usize>(task: &Task) {
    let x: [_; T] = std::array::from_fn(|t| task.x.row(t));
    for first in (0..task.rows).step_by(4) {
        // Rows behind the last repeat it; their results are dropped.
        let rows = [0, 1, 2, 3].map(|r| task.row((first + r).min(task.rows - 1)));
        let mut totals = [vdupq_n_f32(0.0); T];
        for b in 0..task.x.cols / 32 {
            // SAFETY: block b of each row, and its 32 columns of each token, are there.
            unsafe {
                let (n, of) = (b * 32 / P::ELEMENTS, b * 32 % P::ELEMENTS / 16);
                let block = rows.map(|row| row.as_ptr().add(P::BYTES * n));
                let mut dots = [[vdupq_n_s32(0); 4]; T];
                for r in 0..4 {
                    let (low, high) = (P::sixteen(block[r], of), P::sixteen(block[r], of + 1));
                    for t in 0..T {
                        let x = x[t].0.as_ptr().add(32 * b);
                        dots[t][r] = dot(dot(dots[t][r], low, vld1q_s8(x)), high, vld1q_s8(x.add(16)));
                    }
                }
                let d = four_halves(block, P::SCALE);
                for t in 0..T {
                    let (_, scales, sums) = x[t];
                    let [p, q, r, s] = dots[t];
                    let dots = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(p, q), vpaddq_s32(r, s)));
                    totals[t] = vfmaq_f32(totals[t], dots, vmulq_n_f32(d, scales[b]));
                    if P::MIN != NONE {
                        let sum = scales[b] * sums[b] as f32;
                        totals[t] = vfmaq_n_f32(totals[t], four_halves(block, P::MIN), sum);
                    }
                }
            }
        }
        for (t, total) in totals.into_iter().enumerate() {
            let mut values = [0.0; 4];
            // SAFETY: four floats are written to as many.
            unsafe { vst1q_f32(values.as_mut_ptr(), total) };
            task.write(t, first, &values[..(task.rows - first).min(4)]);
        }
    }
}

/// The f16 at `at` of four blocks.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn four_halves(block: [*const u8; 4], at: usize) -> float32x4_t {
    // SAFETY: the caller's promise; the array is four u16.
    unsafe {
        let bits = block.map(|block| block.add(at).cast::<u16>().read_unaligned());
        halves(vld1_u16(bits.as_ptr()))
    }
}

/// `$body` for each `$n` of a block's sixteen groups, written out: shifts are constants then.
macro_rules! each_group {
    ($n:ident, $body:block) => {
        each_group!(@ $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:ident, $body:block, $($i:literal)*) => {
        $({
            let $n: usize = $i;
            $body
        })*
    };
}

/// `T` tokens, all there are, with rows of blocks of 256.
#[target_feature(enable = "neon,dotprod")]
fn few_long<P: Packed, const T: usize>(task: &Task) {
    let x: [_; T] = std::array::from_fn(|t| task.x.row(t));
    for row in 0..task.rows {
        let mut totals = [0.0f32; T];
        for (b, block) in task.row(row).chunks_exact(P::BYTES).enumerate() {
            let block = block.as_ptr();
            // SAFETY: a whole block, and its 256 columns of each token.
            unsafe {
                let (scales, mins) = P::scales(block);
                let wide = widened(scales);
                let mut sums = [vdupq_n_s32(0); T];
                let mut dots = [vdupq_n_s32(0); T];
                each_group!(n, {
                    let w = P::sixteen(block, n);
                    for t in 0..T {
                        dots[t] = dot(dots[t], w, vld1q_s8(x[t].0.as_ptr().add(256 * b + 16 * n)));
                    }
                    if P::GROUP == 16 || n % 2 == 1 {
                        for t in 0..T {
                            sums[t] = vmlaq_s32(sums[t], dots[t], vdupq_n_s32(wide[n]));
                            dots[t] = vdupq_n_s32(0);
                        }
                    }
                });
                let (d, min) = P::factors(block);
                for t in 0..T {
                    let (_, factors, columns) = x[t];
                    let scale = factors[b];
                    totals[t] = (vaddvq_s32(sums[t]) as f32).mul_add(d * scale, totals[t]);
                    if P::MIN != NONE {
                        let low = lows(mins, &columns[16 * b..][..16]);
                        totals[t] = (low as f32).mul_add(-(min * scale), totals[t]);
                    }
                }
            }
        }
        for (t, total) in totals.into_iter().enumerate() {
            task.write(t, row, &[total]);
        }
    }
}

/// Sixteen i8 as i32.
#[inline]
#[target_feature(enable = "neon")]
fn widened(q: int8x16_t) -> [i32; 16] {
    let mut out = [0; 16];
    for (i, half) in [vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q)].into_iter().enumerate() {
        // SAFETY: twice four of 16 elements.
        unsafe {
            vst1q_s32(out.as_mut_ptr().add(8 * i), vmovl_s16(vget_low_s16(half)));
            vst1q_s32(out.as_mut_ptr().add(8 * i + 4), vmovl_high_s16(half));
        }
    }
    out
}

/// `Σ mins[i] * sums[i]`; `sums` are 16.
#[inline]
#[target_feature(enable = "neon")]
fn lows(mins: uint8x16_t, sums: &[i16]) -> i32 {
    assert_eq!(sums.len(), 16);
    let mins = [vmovl_u8(vget_low_u8(mins)), vmovl_high_u8(mins)].map(|m| vreinterpretq_s16_u16(m));
    let mut total = vdupq_n_s32(0);
    for i in 0..2 {
        // SAFETY: eight of 16 elements.
        let sums = unsafe { vld1q_s16(sums.as_ptr().add(8 * i)) };
        total = vmlal_s16(total, vget_low_s16(mins[i]), vget_low_s16(sums));
        total = vmlal_high_s16(total, mins[i], sums);
    }
    vaddvq_s32(total)
}

/// Lines of `UNIT` columns in a panel. First its codes: a line has those of eight columns, of four and four, row by row. Then,
/// of a block of 256, the scales of each 16 columns and the minimums of each 16, `[16, LANES]` i16. Then a line of the
/// rows' f32 scales and minimums.
const fn lines<P: Packed>() -> usize {
    P::UNIT / 8 + if P::UNIT == 256 { 2 * MULTIPLIERS } else { 0 } + 1
}

/// Lines of `[16, LANES]` i16.
const MULTIPLIERS: usize = 16 * LANES * 2 / size_of::<Line>();

/// Decodes `LANES` rows at a time, `DEPTH` columns of them, and multiplies those with all tokens.
#[target_feature(enable = "neon,dotprod")]
fn sweep<P: Packed>(task: &Task, scratch: &mut Scratch) {
    let (blocks, tokens) = (task.x.cols / P::UNIT, task.x.tokens());
    let depth = blocks.min(DEPTH / P::UNIT);
    let panel = grown(&mut scratch.codes, depth * lines::<P>());
    let partial = grown(&mut scratch.partial, tokens);
    for first in (0..task.rows).step_by(LANES) {
        // A group that the task cuts short repeats its last row; the surplus results are dropped.
        let rows: [&[u8]; LANES] = std::array::from_fn(|r| task.row((first + r).min(task.rows - 1)));
        partial.fill(Line::default());
        for start in (0..blocks).step_by(depth) {
            let panel = &mut panel[..depth.min(blocks - start) * lines::<P>()];
            for (b, lines) in panel.chunks_exact_mut(lines::<P>()).enumerate() {
                let (n, of) = ((start + b) * P::UNIT / P::ELEMENTS, (start + b) * P::UNIT % P::ELEMENTS / 16);
                fill::<P>(rows.map(|row| &row[P::BYTES * n..][..P::BYTES]), of, lines);
            }
            for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                match partial {
                    [a] => tile::<P, 1>(task.x, n * TILE, start, panel, [a]),
                    [a, b] => tile::<P, 2>(task.x, n * TILE, start, panel, [a, b]),
                    [a, b, c] => tile::<P, 3>(task.x, n * TILE, start, panel, [a, b, c]),
                    [a, b, c, d] => tile::<P, TILE>(task.x, n * TILE, start, panel, [a, b, c, d]),
                    _ => unreachable!("a chunk of tokens"),
                }
            }
        }
        for (t, partial) in partial.iter().enumerate() {
            let values: [f32; LANES] =
                std::array::from_fn(|r| f32::from_ne_bytes(partial.0.as_chunks::<4>().0[r]));
            task.write(t, first, &values[..LANES.min(task.rows - first)]);
        }
    }
}

/// `UNIT` columns of a block of each row, from 16 `of` on, to a panel.
#[inline]
#[target_feature(enable = "neon")]
fn fill<P: Packed>(block: [&[u8]; LANES], of: usize, panel: &mut [Line]) {
    assert!(block.iter().all(|block| block.len() == P::BYTES) && panel.len() == lines::<P>());
    assert!(16 * of + P::UNIT <= P::ELEMENTS);
    let at = panel.as_mut_ptr().cast::<u8>();
    for four in 0..LANES / 4 {
        for n in 0..P::UNIT / 16 {
            // SAFETY: whole blocks; a line takes the codes of eight columns, sixteen bytes of four columns and rows.
            unsafe {
                let rows = [0, 1, 2, 3]
                    .map(|r| vreinterpretq_u8_s8(P::sixteen(block[4 * four + r].as_ptr(), of + n)));
                for (j, codes) in transpose(rows).into_iter().enumerate() {
                    vst1q_u8(at.add(4 * LANES * (4 * n + j) + 16 * four), codes);
                }
            }
        }
    }
    for (r, block) in block.into_iter().enumerate() {
        // SAFETY: a whole block, and the last line of the panel's.
        unsafe {
            let (d, min) = P::factors(block.as_ptr());
            let factors = at.add(64 * (lines::<P>() - 1)).cast::<f32>();
            factors.add(r).write(d);
            factors.add(LANES + r).write(min);
        }
        if P::UNIT == 256 {
            let (mut scales, mut mins) = ([0i8; 16], [0u8; 16]);
            // SAFETY: a whole block; sixteen bytes are written to as many; MULTIPLIERS lines behind the codes.
            unsafe {
                let both = P::scales(block.as_ptr());
                vst1q_s8(scales.as_mut_ptr(), both.0);
                vst1q_u8(mins.as_mut_ptr(), both.1);
                let to = at.add(64 * P::ELEMENTS / 8).cast::<i16>();
                for group in 0..16 {
                    to.add(LANES * group + r).write(scales[group] as i16);
                    to.add(LANES * (16 + group) + r).write(mins[group] as i16);
                }
            }
        }
    }
}

/// Adds the products of `T` tokens, `first..`, with the blocks of a panel, which is that of blocks `start..`, to the
/// first LANES floats of `partial`.
#[target_feature(enable = "neon,dotprod")]
fn tile<P: Packed, const T: usize>(
    x: &BlockActivations,
    first: usize,
    start: usize,
    panel: &[Line],
    partial: [&mut Line; T],
) {
    let x: [_; T] = std::array::from_fn(|t| x.row(first + t));
    let mut totals = [[vdupq_n_f32(0.0); 2]; T];
    for t in 0..T {
        for v in 0..2 {
            // SAFETY: 16 bytes at 16 v of 64.
            totals[t][v] = unsafe { vld1q_f32(partial[t].0.as_ptr().cast::<f32>().add(4 * v)) };
        }
    }
    for (b, panel) in panel.chunks_exact(lines::<P>()).enumerate() {
        let b = start + b;
        let values = x.map(|x| x.0[P::UNIT * b..][..P::UNIT].as_ptr());
        // SAFETY: the last line is 16 floats.
        let [d0, d1, m0, m1] = unsafe {
            [0, 4, 8, 12].map(|i| vld1q_f32(panel[panel.len() - 1].0.as_ptr().cast::<f32>().add(i)))
        };
        // SAFETY: the block's columns of each token, and its lines.
        let sums = unsafe {
            if P::UNIT == 32 { dots::<T, 2>(panel, values) } else { scaled::<P, T>(panel, values) }
        };
        for t in 0..T {
            let (_, scales, columns) = x[t];
            let scale = scales[b];
            for (v, d) in [d0, d1].into_iter().enumerate() {
                totals[t][v] = vfmaq_f32(totals[t][v], vcvtq_f32_s32(sums[t][v]), vmulq_n_f32(d, scale));
            }
            if P::MIN == NONE {
                continue;
            }
            if P::UNIT == 32 {
                let sum = scale * columns[b] as f32;
                totals[t] = [vfmaq_n_f32(totals[t][0], m0, sum), vfmaq_n_f32(totals[t][1], m1, sum)];
            } else {
                let low = panel_lows(&panel[P::ELEMENTS / 8 + MULTIPLIERS..], &columns[16 * b..][..16]);
                for (v, m) in [m0, m1].into_iter().enumerate() {
                    let factor = vnegq_f32(vmulq_n_f32(m, scale));
                    totals[t][v] = vfmaq_f32(totals[t][v], vcvtq_f32_s32(low[v]), factor);
                }
            }
        }
    }
    for (total, partial) in totals.into_iter().zip(partial) {
        for v in 0..2 {
            // SAFETY: 16 bytes at 16 v of 64.
            unsafe { vst1q_f32(partial.0.as_mut_ptr().cast::<f32>().add(4 * v), total[v]) };
        }
    }
}

/// Dot products of each token with `2 N` lines of codes.
///
/// # Safety
/// They are there, and 16 N values at each x.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn dots<const T: usize, const N: usize>(lines: &[Line], x: [*const i8; T]) -> [[int32x4_t; 2]; T] {
    let mut sums = [[vdupq_n_s32(0); 2]; T];
    let lines = &lines[..2 * N];
    for n in 0..N {
        // SAFETY: the caller's promise.
        let x = x.map(|x| unsafe { vld1q_s8(x.add(16 * n)) });
        columns::<T, 0>(&lines[2 * n].0[..32], x, &mut sums);
        columns::<T, 1>(&lines[2 * n].0[32..], x, &mut sums);
        columns::<T, 2>(&lines[2 * n + 1].0[..32], x, &mut sums);
        columns::<T, 3>(&lines[2 * n + 1].0[32..], x, &mut sums);
    }
    sums
}

/// Four columns of codes, 32 bytes, with values 4 LANE.. of each token's sixteen.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn columns<const T: usize, const LANE: usize>(
    codes: &[u8],
    x: [int8x16_t; T],
    sums: &mut [[int32x4_t; 2]; T],
) {
    assert_eq!(codes.len(), 32);
    for v in 0..2 {
        // SAFETY: 16 bytes at 16 v of 32.
        let codes = unsafe { vld1q_s8(codes.as_ptr().add(16 * v).cast()) };
        for t in 0..T {
            sums[t][v] = dot_lane::<LANE>(sums[t][v], codes, x[t]);
        }
    }
}

/// `Σ over groups of scale * dot` of a block of 256.
///
/// # Safety
/// 256 values at each x; the panel has a block's lines.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn scaled<P: Packed, const T: usize>(panel: &[Line], x: [*const i8; T]) -> [[int32x4_t; 2]; T] {
    let mut sums = [[vdupq_n_s32(0); 2]; T];
    for group in 0..P::ELEMENTS / P::GROUP {
        let lines = &panel[group * P::GROUP / 8..];
        // SAFETY: the caller's promise; GROUP is 16 or 32, and a group has a scale for each row.
        unsafe {
            let x = x.map(|x| x.add(P::GROUP * group));
            let dots = if P::GROUP == 16 { dots::<T, 1>(lines, x) } else { dots::<T, 2>(lines, x) };
            let scales = panel[P::ELEMENTS / 8..].as_ptr().cast::<i16>();
            let scales = vld1q_s16(scales.add(LANES * group * P::GROUP / 16));
            let scales = [vmovl_s16(vget_low_s16(scales)), vmovl_high_s16(scales)];
            for t in 0..T {
                for v in 0..2 {
                    sums[t][v] = vmlaq_s32(sums[t][v], dots[t][v], scales[v]);
                }
            }
        }
    }
    sums
}

/// `Σ mins[i] * sums[i]` of LANES rows, whose minimums the lines begin with; `sums` are 16.
#[inline]
#[target_feature(enable = "neon")]
fn panel_lows(lines: &[Line], sums: &[i16]) -> [int32x4_t; 2] {
    assert!(lines.len() >= MULTIPLIERS && sums.len() == 16);
    let mut low = [vdupq_n_s32(0); 2];
    for (group, sum) in sums.iter().enumerate() {
        // SAFETY: eight i16 of 16 times as many.
        let mins = unsafe { vld1q_s16(lines.as_ptr().cast::<i16>().add(LANES * group)) };
        low[0] = vmlal_n_s16(low[0], vget_low_s16(mins), *sum);
        low[1] = vmlal_high_n_s16(low[1], mins, *sum);
    }
    low
}
