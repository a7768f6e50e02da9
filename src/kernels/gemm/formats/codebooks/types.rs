//! The types with codebooks: where a block has its numbers, signs and scales.

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use super::super::grids;
use super::fields::*;
use super::tables::*;
use super::{Book, Grid, Read};
use crate::kernels::simd::bytes::Bytes;

/// Entries of eight columns. For each 32: four bytes with numbers, and a word with four times seven signs and a scale.
#[allow(non_camel_case_types)] // the names that files and their users know
pub struct IQ2_XXS;

impl Book for IQ2_XXS {
    const BYTES: usize = 66;
    const STEPS: usize = 1;
    const GROUP: usize = 8;
    const UNIT: f32 = 0.125;
    const OFFSET: u8 = 64;
    const BITS: usize = 2;

    fn grid() -> Grid {
        static GRID: [[u32; 2]; 256] = grid_of_pairs(&grids::IQ2_XXS, &IQ2, IQ2_XXS::OFFSET);
        Grid::Pairs(&GRID)
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: InLines<[[[u8; 256]; 1]; 2]> = InLines(digits(2, &grids::IQ2_XXS));
        [&DIGITS.0[0], &DIGITS.0[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels(2, &IQ2, IQ2_XXS::OFFSET));
        &LEVELS.0
    }

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let (a, b) = (B::columns(rows, at + 2), B::columns(rows, at + 18));
            let first = odd_of_words([a[1], a[3], b[1], b[3]]);
            let (a, b) = (B::columns(rows, at + 34), B::columns(rows, at + 50));
            let second = odd_of_words([a[1], a[3], b[1], b[3]]);
            [first, second, first, second]
        }
    }

    #[inline(always)]
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let (a, b) = (B::columns(rows, at + 2 + 32 * side), B::columns(rows, at + 18 + 32 * side));
            let numbers = [a[0], a[2], b[0], b[2]];
            Read {
                numbers: twice(numbers),
                high: twice(numbers),
                signs: all_sevens([a[1], a[3], b[1], b[3]]),
            }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY: the caller's promise.
        unsafe { byte(read.numbers[k / 2], 2 * (k % 2) + j / 2, 0) }
    }

    #[inline(always)]
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2] {
        [read.numbers[n]; 2]
    }
}

/// Entries of eight columns: nine bits for each, and seven signs above them. A scale for each sixteen.
#[allow(non_camel_case_types)]
pub struct IQ2_XS;

impl Book for IQ2_XS {
    const BYTES: usize = 74;
    const STEPS: usize = 1;
    const GROUP: usize = 4;
    const UNIT: f32 = 0.125;
    const OFFSET: u8 = 64;
    const BITS: usize = 2;

    fn grid() -> Grid {
        static GRID: [[u32; 2]; 512] = grid_of_pairs(&grids::IQ2_XS, &IQ2, IQ2_XS::OFFSET);
        Grid::Pairs(&GRID)
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: InLines<[[[u8; 256]; 2]; 2]> = InLines(digits(2, &grids::IQ2_XS));
        [&DIGITS.0[0], &DIGITS.0[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels(2, &IQ2, IQ2_XS::OFFSET));
        &LEVELS.0
    }

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
        // SAFETY: the caller's promise.
        unsafe { scales_of_sixteens(rows, at + 66) }
    }

    #[inline(always)]
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let numbers = words::<B>(rows, at + 2 + 32 * side);
            let mut signs = [numbers[0]; 4];
            for g in 0..4 {
                signs[g] = with_parity(upper_bytes(numbers[2 * g], numbers[2 * g + 1]).right::<1>(127));
            }
            Read { numbers, high: numbers, signs }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY: the caller's promise.
        unsafe {
            let both = read.numbers[k];
            if j < 2 { both.only(511) } else { both.reorder(0x8080_0302).only(511) }
        }
    }

    #[inline(always)]
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2] {
        let (a, b) = (read.numbers[2 * n], read.numbers[2 * n + 1]);
        // SAFETY (of all): the caller's promise.
        unsafe { [a.reorder(0x8080_0200).or(b.reorder(0x0200_8080)), upper_bytes(a, b)] }
    }
}

/// Entries of eight columns: a byte for each, a byte of signs for each, two high bits for each. A scale for each
/// sixteen.
#[allow(non_camel_case_types)]
pub struct IQ2_S;

impl Book for IQ2_S {
    const BYTES: usize = 82;
    const STEPS: usize = 1;
    const GROUP: usize = 4;
    const UNIT: f32 = 0.125;
    const OFFSET: u8 = 64;
    const BITS: usize = 2;

