//! Rows of short blocks are unpacked once, in panels of sixteen rows, and swept over all tokens.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::few::scales as scales_of;
use super::{Scratch, Task};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::short_blocks::Short;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, IntRegister, Ints};
use crate::kernels::simd::lanes::{Real, Register};

/// Weight rows per panel.
pub(crate) const ROWS: usize = 16;
/// Number of 32-column blocks in a panel: their codes take half of the L1 cache. A multiple of each type's COUNT.
const DEPTH: usize = 32;
/// Maximum number of tokens that a panel is swept over before it is made again. It bounds the sums that wait for the
/// next columns.
pub(crate) const SWEPT: usize = 256;

/// Computes `task`, whose type is `F`, with any number of tokens, with an instruction set that is not `Scalar`.
pub(crate) fn sweep<F: Short>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (blocks, tokens) = (task.x.cols / 32, task.x.tokens());
    let codes = grown(&mut scratch.codes, 8 * DEPTH.min(blocks));
    let scales = grown(&mut scratch.scales, 2 * DEPTH.min(blocks));
    let partial = grown(&mut scratch.partial, tokens.min(SWEPT));
    // Number of tokens that share the loads of codes.
    let at_once = if isa.has_avx512() { 8 } else { 4 };
    for begin in (0..tokens).step_by(SWEPT) {
        let partial = &mut partial[..SWEPT.min(tokens - begin)];
        for first in (0..task.rows).step_by(ROWS) {
            partial.fill(Line::default());
            for start in (0..blocks).step_by(DEPTH) {
                let depth = DEPTH.min(blocks - start);
                let (codes, scales) = (&mut codes[..8 * depth], &mut scales[..2 * depth]);
                // With few tokens the next rows are prefetched while these are unpacked, otherwise while these are
                // multiplied.
                let late = tokens >= 8;
                let next = task.packed.as_ptr().wrapping_add((first + ROWS) * task.row_bytes);
                let next = next.wrapping_add(ROWS * start / F::COUNT * F::BYTES);
                fill::<F>(isa, &Columns { task, first, start, next: (!late).then_some(next) }, codes, scales);
                for (n, partial) in partial.chunks_mut(at_once).enumerate() {
                    let next = (late && n == 0).then_some(next);
                    let step = Step { task, codes, scales, start, first: begin + n * at_once, next };
                    by_count!(partial.len(), T in 1 2 3 4 5 6 7 8, tile::<F, T>(isa, step, partial), else unreachable!());
                }
            }
            for (t, partial) in partial.iter().enumerate() {
                task.write_array(begin + t, first, &partial.floats());
            }
        }
    }
}

/// The 32-column blocks from `start` on of `ROWS` rows of a task from `first` on; past the task's end, its last row is
/// repeated.
pub(crate) struct Columns<'a> {
    pub task: &'a Task<'a>,
    pub first: usize,
    pub start: usize,
    /// The next rows, to be prefetched meanwhile; any address is allowed.
    pub next: Option<*const u8>,
}

by_isa!(
    /// Unpacks some columns. Line 8 b + k of `codes` has four columns of block b, row by row. Line 2 b of `scales` has
    /// the rows' scales, and the next line their minimums.
    fn fill<F: Short>(from: &Columns, codes: &mut [Line], scales: &mut [Line])
        = fill_unsigned::<ints> tables if F::BITS == 0
);

#[inline(always)]
unsafe fn fill_unsigned<I: Ints, F: Short>(from: &Columns, codes: &mut [Line], scales: &mut [Line]) {
    // SAFETY: the caller's promise.
    unsafe { fill_in::<I, F, false>(from, codes, scales) }
}

