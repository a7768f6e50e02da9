//! K-quants: weights in super-blocks of 256 columns. `quantized::scalar` says what is computed.
//!
//! A code times its integer scale has two bytes: a signed high one and an unsigned low one. So a block of sixteen rows and
//! sixteen tokens is twice four tiles' products, which become floats once. Minimums meet the tokens' sums likewise. A block
//! is decoded while the one before is multiplied: what was just stored is no tile yet.

use super::{SIDE, by_token, halves, in_steps, modelled};
use crate::kernels::gemm::formats::super_blocks::{Super, scales, with_super};
use crate::kernels::gemm::quantized::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::lanes::Lanes;
use crate::kernels::simd::wide::Wide;
use crate::kernels::{DType, Isa};

/// Bytes that tiles multiply.
pub const DEPTH: usize = 64;
/// Columns of a block, lines of one byte of each for sixteen rows or tokens.
const COLUMNS: usize = 256;
const LINES: usize = COLUMNS / DEPTH * SIDE;
/// What is made of a block of sixteen rows: high bytes, low bytes, minimums.
const CODE_LINES: usize = 2 * LINES + SIDE;
/// Blocks whose scales are still needed when the next one's are there.
const RING: usize = 3;
/// What is kept of a block of sixteen tokens: values, low and high bytes of sums, scales.
const TOKEN_LINES: usize = LINES + 9;
const LOW_SUMS: usize = LINES;
const HIGH_SUMS: usize = LINES + 4;
const SCALES: usize = LINES + 8;

/// Whether `isa` multiplies so many tokens with such weights with tiles. With the first number below they are 1.0 to 1.2 times
/// as fast as AVX-512 (on an Emerald Rapids, weights from memory).
pub fn pays(isa: Isa, dtype: DType, tokens: usize) -> bool {
    let least = match dtype {
        DType::Q2_K | DType::Q3_K | DType::Q5_K | DType::Q6_K => 6,
        DType::Q4_K => 9,
        _ => return false,
    };
    isa == Isa::Amx && (modelled() || tokens >= least)
}

/// Lines that `arrange` fills.
pub fn lines_of_group(x: &BlockActivations) -> usize {
    x.cols / COLUMNS * TOKEN_LINES
}

/// Lines behind all tokens' that tiles of sums may read.
pub const BEHIND: usize = SIDE;

entry!(
    /// Copies sixteen tokens' activations, in blocks of 256, into the order of right tiles.
    ///
    /// # Safety
    /// `Isa::Amx` is available.
    pub fn arrange(x: &BlockActivations, group: usize, out: &mut [Line]) = arrange_group
);
entry!(
    /// `task` with any number of tokens.
    ///
    /// # Safety
    /// `Isa::Amx` is available, this thread has tiles of `DEPTH`, and `arrange` has made `arranged`.
    pub fn run(task: &Task, arranged: &[Line], scratch: &mut Scratch) = product
);

/// Of sixteen tokens `TOKEN_LINES` for each block. Missing tokens repeat the last.
#[inline(always)]
unsafe fn arrange_group<S: Set>(x: &BlockActivations, group: usize, out: &mut [Line]) {
    let token = |t: usize| x.row((group * SIDE + t).min(x.tokens() - 1));
    let mut rows = [x.values.as_ptr().cast(); SIDE];
    for (t, row) in rows.iter_mut().enumerate() {
        *row = token(t).0.as_ptr().cast();
    }
    for (b, lines) in out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut().enumerate() {
        // SAFETY: 256 of a row's columns.
        unsafe { in_steps::<S>(&rows, COLUMNS * b, COLUMNS, &mut lines[..LINES]) };
    }
    for t in 0..SIDE {
        let (_, scales, sums) = token(t);
        let blocks = out.as_chunks_mut::<TOKEN_LINES>().0.iter_mut();
        for ((lines, scale), sums) in blocks.zip(scales).zip(sums.as_chunks::<16>().0) {
            lines[SCALES].0[4 * t..4 * t + 4].copy_from_slice(&scale.to_ne_bytes());
            for (g, sum) in sums.iter().enumerate() {
                let low = *sum as i8;
                lines[LOW_SUMS + g / 4].0[4 * t + g % 4] = low as u8;
                lines[HIGH_SUMS + g / 4].0[4 * t + g % 4] = ((sum - low as i16) >> 8) as u8;
            }
        }
    }
}

/// `task` with any number of tokens.
#[inline(always)]
unsafe fn product<S: Set>(task: &Task, arranged: &[Line], scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    unsafe { with_super!(task.dtype, K => Sweep::<S>::new(task, arranged, scratch).all::<K>()) }
}

