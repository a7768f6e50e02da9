//! The ternary product with more than a few tokens: sixteen rows are transposed and unpacked once, some columns at a
//! time, and swept over all tokens. `scalar` says what it computes.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::Lanes;

/// Weight rows that are unpacked together.
const ROWS: usize = 16;
/// Columns that are unpacked at once: their codes take half of the first-level cache. A multiple of 256.
const DEPTH: usize = 1024;
/// Tokens that share the loads of codes.
const TILE: usize = 4;
/// Lines of 256 columns, whose products, 2 * 2 * 128 each, an i16 holds.
const LINES: usize = 64;

/// How rows are packed.
pub trait Kind {
    /// As TQ2_0, with scales of each 256 columns; else as I2_S, with one for the row.
    const SCALED: bool;
}

pub struct Plain;
pub struct Scaled;

impl Kind for Plain {
    const SCALED: bool = false;
}
impl Kind for Scaled {
    const SCALED: bool = true;
}

/// `task` with any number of tokens, with an instruction set that is not `Scalar`.
pub fn sweep<K: Kind>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (cols, tokens, rows) = (task.x.cols, task.x.rows.len(), 0..task.rows);
    let codes = grown(&mut scratch.codes, DEPTH.min(cols) / 4);
    let partial = grown(&mut scratch.partial, tokens);
    let scales = floats(grown(&mut scratch.scales, if K::SCALED { cols / 256 } else { 1 }));
    for first in rows.clone().step_by(ROWS) {
        // Of a group that the block cuts short the surplus results are dropped.
        let w = task.group::<ROWS>(first);
        for (b, scales) in scales.iter_mut().enumerate() {
            if K::SCALED {
                block_scales(isa, w, b, scales)
            } else {
                *scales = task.scales(first)
            };
        }
        for (partial, token) in partial.iter_mut().zip(task.x.rows) {
            *partial = if K::SCALED { Line::default() } else { Line::of_i32(-token.sum) };
        }
        for start in (0..cols).step_by(DEPTH) {
            let codes = &mut codes[..DEPTH.min(cols - start) / 4];
            unpack::<K>(isa, w, start, codes);
            for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                let step = Step { task, codes, scales, start, first: n * TILE };
                match partial.len() {
                    1 => tile::<K, 1>(isa, step, partial),
                    2 => tile::<K, 2>(isa, step, partial),
                    3 => tile::<K, 3>(isa, step, partial),
                    _ => tile::<K, TILE>(isa, step, partial),
                }
            }
        }
        for (t, partial) in partial.iter().enumerate() {
            let mut values = [0.0; ROWS];
            finish::<K>(isa, partial, &scales[0], task.x.rows[t].scale, &mut values);
            task.write(t, first, &values[..ROWS.min(rows.end - first)]);
        }
    }
}

by_isa!(
    /// The scales of block `b` of TQ2_0 rows.
    fn block_scales(w: [&[u8]; ROWS], b: usize, to: &mut [f32; ROWS]) = scales_in::<lanes>
);

#[inline(always)]
unsafe fn scales_in<L: Lanes>(w: [&[u8]; ROWS], b: usize, to: &mut [f32; ROWS]) {
    let mut halves = [0; ROWS];
    for r in 0..ROWS {
        let half = &w[r][66 * b + 64..];
        halves[r] = u16::from_le_bytes([half[0], half[1]]);
    }
    // SAFETY: sixteen each; the caller has the instructions.
    unsafe { L::load_f16(halves.as_ptr()).store(to.as_mut_ptr()) }
}

by_isa!(
    /// Columns `start..` of packed rows as codes: line n holds those of four columns, `start + 4 n ..`, row by row.
    fn unpack<K: Kind>(w: [&[u8]; ROWS], start: usize, codes: &mut [Line]) = unpack_in::<ints>
);

