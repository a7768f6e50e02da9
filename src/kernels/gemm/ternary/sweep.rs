//! The ternary product with more than a few tokens: panels of sixteen rows are transposed and unpacked once, some
//! columns at a time, and swept over all tokens. `scalar` defines the result.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{Kind, Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::{thirds, twos};
use crate::kernels::pool::buffer::{Line, floats, grown};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, IntRegister, Ints};
use crate::kernels::simd::lanes::{Lanes, Real, Register};
use std::hint::black_box;

/// Weight rows per panel.
const ROWS: usize = 16;
/// Number of columns that all panels hold together: their codes take half of the L1 cache. A multiple of 512.
const DEPTH: usize = 1024;
/// Number of lines in 256 columns; an i16 holds the sum of their products, 2 * 2 * 128 each.
const LINES: usize = 64;

/// Computes `task` with any number of tokens, with an instruction set that is not `Scalar`.
pub(super) fn sweep<K: Kind>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (cols, tokens) = (task.x.cols, task.x.rows.len());
    // Maximum numbers of panels that share the loads of tokens, and of tokens that share the loads of codes.
    let (most, at_once) = if isa.has_avx512() { (2, 8) } else { (1, 4) };
    let at_once = tokens.div_ceil(tokens.div_ceil(at_once));
    let depth = (DEPTH / most).min(cols);
    let codes = grown(&mut scratch.codes, most * depth / 4);
    let partial = grown(&mut scratch.partial, most * tokens);
    let blocks = if K::SCALED { cols / 256 } else { 1 };
    let scales = floats(grown(&mut scratch.scales, most * blocks));
    for first in (0..task.rows).step_by(most * ROWS) {
        let panels = most.min((task.rows - first).div_ceil(ROWS));
        let partial = &mut partial[..panels * tokens];
        for (partial, token) in partial.chunks_exact_mut(panels).zip(task.x.rows) {
            partial.fill(if K::SCALED { Line::default() } else { Line::of_i32(-token.sum) });
        }
        for start in (0..cols).step_by(depth) {
            let codes = &mut codes[..panels * depth.min(cols - start) / 4];
            let each = codes.chunks_exact_mut(codes.len() / panels).zip(scales.chunks_exact_mut(blocks));
            for (p, (codes, scales)) in each.enumerate() {
                unpack::<K>(isa, task, first + p * ROWS, start, codes, scales);
            }
            for (n, partial) in partial.chunks_mut(at_once * panels).enumerate() {
                let step = Step { task, codes, scales, blocks, panels, start, first: n * at_once };
                by_count!(partial.len() / panels, T in 1 2 3 4 5 6 7 8, tile::<K, T>(isa, step, partial), else unreachable!());
            }
        }
        finish::<K>(isa, task, first, panels, scales, partial);
    }
}

by_isa!(
    /// Unpacks the columns from `start` on of `ROWS` rows of the task from `first` on; past the task's end, its last
    /// row is repeated. Line n has the codes of the four columns from `start + 4 n` on, row by row. Also reads
    /// `scales`: those of blocks, or of the rows.
    fn unpack<K: Kind>(task: &Task, first: usize, start: usize, codes: &mut [Line], scales: &mut [[f32; ROWS]])
        = unpack_in::<ints> tables if K::THIRDS
);

#[inline(always)]
unsafe fn unpack_in<I: Ints, K: Kind>(
    task: &Task,
    first: usize,
    start: usize,
    codes: &mut [Line],
    scales: &mut [[f32; ROWS]],
) {
    let end = start + 4 * codes.len();
    assert!(start.is_multiple_of(256) && end.is_multiple_of(128));
    assert!(end <= task.x.cols && task.row_bytes == K::row_bytes(task.x.cols));
    let rows = task.addresses(first, ROWS);
    if !K::SCALED && start == 0 {
        task.scales(first, &mut scales[0]);
    }
    // The address after the rows that are unpacked together.
    let next = rows[0].wrapping_add(I::PANELS * ROWS * task.row_bytes);
    if K::THIRDS {
        // SAFETY: whole blocks of each row, as was checked; the caller has the instructions.
        return unsafe { unpack_thirds::<I>(&rows, next, start / 256, codes, scales) };
    }
    for (n, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let block = start / 128 + n;
        let at = if K::SCALED { block / 2 * 66 + block % 2 * 32 } else { block * 32 };
        // Prefetches as many bytes of the next rows as are used of these: memory is fastest when it is read in order.
        for line in 0..(ROWS * 32 + 64) / 64 {
            I::Lanes::fetch(next.wrapping_add(ROWS * at + 64 * line));
        }
        for part in 0..ROWS / I::Register::ROWS {
            let rows = &rows[part * I::Register::ROWS..];
            // SAFETY: 32 bytes at `at` of each row, and two bytes after a block's codes; the caller has the
            // instructions.
            unsafe {
                if K::SCALED && block % 2 == 1 {
                    let to = scales[block / 2].as_mut_ptr().add(part * I::Register::ROWS);
                    Floats::<I>::halves(rows, at + 32).store(to);
                }
                for side in 0..2 {
                    let columns = I::Register::columns(rows, at + 16 * side);
                    for j in 0..4 {
                        let line = 4 * side + j;
                        let place = |k: usize| 8 * if K::SCALED { k } else { 3 - k } + line;
                        let [a, b, c, d] = twos(columns[j]);
                        I::put(codes, place(0), part, a);
                        I::put(codes, place(1), part, b);
                        I::put(codes, place(2), part, c);
                        I::put(codes, place(3), part, d);
                    }
                }
            }
        }
    }
}

