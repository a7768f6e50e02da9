//! Weights with one scale per 32 columns. `quantized::scalar` defines the result.
//!
//! Weights are the right tile, in the panels that other sets sweep over, and tokens are the rows of the left tile.
//! Q8_0 is an exception: as the left tile its weights need no decoding. With few tokens they are multiplied in place,
//! and tokens are the right tile. A step is one block: a tile of sums, which are converted to floats, multiplied by
//! both scales and added to those of earlier blocks. The totals of sixteen tokens with sixteen rows stay in
//! registers.
//!
//! This does not use `sweep`: there, the sums of four blocks are stored together and totals go through memory. With
//! it, sixteen or 32 tokens take 1.1 to 1.3 times as long (on an Emerald Rapids).

use super::{SIDE, columns, halves, write};
use crate::kernels::DType;
use crate::kernels::gemm::formats::short_blocks::with_short;
use crate::kernels::gemm::quantized::sweep::{Columns, fill_in};
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::ints::Ints;
use crate::kernels::simd::lanes::{Lanes, Real};

/// Depth of a tile in bytes: a block.
pub(super) const DEPTH: usize = 32;
/// Lines of codes of a block of sixteen rows, and lines of values of sixteen tokens.
const CODES: usize = SIDE * DEPTH / 64;
/// Lines per block of sixteen tokens: values, scales, and scales times sums.
const TOKEN_LINES: usize = CODES + 2;
/// Number of blocks whose codes are swept over all tokens before the next blocks are decoded.
const SPAN: usize = 32;
/// A block's sums are stored, and added, this many blocks after its multiplication. If done sooner, both would stall.
const STORED: usize = 2;
const ADDED: usize = 3;
/// Number of tiles of sums, and of buffers for them.
const RING: usize = 4;

/// Whether tokens are also needed as right tiles. With more tokens, decoding weights once is faster.
fn both(x: &BlockActivations) -> bool {
    x.tokens() <= 2 * SIDE
}

/// Number of lines that `arrange` fills.
pub(super) fn lines_of_group(x: &BlockActivations) -> usize {
    x.cols / DEPTH * (TOKEN_LINES + if both(x) { CODES } else { 0 })
}

/// Arranges sixteen tokens: `TOKEN_LINES` for each block, and right tiles if `both`. Missing tokens repeat the last
/// one.
#[inline(always)]
pub(super) unsafe fn arrange<S: Set>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    let (left, right) = out.split_at_mut(x.cols / DEPTH * TOKEN_LINES);
    let mut rows = [x.values.as_ptr().cast(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        let (values, scales, sums) = x.row((group * SIDE + t).min(x.tokens() - 1));
        *row = values.as_ptr().cast();
        let blocks = left.as_chunks_mut::<TOKEN_LINES>().0.iter_mut();
        for (lines, ((values, scale), sum)) in
            blocks.zip(values.as_chunks::<DEPTH>().0.iter().zip(scales).zip(sums))
        {
            let to = &mut lines[t / 2].0[t % 2 * DEPTH..][..DEPTH];
            to.iter_mut().zip(values).for_each(|(to, x)| *to = *x as u8);
            for (line, number) in lines[CODES..].iter_mut().zip([*scale, scale * *sum as f32]) {
                line.0[4 * t..4 * t + 4].copy_from_slice(&number.to_ne_bytes());
            }
        }
    }
    for (n, lines) in right.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // SAFETY: sixteen of a row's columns.
        unsafe { columns::<S>(&rows, 16 * n, lines) };
    }
}

/// Computes `task` with any number of tokens.
#[inline(always)]
pub(super) unsafe fn run<S: Set>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe {
        match task.dtype {
            DType::Q4_1 | DType::Q5_1 => Sweep::<S, true>::new(task, arranged, scratch).all(),
            _ => Sweep::<S, false>::new(task, arranged, scratch).all(),
        }
    }
}

struct Sweep<'a, S: Set, const MINIMUMS: bool> {
    task: &'a Task<'a>,
    tiles: S::Tiles,
    arranged: &'a [Line],
    /// Number of blocks of 32 columns, and number of groups of sixteen tokens.
    blocks: usize,
    groups: usize,
    /// The codes of sixteen rows for `SPAN` blocks, and `RING` tiles of sums.
    codes: &'a mut [[Line; CODES]],
    sums: &'a mut [[Line; SIDE]; RING],
    /// The rows' scales and minimums for `SPAN` blocks.
    scales: &'a mut [[Line; 2]],
    /// The sums so far of sixteen tokens with sixteen rows each.
    partial: &'a mut [[Line; SIDE]],
}