/// As `fill`, and also for matrix tiles, which need SIGNED codes.
///
/// # Safety
/// `I`'s instructions are available.
#[inline(always)]
pub(crate) unsafe fn fill_in<I: Ints, F: Short, const SIGNED: bool>(
    from: &Columns,
    codes: &mut [Line],
    scales: &mut [Line],
) {
    let &Columns { task, first, start, next } = from;
    let (start, count) = (start / F::COUNT, codes.len() / (8 * F::COUNT));
    assert!((start + count) * F::BYTES <= task.row_bytes && codes.len() == 8 * F::COUNT * count);
    let rows = task.addresses(first, ROWS);
    let lines = codes.chunks_exact_mut(8 * F::COUNT).zip(scales.chunks_exact_mut(2 * F::COUNT));
    for (b, (codes, scales)) in lines.enumerate() {
        if let Some(next) = next {
            fetch::<I, F>(next, b);
        }
        let at = (start + b) * F::BYTES;
        for part in 0..ROWS / I::Register::ROWS {
            let rows = &rows[part * I::Register::ROWS..];
            // SAFETY: block b of each row, as just checked; a line has room for as many; the caller has the
            // instructions.
            unsafe {
                let words = F::words::<I::Register>(rows, at);
                let d = scales_of::<I, F>(rows, at, words.1);
                for n in 0..F::COUNT {
                    let to =
                        |line: &mut Line| line.0.as_mut_ptr().cast::<f32>().add(part * I::Register::ROWS);
                    d.store(to(&mut scales[2 * n]));
                    if F::MINIMUMS {
                        Floats::<I>::halves(rows, at + 2).store(to(&mut scales[2 * n + 1]));
                    }
                    let lines = F::codes(&words, n);
                    for k in 0..8 {
                        let line = match SIGNED {
                            true => lines[k].less(F::OFFSET as u8),
                            false if F::SIGNED && I::Register::UNSIGNED => lines[k].flip(),
                            false => lines[k],
                        };
                        I::put(codes, 8 * n + k, part, line);
                    }
                }
            }
        }
    }
}

/// Prefetches block `b` of as many rows as a panel has.
#[inline(always)]
fn fetch<I: Ints, F: Short>(next: *const u8, b: usize) {
    Floats::<I>::fetch_lines(next.wrapping_add(ROWS * b * F::BYTES), ROWS * F::BYTES);
}

/// Unpacked rows of the blocks from `start` on, and the tokens from `first` on to multiply them with.
#[derive(Clone, Copy)]
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    scales: &'a [Line],
    start: usize,
    first: usize,
    /// The next rows, to be prefetched meanwhile.
    next: Option<*const u8>,
}

by_isa!(
    /// Adds to the sums of `T` tokens, block by block.
    fn tile<F: Short, const T: usize>(step: Step, partial: &mut [Line]) = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints, F: Short, const T: usize>(step: Step, partial: &mut [Line]) {
    let partial = partial.first_chunk_mut::<T>().expect("a line for each token");
    let mut x: [(&[i8], &[f32], &[i16]); T] = [(&[], &[], &[]); T];
    for t in 0..T {
        x[t] = step.task.token(step.first + t, step.start..step.start + step.codes.len() / 8);
    }
    let offset = if F::SIGNED && I::Register::UNSIGNED { 128 } else { F::OFFSET };
    let lines = step.codes.as_chunks::<8>().0.iter().zip(step.scales.as_chunks::<2>().0);
    // SAFETY: 32 values of block b of each token, its scale and sum; lines are sixteen floats; the caller has the
    // instructions.
    unsafe {
        let mut totals = [I::Lanes::splat(0.0); T];
        for t in 0..T {
            totals[t] = I::Lanes::load(partial[t].0.as_ptr().cast());
        }
        let parts = if F::SIGNED { 1 } else { 8 / F::STEPS };
        let steps = I::opaque(8 / parts);
        for (b, (codes, [scales, minimums])) in lines.enumerate() {
            if let Some(next) = step.next.filter(|_| b % F::COUNT == 0) {
                fetch::<I, F>(next, b / F::COUNT);
            }
            let mut dots = [[I::zero(); 1]; T];
            let mut at = [std::ptr::null(); T];
            for t in 0..T {
                at[t] = x[t].0.as_ptr().add(32 * b);
                if offset != 0 {
                    dots[t][0] = I::splat(-offset * (*x[t].2.get_unchecked(b) as i32));
                }
            }
            if F::SIGNED && !I::Register::UNSIGNED {
                I::add_lines::<true, T, 1>(&mut dots, steps, 1, [codes.as_ptr()], at);
            } else {
                I::add_lines::<false, T, 1>(&mut dots, parts, steps, [codes.as_ptr()], at);
            }
            let own = I::Lanes::load(scales.0.as_ptr().cast());
            for t in 0..T {
                let scale = *x[t].1.get_unchecked(b);
                totals[t] = dots[t][0].to_f32().fma(own.mul(I::Lanes::splat(scale)), totals[t]);
                if F::MINIMUMS {
                    let sum = I::Lanes::splat(scale * (*x[t].2.get_unchecked(b) as f32));
                    totals[t] = I::Lanes::load(minimums.0.as_ptr().cast()).fma(sum, totals[t]);
                }
            }
        }
        for t in 0..T {
            totals[t].store(partial[t].0.as_mut_ptr().cast());
        }
    }
}
