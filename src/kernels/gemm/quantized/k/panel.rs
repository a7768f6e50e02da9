//! Rows of super-blocks unpacked once, in panels that are swept over all tokens.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::super::{Scratch, Task};
use super::blocks_of;
use crate::kernels::Isa;
use crate::kernels::gemm::formats::short_blocks::put;
use crate::kernels::gemm::formats::super_blocks::Super;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::bytes::{Bits, Bytes};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::ints::{Group, Ints};
use crate::kernels::simd::lanes::Lanes;

/// Blocks of a row that a panel holds: two panels fill two thirds of the first cache.
const BLOCKS: usize = 2;
/// Weight rows of a panel.
const ROWS: usize = 16;
/// Panels that are swept together.
const PANELS: usize = 2;
/// Tokens that they are swept over.
const SWEPT: usize = 128;
/// Tokens that share the loads of panels.
const TILE: usize = 4;
/// Lines of four columns of a block, and of sixteen columns.
const FOURS: usize = 64;
const GROUPS: usize = 16;

/// Some blocks of sixteen rows; each line holds one thing of each row, row by row.
#[repr(C, align(64))]
struct Panel {
    /// Four columns' codes.
    codes: [Line; FOURS * BLOCKS],
    /// The scale of a group of columns: twice as i16, or once as i32 where the panel is `WIDE`.
    scales: [Line; GROUPS * BLOCKS],
    /// Two i16 of two times sixteen columns: minima, or scales times the negative offset.
    lows: [Line; GROUPS / 2 * BLOCKS],
    /// The scales of the blocks.
    d: [[f32; ROWS]; BLOCKS],
    /// The negated ones of their minima.
    min: [[f32; ROWS]; BLOCKS],
}

/// A token's dot products with all rows of the panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; PANELS * ROWS]);

/// The columns that panels hold, of some tokens.
#[derive(Clone, Copy)]
struct Place<'a> {
    task: &'a Task<'a>,
    /// The first of the tokens.
    token: usize,
    /// The panels' first block, and how many they hold.
    block: usize,
    blocks: usize,
    ahead: Ahead,
}

impl Place<'_> {
    /// Token `t`'s values, scale and sums of block `b`.
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

    /// Fetches this block's part of what the next panels are made of.
    #[inline(always)]
    fn fetch<L: Lanes, K: Super>(&self, b: usize) {
        let Ahead { start, stride, from, each } = self.ahead;
        for row in from + b * each..(PANELS * ROWS).min(from + (b + 1) * each) {
            let start = start.wrapping_add(row * stride);
            (0..BLOCKS * K::BYTES + 64).step_by(64).for_each(|at| L::fetch(start.wrapping_add(at)));
        }
    }
}

/// What to fetch while tokens meet a panel.
#[derive(Clone, Copy)]
struct Ahead {
    /// The first row's first block to come, and how far it is from row to row.
    start: *const u8,
    stride: usize,
    /// The first row, and how many for each block.
    from: usize,
    each: usize,
}

/// The dot products of `task`, some rows at a time with all tokens.
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
                    match sums.len() {
                        1 => tile::<K, 1>(isa, panels, place, sums),
                        2 => tile::<K, 2>(isa, panels, place, sums),
                        3 => tile::<K, 3>(isa, panels, place, sums),
                        _ => tile::<K, TILE>(isa, panels, place, sums),
                    }
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
    /// Adds the columns of `place` of `T` tokens to their sums, block by block.
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
        place.fetch::<I::Lanes, K>(b);
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

/// Adds block `b` of `T` tokens with `P` panels, from number `n` on, to their sums.
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
        if !K::MINIMA {
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut dots);
        }
        for g in 0..FOURS / K::GROUP {
            let groups =
                panels.map(|p| Group { codes: p.codes.as_ptr().add(g * K::GROUP), scale: &p.scales[g] });
            I::add_group(&mut dots, K::GROUP, K::STEPS, groups, x.map(|x| x.0.add(4 * K::GROUP * g)));
        }
        add::<I, T, P>(panels.map(|p| p.d), dots, x.map(|x| *x.1), n, sums);
        if K::MINIMA {
            let mut minima = zero;
            lows::<I, T, P>(panels, x.map(|x| x.2), &mut minima);
            add::<I, T, P>(panels.map(|p| p.min), minima, x.map(|x| *x.1), n, sums);
        }
    }
}

/// Adds sums of sixteen columns times their minima, or what stands for them.
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

/// `sums += dots * (d * the token's scale)`.
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