struct Sweep<'a, S: Set> {
    task: &'a Task<'a>,
    tiles: S::Tiles,
    arranged: &'a [Line],
    blocks: usize,
    groups: usize,
    /// What was made of sixteen rows of a block and of the next one.
    codes: &'a mut [[Line; CODE_LINES]; 2],
    /// Of `RING` blocks the rows' scales, and negated ones of minimums.
    scales: &'a mut [[Line; 2]],
    /// Tiles of sums of a block with sixteen tokens and of the next ones: of codes, then of minimums.
    sums: &'a mut [[[Line; SIDE]; 4]; 2],
    /// Sums so far of sixteen rows with sixteen tokens each.
    partial: &'a mut [[Line; SIDE]],
}

/// A block of sixteen rows with sixteen tokens.
#[derive(Clone, Copy)]
struct Place {
    /// Of all blocks of the task.
    n: usize,
    group: usize,
    /// Where its sums are.
    slot: usize,
}

impl<'a, S: Set> Sweep<'a, S> {
    unsafe fn new(task: &'a Task<'a>, arranged: &'a [Line], scratch: &'a mut Scratch) -> Self {
        let (blocks, groups) = (task.x.cols / COLUMNS, task.x.tokens().div_ceil(SIDE));
        assert_eq!(task.row_bytes, blocks * task.dtype.block().1, "rows of whole blocks");
        assert_eq!(arranged.len(), groups * lines_of_group(task.x) + BEHIND, "tokens in order");
        let (codes, sums) = grown(&mut scratch.codes, 2 * CODE_LINES + 8 * SIDE).split_at_mut(2 * CODE_LINES);
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<4>().0;
        Self {
            task,
            // SAFETY: the caller's promise.
            tiles: unsafe { S::Tiles::new(DEPTH) },
            arranged,
            blocks,
            groups,
            codes: codes.as_chunks_mut().0.first_chunk_mut().expect("as many"),
            scales: grown(&mut scratch.scales, 2 * RING).as_chunks_mut().0,
            sums: sums.first_chunk_mut().expect("as many"),
            partial: grown(&mut scratch.partial, groups * SIDE).as_chunks_mut().0,
        }
    }

    #[inline(always)]
    unsafe fn all<K: Super>(&mut self) {
        let count = self.task.rows.div_ceil(SIDE) * self.blocks;
        // SAFETY (of all): the caller's promise.
        unsafe {
            let mut last: Option<Place> = None;
            for next in 0..=count {
                if next < count {
                    self.decode::<K>(next);
                }
                let Some(n) = next.checked_sub(1) else { continue };
                for group in 0..self.groups {
                    let place = Place { n, group, slot: last.map_or(0, |last| 1 - last.slot) };
                    self.multiply::<K>(place);
                    if let Some(last) = last.replace(place) {
                        self.add::<K>(last);
                    }
                }
            }
            if let Some(last) = last {
                self.add::<K>(last);
            }
        }
    }

    /// Block `n`; what is missing of sixteen rows is anything. Asks memory for as much of the next rows.
    #[inline(always)]
    unsafe fn decode<K: Super>(&mut self, n: usize) {
        let row_bytes = self.task.row_bytes;
        let (first, b) = (n / self.blocks * SIDE, n % self.blocks);
        let count = SIDE.min(self.task.rows - first);
        let rows = self.task.packed[first * row_bytes..(first + count) * row_bytes].as_ptr();
        let next = rows.wrapping_add(SIDE * (row_bytes + b * K::BYTES));
        let at = rows.wrapping_add(b * K::BYTES);
        let (to, [d, min]) = (&mut self.codes[n % 2], &mut self.scales[n % RING]);
        // SAFETY (of all): a block of these rows.
        unsafe {
            for r in 0..count {
                for line in r * K::BYTES / 64..(r + 1) * K::BYTES / 64 {
                    S::Lanes::fetch(next.wrapping_add(64 * line));
                }
                let block = at.add(r * row_bytes);
                let [scales, minimums] = scales::<K>(std::slice::from_raw_parts(block, K::BYTES));
                let codes = K::codes(packed::<K, S::Wide>(block));
                for k in 0..4 {
                    let codes = if K::OFFSET == 0 { codes[k] } else { codes[k].less(K::OFFSET as u8) };
                    let [low, high] = codes.times_scales(&scales, 2 * k);
                    high.store(to[k * SIDE + r].0.as_mut_ptr());
                    low.store(to[LINES + k * SIDE + r].0.as_mut_ptr());
                }
                if K::MINIMA {
                    S::Wide::first(minimums.as_ptr(), 16).store(to[2 * LINES + r].0.as_mut_ptr());
                }
            }
            halves::<S>(at.add(K::D), row_bytes, count).store(d.0.as_mut_ptr().cast());
            if K::MINIMA {
                let scales = halves::<S>(at.add(K::MIN), row_bytes, count);
                scales.mul(S::Lanes::splat(-1.0)).store(min.0.as_mut_ptr().cast());
            }
        }
    }

