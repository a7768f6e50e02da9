//! Products of int8 activations and int8 weights, with a scale for each token and one for each row. Integers are exact, so
//! order never shows.
//!
//! Weights are made at load, so they lie as every form reads them: sixteen rows are a panel, four columns of each row after
//! the other (a line, as `simd::ints` has them), then a line with the rows' scales. Vector kernels multiply such lines with
//! four columns of a token; sixteen lines are a right tile, and so many rows of activations a left one.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

#[cfg(test)]
mod tests;

use crate::base::{Bytes, Error, Result};
use crate::kernels::gemm::blocks::{Part, RowBlock, SharedOut, block_count, matrices_of, nth_block};
use crate::kernels::gemm::ternary::{Activations, padded};
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::gemm::tiles;
use crate::kernels::pack::{for_rows, zeroed};
use crate::kernels::pool::buffer::Line;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::Lanes;
use crate::kernels::{DType, Isa, Matrix, Pool};
use std::cell::RefCell;
use std::ops::Range;

/// Rows of a panel.
pub const SIDE: usize = 16;
/// Tokens that share the loads of weights with one panel; with two panels twice as many fit the registers.
const TILE: usize = 4;
/// Weight rows of a task.
const TASK_ROWS: usize = 2 * SIDE;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 18;
/// Most columns of a matrix: no sum of products is beyond an i32.
const MAX_COLS: usize = (1 << 31) / (127 * 127);

/// Lines of a panel of `cols` columns.
pub fn panel_lines(cols: usize) -> usize {
    padded(cols) / 4 + 1
}

/// Lines that a matrix's bytes are.
struct Lines(Vec<Line>);

impl AsRef<[u8]> for Lines {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a Line is 64 bytes without gaps.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&self.0[..])) }
    }
}

/// A matrix whose rows `fill` writes: a row's values, and its scale is the result. Zeros stand behind its columns, and for
/// rows that a panel lacks. `Unsupported` where sums of so many columns may overflow.
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

/// Row `row` of such a matrix as f32.
pub fn dequantize(m: &Matrix, row: usize, out: &mut [f32]) {
    let panel = Panels::new(m).panel(row / SIDE);
    let at = 4 * (row % SIDE);
    let scale = panel[panel.len() - 1].floats()[row % SIDE];
    for (out, line) in out.chunks_mut(4).zip(panel) {
        out.iter_mut().zip(&line.0[at..]).for_each(|(out, value)| *out = *value as i8 as f32 * scale);
    }
}

/// A matrix's panels.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    lines: &'a [Line],
    each: usize,
}

impl<'a> Panels<'a> {
    /// Panics where the bytes are not those of lines, which `pack` makes.
    fn new(m: &'a Matrix) -> Self {
        // SAFETY: a Line is any 64 bytes.
        let (before, lines, behind) = unsafe { m.data.align_to::<Line>() };
        assert!(m.dtype == DType::Int8 && before.is_empty() && behind.is_empty(), "whole lines");
        Self { lines, each: panel_lines(m.cols) }
    }

    pub fn panel(&self, n: usize) -> &'a [Line] {
        &self.lines[n * self.each..(n + 1) * self.each]
    }
}

/// `out[t, column + i] = x[t] · w[i] * (row scale / scale(t))` for the rows `i` of each of `parts`; other columns of `out`
/// stay as they are. `out` is `[x.rows.len(), stride]`, and `x.cols` is `padded` of the matrices' columns. No activation is
/// -128, which `quantize_row` makes of nothing.
pub fn matmul(pool: &Pool, isa: Isa, x: &Activations, parts: &[Part], stride: usize, out: &mut [f32]) {
    let tokens = x.rows.len();
    assert_eq!(x.values.len(), tokens * x.cols, "activations are [tokens, cols]");
    assert_eq!(out.len(), tokens * stride, "a product is [tokens, stride]");
    for Part { matrix: m, column } in parts {
        let fits = m.dtype == DType::Int8 && padded(m.cols) == x.cols && column + m.rows <= stride;
        assert!(fits, "a product of {:?}, {} columns", m.dtype, m.cols);
    }
    let weights = &matrices_of(parts)[..parts.len()];
    let outputs = tokens * weights.iter().map(|m| m.rows).sum::<usize>();
    let small = outputs.saturating_mul(x.cols) < SMALL;
    let out = SharedOut::new(out);
    ARRANGED.with_borrow_mut(|arranged| {
        let arranged = arrange(pool, isa, x, arranged);
        let height = task_rows(isa, tokens, weights, pool.threads());
        let one = |n: usize| {
            let RowBlock { matrix, rows, .. } = nth_block(weights, height, n);
            let Part { matrix: m, column } = parts[matrix];
            let task = Task { x, arranged, weights: Panels::new(m), column, rows, out: &out, stride };
            SCRATCH.with_borrow_mut(|scratch| run(isa, &task, scratch));
        };
        let piece = |tasks: Range<usize>| {
            #[cfg(target_arch = "x86_64")]
            let _tiles = tiles::configured(tiles::int8::pays(isa, tokens), tiles::int8::DEPTH);
            tasks.for_each(one);
        };
        let tasks = block_count(weights, height);
        let bytes = weights.iter().map(|m| m.data.len()).sum();
        if small { piece(0..tasks) } else { pool.run_pieces(tasks, bytes, tokens, &piece) }
    });
}

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    static ARRANGED: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Some rows of one matrix, whole panels, to be multiplied with all tokens.
pub(super) struct Task<'a> {
    pub x: &'a Activations<'a>,
    /// What `arrange` made of the activations.
    pub arranged: &'a [Line],
    pub weights: Panels<'a>,
    /// Column of the output where the matrix begins.
    column: usize,
    pub rows: Range<usize>,
    out: &'a SharedOut<'a>,
    stride: usize,
}

