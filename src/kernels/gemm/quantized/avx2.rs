//! Products with weights in blocks of 32 with AVX2, FMA and F16C; `quantized::scalar` says what each computes.
//!
//! Lanes are weight rows, so a row's blocks are added up in their order. Few tokens: eight rows are read as they lie.
//! More: the codes of sixteen rows are transposed once and swept over the tokens.
//!
//! `vpmaddubsw` multiplies unsigned codes with int8 from -127 to 127 and adds pairs: of 4 bits at most 3810 in magnitude,
//! of 5 bits 7874, of 8 bits, whose sign goes to the activation, 128·127·2 = 32512: an i16 lane holds each, and eight of
//! the first (30480), or four of the second (31496).

// Tiles of registers are indexed by constants; iterators over several of them hide which.
#![allow(clippy::needless_range_loop)]

use super::planes::avx2 as planes;
use super::{Scratch, Task};
use crate::kernels::DType;
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::x86::{fetch, load, pinned};
use std::arch::x86_64::*;
use std::hint::black_box;

/// Weight rows whose codes are transposed together: two vectors of eight.
pub const LANES: usize = 16;
/// Blocks that are transposed at once: their codes take half of the first-level cache.
pub const DEPTH: usize = 32;
/// Tokens that share the loads of codes.
const TILE: usize = 4;
/// Bytes behind the next eight rows that are asked for while eight rows are read as they lie.
pub const AHEAD: usize = 4096;
/// Tokens that transposed codes are swept over before they are made again: bounds what waits for the next columns.
pub const SWEPT: usize = 256;

/// # Safety
/// 16 bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn half(at: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// 16 bytes at each, one behind the other.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn both(a: *const u8, b: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(half(a)), half(b)) }
}

/// Pairs of i16 to i32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(narrow: __m256i) -> __m256i {
    _mm256_madd_epi16(narrow, _mm256_set1_epi16(1))
}

/// A type with blocks of 32: an f16 scale, then an f16 minimum where it has minimums, then codes.
pub trait Format {
    /// Bytes of a block.
    const BYTES: usize;
    const MINIMUMS: bool;
    /// What is to be taken from each code.
    const OFFSET: i16;
    /// Codes are int8. Others are unsigned.
    const SIGNED: bool;
    /// Products of how many times four columns an i16 holds.
    const STEPS: usize;

    /// Columns 0 to 15 of the blocks at `a` and at `b`, then columns 16 to 31.
    ///
    /// # Safety
    /// Both blocks can be read.
    unsafe fn pair(a: *const u8, b: *const u8) -> [__m256i; 2];

    /// All columns of a block.
    ///
    /// # Safety
    /// It can be read.
    unsafe fn codes(block: *const u8) -> __m256i;
}

#[allow(non_camel_case_types)] // the names that files and their users know
pub struct Q8_0;
/// 4 bits; with minimums, 4 bytes of scales, or with an offset, 2.
pub struct Four<const MINIMUMS: bool>;
/// As `Four`, with the fifth bits of all columns in four bytes behind the scales.
pub struct Five<const MINIMUMS: bool>;

impl Format for Q8_0 {
    const BYTES: usize = 34;
    const MINIMUMS: bool = false;
    const OFFSET: i16 = 0;
    const SIGNED: bool = true;
    const STEPS: usize = 1;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair(a: *const u8, b: *const u8) -> [__m256i; 2] {
        // SAFETY: bytes 2 to 33 of 34.
        unsafe { [both(a.add(2), b.add(2)), both(a.add(18), b.add(18))] }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes(block: *const u8) -> __m256i {
        // SAFETY: bytes 2 to 33 of 34.
        unsafe { load(block.add(2)) }
    }
}

/// The low four bits of each byte, and the high ones.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(packed: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8(15);
    // A shift of 16-bit lanes: what crosses from byte to byte falls to the mask.
    [_mm256_and_si256(packed, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask)]
}

impl<const MINIMUMS: bool> Four<MINIMUMS> {
    const AT: usize = if MINIMUMS { 4 } else { 2 };
}

