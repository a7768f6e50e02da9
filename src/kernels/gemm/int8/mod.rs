//! Products of int8 activations and int8 weights, with one scale per token and one per row. Both are rotated before
//! they are rounded (`rows::hadamard::rotate`), which changes no product and spreads the outliers of a row. Integer
//! sums are exact, so their order does not matter.
//!
//! Weights are made at load, in the layout that every kernel reads: panels (`formats::panels`). Vector kernels
//! multiply the lines of a panel with four columns of a token. Sixteen lines are a right tile, and sixteen rows of
//! activations a left tile.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

#[cfg(test)]
mod tests;

use crate::base::{Bytes, Error, Result};
use crate::kernels::gemm::driver::Scratch;
use crate::kernels::gemm::formats::panels::{SIDE, panel, panel_lines};
use crate::kernels::gemm::tokens::Task;
use crate::kernels::pack::{for_rows, zeroed};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{IntRegister as _, Ints};
use crate::kernels::simd::lanes::{Lanes, Real};
use crate::kernels::{DType, Isa, Matrix, Pool};
use std::ops::Range;

/// Number of tokens that share the loads of one panel. Sets that take two panels at once have registers for twice as
/// many tokens.
const TILE: usize = 4;
/// Maximum number of columns of a matrix, so that no sum of products exceeds an i32.
const MAX_COLS: usize = (1 << 31) / (127 * 127);

/// The bytes of a matrix, as lines.
struct Lines(Vec<Line>);

impl AsRef<[u8]> for Lines {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a Line is 64 bytes without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// Makes a matrix. `fill` writes the values of a rotated row and returns its scale. Padding columns, and rows missing
/// in the last panel, are zeros. `Unsupported` if sums over this number of columns may overflow.
pub fn pack(
    pool: &Pool,
    rows: usize,
    cols: usize,
    fill: &(dyn Fn(usize, &mut [i8]) -> Result<f32> + Sync),
) -> Result<Matrix> {
    if cols > MAX_COLS {
        return Err(Error::unsupported(format!("int8 weights of {cols} columns; {MAX_COLS} are the most")));
    }
    let (panels, lines) = (rows.div_ceil(SIDE), panel_lines(cols));
    let mut data = zeroed(panels * lines)?;
    for_rows(pool, panels, lines, 16 * cols, &mut data, &|panel, scratch: &mut [i8], out: &mut [Line]| {
        let row = &mut scratch[..cols];
        for r in 0..SIDE.min(rows - panel * SIDE) {
            let scale = fill(panel * SIDE + r, row)?;
            out[lines - 1].0[4 * r..][..4].copy_from_slice(&scale.to_le_bytes());
            for (line, values) in out.iter_mut().zip(row.chunks(4)) {
                line.0[4 * r..].iter_mut().zip(values).for_each(|(to, value)| *to = *value as u8);
            }
        }
        Ok(())
    })?;
    Matrix::new(Bytes::new(Lines(data)), DType::Int8, rows, cols)
}

impl Task<'_> {
    /// The lines of panel `n` of the task.
    #[inline]
    pub fn panel(&self, n: usize) -> &[Line] {
        panel(self.packed, self.x.cols / 4 + 1, n)
    }
}

/// Computes `task`, of whole panels, without tiles.
pub(super) fn run(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (panels, tokens) = (0..task.rows.div_ceil(SIDE), task.x.rows.len());
    if isa == Isa::Scalar {
        return panels.for_each(|panel| reference(task, panel));
    }
    // With few tokens, pairing lines takes longer than it saves.
    match isa {
        Isa::NeonI8mm if tokens <= TILE => sweep(Isa::Neon, task, panels),
        Isa::NeonI8mm => {
            let copy = grown(&mut scratch.codes, task.packed.len() / size_of::<Line>());
            pair(isa, task, copy);
            sweep(isa, &Task { packed: bytes_of(copy), ..*task }, panels)
        }
        _ => sweep(isa, task, panels),
    }
}

by_isa!(
    /// Copies the task's panels, with lines as `Ints::put` writes them.
    fn pair(task: &Task, copy: &mut [Line]) = pair_in::<ints>
);

