//! K-quants: weights in super-blocks of 256 columns. `quantized::scalar` defines the result.
//!
//! A code times its integer scale takes two bytes: a signed high byte and an unsigned low byte. A block of sixteen
//! rows and sixteen tokens therefore takes the products of four tiles twice, which are converted to floats once.
//! Minimums are multiplied with the tokens' sums in the same way.

use super::sweep::{At, Kind, Tile};
use super::{LINES, SIDE, STEP, halves, in_steps};
use crate::kernels::gemm::formats::super_blocks::{Super, scales};
use crate::kernels::gemm::quantized::Task;
use crate::kernels::pool::buffer::Line;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::lanes::{Lanes, Real};
use crate::kernels::simd::wide::Wide;
use std::marker::PhantomData;
use std::ops::Range;

/// Offsets in the lines of a block of sixteen tokens: low and high bytes of sums, values, scales. Tiles that are
/// loaded from sums extend into the values; the left tiles have zeros there.
const LOW_SUMS: usize = 0;
const HIGH_SUMS: usize = 4;
const VALUES: usize = 8;
const SCALES: usize = VALUES + LINES;
const TOKEN_LINES: usize = SCALES + 1;

/// Number of lines per sixteen tokens.
pub(super) fn lines_of_group(x: &BlockActivations) -> usize {
    x.cols / STEP * TOKEN_LINES
}

/// Arranges sixteen tokens: `TOKEN_LINES` for each block, in the order of right tiles. Missing tokens repeat the last
/// one.
#[inline(always)]
pub(super) unsafe fn arrange<S: Set>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    let token = |t: usize| x.row((group * SIDE + t).min(x.tokens() - 1));
    let mut rows = [x.values.as_ptr().cast(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = token(t).0.as_ptr().cast();
    }
    for (b, lines) in out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut().enumerate() {
        // SAFETY: 256 columns of each row.
        unsafe { in_steps::<S>(&rows, STEP * b, STEP, &mut lines[VALUES..SCALES]) };
    }
    for t in 0..SIDE {
        let (_, scales, sums) = token(t);
        let blocks = out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut();
        for ((lines, scale), sums) in blocks.zip(scales).zip(sums.as_chunks::<16>().0) {
            lines[SCALES].0[4 * t..4 * t + 4].copy_from_slice(&scale.to_ne_bytes());
            for (g, sum) in sums.iter().enumerate() {
                let low = *sum as i8;
                lines[LOW_SUMS + g / 4].0[4 * t + g % 4] = low as u8;
                lines[HIGH_SUMS + g / 4].0[4 * t + g % 4] = ((sum - low as i16) >> 8) as u8;
            }
        }
    }
}

pub(super) struct Supers<K>(PhantomData<K>);

impl<K: Super> Kind for Supers<K> {
    type X<'a> = BlockActivations<'a>;
    const TOKENS: usize = TOKEN_LINES;
    /// High bytes, low bytes, minimums.
    const CODES: usize = 2 * LINES + SIDE;
    /// The rows' scales, and the negated scales of their minimums.
    const SCALES: usize = 2;
    const SIDES: usize = 1;
    /// Sums of high bytes, of low bytes, and both again for minimums with the tokens' sums.
    const SUMS: usize = if K::MINIMA { 4 } else { 2 };
    const TOKENS_LEFT: bool = false;
    const WHOLE: bool = false;

    fn tokens(x: &BlockActivations) -> usize {
        x.tokens()
    }