    /// The sums of a block with a group of tokens.
    #[inline(always)]
    unsafe fn multiply<K: Super>(&mut self, place: Place) {
        // Tiles of sums read past them, where left tiles have zeros.
        let x: *const u8 = self.tokens(place)[..HIGH_SUMS + SIDE].as_ptr().cast();
        let codes: *const u8 = self.codes[place.n % 2].as_ptr().cast();
        let to: *mut u8 = self.sums[place.slot].as_mut_ptr().cast();
        // SAFETY (of all): tiles of these lines.
        unsafe {
            self.tiles.zero::<0>();
            self.tiles.zero::<1>();
            for at in [0, 1024, 2048, 3072] {
                self.tiles.load::<6>(x.add(at), 64);
                self.tiles.load::<4>(codes.add(at), 64);
                self.tiles.dot_signed::<0, 4, 6>();
                self.tiles.load::<5>(codes.add(64 * LINES + at), 64);
                self.tiles.dot_unsigned::<1, 5, 6>();
            }
            if K::MINIMA {
                self.tiles.zero::<2>();
                self.tiles.zero::<3>();
                self.tiles.load::<4>(codes.add(128 * LINES), 64);
                self.tiles.load::<6>(x.add(64 * HIGH_SUMS), 64);
                self.tiles.dot_signed::<2, 4, 6>();
                self.tiles.load::<7>(x.add(64 * LOW_SUMS), 64);
                self.tiles.dot_signed::<3, 4, 7>();
            }
            self.tiles.store::<0>(to, 64);
            self.tiles.store::<1>(to.add(1024), 64);
            if K::MINIMA {
                self.tiles.store::<2>(to.add(2048), 64);
                self.tiles.store::<3>(to.add(3072), 64);
            }
        }
    }

    /// Adds them, times the scales. Behind a row's last block writes the outputs.
    #[inline(always)]
    unsafe fn add<K: Super>(&mut self, place: Place) {
        let Place { n, group, slot } = place;
        let (first, block) = (n / self.blocks * SIDE, n % self.blocks);
        let [d, min] = &self.scales[n % RING];
        let (d, min): (*const f32, *const f32) = (d.0.as_ptr().cast(), min.0.as_ptr().cast());
        let sums = &self.sums[slot];
        let own = self.tokens(place)[SCALES].0.as_ptr().cast();
        let partial = &mut self.partial[group];
        // SAFETY (of all): a line is sixteen numbers.
        unsafe {
            let own = S::Lanes::load(own);
            for (r, line) in partial.iter_mut().enumerate() {
                let sum = |tile: usize| sums[tile][r].0.as_ptr().cast::<i32>();
                let to: *mut f32 = line.0.as_mut_ptr().cast();
                let total = if block == 0 { S::Lanes::splat(0.0) } else { S::Lanes::load(to) };
                let dots = S::Lanes::load_split(sum(0), sum(1));
                let mut total = dots.fma(S::Lanes::splat(*d.add(r)).mul(own), total);
                if K::MINIMA {
                    let lows = S::Lanes::load_split(sum(2), sum(3));
                    total = lows.fma(S::Lanes::splat(*min.add(r)).mul(own), total);
                }
                total.store(to);
            }
            if block + 1 == self.blocks {
                let count = SIDE.min(self.task.rows - first);
                let tokens = SIDE.min(self.task.x.tokens() - SIDE * group);
                by_token::<S>(partial, tokens, count, |t, values| {
                    self.task.write(SIDE * group + t, first, values);
                });
            }
        }
    }

    #[inline(always)]
    fn tokens(&self, place: Place) -> &'a [Line] {
        &self.arranged[(place.group * self.blocks + place.n % self.blocks) * TOKEN_LINES..]
    }
}

/// What lies at PACKED for columns below 128, with what lies there for those above: of 2 or 4 vectors with codes, the second
/// half; of higher bits, the next vector or the upper half of each byte.
#[inline(always)]
unsafe fn packed<K: Super, W: Wide>(block: *const u8) -> [W; 6] {
    let codes = if K::PACKED.len() < 4 { 2 } else { 4 };
    // SAFETY (of all): 32 bytes at each lie in the block.
    unsafe {
        let at = |v: usize| block.add(K::PACKED[v]);
        let mut packed = [W::two(at(0), at(codes / 2)); 6];
        packed[1] = W::two(at(codes / 2 - 1), at(codes - 1));
        match K::PACKED.len() - codes {
            0 => {}
            1 => packed[codes] = W::nibbles(at(codes)),
            _ => packed[codes] = W::two(at(codes), at(codes + 1)),
        }
        packed
    }
}
