//! Rows of super-blocks are unpacked once, in panels, and swept over all tokens.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::super::{Scratch, Task};
use super::{align_frame, blocks_of, has_lows, lows_of};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::super_blocks::{Super, column};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, Group, Ints, Part};
use crate::kernels::simd::lanes::{Lanes, Real, Register};

/// Number of blocks of a row in a panel: two panels fill two thirds of the L1 cache.
const BLOCKS: usize = 2;
/// Weight rows per panel.
const ROWS: usize = 16;
/// Number of panels that are swept together.
const PANELS: usize = 2;
/// Maximum number of tokens that they are swept over.
const SWEPT: usize = 128;
/// Number of tokens that share the loads of panels.
const TILE: usize = 4;
/// Lines of four columns per block, and groups of sixteen columns per block.
const FOURS: usize = 64;
const GROUPS: usize = 16;

/// Some blocks of sixteen rows. Each line has one item per row, row by row.
#[repr(C, align(64))]
struct Panel {
    /// Codes of four columns.
    codes: [Line; FOURS * BLOCKS],
    /// The scale of a group of columns, as `Part::factor`.
    scales: [Line; GROUPS * BLOCKS],
    /// Two i16 for each two groups of sixteen columns: minima, or scales times the negative offset.
    lows: [Line; GROUPS / 2 * BLOCKS],
    /// The scales of the blocks.
    d: [[f32; ROWS]; BLOCKS],
    /// The negated scales of their minima.
    min: [[f32; ROWS]; BLOCKS],
}

/// The dot products of a token with all rows of the panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; PANELS * ROWS]);

/// The columns that panels hold, with some tokens.
#[derive(Clone, Copy)]
struct Place<'a> {
    task: &'a Task<'a>,
    /// The first of the tokens.
    token: usize,
    /// The panels' first block, and the number of blocks that they hold.
    block: usize,
    blocks: usize,
    ahead: Ahead,
}

impl Place<'_> {
    /// The values, scale and sums of token `t` for block `b`.
    #[inline]
    fn at(&self, t: usize, b: usize) -> (*const i8, *const f32, *const i16) {
        let at = (self.token + t) * blocks_of(self.task) + self.block + b;
        let x = self.task.x;
        debug_assert!(at < x.scales.len());
        (
            x.values.as_ptr().wrapping_add(256 * at),
            x.scales.as_ptr().wrapping_add(at),
            x.sums.as_ptr().wrapping_add(16 * at),
        )
    }

    /// Prefetches part `n` of `of` of this block's share of the bytes for the next panels: all at once would wait.
    #[inline(always)]
    fn fetch<L: Lanes, K: Super>(&self, b: usize, n: usize, of: usize) {
        let Ahead { start, stride, from, each } = self.ahead;
        let from = from + b * each;
        for row in from + n * each / of..(PANELS * ROWS).min(from + (n + 1) * each / of) {
            L::Part::fetch_lines(start.wrapping_add(row * stride), BLOCKS * K::BYTES + 64);
        }
    }
}

/// Bytes to prefetch while tokens are multiplied with a panel.
#[derive(Clone, Copy)]
struct Ahead {
    /// The next block of the first row, and the distance between rows.
    start: *const u8,
    stride: usize,
    /// The first row, and the number of rows for each block.
    from: usize,
    each: usize,
}

/// Computes `task`: some rows at a time, with all tokens.
pub fn sweep<K: Super>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (tokens, blocks) = (task.x.tokens(), blocks_of(task));
    let (panels, sums) = buffers(scratch, tokens.min(SWEPT));
    for first in (0..task.rows).step_by(PANELS * ROWS) {
        for start in (0..tokens).step_by(SWEPT) {
            let sums = &mut sums[..SWEPT.min(tokens - start)];
            sums.fill(Sums([0.0; PANELS * ROWS]));
            for from in (0..blocks).step_by(BLOCKS) {
                let count = BLOCKS.min(blocks - from);
                for (n, panel) in panels.iter_mut().enumerate() {
                    fill::<K>(isa, panel, task, first + ROWS * n, from, count);
                }
                let next =
                    if from + count < blocks { (first, from + count) } else { (first + PANELS * ROWS, 0) };
                let each = (PANELS * ROWS).div_ceil(sums.len().div_ceil(TILE) * count);
                for (n, sums) in sums.chunks_mut(TILE).enumerate() {
                    let ahead = Ahead {
                        start: task.packed.as_ptr().wrapping_add(next.0 * task.row_bytes + next.1 * K::BYTES),
                        stride: task.row_bytes,
                        from: n * each * count,
                        each,
                    };
                    let place = Place { task, token: start + n * TILE, block: from, blocks: count, ahead };
                    by_count!(sums.len(), T in 1 2 3 4, tile::<K, T>(isa, panels, place, sums), else unreachable!());
                }
            }
            let rows = task.rows.min(first + PANELS * ROWS) - first;
            for (t, sums) in sums.iter().enumerate() {
                task.write(start + t, first, &sums.0[..rows]);
            }
        }
    }
}