impl Task<'_> {
    /// Where the outputs of token `t` for a panel go, which need not be there.
    #[inline(always)]
    pub fn place(&self, t: usize, panel: usize) -> *const f32 {
        self.out.start().wrapping_add(t * self.stride + self.column + panel * SIDE)
    }

    /// Writes the outputs of token `t` for a panel's rows, as many as there are.
    #[inline(always)]
    pub fn write(&self, t: usize, panel: usize, values: &[f32; SIDE]) {
        let row = panel * SIDE;
        let count = SIDE.min(self.rows.end - row);
        assert!(row >= self.rows.start && t < self.x.rows.len());
        let at = t * self.stride + self.column + row;
        // SAFETY: the columns lie in this task's own rows, tasks have rows of their own, and the slice ends here.
        let out = unsafe { self.out.slice(at..at + count) };
        match count {
            SIDE => out.copy_from_slice(values),
            _ => out.copy_from_slice(&values[..count]),
        }
    }
}

/// Weight rows of each task, whole panels.
#[cfg_attr(not(any(test, target_arch = "x86_64")), expect(unused_variables))]
fn task_rows(isa: Isa, tokens: usize, weights: &[&Matrix], threads: usize) -> usize {
    #[cfg(any(test, target_arch = "x86_64"))]
    if tiles::int8::pays(isa, tokens) {
        return tiles::int8::task_rows(weights.iter().map(|m| m.rows).sum(), threads);
    }
    TASK_ROWS
}

/// Activations in the order of tiles, where there are some.
#[cfg_attr(not(any(test, target_arch = "x86_64")), expect(unused_variables))]
fn arrange<'a>(pool: &Pool, isa: Isa, x: &Activations, lines: &'a mut Vec<Line>) -> &'a [Line] {
    #[cfg(any(test, target_arch = "x86_64"))]
    if tiles::int8::pays(isa, x.rows.len()) {
        return tiles::int8::arrange(pool, x, lines);
    }
    &[]
}

#[cfg_attr(not(any(test, target_arch = "x86_64")), expect(unused_variables))]
fn run(isa: Isa, task: &Task, scratch: &mut Vec<Line>) {
    let (first, end, tokens) = (task.rows.start / SIDE, task.rows.end.div_ceil(SIDE), task.x.rows.len());
    #[cfg(any(test, target_arch = "x86_64"))]
    if tiles::int8::pays(isa, tokens) {
        // SAFETY: such a set stands for a machine that has tiles; `matmul` configures them.
        return unsafe { tiles::int8::run(task, scratch) };
    }
    if isa == Isa::Scalar {
        return (first..end).for_each(|panel| reference(task, panel));
    }
    sweep(isa, task, first..end)
}

by_isa!(
    /// Panels with all tokens.
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
    // SAFETY (of all): the caller has the instructions.
    unsafe {
        match tokens {
            1 => tile::<I, 1, P>(task, panel, first),
            2 => tile::<I, 2, P>(task, panel, first),
            3 => tile::<I, 3, P>(task, panel, first),
            4 => tile::<I, 4, P>(task, panel, first),
            5 if I::PANELS == 2 => tile::<I, 5, P>(task, panel, first),
            6 if I::PANELS == 2 => tile::<I, 6, P>(task, panel, first),
            7 if I::PANELS == 2 => tile::<I, 7, P>(task, panel, first),
            8 if I::PANELS == 2 => tile::<I, 8, P>(task, panel, first),
            n => unreachable!("{n} tokens"),
        }
    }
}

/// The outputs of `T` tokens from `first` on for `P` panels.
#[inline(always)]
unsafe fn tile<I: Ints, const T: usize, const P: usize>(task: &Task, panel: usize, first: usize) {
    let lines = task.x.cols / 4;
    let (mut codes, mut x) = ([std::ptr::null(); P], [std::ptr::null(); T]);
    for p in 0..P {
        codes[p] = task.weights.panel(panel + p)[..lines].as_ptr();
    }
    // SAFETY: so many lines, and a line of scales behind them; four columns of each token for each line; the caller has
    // the instructions.
    unsafe {
        let mut sums = [[I::zero(); P]; T];
        for t in 0..T {
            x[t] = task.x.row(first + t).as_ptr();
            if I::UNSIGNED {
                sums[t] = [I::splat(task.x.rows[first + t].sum.wrapping_mul(-128)); P];
            }
        }
        I::add_signed_lines(&mut sums, lines, codes, x);
        for t in 0..T {
            let inverse = I::Lanes::splat(1.0 / task.x.rows[first + t].scale);
            for p in 0..P {
                let scales = I::Lanes::load(codes[p].add(lines).cast());
                let mut values = [0.0; SIDE];
                sums[t][p].to_f32().mul(scales.mul(inverse)).store(values.as_mut_ptr());
                task.write(first + t, panel + p, &values);
            }
        }
    }
}

fn reference(task: &Task, panel: usize) {
    let (codes, scales) = task.weights.panel(panel).split_at(task.x.cols / 4);
    let scales = scales[0].floats();
    for (t, token) in task.x.rows.iter().enumerate() {
        let mut sums = [0i32; SIDE];
        for (line, x) in codes.iter().zip(task.x.row(t).as_chunks::<4>().0) {
            for (sum, w) in sums.iter_mut().zip(line.0.as_chunks::<4>().0) {
                *sum += w.iter().zip(x).map(|(w, x)| *w as i8 as i32 * *x as i32).sum::<i32>();
            }
        }
        let inverse = 1.0 / token.scale;
        let values = std::array::from_fn(|r| sums[r] as f32 * (scales[r] * inverse));
        task.write(t, panel, &values);
    }
}