    fn grid() -> Grid {
        static GRID: [[u32; 2]; 1024] = grid_of_pairs(&grids::IQ2_S, &IQ2, IQ2_S::OFFSET);
        Grid::Pairs(&GRID)
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: InLines<[[[u8; 256]; 4]; 2]> = InLines(digits(2, &grids::IQ2_S));
        [&DIGITS.0[0], &DIGITS.0[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels(2, &IQ2, IQ2_S::OFFSET));
        &LEVELS.0
    }

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
        // SAFETY: the caller's promise.
        unsafe { scales_of_sixteens(rows, at + 74) }
    }

    #[inline(always)]
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let numbers = twice(B::columns(rows, at + 2 + 16 * side));
            let [_, high, ..] = B::columns(rows, at + 62 + 4 * side);
            Read { numbers, high: [high; 8], signs: B::columns(rows, at + 34 + 16 * side) }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        let n = 2 * (k % 2) + j / 2;
        // SAFETY (of all): the caller's promise.
        unsafe { byte(read.numbers[k / 2], n, 0).or(pair(byte(read.high[k], k / 2, 1), n)) }
    }

    #[inline(always)]
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2] {
        let at = 8 * n as u8;
        // SAFETY: the caller's promise.
        unsafe { [read.numbers[n], read.high[n].fields([at, at + 2, at + 4, at + 6])] }
    }
}

/// Entries of four columns: a byte for each; for each 32 columns a word with four times seven signs and a scale.
#[allow(non_camel_case_types)]
pub struct IQ3_XXS;

impl Book for IQ3_XXS {
    const BYTES: usize = 98;
    const STEPS: usize = 1;
    const GROUP: usize = 8;
    const UNIT: f32 = 0.25;
    const OFFSET: u8 = 64;
    const BITS: usize = 3;

    fn grid() -> Grid {
        static GRID: [u32; 256] = grid_of_words(&grids::IQ3_XXS, &IQ3_EVEN, IQ3_XXS::OFFSET);
        Grid::Words(&GRID)
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: InLines<[[[u8; 256]; 1]; 2]> = InLines(digits(3, &grids::IQ3_XXS));
        [&DIGITS.0[0], &DIGITS.0[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels(3, &IQ3_EVEN, IQ3_XXS::OFFSET));
        &LEVELS.0
    }

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let first = odd_of_words(B::columns(rows, at + 66));
            let second = odd_of_words(B::columns(rows, at + 82));
            [first, second, first, second]
        }
    }

    #[inline(always)]
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let numbers = words::<B>(rows, at + 2 + 32 * side);
            let signs = all_sevens(B::columns(rows, at + 66 + 16 * side));
            Read { numbers, high: numbers, signs }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY: the caller's promise.
        unsafe { byte(read.numbers[k], j, 0) }
    }

    #[inline(always)]
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2] {
        [read.numbers[n]; 2]
    }
}

/// Entries of four columns: a byte for each, a high bit for each, signs. A scale for each 32 columns.
#[allow(non_camel_case_types)]
pub struct IQ3_S;

impl Book for IQ3_S {
    const BYTES: usize = 110;
    const STEPS: usize = 4;
    const GROUP: usize = 8;
    const UNIT: f32 = 1.0;
    const OFFSET: u8 = 16;
    const BITS: usize = 3;

    fn grid() -> Grid {
        static GRID: [u32; 512] = grid_of_words(&grids::IQ3_S, &IQ3_ODD, IQ3_S::OFFSET);
        Grid::Words(&GRID)
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: InLines<[[[u8; 256]; 2]; 2]> = InLines(digits(3, &grids::IQ3_S));
        [&DIGITS.0[0], &DIGITS.0[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels(3, &IQ3_ODD, IQ3_S::OFFSET));
        &LEVELS.0
    }

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let [first, second] = odd_of_nibbles(B::columns(rows, at + 94)[3]);
            [first, second, first, second]
        }
    }

    #[inline(always)]
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY (of all): the caller's promise.
        unsafe {
            let numbers = words::<B>(rows, at + 2 + 32 * side);
            let [_, high, ..] = B::columns(rows, at + 62 + 4 * side);
            Read { numbers, high: [high; 8], signs: B::columns(rows, at + 74 + 16 * side) }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY (of all): the caller's promise.
        unsafe { byte(read.numbers[k], j, 0).or(byte(read.high[k].sixteens(k), j, 1).right::<4>(1)) }
    }

    #[inline(always)]
    unsafe fn entries<B: Bytes>(read: &Read<B>, n: usize) -> [B; 2] {
        let at = 4 * n as u8;
        // SAFETY: the caller's promise.
        unsafe { [read.numbers[n], read.high[n].fields([at, at + 1, at + 2, at + 3])] }
    }
}