/// The panels, and the sums of some tokens.
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
    /// Blocks `from..from + count` of sixteen rows of the task from row `first` on; the last row stands for those behind it.
    fn fill<K: Super>(panel: &mut Panel, task: &Task, first: usize, from: usize, count: usize)
        = fill_in::<ints>
);

#[inline(always)]
unsafe fn fill_in<I: Ints, K: Super>(
    panel: &mut Panel,
    task: &Task,
    first: usize,
    from: usize,
    count: usize,
) {
    assert!(
        task.rows > 0
            && (from + count) * K::BYTES <= task.row_bytes
            && task.packed.len() >= task.rows * task.row_bytes
    );
    for b in 0..count {
        let mut blocks: [&[u8]; ROWS] = [&[]; ROWS];
        let (mut d, mut min) = ([0; ROWS], [0; ROWS]);
        for r in 0..ROWS {
            let row = (first + r).min(task.rows - 1);
            let block = &task.packed[row * task.row_bytes + (from + b) * K::BYTES..][..K::BYTES];
            blocks[r] = block;
            d[r] = u16::from_le_bytes([block[K::D], block[K::D + 1]]);
            min[r] = u16::from_le_bytes([block[K::MIN], block[K::MIN + 1]]);
        }
        // SAFETY: the caller has the instructions; arrays of sixteen.
        unsafe {
            I::Lanes::load_f16(d.as_ptr()).store(panel.d[b].as_mut_ptr());
            let min = I::Lanes::load_f16(min.as_ptr()).mul(I::Lanes::splat(-1.0));
            min.store(panel.min[b].as_mut_ptr());
            for (half, blocks) in blocks.as_chunks::<8>().0.iter().enumerate() {
                panel.fill_codes::<I, K>(*blocks, b, half);
                panel.fill_scales::<I, K>(*blocks, b, half);
            }
        }
    }
}

impl Panel {
    /// Of block `b`, one of BLOCKS, half of the rows.
    #[inline(always)]
    unsafe fn fill_codes<I: Ints, K: Super>(&mut self, blocks: [&[u8]; 8], b: usize, half: usize) {
        // SAFETY: the caller has the instructions; 32 bytes from each of PACKED on lie in a block.
        unsafe {
            let zero = I::Bytes::load([0; 32].as_ptr());
            let mut columns = [[zero; 6]; 8];
            for (v, at) in K::PACKED.iter().enumerate() {
                for side in 0..2 {
                    let mut rows = [zero; 4];
                    for r in 0..4 {
                        let at = at + 16 * side;
                        rows[r] =
                            I::Bytes::halves(blocks[r].as_ptr().add(at), blocks[r + 4].as_ptr().add(at));
                    }
                    let four = I::Bytes::transpose(rows);
                    for j in 0..4 {
                        columns[4 * side + j][v] = four[j];
                    }
                }
            }
            for j in 0..8 {
                let codes = K::codes(columns[j]);
                for k in 0..8 {
                    put(&mut self.codes[FOURS * b + 8 * k + j], half, codes[k]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn fill_scales<I: Ints, K: Super>(&mut self, blocks: [&[u8]; 8], b: usize, half: usize) {
        let mut of_rows = [[[0; 16]; 2]; 8];
        for r in 0..8 {
            of_rows[r] = K::scales(blocks[r]);
        }
        // SAFETY: the caller has the instructions; arrays of sixteen.
        unsafe {
            let (mut scales, mut minima) =
                ([I::Bytes::load([0; 32].as_ptr()); 4], [I::Bytes::load([0; 32].as_ptr()); 4]);
            for r in 0..4 {
                let (a, b) = (&of_rows[r], &of_rows[r + 4]);
                scales[r] = I::Bytes::halves(a[0].as_ptr(), b[0].as_ptr());
                minima[r] = I::Bytes::halves(a[1].as_ptr(), b[1].as_ptr());
            }
            let (scales, minima) = (I::Bytes::transpose(scales), I::Bytes::transpose(minima));
            for line in 0..FOURS / K::GROUP {
                let group = line * K::GROUP / 4;
                let four = scales[group / 4];
                let scale = if I::WIDE { four.byte_as_i32(group % 4) } else { four.byte_as_i16s(group % 4) };
                put(&mut self.scales[GROUPS * b + line], half, scale);
            }
            for p in 0..GROUPS / 2 {
                let low = minima[p / 2].pair_as_i16s(p % 2);
                let low = if K::MINIMA { low } else { low.times(-K::OFFSET) };
                put(&mut self.lows[GROUPS / 2 * b + p], half, low);
            }
        }
    }
}
