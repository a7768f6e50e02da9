//! Rows of super-blocks unpacked once, in panels that are swept over all tokens: what AVX2 and AVX-512 share.

use super::k_avx2::{Super, blocks_of};
use super::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// Blocks of a row that a panel holds: two panels fill two thirds of the first cache.
pub const BLOCKS: usize = 2;
/// Weight rows of a panel.
pub const ROWS: usize = 16;
/// Panels that are swept together.
pub const PANELS: usize = 2;
/// Tokens that they are swept over.
const SWEPT: usize = 128;
/// Tokens that share the loads of panels.
const TILE: usize = 4;
/// Lines of four columns of a block, and of sixteen columns.
pub const FOURS: usize = 64;
pub const GROUPS: usize = 16;

/// Some blocks of sixteen rows; each line holds one thing of each row, row by row.
#[repr(C, align(64))]
pub struct Panel {
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
pub struct Sums(pub [f32; PANELS * ROWS]);

/// What multiplies panels with tokens.
pub trait Tiles {
    /// The kind of panels.
    const WIDE: bool;
    /// Adds the columns of `place` of `T` tokens to their sums, block by block.
    ///
    /// # Safety
    /// The machine has the instructions; `place` is one of a `check`ed task; `sums` has T elements.
    unsafe fn tile<K: Super, const T: usize>(panels: &[Panel; PANELS], place: Place, sums: &mut [Sums]);
}

/// The columns that panels hold, of some tokens.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    task: &'a Task<'a>,
    /// The first of the tokens.
    token: usize,
    /// The panels' first block, and how many they hold.
    block: usize,
    pub blocks: usize,
    ahead: Ahead,
}

