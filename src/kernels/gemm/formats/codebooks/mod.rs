//! Super-blocks whose codes come from codebooks: ggml's IQ2 and IQ3 types (github.com/ggml-org/ggml, ggml-quants.c).
//!
//! An entry of a codebook has the magnitudes of four or eight columns in a row. Signs are separate, one bit per
//! column. Rows stay in the layout of their file: entries are gathered for several rows at once.
//!
//! Nothing here takes a closure: compilers leave closures as calls if functions have more target features.

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

mod fields;
mod tables;
mod types;

use super::super_blocks::{Super, column};
use crate::kernels::simd::bytes::Bytes;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::bytes::Portable;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::wide::Wide;
use std::hint::black_box;
use std::mem::MaybeUninit;
pub(crate) use types::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

/// A type with a codebook. Its weights are `d * UNIT * scale * code`, where the scale is odd.
pub(crate) trait Book {
    const BYTES: usize;
    const STEPS: usize;
    const GROUP: usize;
    const UNIT: f32;

    /// The codes of each entry, magnitudes plus OFFSET: four in a word, or eight in two words.
    fn grid() -> &'static [u32];

    /// The offset that codes have over signed magnitudes.
    const OFFSET: u8;

    /// Bits of each digit of an entry: two if it has eight columns, three if it has four.
    const BITS: usize;

    /// The digits of all entries: a byte has those of half of an entry's columns, from the low bits up.
    fn digits() -> [&'static [[u8; 256]]; 2];

    /// Four codes at the digits of a byte, one digit after another.
    fn levels() -> &'static [[u8; 64]; 4];

    /// Like `Super::scales`.
    ///
    /// # Safety
    /// `B`'s instructions are available; the blocks can be read.
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4];

    /// Reads a side of the block at `at` of each of ROWS rows.
    ///
    /// # Safety
    /// As for `scales`.
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B>;

    /// The number of the entry that has the four columns `16 k + 4 j ..` of a side; below the length of the grid. If
    /// entries have eight columns, `j` is even.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B;

    /// Numbers of four entries in a row, byte by byte: their low bits, and the low bits of their bits from the eighth
    /// on.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2];
}

/// The bytes of a side of a block.
#[derive(Clone, Copy)]
pub(crate) struct Read<B> {
    /// Numbers of entries, or their low bits: for each sixteen columns, or in the first four for each 32.
    pub numbers: [B; 8],
    /// High bits of the numbers.
    pub high: [B; 8],
    /// For each 32 columns a bit per column, set if it is negative.
    pub signs: [B; 4],
}

/// A side of a block.
#[derive(Clone, Copy)]
pub(crate) struct Side<B: Copy> {
    /// Unsigned codes of the four columns `16 k + 4 j ..` in number `4 k + j`. If `B` has TABLES, the first eight or
    /// sixteen are digits instead.
    codes: [MaybeUninit<B>; 32],
    /// As in `Read`.
    signs: [B; 4],
}

impl<K: Book> Super for K {
    const BYTES: usize = K::BYTES;
    const STEPS: usize = K::STEPS;
    const GROUP: usize = K::GROUP;
    const D: usize = 0;
    const MIN: usize = 0;
    const UNIT: f32 = K::UNIT;
    const OFFSET: i16 = K::OFFSET as i16;
    const HALVES: bool = true;
    const BOOK: bool = true;
    type Packed<B: Bytes> = Side<B>;

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2] {
        // SAFETY: the caller's promise.
        unsafe { [<K as Book>::scales(rows, at); 2] }
    }

    #[inline(always)]
    unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Side<B> {
        // SAFETY: the caller's promise.
        unsafe {
            let read = K::read(rows, at, side);
            if B::TABLES { looked_up::<K, B>(&read) } else { gathered::<K, B>(&read) }
        }
    }

    #[inline(always)]
    unsafe fn codes<B: Bytes>(side: &Side<B>, j: usize) -> [B; 8] {
        if B::TABLES {
            // SAFETY: the caller's promise.
            return unsafe { codes_of_digits::<K, B>(side, j) };
        }
        let mut codes = [side.signs[0]; 8];
        for k in 0..8 {
            // SAFETY: the caller's promise.
            codes[k] = unsafe {
                side.codes[4 * k + j].assume_init().take_where(
                    side.signs[k / 2],
                    4 * (k % 2) + j,
                    2 * K::OFFSET,
                )
            };
        }
        codes
    }

    #[cfg(any(test, target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4] {
        let mut bytes = [0; 256];
        for side in 0..2 {
            // SAFETY: the caller's promise; any processor has the instructions.
            let packed = unsafe { <K as Super>::packed::<Portable>(&[block], 0, side) };
            for j in 0..4 {
                // SAFETY: any processor has the instructions.
                let codes = unsafe { <K as Super>::codes(&packed, j) };
                for (k, code) in codes.iter().enumerate() {
                    let at = column::<K>(k, side) + 4 * j;
                    bytes[at..at + 4].copy_from_slice(&code.0.to_le_bytes());
                }
            }
        }
        // SAFETY: the caller's promise; 32 bytes at each address.
        unsafe {
            let at = |k: usize| bytes.as_ptr().add(32 * k);
            [W::two(at(0), at(4)), W::two(at(1), at(5)), W::two(at(2), at(6)), W::two(at(3), at(7))]
        }
    }
}