impl<const M: bool> Format for Four<M> {
    const BYTES: usize = Self::AT + 16;
    const MINIMUMS: bool = M;
    const OFFSET: i16 = if M { 0 } else { 8 };
    const SIGNED: bool = false;
    const STEPS: usize = 8;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair(a: *const u8, b: *const u8) -> [__m256i; 2] {
        // SAFETY: the last 16 bytes of each block.
        nibbles(unsafe { both(a.add(Self::AT), b.add(Self::AT)) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes(block: *const u8) -> __m256i {
        // SAFETY: the last 16 bytes of the block.
        let packed = unsafe { half(block.add(Self::AT)) };
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(packed), _mm_srli_epi16::<4>(packed));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// 16 where a bit is set. `bits` has 32 of them in each half, `order` says which byte of it each byte wants.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth(bits: __m256i, order: __m256i) -> __m256i {
    let each = _mm256_set1_epi64x(0x8040201008040201u64 as i64);
    let set = _mm256_and_si256(_mm256_shuffle_epi8(bits, order), each);
    _mm256_and_si256(_mm256_cmpeq_epi8(set, each), _mm256_set1_epi8(16))
}

/// # Safety
/// Four bytes at `at` can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn word(at: *const u8) -> __m128i {
    // SAFETY: the caller's promise.
    _mm_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

impl<const MINIMUMS: bool> Five<MINIMUMS> {
    const AT: usize = if MINIMUMS { 4 } else { 2 };
}

impl<const M: bool> Format for Five<M> {
    const BYTES: usize = Self::AT + 20;
    const MINIMUMS: bool = M;
    const OFFSET: i16 = if M { 0 } else { 16 };
    const SIGNED: bool = false;
    const STEPS: usize = 4;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn pair(a: *const u8, b: *const u8) -> [__m256i; 2] {
        // SAFETY: the last 20 bytes of each block.
        let ([low, high], bits) = unsafe {
            let (a, b) = (a.add(Self::AT), b.add(Self::AT));
            let bits = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(word(a)), word(b));
            (nibbles(both(a.add(4), b.add(4))), bits)
        };
        let first = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
        let last = _mm256_or_si256(first, _mm256_set1_epi8(2));
        [_mm256_or_si256(low, fifth(bits, first)), _mm256_or_si256(high, fifth(bits, last))]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn codes(block: *const u8) -> __m256i {
        // SAFETY: the last 20 bytes of the block.
        let (packed, bits) = unsafe { (half(block.add(Self::AT + 4)), word(block.add(Self::AT))) };
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(packed), _mm_srli_epi16::<4>(packed));
        let order = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
        let fifth = fifth(_mm256_broadcastsi128_si256(bits), order);
        _mm256_or_si256(_mm256_and_si256(both, _mm256_set1_epi8(15)), fifth)
    }
}

/// `run` of an instruction set: few tokens with rows as they lie, more by the set's own `sweep`. `pairs` and `offset` are its
/// own too: the products of a block's codes, and what each of these is too large by. `planes` are all of its products with
/// types of one or two bits. (A macro, since features are not generic.)
macro_rules! forms {
    ($features:literal) => {
        /// `task` with any number of tokens.
        #[target_feature(enable = $features)]
        pub fn run(task: &Task, scratch: &mut Scratch) {
            match task.dtype {
                DType::Q8_0 => run_of::<Q8_0>(task, scratch),
                DType::Q4_0 => run_of::<Four<false>>(task, scratch),
                DType::Q4_1 => run_of::<Four<true>>(task, scratch),
                DType::Q5_0 => run_of::<Five<false>>(task, scratch),
                DType::Q5_1 => run_of::<Five<true>>(task, scratch),
                DType::Q1_0 => planes::<1, 4>(task),
                DType::Q2_0 => planes::<2, 2>(task),
                DType::Q2_0_128 => planes::<2, 4>(task),
                other => unreachable!("{other:?} is no type for blocks of 32"),
            }
        }

        #[target_feature(enable = $features)]
        fn run_of<F: Format>(task: &Task, scratch: &mut Scratch) {
            assert_eq!(task.row_bytes, task.x.cols / 32 * F::BYTES, "rows of whole blocks");
            match task.x.tokens() {
                0 => {}
                1 => few::<F, 1>(task),
                2 => few::<F, 2>(task),
                3 => few::<F, 3>(task),
                // Where codes fill their bytes, transposing pays later.
                4 if F::SIGNED => few::<F, 4>(task),
                _ => sweep::<F>(task, scratch),
            }
        }

        /// `T` tokens, with eight rows at once.
        #[target_feature(enable = $features)]
        fn few<F: Format, const T: usize>(task: &Task) {
            let x = task.tokens::<T>(0, 0..task.x.cols / 32);
            for first in (0..task.rows).step_by(8) {
                // Of a group that the task cuts short the surplus results are dropped.
                let w = task.group::<8>(first).map(<[u8]>::as_ptr);
                let mut totals = [_mm256_setzero_ps(); T];
                for b in 0..task.x.cols / 32 {
                    let at = b * F::BYTES;
                    // As much of the next rows as is used of these: memory is fastest in its own order.
                    fetch(w[0].wrapping_add(AHEAD + 8 * (task.row_bytes + at)), 8 * F::BYTES);
                    // SAFETY: block b of eight rows, and its 32 values of each token.
                    unsafe {
                        let blocks = w.map(|w| w.add(at));
                        let [scales, minimums] = halves(blocks);
                        let dots = pairs::<F, T>(blocks, x.map(|x| x.0.as_ptr().add(32 * b)));
                        for t in 0..T {
                            let (_, scale, sum) = x[t];
                            let (scale, sum) = (*scale.get_unchecked(b), *sum.get_unchecked(b));
                            let offset = _mm256_set1_epi32(offset::<F>() * sum as i32);
                            let dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[t], offset));
                            let both = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
                            totals[t] = _mm256_fmadd_ps(dot, both, totals[t]);
                            if F::MINIMUMS {
                                let sum = _mm256_set1_ps(scale * sum as f32);
                                totals[t] = _mm256_fmadd_ps(minimums, sum, totals[t]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    let mut values = [0.0; 8];
                    // SAFETY: eight floats.
                    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), totals[t]) };
                    task.write(t, first, &values[..(task.rows - first).min(8)]);
                }
            }
        }
    };
}
pub(super) use forms;

forms!("avx2,fma,f16c");

/// What is to be taken from each code.
const fn offset<F: Format>() -> i32 {
    F::OFFSET as i32
}

/// The first f16 of each block, and the second.
///
/// # Safety
/// 16 bytes of each can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn halves(blocks: [*const u8; 8]) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d, e, f, g, h] = blocks.map(|block| unsafe { half(block) });
    let four = |a, b, c, d| _mm_unpacklo_epi32(_mm_unpacklo_epi16(a, b), _mm_unpacklo_epi16(c, d));
    let (low, high) = (four(a, b, c, d), four(e, f, g, h));
    [_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)), _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high))]
}