/// The same for TQ1_0, from block `first` on.
#[inline(always)]
unsafe fn unpack_thirds<I: Ints>(
    rows: &[*const u8; ROWS],
    next: *const u8,
    first: usize,
    codes: &mut [Line],
    scales: &mut [[f32; ROWS]],
) {
    let (blocks, rest) = codes.as_chunks_mut::<LINES>();
    assert!(rest.is_empty());
    for (block, codes) in (first..).zip(blocks) {
        let at = block * thirds::BYTES;
        Floats::<I>::fetch_lines(next.wrapping_add(ROWS * at), ROWS * thirds::BYTES);
        for part in 0..ROWS / I::Register::ROWS {
            let rows = &rows[part * I::Register::ROWS..];
            // SAFETY: the block of each row; the caller has the instructions.
            unsafe {
                let (words, end) = thirds::words::<I::Register>(rows, at);
                end.upper_halves().store(scales[block].as_mut_ptr().add(part * I::Register::ROWS));
                for n in 0..4 {
                    for (half, own) in thirds::codes(&words, n).into_iter().enumerate() {
                        for k in 0..8 {
                            I::put(codes, 16 * n + 8 * half + k, part, own[k]);
                        }
                    }
                }
            }
        }
    }
}

/// Unpacked codes of the columns from `start` on of `panels`, and the tokens from `first` on to multiply them with.
#[derive(Clone, Copy)]
struct Step<'a> {
    task: &'a Task<'a>,
    /// One panel after another.
    codes: &'a [Line],
    /// The scales of blocks, one panel after another, `blocks` for each.
    scales: &'a [[f32; ROWS]],
    blocks: usize,
    panels: usize,
    start: usize,
    first: usize,
}

by_isa!(
    /// Adds to the sums of `T` tokens. Each token has a line per panel: i32, or f32 if blocks have scales.
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
    let Step { task, codes, scales, blocks, start, first, .. } = step;
    let lines = codes.len() / P;
    let partial = partial.as_chunks_mut::<P>().0.first_chunk_mut::<T>().expect("lines for each token");
    let (mut x, mut panels) = ([std::ptr::null(); T], [codes.as_ptr(); P]);
    for t in 0..T {
        // black_box, because a compiler that knows the distance between tokens computes addresses from it instead of
        // keeping eight addresses.
        x[t] = black_box(task.x.row(first + t)[start..start + 4 * lines].as_ptr());
    }
    // SAFETY: four values for each line of codes at each x; a line is sixteen numbers; the caller has the
    // instructions.
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
    /// Writes the outputs of the rows from `first` on; `partial` has the sums over all columns.
    fn finish<K: Kind>(task: &Task, first: usize, panels: usize, scales: &[[f32; ROWS]], partial: &[Line])
        = finish_in::<ints>
);

#[inline(always)]
unsafe fn finish_in<I: Ints, K: Kind>(
    task: &Task,
    first: usize,
    panels: usize,
    scales: &[[f32; ROWS]],
    partial: &[Line],
) {
    for (n, line) in partial.iter().enumerate() {
        let (t, p) = (n / panels, n % panels);
        let (from, mut values) = (line.0.as_ptr(), [0.0; ROWS]);
        // SAFETY: sixteen numbers each; the caller has the instructions.
        unsafe {
            let token = I::Lanes::splat(task.x.rows[t].scale);
            let value = match K::SCALED {
                true => I::Lanes::load(from.cast()).div(token),
                false => I::load(from.cast()).to_f32().mul(I::Lanes::load(scales[p].as_ptr()).div(token)),
            };
            value.store(values.as_mut_ptr());
        }
        task.write_array(t, first + p * ROWS, &values);
    }
}