/// Some blocks of sixteen rows and of sixteen tokens.
#[derive(Clone, Copy)]
struct Span<'a> {
    x: &'a [[Line; TOKEN_LINES]],
    /// The weights in place, if they are the left tiles.
    direct: Option<*const u8>,
    /// The right tiles.
    right: *const [Line; CODES],
    /// The next rows, and the number of their bytes to prefetch at each block: 0 except with the first tokens.
    next: *const u8,
    each: usize,
}

impl<'a, S: Set, const MINIMUMS: bool> Sweep<'a, S, MINIMUMS> {
    unsafe fn new(task: &'a Task<'a>, arranged: &'a [Line], scratch: &'a mut Scratch) -> Self {
        let (blocks, groups) = (task.x.cols / DEPTH, task.x.tokens().div_ceil(SIDE));
        assert_eq!(arranged.len(), groups * lines_of_group(task.x), "tokens in order");
        let (codes, sums) = grown(&mut scratch.codes, SPAN * CODES + RING * SIDE).split_at_mut(SPAN * CODES);
        Self {
            task,
            // SAFETY: the caller's promise.
            tiles: unsafe { S::Tiles::new(DEPTH) },
            arranged,
            blocks,
            groups,
            codes: codes.as_chunks_mut().0,
            sums: sums.as_chunks_mut().0.first_chunk_mut().expect("as many"),
            scales: grown(&mut scratch.scales, 2 * SPAN).as_chunks_mut().0,
            partial: grown(&mut scratch.partial, groups * SIDE).as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all(&mut self) {
        for first in (0..self.task.rows).step_by(SIDE) {
            let count = SIDE.min(self.task.rows - first);
            let direct = self.task.dtype == DType::Q8_0 && count == SIDE && both(self.task.x);
            for start in (0..self.blocks).step_by(SPAN) {
                let depth = SPAN.min(self.blocks - start);
                // SAFETY (of all): the caller's promise.
                unsafe {
                    if !direct {
                        self.decode(first, start, depth);
                    }
                    for group in 0..self.groups {
                        // Rows of missing tokens need not be added.
                        match !direct && self.task.x.tokens() - SIDE * group <= SIDE / 2 {
                            true => self.sweep::<{ SIDE / 2 }>(direct, first, start, depth, group),
                            false => self.sweep::<SIDE>(direct, first, start, depth, group),
                        }
                    }
                }
            }
            for (group, partial) in self.partial.iter().enumerate() {
                let (at, tokens) = ((first, SIDE * group), self.task.x.tokens());
                // SAFETY (of both): the caller's promise.
                match direct {
                    true => unsafe { write::<S, false, _>(self.task, partial, at, tokens) },
                    false => unsafe { write::<S, true, _>(self.task, partial, at, tokens) },
                }
            }
        }
    }

    /// Decodes the codes and scales of `depth` blocks from `start` on.
    #[inline(always)]
    unsafe fn decode(&mut self, first: usize, start: usize, depth: usize) {
        let Self { task, codes, scales, .. } = self;
        let (codes, scales) = (codes[..depth].as_flattened_mut(), scales[..depth].as_flattened_mut());
        let from = Columns { task, first, start, next: None };
        // SAFETY: the caller's promise.
        unsafe {
            with_short!(task.dtype, F => fill_in::<S::Ints, F, true>(&from, codes, scales));
        }
    }

    /// Adds `depth` blocks from `start` on to the sums of a group of tokens.
    #[inline(always)]
    unsafe fn sweep<const ROWS: usize>(
        &mut self,
        direct: bool,
        first: usize,
        start: usize,
        depth: usize,
        group: usize,
    ) {
        let lines = &self.arranged[group * lines_of_group(self.task.x)..];
        let x = &lines.as_chunks::<TOKEN_LINES>().0[start..start + depth];
        let (elements, bytes) = self.task.dtype.block();
        let packed = self.task.packed[first * self.task.row_bytes..].as_ptr();
        let block = SIDE * bytes * DEPTH / elements;
        let span = Span {
            x,
            direct: direct.then_some(packed.wrapping_add(start * bytes)),
            right: match direct {
                true => lines[self.blocks * TOKEN_LINES..].as_chunks().0[start..].as_ptr(),
                false => self.codes.as_ptr(),
            },
            next: packed.wrapping_add(SIDE * self.task.row_bytes + start * block),
            each: if group == 0 { block } else { 0 },
        };
        // SAFETY (of all): the caller's promise; lines of this kernel's own.
        unsafe {
            let mut totals = [S::Lanes::splat(0.0); ROWS];
            if start > 0 {
                for (total, line) in totals.iter_mut().zip(&self.partial[group]) {
                    *total = Real::load(line.0.as_ptr().cast());
                }
            }
            for b in (0..depth + ADDED).step_by(4) {
                self.turn::<0, ROWS>(span, b, &mut totals);
                self.turn::<1, ROWS>(span, b + 1, &mut totals);
                self.turn::<2, ROWS>(span, b + 2, &mut totals);
                self.turn::<3, ROWS>(span, b + 3, &mut totals);
            }
            for (total, line) in totals.iter().zip(&mut self.partial[group]) {
                total.store(line.0.as_mut_ptr().cast());
            }
        }
    }

    /// Multiplies block `b` of the span into tile `P`, which is `b` modulo four, and stores and adds the sums of
    /// earlier blocks.
    #[inline(always)]
    unsafe fn turn<const P: usize, const ROWS: usize>(
        &mut self,
        span: Span,
        b: usize,
        totals: &mut [S::Lanes; ROWS],
    ) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if let Some(x) = span.x.get(b) {
                for at in (b * span.each..(b + 1) * span.each).step_by(64) {
                    S::Lanes::fetch(span.next.wrapping_add(at));
                }
                let right = span.right.add(b).cast();
                match span.direct.map(|at| at.add(34 * b)) {
                    Some(at) => {
                        if span.each > 0 {
                            let scales = halves::<S>(at, self.task.row_bytes, SIDE);
                            scales.store(self.scales[b][0].0.as_mut_ptr().cast());
                        }
                        self.multiply::<P>(at.add(2), self.task.row_bytes, right);
                    }
                    None => self.multiply::<P>(x.as_ptr().cast(), DEPTH, right),
                }
            }
            if b >= STORED && b < span.x.len() + STORED {
                self.keep::<P>((b - STORED) % RING);
            }
            if let Some(b) = b.checked_sub(ADDED).filter(|b| *b < span.x.len()) {
                self.add(span.direct.is_some(), &span.x[b], b, totals);
            }
        }
    }

