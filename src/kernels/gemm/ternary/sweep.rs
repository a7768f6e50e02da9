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
/// Number of columns that a panel holds: its codes take half of the L1 cache. A multiple of 512.
const DEPTH: usize = 1024;
/// Number of lines in 256 columns; an i16 holds the sum of their products, 2 * 2 * 128 each.
const LINES: usize = 64;

/// Number of tokens that share the loads of codes.
const AT_ONCE: usize = 4;

/// Computes `task` with any number of tokens, with an instruction set that is not `Scalar`.
pub(super) fn sweep<K: Kind>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (cols, tokens) = (task.x.cols, task.x.rows.len());
    let at_once = tokens.div_ceil(tokens.div_ceil(AT_ONCE));
    let depth = DEPTH.min(cols);
    let codes = grown(&mut scratch.codes, depth / 4);
    let partial = grown(&mut scratch.partial, tokens);
    let blocks = if K::SCALED { cols / 256 } else { 1 };
    let scales = floats(grown(&mut scratch.scales, blocks));
    for first in (0..task.rows).step_by(ROWS) {
        for (partial, token) in partial.iter_mut().zip(task.x.rows) {
            *partial = if K::SCALED { Line::default() } else { Line::of_i32(-token.sum) };
        }
        for start in (0..cols).step_by(depth) {
            let codes = &mut codes[..depth.min(cols - start) / 4];
            unpack::<K>(isa, task, first, start, codes, scales);
            for (n, partial) in partial.chunks_mut(at_once).enumerate() {
                let step = Step { task, codes, scales, start, first: n * at_once };
                by_count!(partial.len(), T in 1 2 3 4, add::<K, T>(isa, step, partial), else unreachable!());
            }
        }
        finish::<K>(isa, task, first, scales, partial);
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
    let next = rows[0].wrapping_add(ROWS * task.row_bytes);
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

/// Unpacked codes of the columns from `start` on, and the tokens from `first` on to multiply them with.
#[derive(Clone, Copy)]
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    /// The scales of blocks.
    scales: &'a [[f32; ROWS]],
    start: usize,
    first: usize,
}

by_isa!(
    /// Adds to the sums of `T` tokens. Each token has a line: i32, or f32 if blocks have scales.
    fn add<K: Kind, const T: usize>(step: Step, partial: &mut [Line]) = add_in::<ints>
);

#[inline(always)]
unsafe fn add_in<I: Ints, K: Kind, const T: usize>(step: Step, partial: &mut [Line]) {
    let Step { task, codes, scales, start, first } = step;
    let partial = partial.first_chunk_mut::<T>().expect("a line for each token");
    let mut x = [std::ptr::null(); T];
    for t in 0..T {
        // black_box, because a compiler that knows the distance between tokens computes addresses from it instead of
        // keeping them.
        x[t] = black_box(task.x.row(first + t)[start..start + 4 * codes.len()].as_ptr());
    }
    // SAFETY: four values for each line of codes at each x; a line is sixteen numbers; the caller has the
    // instructions.
    unsafe {
        let mut sums = [[I::zero()]; T];
        for from in (0..codes.len()).step_by(LINES) {
            let count = LINES.min(codes.len() - from);
            let block = (start + 4 * from) / 256;
            for t in 0..T {
                if K::SCALED {
                    sums[t] = [I::splat(-task.x.sums(first + t)[block])];
                } else if from == 0 {
                    sums[t] = [I::load(partial[t].0.as_ptr().cast())];
                }
            }
            let at = x.map(|x| x.add(4 * from));
            I::add_lines::<false, T, 1>(&mut sums, 1, count, [codes.as_ptr().add(from)], at);
            for t in 0..T {
                let ([sum], to) = (sums[t], &mut partial[t]);
                if K::SCALED {
                    let so_far = I::Lanes::load(to.0.as_ptr().cast());
                    let total = so_far.add(sum.to_f32().mul(I::Lanes::load(scales[block].as_ptr())));
                    total.store(to.0.as_mut_ptr().cast());
                } else if from + count == codes.len() {
                    sum.store(to.0.as_mut_ptr().cast());
                }
            }
        }
    }
}

by_isa!(
    /// Writes the outputs of the rows from `first` on; `partial` has the sums over all columns.
    fn finish<K: Kind>(task: &Task, first: usize, scales: &[[f32; ROWS]], partial: &[Line]) = finish_in::<ints>
);

#[inline(always)]
unsafe fn finish_in<I: Ints, K: Kind>(task: &Task, first: usize, scales: &[[f32; ROWS]], partial: &[Line]) {
    for (t, line) in partial.iter().enumerate() {
        let (from, mut values) = (line.0.as_ptr(), [0.0; ROWS]);
        // SAFETY: sixteen numbers each; the caller has the instructions.
        unsafe {
            let token = I::Lanes::splat(task.x.rows[t].scale);
            let value = match K::SCALED {
                true => I::Lanes::load(from.cast()).div(token),
                false => I::load(from.cast()).to_f32().mul(I::Lanes::load(scales[0].as_ptr()).div(token)),
            };
            value.store(values.as_mut_ptr());
        }
        task.write_array(t, first, &values);
    }
}