#[inline(always)]
unsafe fn pair_in<I: Ints>(task: &Task, copy: &mut [Line]) {
    for (n, copy) in copy.chunks_exact_mut(task.x.cols / 4 + 1).enumerate() {
        for (i, line) in task.panel(n).iter().enumerate() {
            // SAFETY: a whole line; the caller has the instructions.
            unsafe {
                let line = I::load((line as *const Line).cast());
                for (part, rows) in line.registers().iter().enumerate() {
                    I::put(copy, i, part, *rows);
                }
            }
        }
    }
}

by_isa!(
    /// Multiplies panels with all tokens.
    fn sweep(task: &Task, panels: Range<usize>) = sweep_in::<ints>
);

#[inline(always)]
unsafe fn sweep_in<I: Ints>(task: &Task, panels: Range<usize>) {
    let tokens = task.x.rows.len();
    for panel in panels.clone().step_by(I::PANELS) {
        for t in (0..tokens).step_by(TILE * I::PANELS) {
            let here = (tokens - t).min(TILE * I::PANELS);
            // SAFETY (of both): the caller has the instructions.
            match I::PANELS.min(panels.end - panel) {
                2 => unsafe { some_tokens::<I, 2>(task, panel, t, here) },
                _ => unsafe { some_tokens::<I, 1>(task, panel, t, here) },
            }
        }
    }
}

#[inline(always)]
unsafe fn some_tokens<I: Ints, const P: usize>(task: &Task, panel: usize, first: usize, tokens: usize) {
    // SAFETY: the caller has the instructions.
    unsafe {
        by_count!(tokens, T in 1 2 3 4 5 6 7 8, tile::<I, T, P>(task, panel, first), else unreachable!());
    }
}

/// Computes the outputs of `T` tokens from `first` on for `P` panels.
#[inline(always)]
unsafe fn tile<I: Ints, const T: usize, const P: usize>(task: &Task, panel: usize, first: usize) {
    if const { T > TILE * I::PANELS } {
        unreachable!("{T} tokens at once");
    }
    let lines = task.x.cols / 4;
    let (mut codes, mut x) = ([std::ptr::null(); P], [std::ptr::null(); T]);
    for p in 0..P {
        codes[p] = task.panel(panel + p)[..lines].as_ptr();
    }
    // SAFETY: `lines` lines, and a line of scales after them; four columns of each token for each line; the caller
    // has the instructions.
    unsafe {
        let mut sums = [[I::zero(); P]; T];
        for t in 0..T {
            // The outputs of tokens are far apart, and not in the caches.
            for at in 0..=P {
                I::Lanes::fetch(task.place(first + t, panel * SIDE).wrapping_add(64 * at));
            }
            x[t] = task.x.row(first + t).as_ptr();
            if I::Register::UNSIGNED {
                sums[t] = [I::splat(task.x.rows[first + t].sum.wrapping_mul(-128)); P];
            }
        }
        I::add_lines::<true, T, P>(&mut sums, lines, 1, codes, x);
        for t in 0..T {
            let inverse = I::Lanes::splat(1.0 / task.x.rows[first + t].scale);
            for p in 0..P {
                let scales = I::Lanes::load(codes[p].add(lines).cast());
                let mut values = [0.0; SIDE];
                sums[t][p].to_f32().mul(scales.mul(inverse)).store(values.as_mut_ptr());
                task.write_array(first + t, (panel + p) * SIDE, &values);
            }
        }
    }
}

fn reference(task: &Task, panel: usize) {
    let (codes, scales) = task.panel(panel).split_at(task.x.cols / 4);
    let scales = scales[0].floats();
    for (t, token) in task.x.rows.iter().enumerate() {
        let mut sums = [0i32; SIDE];
        for (line, x) in codes.iter().zip(task.x.row(t).as_chunks::<4>().0) {
            for (sum, w) in sums.iter_mut().zip(line.0.as_chunks::<4>().0) {
                *sum += w.iter().zip(x).map(|(w, x)| *w as i8 as i32 * *x as i32).sum::<i32>();
            }
        }
        let inverse = 1.0 / token.scale;
        let values: [f32; SIDE] = std::array::from_fn(|r| sums[r] as f32 * (scales[r] * inverse));
        task.write_array(t, panel * SIDE, &values);
    }
}