    /// Multiplies into tile `P`; left rows are `stride` bytes apart.
    #[inline(always)]
    unsafe fn multiply<const P: usize>(&mut self, left: *const u8, stride: usize, right: *const u8) {
        // SAFETY (of all): a tile each.
        unsafe {
            self.tiles.zero::<P>();
            if P.is_multiple_of(2) {
                self.tiles.load::<4>(left, stride);
                self.tiles.load::<6>(right, 64);
                self.tiles.dot_signed::<P, 4, 6>();
            } else {
                self.tiles.load::<5>(left, stride);
                self.tiles.load::<7>(right, 64);
                self.tiles.dot_signed::<P, 5, 7>();
            }
        }
    }

    /// Stores the sums of the block that is `STORED` blocks before the block of tile `P`.
    #[inline(always)]
    unsafe fn keep<const P: usize>(&mut self, slot: usize) {
        let to = self.sums[slot].as_mut_ptr().cast();
        // SAFETY: room for a tile.
        unsafe {
            match P {
                0 => self.tiles.store::<2>(to, 64),
                1 => self.tiles.store::<3>(to, 64),
                2 => self.tiles.store::<0>(to, 64),
                _ => self.tiles.store::<1>(to, 64),
            }
        }
    }

    /// Adds the sums of block `b`, multiplied by the scales.
    #[inline(always)]
    unsafe fn add<const ROWS: usize>(
        &self,
        direct: bool,
        x: &[Line; TOKEN_LINES],
        b: usize,
        totals: &mut [S::Lanes; ROWS],
    ) {
        let ([scales, minimums], [.., own, lows]) = (&self.scales[b], x);
        let (columns, rows) = if direct { (own, scales) } else { (scales, own) };
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let columns = S::Lanes::load(columns.0.as_ptr().cast());
            for (r, total) in totals.iter_mut().enumerate() {
                let dots = S::Ints::load(self.sums[b % RING][r].0.as_ptr().cast()).to_f32();
                *total = dots.fma(columns.mul(number(rows, r)), *total);
            }
            if MINIMUMS {
                let minimums = S::Lanes::load(minimums.0.as_ptr().cast());
                for (t, total) in totals.iter_mut().enumerate() {
                    *total = minimums.fma(number(lows, t), *total);
                }
            }
        }
    }
}

/// Float `t` of a line, in all sixteen lanes.
#[inline(always)]
unsafe fn number<L: Lanes>(line: &Line, t: usize) -> L {
    // SAFETY: the caller has the instructions; a line is sixteen floats.
    unsafe { L::splat(*line.0.as_ptr().cast::<f32>().add(t)) }
}