/// `code · x` of a block of each of eight rows, a lane for each, with `T` tokens.
///
/// # Safety
/// The blocks can be read, and 32 values at each `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pairs<F: Format, const T: usize>(blocks: [*const u8; 8], x: [*const i8; T]) -> [__m256i; T] {
    let mut sums = [[_mm256_setzero_si256(); 4]; T];
    for p in 0..4 {
        // SAFETY: the caller's promise.
        let codes = unsafe { F::pair(blocks[p], blocks[p + 4]) };
        for t in 0..T {
            let mut products = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                // SAFETY: the caller's promise.
                let x = _mm256_broadcastsi128_si256(unsafe { half(x[t].add(16 * h).cast()) });
                products[h] = multiply::<F>(codes[h], x);
            }
            // Of 4 bits an i16 holds all that is added up here; others are widened first.
            sums[t][p] = match F::STEPS {
                8 => _mm256_add_epi16(products[0], products[1]),
                4 => widen(_mm256_add_epi16(products[0], products[1])),
                _ => _mm256_add_epi32(widen(products[0]), widen(products[1])),
            };
        }
    }
    sums.map(|[a, b, c, d]| match F::STEPS {
        8 => widen(_mm256_hadd_epi16(_mm256_hadd_epi16(a, b), _mm256_hadd_epi16(c, d))),
        _ => _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)),
    })
}

/// Products of codes and values, pairs of them added to an i16.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply<F: Format>(codes: __m256i, x: __m256i) -> __m256i {
    if F::SIGNED {
        // -128 is 128 as an unsigned number.
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(codes, x)
    }
}