impl Place<'_> {
    /// Token `t`'s values, scale and sums of block `b`.
    #[inline]
    pub fn at(&self, t: usize, b: usize) -> (*const i8, *const f32, *const i16) {
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
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn fetch<K: Super>(&self, b: usize) {
        let Ahead { start, stride, from, each } = self.ahead;
        for row in from + b * each..(PANELS * ROWS).min(from + (b + 1) * each) {
            fetch(start.wrapping_add(row * stride), BLOCKS * K::BYTES + 64);
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
///
/// # Safety
/// The machine has AVX2, FMA, F16C and the instructions of `V`; the task's lengths were `check`ed.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn sweep<K: Super, V: Tiles>(task: &Task, scratch: &mut Scratch) {
    let (tokens, blocks) = (task.x.tokens(), blocks_of(task));
    let (panels, sums) = buffers(scratch, tokens.min(SWEPT));
    for first in (0..task.rows).step_by(PANELS * ROWS) {
        for start in (0..tokens).step_by(SWEPT) {
            let sums = &mut sums[..SWEPT.min(tokens - start)];
            sums.fill(Sums([0.0; PANELS * ROWS]));
            for from in (0..blocks).step_by(BLOCKS) {
                let count = BLOCKS.min(blocks - from);
                for (n, panel) in panels.iter_mut().enumerate() {
                    panel.fill::<K>(task, first + ROWS * n, from, count, V::WIDE);
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
                    // SAFETY: the caller's promise.
                    unsafe {
                        match sums.len() {
                            1 => V::tile::<K, 1>(panels, place, sums),
                            2 => V::tile::<K, 2>(panels, place, sums),
                            3 => V::tile::<K, 3>(panels, place, sums),
                            _ => V::tile::<K, TILE>(panels, place, sums),
                        }
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
pub struct Block<'a> {
    pub codes: &'a [Line; FOURS],
    pub scales: &'a [Line; GROUPS],
    pub lows: &'a [Line; GROUPS / 2],
    pub d: &'a [f32; ROWS],
    pub min: &'a [f32; ROWS],
}

impl Panel {
    #[inline]
    pub fn block(&self, b: usize) -> Block<'_> {
        Block {
            codes: &self.codes.as_chunks().0[b],
            scales: &self.scales.as_chunks().0[b],
            lows: &self.lows.as_chunks().0[b],
            d: &self.d[b],
            min: &self.min[b],
        }
    }

    /// Blocks `from..from + count` of sixteen rows of the task from row `first` on; the last row stands for those behind it.
    #[target_feature(enable = "avx2,f16c")]
    fn fill<K: Super>(&mut self, task: &Task, first: usize, from: usize, count: usize, wide: bool) {
        assert!(
            task.rows > 0
                && (from + count) * K::BYTES <= task.row_bytes
                && task.packed.len() >= task.rows * task.row_bytes
        );
        let start = task.packed.as_ptr();
        for b in 0..count {
            for half in 0..ROWS / 8 {
                let mut blocks = [start; 8];
                for (r, block) in blocks.iter_mut().enumerate() {
                    let row = (first + 8 * half + r).min(task.rows - 1);
                    *block = start.wrapping_add(row * task.row_bytes + (from + b) * K::BYTES);
                }
                // SAFETY: each block lies in its row, as just checked.
                unsafe {
                    self.fill_codes::<K>(blocks, b, half);
                    self.fill_scales::<K>(blocks, b, half, wide);
                }
            }
        }
    }

    /// # Safety
    /// The machine has AVX2; `K::BYTES` bytes can be read at each of `blocks`; block `b` is one of BLOCKS, `half` 0 or 1.
    #[target_feature(enable = "avx2")]
    unsafe fn fill_codes<K: Super>(&mut self, blocks: [*const u8; 8], b: usize, half: usize) {
        let mut columns = [[_mm256_setzero_si256(); 8]; 6];
        for (columns, at) in columns.iter_mut().zip(K::PACKED) {
            for side in 0..2 {
                let mut rows = [_mm256_setzero_si256(); 4];
                for r in 0..4 {
                    // SAFETY: the caller's promise.
                    rows[r] = unsafe {
                        let load = |block: *const u8| _mm_loadu_si128(block.add(at + 16 * side).cast());
                        _mm256_inserti128_si256::<1>(
                            _mm256_castsi128_si256(load(blocks[r])),
                            load(blocks[r + 4]),
                        )
                    };
                }
                columns[4 * side..4 * side + 4].copy_from_slice(&transpose(rows));
            }
        }
        for j in 0..8 {
            let mut vectors = [_mm256_setzero_si256(); 6];
            for (vector, columns) in vectors.iter_mut().zip(&columns).take(K::PACKED.len()) {
                *vector = columns[j];
            }
            // SAFETY: the caller's promise.
            let codes = unsafe { K::codes(vectors) };
            for (k, codes) in codes.into_iter().enumerate() {
                put(&mut self.codes[FOURS * b + 8 * k + j], half, codes);
            }
        }
    }

    /// # Safety
    /// As for `fill_codes`, and the machine has F16C.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn fill_scales<K: Super>(&mut self, blocks: [*const u8; 8], b: usize, half: usize, wide: bool) {
        let (mut scales, mut minima) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
        let (mut d, mut min) = ([0u16; 8], [0u16; 8]);
        for r in 0..4 {
            // SAFETY: the caller's promise.
            unsafe {
                let (a, b) = (K::scales(blocks[r]), K::scales(blocks[r + 4]));
                scales[r] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a[0]), b[0]);
                minima[r] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a[1]), b[1]);
            }
        }
        for r in 0..8 {
            // SAFETY: the caller's promise.
            unsafe {
                d[r] = blocks[r].add(K::D).cast::<u16>().read_unaligned();
                min[r] = blocks[r].add(K::MIN).cast::<u16>().read_unaligned();
            }
        }
        let scales = transpose(scales);
        let minima = if K::MINIMA { transpose(minima) } else { scales };
        // Of each row's four bytes one or two become the upper ones of words, which are then shifted down.
        let of_words = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            -128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12,
        ));
        let of_pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            -128, 0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13,
        ));
        for line in 0..FOURS / K::GROUP {
            let group = line * K::GROUP / 4;
            let order = _mm256_add_epi8(of_words, _mm256_set1_epi8(group as i8 % 4));
            let words = _mm256_shuffle_epi8(scales[group / 4], order);
            let scale = if wide { _mm256_srai_epi32::<24>(words) } else { _mm256_srai_epi16::<8>(words) };
            put(&mut self.scales[GROUPS * b + line], half, scale);
        }
        for p in 0..GROUPS / 2 {
            let order = _mm256_add_epi8(of_pairs, _mm256_set1_epi8(2 * (p as i8 % 2)));
            let low = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(minima[p / 2], order));
            let low = if K::MINIMA { low } else { _mm256_mullo_epi16(low, _mm256_set1_epi16(-K::OFFSET)) };
            put(&mut self.lows[GROUPS / 2 * b + p], half, low);
        }
        // SAFETY: eight u16 each, and eight floats from 8 * half on of sixteen.
        unsafe {
            let d = _mm256_cvtph_ps(_mm_loadu_si128(d.as_ptr().cast()));
            _mm256_storeu_ps(self.d[b].as_mut_ptr().add(8 * half), d);
            let min = _mm_xor_si128(_mm_loadu_si128(min.as_ptr().cast()), _mm_set1_epi16(i16::MIN));
            _mm256_storeu_ps(self.min[b].as_mut_ptr().add(8 * half), _mm256_cvtph_ps(min));
        }
    }
}

/// Columns of four rows in each half: vector n holds the n-th 32-bit lanes of all.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: [__m256i; 4]) -> [__m256i; 4] {
    let [a, b] = [_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpacklo_epi32(v[2], v[3])];
    let [c, d] = [_mm256_unpackhi_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[2], v[3])];
    [
        _mm256_unpacklo_epi64(a, b),
        _mm256_unpackhi_epi64(a, b),
        _mm256_unpacklo_epi64(c, d),
        _mm256_unpackhi_epi64(c, d),
    ]
}

/// Half of a line.
#[inline]
#[target_feature(enable = "avx2")]
fn put(line: &mut Line, half: usize, v: __m256i) {
    let half = &mut line.0.as_chunks_mut::<32>().0[half];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), v) };
}
