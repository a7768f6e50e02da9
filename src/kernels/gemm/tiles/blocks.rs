//! Weights with a scale for each 32 columns. `quantized::scalar` says what is computed.
//!
//! A block is a step: a tile of its codes, one of the tokens' values, a tile of sums, which become floats and are added
//! to those of the blocks before, times both scales. Sixteen rows and sixteen tokens stay in registers meanwhile. Tiles of
//! the next blocks are multiplied ahead, so that sums have reached memory when they are read.

use super::{Machine, SIDE, modelled, on_machine};
use crate::kernels::gemm::blocks::SharedOut;
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::Tiles;
use crate::kernels::{DType, Isa, Pool};

/// Bytes that tiles multiply: a block.
pub const DEPTH: usize = 32;
/// Lines of codes of a block of sixteen rows, and of values of sixteen tokens.
const CODES: usize = SIDE * DEPTH / 64;
/// What is kept of a block of sixteen tokens: values, scales, and scales times sums.
const TOKENS_LINES: usize = CODES + 2;
/// Blocks whose codes are swept over by all tokens before the next ones are decoded.
const SPAN: usize = 32;
/// Blocks that are multiplied ahead, and tiles of sums there is room for.
const AHEAD: usize = 2;
const RING: usize = 4;
/// Fewer activations than this are arranged faster than others are woken.
const SMALL: usize = 1 << 16;
/// From this many tokens on tiles are faster.
const TOKENS: usize = 8;

/// Whether `isa` multiplies so many tokens with such weights with tiles.
pub fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    use DType::*;
    isa == Isa::Amx && matches!(dtype, Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1) && (tokens >= TOKENS || modelled())
}

/// Lines that `arrange` fills.
pub fn arranged_lines(x: &BlockActivations) -> usize {
    x.tokens().div_ceil(SIDE) * (x.cols / DEPTH) * TOKENS_LINES
}

/// Copies activations, in blocks of 32, into the order of right tiles.
///
/// # Safety
/// `Isa::Amx` is available.
pub unsafe fn arrange(pool: &Pool, x: &BlockActivations, out: &mut [Line]) {
    let groups = x.tokens().div_ceil(SIDE);
    let each = out.len() / groups;
    let shared = SharedOut::new(out);
    let one = |group: usize| {
        // SAFETY: each task has lines of its own; the caller's promise.
        unsafe {
            let out = shared.slice(group * each..(group + 1) * each);
            on_machine!(arrange_blocks, arrange_group(x, group, out))
        }
    };
    if x.values.len() < SMALL { (0..groups).for_each(one) } else { pool.run(groups, &one) }
}

/// `task` with any number of tokens.
///
/// # Safety
/// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `arranged`.
pub unsafe fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { on_machine!(blocks, product(task, arranged, scratch)) }
}

/// Of sixteen tokens `TOKENS_LINES` for each block. Missing tokens repeat the last.
#[inline(always)]
pub unsafe fn arrange_group<M: Machine>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    let token = |t: usize| x.row((group * SIDE + t).min(x.tokens() - 1));
    let mut rows = [x.values.as_ptr(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = token(t).0.as_ptr();
    }
    for (b, lines) in out.as_chunks_mut::<TOKENS_LINES>().0.iter_mut().enumerate() {
        let (low, rest) = lines.split_first_chunk_mut().expect("four lines");
        let (high, _) = rest.split_first_chunk_mut().expect("four lines");
        // SAFETY: 32 of a row's columns.
        unsafe {
            M::columns(&rows, 32 * b, low);
            M::columns(&rows, 32 * b + 16, high);
        }
    }
    for t in 0..SIDE {
        let (_, scales, sums) = token(t);
        for ((lines, scale), sum) in out.as_chunks_mut::<TOKENS_LINES>().0.iter_mut().zip(scales).zip(sums) {
            let at = 4 * t..4 * t + 4;
            lines[CODES].0[at.clone()].copy_from_slice(&scale.to_ne_bytes());
            lines[CODES + 1].0[at].copy_from_slice(&(scale * *sum as f32).to_ne_bytes());
        }
    }
}