/// Transposes the codes of `LANES` rows, `DEPTH` blocks of them at a time, and multiplies those with all tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn sweep<F: Format>(task: &Task, scratch: &mut Scratch) {
    let (blocks, tokens) = (task.x.cols / 32, task.x.tokens());
    let codes = grown(&mut scratch.codes, 8 * DEPTH.min(blocks));
    let scales = grown(&mut scratch.scales, 2 * DEPTH.min(blocks));
    let partial = grown(&mut scratch.partial, tokens.min(SWEPT));
    for begin in (0..tokens).step_by(SWEPT) {
        let partial = &mut partial[..SWEPT.min(tokens - begin)];
        for first in (0..task.rows).step_by(LANES) {
            let count = LANES.min(task.rows - first);
            // Of a group that the task cuts short the surplus results are dropped.
            let w = task.group::<LANES>(first);
            partial.fill(Line::default());
            for start in (0..blocks).step_by(DEPTH) {
                let depth = DEPTH.min(blocks - start);
                let (codes, scales) = (&mut codes[..8 * depth], &mut scales[..2 * depth]);
                transpose::<F, false>(w, start, codes, scales, true);
                for (n, partial) in partial.chunks_mut(TILE).enumerate() {
                    let step = Step { task, codes, scales, start, first: begin + n * TILE };
                    match partial {
                        [a] => step.tile::<F, 1>([a]),
                        [a, b] => step.tile::<F, 2>([a, b]),
                        [a, b, c] => step.tile::<F, 3>([a, b, c]),
                        [a, b, c, d] => step.tile::<F, TILE>([a, b, c, d]),
                        _ => unreachable!("a chunk of tokens"),
                    }
                }
            }
            for (t, partial) in partial.iter().enumerate() {
                task.write(begin + t, first, &floats(partial)[..count]);
            }
        }
    }
}

pub fn floats(line: &Line) -> [f32; LANES] {
    let bytes = line.0.as_chunks::<4>().0;
    std::array::from_fn(|i| f32::from_ne_bytes(bytes[i]))
}

/// Blocks `start..` of packed rows: line 8 b + k of `codes` has columns 4 k to 4 k + 3 of block b, row by row, line 2 b of
/// `scales` the rows' scales, and the line behind it their minimums. Where codes are to be `UNSIGNED`, signed ones become
/// 128 larger. Meanwhile the next rows are asked for if `ask`.
#[target_feature(enable = "avx2,f16c")]
pub fn transpose<F: Format, const UNSIGNED: bool>(
    w: [&[u8]; LANES],
    start: usize,
    codes: &mut [Line],
    scales: &mut [Line],
    ask: bool,
) {
    let end = start + codes.len() / 8;
    assert!(w.iter().all(|w| w.len() >= end * F::BYTES) && scales.len() == 2 * (end - start));
    let lines = codes.as_chunks_mut::<8>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (b, (codes, [scales, minimums])) in (start..end).zip(lines) {
        if ask {
            fetch(w[0].as_ptr().wrapping_add(LANES * (w[0].len() + b * F::BYTES)), LANES * F::BYTES);
        }
        for v in 0..2 {
            // SAFETY: block b of each row; 32 bytes at 32 v of each line's 64.
            unsafe {
                let blocks = std::array::from_fn(|r| w[8 * v + r].as_ptr().add(b * F::BYTES));
                let [d, m] = halves(blocks);
                _mm256_store_ps(scales.0.as_mut_ptr().add(32 * v).cast(), d);
                if F::MINIMUMS {
                    _mm256_store_ps(minimums.0.as_mut_ptr().add(32 * v).cast(), m);
                }
                let mut rows = [_mm256_setzero_si256(); 8];
                for r in 0..8 {
                    rows[r] = F::codes(blocks[r]);
                    if UNSIGNED && F::SIGNED {
                        rows[r] = _mm256_xor_si256(rows[r], _mm256_set1_epi8(-128));
                    }
                }
                for (line, column) in codes.iter_mut().zip(columns(rows)) {
                    _mm256_store_si256(line.0.as_mut_ptr().add(32 * v).cast(), column);
                }
            }
        }
    }
}