/// Gathers the entries of a side.
#[inline(always)]
unsafe fn gathered<K: Book, B: Bytes>(read: &Read<B>) -> Side<B> {
    let mut side = Side { codes: [MaybeUninit::uninit(); 32], signs: read.signs };
    let mut numbers = [MaybeUninit::<B>::uninit(); 32];
    // SAFETY (of all): the caller's promise; a register is as many numbers, and `entry` gives those of entries.
    unsafe {
        let each = if K::BITS == 2 { 2 } else { 4 };
        for k in 0..8 {
            for n in 0..each {
                numbers[each * k + n].write(K::entry(read, k, 4 / each * n));
            }
        }
        // Hides the count of the numbers from the compiler, so that they are loaded from memory: moving them out of
        // registers takes longer.
        if K::BITS == 2 {
            for n in 0..black_box(16) {
                let pair = B::gather_pairs(numbers.as_ptr().add(n).cast(), K::grid().as_chunks().0);
                side.codes.as_mut_ptr().add(2 * n).cast::<[B; 2]>().write(pair);
            }
        } else {
            // With AVX-512, the gather of single words takes the numbers from registers.
            for n in 0..if B::ROWS == 16 { 32 } else { black_box(32) } {
                side.codes[n].write(B::gather(numbers.as_ptr().add(n).cast(), K::grid()));
            }
        }
    }
    side
}

/// Replaces numbers with digits. Each byte has those of four columns of eight, or of two columns of four: for sixteen
/// columns, the bytes of a lane are of columns `0 ..`, `4 ..`, `8 ..` and `12 ..`.
#[inline(always)]
unsafe fn looked_up<K: Book, B: Bytes>(read: &Read<B>) -> Side<B> {
    let mut side = Side { codes: [MaybeUninit::uninit(); 32], signs: read.signs };
    let [first, second] = K::digits();
    // SAFETY (of all): the caller's promise.
    unsafe {
        for n in 0..if K::BITS == 2 { 4 } else { 8 } {
            let [low, which] = K::entries(read, n);
            let (a, b) = (low.look_up(which, first), low.look_up(which, second));
            if K::BITS == 2 {
                side.codes[2 * n].write(a.reorder(0x8001_8000).or(b.reorder(0x0180_0080)));
                side.codes[2 * n + 1].write(a.reorder(0x8003_8002).or(b.reorder(0x0380_0280)));
            } else {
                side.codes[n].write(a);
                side.codes[8 + n].write(b);
            }
        }
    }
    side
}

/// Codes of columns `j`, `4 + j`, `8 + j` and `12 + j` of each sixteen.
#[inline(always)]
unsafe fn codes_of_digits<K: Book, B: Bytes>(side: &Side<B>, j: usize) -> [B; 8] {
    let mut codes = [side.signs[0]; 8];
    for k in 0..8 {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let digits = match (K::BITS, j) {
                (2, 3) => side.codes[k].assume_init().right::<6>(3),
                (3, 2..) => side.codes[8 + k].assume_init(),
                _ => side.codes[k].assume_init(),
            };
            let signs = side.signs[k / 2].reorder(if k % 2 == 0 { 0x0101_0000 } else { 0x0303_0202 });
            codes[k] = digits.pick_of(&K::levels()[j]).take_by_bytes(signs, j, 2 * K::OFFSET);
        }
    }
    codes
}

/// Index of the column at position `i` of activations that are multiplied with codes from TABLES.
pub(crate) const fn fours(i: usize) -> usize {
    i / 16 * 16 + i % 4 * 4 + i / 4 % 4
}