by_isa!(
    /// Adds the products of the columns of `place` to the sums of `T` tokens, block by block.
    fn tile<K: Super, const T: usize>(panels: &[Panel; PANELS], place: Place, sums: &mut [Sums])
        = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Super, const T: usize>(
    panels: &[Panel; PANELS],
    place: Place,
    sums: &mut [Sums],
) {
    let sums = sums.first_chunk_mut::<T>().expect("sums of each token");
    for b in 0..place.blocks {
        // SAFETY (of both): the caller has the instructions; block b is one of `place`.
        if I::PANELS == PANELS {
            unsafe {
                block::<I, K, T, PANELS>(panels.each_ref().map(|panel| panel.block(b)), place, b, 0, sums)
            };
        } else {
            for (n, panel) in panels.iter().enumerate() {
                unsafe { block::<I, K, T, 1>([panel.block(b)], place, b, n, sums) };
            }
        }
    }
}

/// Adds the products of block `b` of `T` tokens with `P` panels, from panel `n` on, to the tokens' sums.
#[inline(always)]
unsafe fn block<I: Ints, K: Super, const T: usize, const P: usize>(
    panels: [Block; P],
    place: Place,
    b: usize,
    n: usize,
    sums: &mut [Sums; T],
) {
    // SAFETY: the caller has the instructions; a token has 256 values and 16 sums of a block.
    unsafe {
        let mut x = [(std::ptr::null(), std::ptr::null(), std::ptr::null()); T];
        for t in 0..T {
            x[t] = place.at(t, b);
        }
        let zero = [[I::zero(); P]; T];
        let mut dots = zero;
        if !K::MINIMA && has_lows::<K, I::Part>() {
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut dots);
        }
        for g in 0..FOURS / K::GROUP {
            let parts = FOURS / K::GROUP;
            place.fetch::<I::Lanes, K>(b, n / P * parts + g, PANELS / P * parts);
            let groups =
                panels.map(|p| Group { codes: p.codes.as_ptr().add(g * K::GROUP), scale: &p.scales[g] });
            let x = x.map(|x| x.0.add(4 * K::GROUP * g));
            match K::SIGNED && !I::Part::UNSIGNED {
                true => I::add_group::<true, T, P>(&mut dots, K::GROUP, K::STEPS, groups, x),
                false => I::add_group::<false, T, P>(&mut dots, K::GROUP, K::STEPS, groups, x),
            }
        }
        add::<I, T, P>(panels.map(|p| p.d), dots, x.map(|x| *x.1), n, sums);
        if K::MINIMA {
            let mut minima = zero;
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut minima);
            add::<I, T, P>(panels.map(|p| p.min), minima, x.map(|x| *x.1), n, sums);
        }
    }
}

/// Adds the sums of sixteen columns times their minima, or times scales with the negative offset.
#[inline(always)]
unsafe fn lows<I: Ints, const T: usize, const P: usize>(
    panels: [Block; P],
    x: [*const i16; T],
    to: &mut [[I; P]; T],
) {
    for pair in 0..GROUPS / 2 {
        // SAFETY: the caller has the instructions, and 16 sums of each token.
        unsafe { I::add_pairs(to, panels.map(|p| &p.lows[pair]), x.map(|x| x.add(2 * pair))) };
    }
}

/// `sums += dots * (d * scale)` with the token's `scale`.
#[inline(always)]
unsafe fn add<I: Ints, const T: usize, const P: usize>(
    d: [&[f32; ROWS]; P],
    dots: [[I; P]; T],
    scales: [f32; T],
    n: usize,
    sums: &mut [Sums; T],
) {
    for t in 0..T {
        for p in 0..P {
            // SAFETY: the caller has the instructions; ROWS floats of each panel.
            unsafe {
                let scale = I::Lanes::load(d[p].as_ptr()).mul(I::Lanes::splat(scales[t]));
                let sum = sums[t].0[ROWS * (n + p)..][..ROWS].as_mut_ptr();
                dots[t][p].to_f32().fma(scale, I::Lanes::load(sum)).store(sum);
            }
        }
    }
}