/// `task` with any number of tokens.
#[inline(always)]
pub unsafe fn product<M: Machine>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.dtype {
            DType::Q4_1 | DType::Q5_1 => Sweep::<M, true>::new(task, arranged, scratch).all(),
            _ => Sweep::<M, false>::new(task, arranged, scratch).all(),
        }
    }
}

struct Sweep<'a, M: Machine, const MINIMUMS: bool> {
    task: &'a Task<'a>,
    tiles: M::Tiles,
    arranged: &'a [Line],
    /// Of each row and column of tokens.
    blocks: usize,
    groups: usize,
    /// Of `SPAN` blocks the codes of sixteen rows, then `RING` tiles of sums.
    codes: &'a mut [Line],
    sums: &'a mut [[Line; SIDE]; RING],
    /// Of as many blocks the rows' scales and minimums.
    scales: &'a mut [[Line; 2]],
    /// Sums so far of sixteen rows with sixteen tokens each.
    partial: &'a mut [[Line; SIDE]],
}

/// Where left tiles are: that of a block, the way to the next one's, and from row to row.
#[derive(Clone, Copy)]
struct Left {
    at: *const u8,
    block: usize,
    row: usize,
}

impl<'a, M: Machine, const MINIMUMS: bool> Sweep<'a, M, MINIMUMS> {
    unsafe fn new(task: &'a Task<'a>, arranged: &'a [Line], scratch: &'a mut Scratch) -> Self {
        let (blocks, groups) = (task.x.cols / DEPTH, task.x.tokens().div_ceil(SIDE));
        assert_eq!(task.row_bytes, blocks * task.dtype.block().1, "rows of whole blocks");
        assert_eq!(arranged.len(), blocks * groups * TOKENS_LINES, "tokens in order");
        let (codes, sums) = grown(&mut scratch.codes, SPAN * CODES + RING * SIDE).split_at_mut(SPAN * CODES);
        Self {
            task,
            // SAFETY: the caller's promise.
            tiles: unsafe { M::Tiles::new(DEPTH) },
            arranged,
            blocks,
            groups,
            codes,
            sums: sums.as_chunks_mut().0.first_chunk_mut().expect("as many"),
            scales: grown(&mut scratch.scales, 2 * SPAN).as_chunks_mut().0,
            partial: grown(&mut scratch.partial, groups * SIDE).as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        for first in (0..self.task.rows).step_by(SIDE) {
            let count = SIDE.min(self.task.rows - first);
            for start in (0..self.blocks).step_by(SPAN) {
                let depth = SPAN.min(self.blocks - start);
                // SAFETY: the caller's promise.
                unsafe {
                    let left = self.decode(first, count, start, depth);
                    for group in 0..self.groups {
                        self.sweep(left, group, start, depth);
                    }
                }
            }
            for group in 0..self.groups {
                // SAFETY: the caller's promise.
                unsafe { self.finish(first, count, group) };
            }
        }
    }

    /// Codes and scales of `depth` blocks of `count` rows; those of others are nothing.
    #[inline(always)]
    unsafe fn decode(&mut self, first: usize, count: usize, start: usize, depth: usize) -> Left {
        let (dtype, row_bytes) = (self.task.dtype, self.task.row_bytes);
        let bytes = dtype.block().1;
        let rows = &self.task.packed[first * row_bytes..(first + count) * row_bytes];
        let base = rows.as_ptr().wrapping_add(start * bytes);
        for (b, [scales, minimums]) in self.scales[..depth].iter_mut().enumerate() {
            // Memory has the next rows behind these.
            M::fetch(rows.as_ptr().wrapping_add(SIDE * (row_bytes + (start + b) * bytes)), SIDE * bytes);
            // SAFETY: blocks of these rows, which begin with their scales.
            unsafe {
                let at = base.add(b * bytes);
                M::store(M::halves::<false>(at, row_bytes, count), scales.0.as_mut_ptr().cast());
                if MINIMUMS {
                    M::store(M::halves::<false>(at.add(2), row_bytes, count), minimums.0.as_mut_ptr().cast());
                }
            }
        }
        if dtype == DType::Q8_0 && count == SIDE && self.groups <= 2 {
            return Left { at: base.wrapping_add(2), block: bytes, row: row_bytes };
        }
        // SAFETY: as above; there is room for `SPAN` blocks.
        unsafe { M::decode(dtype, base, row_bytes, count, depth, self.codes.as_mut_ptr().cast()) };
        Left { at: self.codes.as_ptr().cast(), block: SIDE * DEPTH, row: DEPTH }
    }

    /// Adds `depth` blocks from `start` on to the sums of a group of tokens.
    #[inline(always)]
    unsafe fn sweep(&mut self, left: Left, group: usize, start: usize, depth: usize) {
        let x = &self.arranged[(group * self.blocks + start) * TOKENS_LINES..][..depth * TOKENS_LINES];
        let x = x.as_chunks::<TOKENS_LINES>().0;
        // SAFETY (of all): the caller's promise; lines of this kernel's own.
        unsafe {
            let mut totals = [M::splat(0.0); SIDE];
            if start > 0 {
                for (total, line) in totals.iter_mut().zip(&self.partial[group]) {
                    *total = M::load(line.0.as_ptr().cast());
                }
            }
            for (b, x) in x.iter().enumerate().take(AHEAD) {
                self.multiply(left, x, b);
            }
            for b in 0..depth {
                if let Some(x) = x.get(b + AHEAD) {
                    self.multiply(left, x, b + AHEAD);
                }
                self.add(&x[b], b, &mut totals);
            }
            for (total, line) in totals.iter().zip(&mut self.partial[group]) {
                M::store(*total, line.0.as_mut_ptr().cast());
            }
        }
    }

    /// The sums of block `b` of the span.
    #[inline(always)]
    unsafe fn multiply(&mut self, left: Left, x: &[Line; TOKENS_LINES], b: usize) {
        let (a, to) = (left.at.wrapping_add(b * left.block), self.sums[b % RING].as_mut_ptr().cast());
        // SAFETY (of all): a tile each.
        unsafe {
            self.tiles.zero::<0>();
            self.tiles.load::<4>(a, left.row);
            self.tiles.load::<6>(x.as_ptr().cast(), 64);
            self.tiles.dot_signed::<0, 4, 6>();
            self.tiles.store::<0>(to, 64);
        }
    }

    /// Adds them, times the scales.
    #[inline(always)]
    unsafe fn add(&self, x: &[Line; TOKENS_LINES], b: usize, totals: &mut [M::Floats; SIDE]) {
        let [scales, minimums] = &self.scales[b];
        let (scales, minimums): (*const f32, *const f32) = (scales.0.as_ptr().cast(), minimums.0.as_ptr().cast());
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let own = M::load(x[CODES].0.as_ptr().cast());
            for (r, total) in totals.iter_mut().enumerate() {
                let dots = M::load_i32(self.sums[b % RING][r].0.as_ptr().cast());
                *total = M::fma(dots, M::mul(M::splat(*scales.add(r)), own), *total);
            }
            if MINIMUMS {
                let own = M::load(x[CODES + 1].0.as_ptr().cast());
                for (r, total) in totals.iter_mut().enumerate() {
                    *total = M::fma(M::splat(*minimums.add(r)), own, *total);
                }
            }
        }
    }

    /// Writes the outputs of sixteen tokens for `count` rows from `first` on.
    #[inline(always)]
    unsafe fn finish(&mut self, first: usize, count: usize, group: usize) {
        // SAFETY: a line is sixteen floats.
        unsafe {
            let mut values = [M::splat(0.0); SIDE];
            for (value, line) in values.iter_mut().zip(&self.partial[group]) {
                *value = M::load(line.0.as_ptr().cast());
            }
            let columns = M::transpose(values);
            for (t, column) in columns.into_iter().enumerate().take(self.task.x.tokens() - SIDE * group) {
                let mut values = [0.0; SIDE];
                M::store(column, values.as_mut_ptr());
                match count {
                    SIDE => self.task.write(SIDE * group + t, first, &values),
                    _ => self.task.write(SIDE * group + t, first, &values[..count]),
                }
            }
        }
    }
}
