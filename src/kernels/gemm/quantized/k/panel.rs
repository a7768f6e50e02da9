//! Rows of super-blocks are unpacked once, in panels, and swept over all tokens.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::super::{Scratch, Task};
use super::{align_frame, blocks_of, has_lows, lows_of};
use crate::kernels::Isa;
use crate::kernels::gemm::formats::super_blocks::{Super, column};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::bytes::{Bytes, put};
use crate::kernels::simd::dispatch::{by_count, by_isa};
use crate::kernels::simd::ints::{Floats, Group, IntRegister, Ints};
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

/// A block of sixteen rows. Each line has one item per row, row by row.
#[repr(C, align(64))]
struct Block {
    /// Codes of four columns.
    codes: [Line; FOURS],
    /// The scale of a group of columns, as `IntRegister::factor`.
    scales: [Line; GROUPS],
    /// Two i16 for each two groups of sixteen columns: minima, or scales times the negative offset.
    lows: [Line; GROUPS / 2],
    /// The scale of the block.
    d: [f32; ROWS],
    /// The negated scale of its minima.
    min: [f32; ROWS],
}

type Panels = [[Block; BLOCKS]; PANELS];

/// The dot products of a token with all rows of the panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; PANELS * ROWS]);

/// The columns that panels hold, with some tokens.
#[derive(Clone, Copy)]
struct PanelRange<'a> {
    task: &'a Task<'a>,
    /// The first of the tokens.
    token: usize,
    /// The panels' first block, and the number of blocks that they hold.
    block: usize,
    blocks: usize,
    /// Prefetched while tokens are multiplied: the address of a row's next block, the first of the rows whose blocks
    /// are prefetched, and the number of rows per block.
    ahead: *const u8,
    from: usize,
    each: usize,
}

impl PanelRange<'_> {
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

    /// Prefetches part `n` of `of` of this block's share of the bytes for the next panels. If all were prefetched
    /// at once, they would wait for each other.
    #[inline(always)]
    fn fetch<L: Lanes, K: Super>(&self, b: usize, n: usize, of: usize) {
        let (from, each) = (self.from + b * self.each, self.each);
        for row in from + n * each / of..(PANELS * ROWS).min(from + (n + 1) * each / of) {
            let row = self.ahead.wrapping_add(row * self.task.row_bytes);
            L::Register::fetch_lines(row, BLOCKS * K::BYTES + 64);
        }
    }
}

/// Computes `task`: some rows at a time, with all tokens.
pub(super) fn sweep<K: Super>(isa: Isa, task: &Task, scratch: &mut Scratch) {
    let (tokens, blocks) = (task.x.tokens(), blocks_of(task));
    let (panels, sums) = buffers(scratch, tokens.min(SWEPT));
    for first in (0..task.rows).step_by(PANELS * ROWS) {
        for start in (0..tokens).step_by(SWEPT) {
            let sums = &mut sums[..SWEPT.min(tokens - start)];
            sums.fill(Sums([0.0; PANELS * ROWS]));
            for at in (0..blocks).step_by(BLOCKS) {
                let count = BLOCKS.min(blocks - at);
                for (n, panel) in panels.iter_mut().enumerate() {
                    fill::<K>(isa, &mut panel[..count], task, first + ROWS * n, at);
                }
                let next = if at + count < blocks { (first, at + count) } else { (first + PANELS * ROWS, 0) };
                let each = (PANELS * ROWS).div_ceil(sums.len().div_ceil(TILE) * count);
                for (n, sums) in sums.chunks_mut(TILE).enumerate() {
                    let ahead =
                        task.packed.as_ptr().wrapping_add(next.0 * task.row_bytes + next.1 * K::BYTES);
                    let (token, from) = (start + n * TILE, n * each * count);
                    let range = PanelRange { task, token, block: at, blocks: count, ahead, from, each };
                    by_count!(sums.len(), T in 1 2 3 4, tile::<K, T>(isa, panels, range, sums), else unreachable!());
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                task.write_array(start + t, first, &sums.0);
            }
        }
    }
}

by_isa!(
    /// Adds the products of the columns of `range` to the sums of `T` tokens, block by block.
    fn tile<K: Super, const T: usize>(panels: &Panels, range: PanelRange, sums: &mut [Sums])
        = tile_in::<ints>
);

#[inline(always)]
unsafe fn tile_in<I: Ints, K: Super, const T: usize>(panels: &Panels, range: PanelRange, sums: &mut [Sums]) {
    let sums = sums.first_chunk_mut::<T>().expect("sums of each token");
    for b in 0..range.blocks {
        // SAFETY (of both): the caller has the instructions; block b is one of `range`.
        if I::PANELS == PANELS {
            unsafe { block::<I, K, T, PANELS>(panels.each_ref().map(|panel| &panel[b]), range, b, 0, sums) };
        } else {
            for (n, panel) in panels.iter().enumerate() {
                unsafe { block::<I, K, T, 1>([&panel[b]], range, b, n, sums) };
            }
        }
    }
}

/// Adds the products of block `b` of `T` tokens with `P` panels, from panel `n` on, to the tokens' sums.
#[inline(always)]
unsafe fn block<I: Ints, K: Super, const T: usize, const P: usize>(
    panels: [&Block; P],
    range: PanelRange,
    b: usize,
    n: usize,
    sums: &mut [Sums; T],
) {
    // SAFETY: the caller has the instructions; a token has 256 values and 16 sums of a block.
    unsafe {
        let mut x = [(std::ptr::null(), std::ptr::null(), std::ptr::null()); T];
        for t in 0..T {
            x[t] = range.at(t, b);
        }
        let zero = [[I::zero(); P]; T];
        let mut dots = zero;
        if !K::MINIMA && has_lows::<K, I::Register>() {
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut dots);
        }
        for g in 0..FOURS / K::GROUP {
            let parts = FOURS / K::GROUP;
            range.fetch::<I::Lanes, K>(b, n / P * parts + g, PANELS / P * parts);
            let groups =
                panels.map(|p| Group { codes: p.codes.as_ptr().add(g * K::GROUP), scale: &p.scales[g] });
            let x = x.map(|x| x.0.add(4 * K::GROUP * g));
            match K::SIGNED && !I::Register::UNSIGNED {
                true => I::add_group::<true, T, P>(&mut dots, K::GROUP, K::STEPS, groups, x),
                false => I::add_group::<false, T, P>(&mut dots, K::GROUP, K::STEPS, groups, x),
            }
        }
        add::<I, T, P>(panels.map(|p| &p.d), dots, x.map(|x| *x.1), n, sums);
        if K::MINIMA {
            let mut minima = zero;
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut minima);
            add::<I, T, P>(panels.map(|p| &p.min), minima, x.map(|x| *x.1), n, sums);
        }
    }
}