/// Buffers for the panels, and for the sums of some tokens.
fn buffers(scratch: &mut Scratch, tokens: usize) -> (&mut [Panel; PANELS], &mut [Sums]) {
    let lines = |bytes: usize| bytes / size_of::<Line>();
    let panels = grown(&mut scratch.codes, lines(size_of::<[Panel; PANELS]>()));
    let sums = grown(&mut scratch.partial, lines(size_of::<Sums>()) * tokens);
    // SAFETY: both are arrays of integers and floats without gaps, aligned as lines are, and as long as these.
    unsafe {
        (&mut *panels.as_mut_ptr().cast(), std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast(), tokens))
    }
}

/// One block of a panel.
#[derive(Clone, Copy)]
struct Block<'a> {
    codes: &'a [Line; FOURS],
    scales: &'a [Line; GROUPS],
    lows: &'a [Line; GROUPS / 2],
    d: &'a [f32; ROWS],
    min: &'a [f32; ROWS],
}

impl Panel {
    #[inline]
    fn block(&self, b: usize) -> Block<'_> {
        Block {
            codes: &self.codes.as_chunks().0[b],
            scales: &self.scales.as_chunks().0[b],
            lows: &self.lows.as_chunks().0[b],
            d: &self.d[b],
            min: &self.min[b],
        }
    }
}

by_isa!(
    /// Unpacks blocks `from..from + count` of sixteen rows of the task from row `first` on; past the task's end, its
    /// last row is repeated.
    fn fill<K: Super>(panel: &mut Panel, task: &Task, first: usize, from: usize, count: usize)
        = fill_in::<ints> tables if K::BOOK
);

#[inline(always)]
unsafe fn fill_in<I: Ints, K: Super>(
    panel: &mut Panel,
    task: &Task,
    first: usize,
    from: usize,
    count: usize,
) {
    align_frame::<K, I::Part>();
    assert!(
        task.rows > 0
            && (from + count) * K::BYTES <= task.row_bytes
            && task.packed.len() >= task.rows * task.row_bytes
    );
    let mut rows = [task.packed.as_ptr(); ROWS];
    for r in 0..ROWS {
        rows[r] = rows[r].wrapping_add((first + r).min(task.rows - 1) * task.row_bytes);
    }
    for (b, part) in (0..count).flat_map(|b| (0..ROWS / I::Part::ROWS).map(move |part| (b, part))) {
        // SAFETY: the caller has the instructions; a block of each row, as just checked.
        unsafe { panel.fill::<I, K>(&rows[part * I::Part::ROWS..], (from + b) * K::BYTES, b, part) };
    }
}

impl Panel {
    /// Unpacks block `b` (one of BLOCKS) of part of the rows, whose blocks are at `at`.
    #[inline(always)]
    unsafe fn fill<I: Ints, K: Super>(&mut self, rows: &[*const u8], at: usize, b: usize, part: usize) {
        // SAFETY: the caller's promise; part of a line, or of sixteen floats.
        unsafe {
            let first = part * I::Part::ROWS;
            let d = Floats::<I>::halves(rows, at + K::D).mul(Real::splat(K::UNIT));
            d.store(self.d[b].as_mut_ptr().add(first));
            let min = Floats::<I>::halves(rows, at + K::MIN).mul(Real::splat(-1.0));
            min.store(self.min[b].as_mut_ptr().add(first));
            for side in 0..2 {
                let packed = K::packed::<I::Part>(rows, at, side);
                for j in 0..4 {
                    let codes = K::codes(&packed, j);
                    for k in 0..8 {
                        let flip = K::SIGNED && I::Part::UNSIGNED;
                        let code = if flip { codes[k].flip() } else { codes[k] };
                        I::put(&mut self.codes, FOURS * b + column::<K>(k, side) / 4 + j, part, code);
                    }
                }
            }
            let [scales, minima] = K::scales::<I::Part>(rows, at);
            for group in 0..FOURS / K::GROUP {
                put(&mut self.scales[GROUPS * b + group], part, scales[group / 4].factor(group % 4));
            }
            for n in 0..if has_lows::<K, I::Part>() { GROUPS / 2 } else { 0 } {
                put(&mut self.lows[GROUPS / 2 * b + n], part, lows_of::<K, _>(minima, n));
            }
        }
    }
}
