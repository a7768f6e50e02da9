//! Ternary weights. `ternary::scalar` defines the result.
//!
//! 64 packed bytes of a row are unpacked into four lines, one for each position of a code in its byte. The
//! activations are arranged in that order.

use super::sweep::{self, At, Kind, Tile};
use super::{LINES, SIDE, STEP, halves, in_steps, multiply_sides};
use crate::kernels::gemm::driver::{Scratch, in_groups};
use crate::kernels::gemm::formats::{thirds, twos};
use crate::kernels::gemm::tokens::{Activations, Task, Tokens};
use crate::kernels::pool::buffer::{Line, floats};
use crate::kernels::simd::amx::Set;
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::{Lanes, Real};
use crate::kernels::simd::wide::Wide;
use crate::kernels::{DType, Pool};
use std::ops::Range;

/// Packed bytes of a step.
const BYTES: usize = STEP / 4;

/// Copies activations into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub(crate) unsafe fn arrange<'a>(pool: &Pool, x: &Activations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    let each = x.cols.div_ceil(STEP) * LINES;
    // SAFETY: the caller's promise.
    in_groups(pool, (x.rows.len(), x.values.len()), (SIDE, each), lines, &|group, out| unsafe {
        arranged(x, group, out)
    })
}

entry!(fn arranged(x: &Activations, group: usize, out: &mut [Line]) = arrange_group);
entry!(
    /// Computes `task` with any number of tokens.
    ///
    /// # Safety
    /// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `task.x.arranged`.
    pub(crate) fn run(task: &Task, scratch: &mut Scratch) = product
);

/// Arranges sixteen tokens: four tiles for each step. A step that is cut short is padded with zeros; missing tokens
/// repeat the last one.
#[inline(always)]
unsafe fn arrange_group<S: Set>(x: &Activations, group: usize, out: &mut [Line]) {
    let mut rows = [x.row(0).as_ptr().cast(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = x.row((group * SIDE + t).min(x.rows.len() - 1)).as_ptr().cast();
    }
    if !x.cols.is_multiple_of(STEP) {
        let each = out.len();
        out[each - LINES..].fill(Line::default());
    }
    // SAFETY: columns of each row.
    unsafe { in_steps::<S>(&rows, 0, x.cols, out) };
}

#[inline(always)]
unsafe fn product<S: Set>(task: &Task, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.dtype {
            DType::TQ1_0 => sweep::run::<S, Ternary<true, true>>(task, task.x.arranged, scratch),
            DType::TQ2_0 => sweep::run::<S, Ternary<true, false>>(task, task.x.arranged, scratch),
            _ => sweep::run::<S, Ternary<false, false>>(task, task.x.arranged, scratch),
        }
    }
}

/// If SCALED, each step has a scale, otherwise each row. If THIRDS, codes are packed as in TQ1_0.
struct Ternary<const SCALED: bool, const THIRDS: bool>;

impl<const SCALED: bool, const THIRDS: bool> Kind for Ternary<SCALED, THIRDS> {
    type X<'a> = Tokens<'a>;
    const TOKENS: usize = LINES;
    const CODES: usize = 2 * LINES;
    const SCALES: usize = if SCALED { 2 } else { 0 };
    const TOKENS_LEFT: bool = false;
    const WHOLE: bool = !SCALED;

    fn tokens(x: &Tokens) -> usize {
        x.rows.len()
    }