/// Adds the sums of sixteen columns times their minima, or times scales with the negative offset.
#[inline(always)]
unsafe fn lows<I: Ints, const T: usize, const P: usize>(
    panels: [&Block; P],
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
fn buffers(scratch: &mut Scratch, tokens: usize) -> (&mut Panels, &mut [Sums]) {
    let lines = |bytes: usize| bytes / size_of::<Line>();
    let panels = grown(&mut scratch.codes, lines(size_of::<Panels>()));
    let sums = grown(&mut scratch.partial, lines(size_of::<Sums>()) * tokens);
    // SAFETY: both are arrays of integers and floats without gaps, aligned as lines are, and as long as these.
    unsafe {
        (&mut *panels.as_mut_ptr().cast(), std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast(), tokens))
    }
}

by_isa!(
    /// Unpacks the blocks from number `from` on of sixteen rows of the task from row `first` on; past the task's end,
    /// its last row is repeated.
    fn fill<K: Super>(panel: &mut [Block], task: &Task, first: usize, from: usize)
        = fill_in::<ints> tables if K::LOOKED_UP
);

#[inline(always)]
unsafe fn fill_in<I: Ints, K: Super>(panel: &mut [Block], task: &Task, first: usize, from: usize) {
    align_frame::<K, I::Register>();
    assert!((from + panel.len()) * K::BYTES <= task.row_bytes);
    let rows = task.addresses(first, ROWS);
    for (b, block) in panel.iter_mut().enumerate() {
        for part in 0..ROWS / I::Register::ROWS {
            // SAFETY: the caller has the instructions; a block of each row, as just checked.
            unsafe { block.fill::<I, K>(&rows[part * I::Register::ROWS..], (from + b) * K::BYTES, part) };
        }
    }
}

impl Block {
    /// Unpacks the block at `at` of part of the rows.
    #[inline(always)]
    unsafe fn fill<I: Ints, K: Super>(&mut self, rows: &[*const u8], at: usize, part: usize) {
        // SAFETY: the caller's promise; part of a line, or of sixteen floats.
        unsafe {
            let first = part * I::Register::ROWS;
            let d = Floats::<I>::halves(rows, at + K::D).mul(Real::splat(K::UNIT));
            d.store(self.d.as_mut_ptr().add(first));
            let min = Floats::<I>::halves(rows, at + K::MIN).mul(Real::splat(-1.0));
            min.store(self.min.as_mut_ptr().add(first));
            for side in 0..2 {
                let packed = K::packed::<I::Register>(rows, at, side);
                for j in 0..4 {
                    let codes = K::codes(&packed, j);
                    for k in 0..8 {
                        let flip = K::SIGNED && I::Register::UNSIGNED;
                        let code = if flip { codes[k].flip() } else { codes[k] };
                        I::put(&mut self.codes, column::<K>(k, side) / 4 + j, part, code);
                    }
                }
            }
            let [scales, minima] = K::scales::<I::Register>(rows, at);
            for group in 0..FOURS / K::GROUP {
                put(&mut self.scales[group], part, scales[group / 4].factor(group % 4));
            }
            for n in 0..if has_lows::<K, I::Register>() { GROUPS / 2 } else { 0 } {
                put(&mut self.lows[n], part, lows_of::<K, _>(minima, n));
            }
        }
    }
}