    #[inline(always)]
    unsafe fn decode<S: Set>(task: &Task, row: usize, parts: Range<usize>, to: [&mut [Line]; 2]) {
        let [codes, numbers] = to;
        let (row_bytes, count) = (task.row_bytes, SIDE.min(task.rows - row));
        let rows = task.packed[row * row_bytes..(row + count) * row_bytes].as_ptr();
        let (step, quarters) = (parts.start / 4, parts.start % 4..parts.start % 4 + parts.len());
        let next = rows.wrapping_add(SIDE * (row_bytes + step * K::BYTES));
        let at = rows.wrapping_add(step * K::BYTES);
        let to = &mut codes[..Self::CODES];
        // SAFETY (of all): a block of these rows.
        unsafe {
            for r in quarters.start * SIDE / 4..count.min(quarters.end * SIDE / 4) {
                for line in r * K::BYTES / 64..(r + 1) * K::BYTES / 64 {
                    S::Lanes::fetch(next.wrapping_add(64 * line));
                }
                let block = at.add(r * row_bytes);
                let [scales, minimums] = scales::<K>(std::slice::from_raw_parts(block, K::BYTES));
                let codes = K::lines::<S::Wide>(block);
                for k in 0..4 {
                    let codes = if K::OFFSET == 0 { codes[k] } else { codes[k].less(K::OFFSET as u8) };
                    let [low, high] = codes.times_scales(&scales, 2 * k);
                    high.store(to[k * SIDE + r].0.as_mut_ptr());
                    low.store(to[LINES + k * SIDE + r].0.as_mut_ptr());
                }
                if K::MINIMA {
                    S::Wide::first(minimums.as_ptr(), 16).store(to[2 * LINES + r].0.as_mut_ptr());
                }
            }
            if quarters.contains(&0) {
                let d = halves::<S>(at.add(K::D), row_bytes, count).mul(S::Lanes::splat(K::UNIT));
                d.store(numbers[0].0.as_mut_ptr().cast());
            }
            if K::MINIMA && quarters.contains(&1) {
                let scales = halves::<S>(at.add(K::MIN), row_bytes, count);
                scales.mul(S::Lanes::splat(-1.0)).store(numbers[1].0.as_mut_ptr().cast());
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Set, const N: usize>(tiles: &mut S::Tiles, at: &At<Self>, part: usize) {
        let (x, codes) = (at.x[0], at.codes);
        let x = |line: usize| x[line..][..SIDE].as_ptr().cast();
        let codes = |line: usize| codes[line..][..SIDE].as_ptr().cast();
        // SAFETY (of all): tiles of these lines.
        unsafe {
            tiles.load::<6>(x(VALUES + SIDE * part), 64);
            tiles.load::<4>(codes(SIDE * part), 64);
            tiles.dot_signed::<0, 4, 6>();
            tiles.load::<5>(codes(LINES + SIDE * part), 64);
            tiles.dot_unsigned::<1, 5, 6>();
            if K::MINIMA && part == 3 {
                tiles.load::<4>(codes(2 * LINES), 64);
                tiles.load::<6>(x(HIGH_SUMS), 64);
                tiles.dot_signed::<2, 4, 6>();
                tiles.load::<7>(x(LOW_SUMS), 64);
                tiles.dot_signed::<3, 4, 7>();
            }
        }
    }

    /// Multiplies by the scales.
    #[inline(always)]
    unsafe fn add<S: Set>(at: &At<Self>, sums: &[Tile; 4], totals: &mut [Tile]) {
        let At { strip, x: [x, _], scales, .. } = at;
        let (d, min): (*const f32, *const f32) = (scales[0].0.as_ptr().cast(), scales[1].0.as_ptr().cast());
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let own = S::Lanes::load(x[SCALES].0.as_ptr().cast());
            for (r, line) in totals[0].iter_mut().enumerate() {
                let sum = |tile: usize| sums[tile][r].0.as_ptr().cast::<i32>();
                let to: *mut f32 = line.0.as_mut_ptr().cast();
                let total = if strip.step == 0 { S::Lanes::splat(0.0) } else { S::Lanes::load(to) };
                let dots = S::Lanes::load_split(sum(0), sum(1));
                let mut total = dots.fma(S::Lanes::splat(*d.add(r)).mul(own), total);
                if K::MINIMA {
                    let lows = S::Lanes::load_split(sum(2), sum(3));
                    total = lows.fma(S::Lanes::splat(*min.add(r)).mul(own), total);
                }
                total.store(to);
            }
        }
    }
}