    #[inline(always)]
    unsafe fn decode<S: Set>(task: &Task, row: usize, parts: Range<usize>, to: [&mut [Line]; 2]) {
        let [codes, scales] = to;
        let (row_bytes, count) = (task.row_bytes, (2 * SIDE).min(task.rows - row));
        let all = task.packed[row * row_bytes..(row + count) * row_bytes].as_ptr();
        let first = parts.start / 4;
        for (step, part) in parts.map(|part| (part / 4, part % 4)) {
            let bytes = if THIRDS { thirds::SCALE } else { BYTES };
            let at = step * if SCALED { bytes + 2 } else { bytes };
            let len = bytes.min(row_bytes - at);
            let (base, next) = (all.wrapping_add(at), all.wrapping_add(2 * SIDE * (row_bytes + at)));
            let codes = &mut codes[(step - first) * Self::CODES..][..Self::CODES];
            for r in part * SIDE / 2..count.min((part + 1) * SIDE / 2) {
                S::Lanes::fetch(next.wrapping_add(r * bytes));
                let to = codes[r / SIDE * LINES + r % SIDE..][..3 * SIDE + 1].as_mut_ptr();
                // SAFETY (of all): within the rows that were sliced above, four of these lines.
                unsafe {
                    let planes = match THIRDS {
                        true => thirds::lines::<S::Wide>(base.add(r * row_bytes)),
                        false => twos(S::Wide::first(base.add(r * row_bytes), len)),
                    };
                    // TQ2_0 has the first columns in the low bits, I2_S in the high bits.
                    for (k, plane) in planes.into_iter().enumerate() {
                        plane.less(1).store(to.add(SIDE * if SCALED { k } else { 3 - k }).cast());
                    }
                }
            }
            let r = part / 2;
            if SCALED && part % 2 == 0 && count > SIDE * r {
                let from = base.wrapping_add(SIDE * r * row_bytes + bytes);
                let to = scales[(step - first) * Self::SCALES + r].0.as_mut_ptr().cast();
                // SAFETY: two bytes after the rows' codes; a line is sixteen floats.
                unsafe { halves::<S>(from, row_bytes, count - SIDE * r).store(to) };
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Set, const N: usize>(tiles: &mut S::Tiles, at: &At<Self>, part: usize) {
        // SAFETY: these are tiles.
        unsafe {
            let At { x, codes, .. } = at;
            let left = [&codes[SIDE * part..], &codes[LINES + SIDE * part..]];
            let right = [&x[0][SIDE * part..], &x[1][SIDE * part..]];
            multiply_sides::<S, 2, N>(tiles, left, right);
        }
    }

    /// Multiplies by the scales.
    #[inline(always)]
    unsafe fn add<S: Set>(at: &At<Self>, sums: &[Tile; 4], totals: &mut [Tile]) {
        let At { task, strip, scales, .. } = at;
        let pair = (strip.group + 1) * SIDE < task.x.rows.len();
        for (i, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
            if i % 2 == 1 && !pair {
                continue;
            }
            let scales: *const f32 = scales[i / 2].0.as_ptr().cast();
            for (r, (total, sums)) in totals.iter_mut().zip(sums).enumerate() {
                let total: *mut f32 = total.0.as_mut_ptr().cast();
                // SAFETY (of all): lines are sixteen numbers.
                unsafe {
                    let value = S::Ints::load(sums.0.as_ptr().cast()).to_f32();
                    let value = value.mul(S::Lanes::splat(*scales.add(r)));
                    let before = if strip.step == 0 { S::Lanes::splat(0.0) } else { S::Lanes::load(total) };
                    before.add(value).store(total);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<S: Set>(task: &Task, row: usize, token: usize, sums: &mut Tile) {
        let mut own = [1.0; SIDE];
        for (own, token) in own.iter_mut().zip(&task.x.rows[token..]) {
            *own = token.scale;
        }
        // SAFETY (of all): lines are sixteen numbers.
        unsafe {
            let own = S::Lanes::load(own.as_ptr());
            let mut scale = own;
            for (i, line) in floats(sums).iter_mut().enumerate() {
                let line = line.as_mut_ptr();
                if SCALED {
                    S::Lanes::load(line).div(own).store(line);
                    continue;
                }
                if i == 0 || task.dtype == DType::Ternary {
                    scale = S::Lanes::splat(task.scale((row + i).min(task.rows - 1))).div(own);
                }
                S::Ints::load(line.cast()).to_f32().mul(scale).store(line);
            }
        }
    }
}
