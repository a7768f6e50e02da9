//! The ternary product with more than a few tokens: panels of sixteen rows are transposed and unpacked once, some columns at
//! a time, and swept over all tokens. `scalar` says what it computes.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{Kind, Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Ints, Part};
use crate::kernels::simd::lanes::Lanes;

/// Weight rows of a panel.
const ROWS: usize = 16;
/// Columns that panels hold, all together: their codes take half of the first-level cache. A multiple of 512.
const DEPTH: usize = 1024;
/// Lines of 256 columns, whose products, 2 * 2 * 128 each, an i16 holds.
const LINES: usize = 64;

/// `task` with any number of tokens, with an instruction set that is not `Scalar`.
pub fn sweep<K: Kind>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (cols, tokens) = (task.x.cols, task.x.rows.len());
    // Panels that share the loads of tokens, and tokens that share those of codes, at most.
    let (most, at_once) = if isa.has_avx512() { (2, 8) } else { (1, 4) };
    let at_once = tokens.div_ceil(tokens.div_ceil(at_once));
    let depth = (DEPTH / most).min(cols);
    let codes = grown(&mut scratch.codes, most * depth / 4);
    let partial = grown(&mut scratch.partial, most * tokens);
    let blocks = if K::SCALED { cols / 256 } else { 1 };
    let scales = floats(grown(&mut scratch.scales, most * blocks));
    for first in (0..task.rows).step_by(most * ROWS) {
        let panels = most.min((task.rows - first).div_ceil(ROWS));
        // Of a panel that the task cuts short the surplus results are dropped.
        let rows = |panel: usize| task.group::<ROWS>((first + panel * ROWS).min(task.rows - 1));
        for p in 0..panels {
            for (b, scales) in scales[p * blocks..][..blocks].iter_mut().enumerate() {
                match K::SCALED {
                    true => block_scales(isa, rows(p), b, scales),
                    false => task.scales(first + p * ROWS, scales),
                }
            }
        }
        let partial = &mut partial[..panels * tokens];
        for (partial, token) in partial.chunks_exact_mut(panels).zip(task.x.rows) {
            partial.fill(if K::SCALED { Line::default() } else { Line::of_i32(-token.sum) });
        }
        for start in (0..cols).step_by(depth) {
            let lines = depth.min(cols - start) / 4;
            for p in 0..panels {
                let next = task.packed.as_ptr().wrapping_add((first + (most + p) * ROWS) * task.row_bytes);
                unpack::<K>(isa, rows(p), next, start, &mut codes[p * lines..][..lines]);
            }
            for (n, partial) in partial.chunks_mut(at_once * panels).enumerate() {
                let codes = &codes[..panels * lines];
                let step = Step { task, codes, scales, panels, start, first: n * at_once };
                by_count!(partial.len() / panels, T in 1 2 3 4 5 6 7 8, tile::<K, T>(isa, step, partial), else unreachable!());
            }
        }
        for (t, partial) in partial.chunks_exact(panels).enumerate() {
            for (p, partial) in partial.iter().enumerate() {
                let (mut values, first) = ([0.0; ROWS], first + p * ROWS);
                finish::<K>(isa, partial, &scales[p * blocks], task.x.rows[t].scale, &mut values);
                task.write(t, first, &values[..ROWS.min(task.rows - first)]);
            }
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
    /// Columns `start..` of packed rows as codes: line n holds those of four columns, `start + 4 n ..`, row by row. The
    /// rows at `next`, which need not be anybody's, are asked for.
    fn unpack<K: Kind>(w: [&[u8]; ROWS], next: *const u8, start: usize, codes: &mut [Line]) = unpack_in::<ints>
);

#[inline(always)]
unsafe fn unpack_in<I: Ints, K: Kind>(w: [&[u8]; ROWS], next: *const u8, start: usize, codes: &mut [Line]) {
    let end = start + 4 * codes.len();
    let bytes = if K::SCALED { end.div_ceil(256) * 66 } else { end / 4 };
    assert!(start.is_multiple_of(256) && end.is_multiple_of(128));
    let mut rows = [std::ptr::null(); ROWS];
    for r in 0..ROWS {
        assert!(w[r].len() >= bytes);
        rows[r] = w[r].as_ptr();
    }
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if K::SCALED { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        // As much of the next rows as is used of these: memory is fastest in its own order.
        for line in (0..ROWS * 32 + 64).step_by(64) {
            I::Lanes::fetch(next.wrapping_add(ROWS * at + line));
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
    /// Panel by panel.
    codes: &'a [Line],
    /// Of each block of TQ2_0, panel by panel.
    scales: &'a [[f32; ROWS]],
    panels: usize,
    start: usize,
    first: usize,
}

by_isa!(
    /// Adds to what `T` tokens have so far, for each a line of each panel: i32, or f32 of TQ2_0.
    fn tile<K: Kind, const T: usize>(step: Step, partial: &mut [Line]) = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Kind, const T: usize>(step: Step, partial: &mut [Line]) {
    // SAFETY: the caller has the instructions.
    unsafe {
        match step.panels {
            1 if T <= 4 || I::PANELS == 2 => add::<I, K, T, 1>(step, partial),
            2 if I::PANELS == 2 => add::<I, K, T, 2>(step, partial),
            panels => unreachable!("{panels} panels, {T} tokens"),
        }
    }
}

#[inline(always)]
unsafe fn add<I: Ints, K: Kind, const T: usize, const P: usize>(step: Step, partial: &mut [Line]) {
    let Step { task, codes, scales, start, first, .. } = step;
    let (lines, blocks) = (codes.len() / P, scales.len() / I::PANELS);
    let partial = partial.as_chunks_mut::<P>().0.first_chunk_mut::<T>().expect("lines for each token");
    let (mut x, mut panels) = ([std::ptr::null(); T], [codes.as_ptr(); P]);
    for t in 0..T {
        x[t] = task.x.row(first + t)[start..start + 4 * lines].as_ptr();
    }
    // SAFETY: four values for each line of codes at each x; a line is sixteen numbers; the caller has the instructions.
    unsafe {
        for p in 0..P {
            panels[p] = panels[p].add(p * lines);
        }
        let mut sums = [[I::zero(); P]; T];
        for from in (0..lines).step_by(LINES) {
            let count = LINES.min(lines - from);
            for t in 0..T {
                for p in 0..P {
                    if K::SCALED {
                        sums[t][p] = I::splat(-task.x.sums(first + t)[(start + 4 * from) / 256]);
                    } else if from == 0 {
                        sums[t][p] = I::load(partial[t][p].0.as_ptr().cast());
                    }
                }
            }
            let (mut at, mut w) = (x, panels);
            for t in 0..T {
                at[t] = x[t].add(4 * from);
            }
            for p in 0..P {
                w[p] = panels[p].add(from);
            }
            I::add_lines::<false, T, P>(&mut sums, 1, count, w, at);
            for t in 0..T {
                for p in 0..P {
                    let to = &mut partial[t][p];
                    if K::SCALED {
                        let scale = I::Lanes::load(scales[p * blocks + (start + 4 * from) / 256].as_ptr());
                        let so_far = I::Lanes::load(to.0.as_ptr().cast());
                        so_far.add(sums[t][p].to_f32().mul(scale)).store(to.0.as_mut_ptr().cast());
                    } else if from + count == lines {
                        sums[t][p].store(to.0.as_mut_ptr().cast());
                    }
                }
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