/// Rows of eight 32-bit lanes to columns.
#[inline]
#[target_feature(enable = "avx2")]
pub fn columns(v: [__m256i; 8]) -> [__m256i; 8] {
    let pairs: [[__m256i; 2]; 4] =
        [0, 2, 4, 6].map(|n| [_mm256_unpacklo_epi32(v[n], v[n + 1]), _mm256_unpackhi_epi32(v[n], v[n + 1])]);
    // Columns c and c + 4 of four rows.
    let fours: [[__m256i; 4]; 2] = [0, 2].map(|n| {
        let [[a, b], [c, d]] = [pairs[n], pairs[n + 1]];
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    });
    std::array::from_fn(|c| {
        let (a, b) = (fours[0][c % 4], fours[1][c % 4]);
        if c < 4 { _mm256_permute2x128_si256::<0x20>(a, b) } else { _mm256_permute2x128_si256::<0x31>(a, b) }
    })
}

/// Transposed codes of blocks `start..` and the tokens `first..` that they meet.
struct Step<'a> {
    task: &'a Task<'a>,
    codes: &'a [Line],
    scales: &'a [Line],
    start: usize,
    first: usize,
}

impl Step<'_> {
    /// Adds to the sums of `T` tokens, block by block.
    #[target_feature(enable = "avx2,fma")]
    fn tile<F: Format, const T: usize>(&self, partial: [&mut Line; T]) {
        let x = self.task.tokens::<T>(self.first, self.start..self.start + self.codes.len() / 8);
        let lines = self.codes.as_chunks::<8>().0.iter().zip(self.scales.as_chunks::<2>().0);
        // A number that the compiler does not know: it would write out the whole block, and run out of registers.
        let steps = black_box(if F::STEPS == 1 { 8 } else { F::STEPS });
        for (b, (codes, [scales, minimums])) in lines.enumerate() {
            // SAFETY: 32 values of block b of each token; its scale and sum; eight floats at each half of a line.
            unsafe {
                let dots = dots::<F, T>(codes, x.map(|x| x.0.as_ptr().add(32 * b)), steps);
                for t in 0..T {
                    let (scale, sum) = (*x[t].1.get_unchecked(b), *x[t].2.get_unchecked(b));
                    let offset = _mm256_set1_epi32(F::OFFSET as i32 * sum as i32);
                    for v in 0..2 {
                        let dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(dots[t][v], offset));
                        let own = _mm256_load_ps(scales.0.as_ptr().add(32 * v).cast());
                        let at = partial[t].0.as_mut_ptr().add(32 * v).cast::<f32>();
                        let both = _mm256_mul_ps(own, _mm256_set1_ps(scale));
                        let mut total = _mm256_fmadd_ps(dot, both, _mm256_load_ps(at));
                        if F::MINIMUMS {
                            let low = _mm256_load_ps(minimums.0.as_ptr().add(32 * v).cast());
                            total = _mm256_fmadd_ps(low, _mm256_set1_ps(scale * sum as f32), total);
                        }
                        _mm256_store_ps(at, total);
                    }
                }
            }
        }
    }
}

/// `code · x` of a block of sixteen rows, two vectors of lanes, with `T` tokens. `steps` is F::STEPS, or 8 if those are 1.
///
/// # Safety
/// 32 values can be read at each `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots<F: Format, const T: usize>(
    codes: &[Line; 8],
    x: [*const i8; T],
    steps: usize,
) -> [[__m256i; 2]; T] {
    let mut wide = [[_mm256_setzero_si256(); 2]; T];
    let widened = F::STEPS == 1;
    for part in codes.chunks_exact(if widened { 8 } else { F::STEPS }).enumerate() {
        let (n, lines) = part;
        let mut narrow = [[_mm256_setzero_si256(); 2]; T];
        for k in 0..steps {
            // SAFETY: a line's 64 bytes, and the caller's promise.
            unsafe {
                let line = lines.get_unchecked(k).0.as_ptr();
                let w = [load(line), load(line.add(32))];
                for t in 0..T {
                    let at = x[t].add(4 * (lines.len() * n + k));
                    let a = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
                    for v in 0..2 {
                        let products = multiply::<F>(w[v], a);
                        if widened {
                            wide[t][v] = pinned(_mm256_add_epi32(wide[t][v], widen(products)));
                        } else {
                            narrow[t][v] = pinned(_mm256_add_epi16(narrow[t][v], products));
                        }
                    }
                }
            }
        }
        for t in 0..T {
            for v in 0..2 {
                if !widened {
                    wide[t][v] = _mm256_add_epi32(wide[t][v], widen(narrow[t][v]));
                }
            }
        }
    }
    wide
}