#[inline(always)]
unsafe fn unpack_in<I: Ints, K: Kind>(w: [&[u8]; ROWS], start: usize, codes: &mut [Line]) {
    let end = start + 4 * codes.len();
    let bytes = if K::SCALED { end.div_ceil(256) * 66 } else { end / 4 };
    assert!(start.is_multiple_of(256) && end.is_multiple_of(128));
    for w in w {
        assert!(w.len() >= bytes);
    }
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if K::SCALED { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        // As much of the next rows as is used of these: memory is fastest in its own order.
        let next = w[0].as_ptr().wrapping_add(ROWS * (w[0].len() + at));
        (0..ROWS * 32 + 64).step_by(64).for_each(|line| I::Lanes::fetch(next.wrapping_add(line)));
        let mut rows = [std::ptr::null(); ROWS];
        for r in 0..ROWS {
            rows[r] = w[r].as_ptr();
        }
        for part in 0..ROWS / I::Part::ROWS {
            for side in 0..2 {
                // SAFETY: at + 32 <= bytes, which every row has; the caller has the instructions.
                unsafe {
                    let columns = I::Part::columns(&rows[part * I::Part::ROWS..], at + 16 * side);
                    for j in 0..4 {
                        let line = 4 * side + j;
                        let place = |k: usize| 8 * if K::SCALED { k } else { 3 - k } + line;
                        put(&mut codes[place(0)], part, columns[j].right::<0>(3));
                        put(&mut codes[place(1)], part, columns[j].right::<2>(3));
                        put(&mut codes[place(2)], part, columns[j].right::<4>(3));
                        put(&mut codes[place(3)], part, columns[j].right::<6>(3));
                    }
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
    /// Of each block of TQ2_0.
    scales: &'a [[f32; ROWS]],
    start: usize,
    first: usize,
}

by_isa!(
    /// Adds to what `T` tokens have so far, a line each: i32, or f32 of TQ2_0.
    fn tile<K: Kind, const T: usize>(step: Step, partial: &mut [Line]) = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Kind, const T: usize>(step: Step, partial: &mut [Line]) {
    let Step { task, codes, scales, start, first } = step;
    let partial = partial.first_chunk_mut::<T>().expect("a line for each token");
    let mut x = [std::ptr::null(); T];
    for t in 0..T {
        x[t] = task.x.row(first + t)[start..start + 4 * codes.len()].as_ptr();
    }
    // SAFETY: four values for each line of codes at each x; a line is sixteen numbers; the caller has the instructions.
    unsafe {
        let mut sums = [[I::zero(); 1]; T];
        let mut totals = [I::Lanes::splat(0.0); T];
        for t in 0..T {
            if K::SCALED {
                totals[t] = I::Lanes::load(partial[t].0.as_ptr().cast());
            } else {
                sums[t][0] = I::load(partial[t].0.as_ptr().cast());
            }
        }
        for (b, codes) in codes.chunks(LINES).enumerate() {
            if K::SCALED {
                for t in 0..T {
                    sums[t][0] = I::splat(-task.x.sums(first + t)[start / 256 + b]);
                }
            }
            let mut at = x;
            for t in 0..T {
                at[t] = x[t].add(4 * LINES * b);
            }
            I::add_lines::<false, T, 1>(&mut sums, 1, codes.len(), [codes.as_ptr()], at);
            if K::SCALED {
                let scale = I::Lanes::load(scales[start / 256 + b].as_ptr());
                for t in 0..T {
                    totals[t] = totals[t].add(sums[t][0].to_f32().mul(scale));
                }
            }
        }
        for t in 0..T {
            if K::SCALED {
                totals[t].store(partial[t].0.as_mut_ptr().cast());
            } else {
                sums[t][0].store(partial[t].0.as_mut_ptr().cast());
            }
        }
    }
}

by_isa!(
    /// The outputs of a token of some scale from what all its columns add up to; `scales` are those of rows.
    fn finish<K: Kind>(partial: &Line, scales: &[f32; ROWS], token: f32, values: &mut [f32; ROWS])
        = finish_in::<ints>
);

#[inline(always)]
unsafe fn finish_in<I: Ints, K: Kind>(
    partial: &Line,
    scales: &[f32; ROWS],
    token: f32,
    values: &mut [f32; ROWS],
) {
    // SAFETY: sixteen numbers each; the caller has the instructions.
    unsafe {
        let (at, token) = (partial.0.as_ptr(), I::Lanes::splat(token));
        let value = if K::SCALED {
            I::Lanes::load(at.cast()).div(token)
        } else {
            I::load(at.cast()).to_f32().mul(I::Lanes::load(scales.as_ptr()).div(token))
        };
        value.store(values.as_mut_ptr());
    }
}
