//! The types with codebooks: where a block has its numbers, signs and scales.

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use super::super::grids;
use super::fields::*;
use super::tables::*;
use super::{Book, Read};
use crate::kernels::simd::bytes::Bytes;

/// Entries of eight columns. For each 32: four bytes with numbers, and a word with four times seven signs and a scale.
#[allow(non_camel_case_types)] // the names that files and their users know
pub struct IQ2_XXS;

impl Book for IQ2_XXS {
    const BYTES: usize = 66;
    const STEPS: usize = 2;
    const GROUP: usize = 8;
    const UNIT: f32 = 0.125;
    const BITS: usize = 2;

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_XXS, 2 of IQ2);
        &grid[j % 2]
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: [[[u8; 256]; 1]; 2] = digits(2, &grids::IQ2_XXS);
        [&DIGITS[0], &DIGITS[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: [[u8; 64]; 4] = levels(2, &IQ2);
        &LEVELS
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
    const STEPS: usize = 2;
    const GROUP: usize = 4;
    const UNIT: f32 = 0.125;
    const BITS: usize = 2;

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_XS, 2 of IQ2);
        &grid[j % 2]
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: [[[u8; 256]; 2]; 2] = digits(2, &grids::IQ2_XS);
        [&DIGITS[0], &DIGITS[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: [[u8; 64]; 4] = levels(2, &IQ2);
        &LEVELS
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
    const STEPS: usize = 2;
    const GROUP: usize = 4;
    const UNIT: f32 = 0.125;
    const BITS: usize = 2;

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_S, 2 of IQ2);
        &grid[j % 2]
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: [[[u8; 256]; 4]; 2] = digits(2, &grids::IQ2_S);
        [&DIGITS[0], &DIGITS[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: [[u8; 64]; 4] = levels(2, &IQ2);
        &LEVELS
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
            let high = [B::columns(rows, at + 66)[side]; 8];
            Read { numbers, high, signs: B::columns(rows, at + 34 + 16 * side) }
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
    const STEPS: usize = 2;
    const GROUP: usize = 8;
    const UNIT: f32 = 0.25;
    const BITS: usize = 3;

    fn grid(_: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 1] = grid!(IQ3_XXS, 1 of IQ3_EVEN);
        &grid[0]
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: [[[u8; 256]; 1]; 2] = digits(3, &grids::IQ3_XXS);
        [&DIGITS[0], &DIGITS[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: [[u8; 64]; 4] = levels(3, &IQ3_EVEN);
        &LEVELS
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
    const STEPS: usize = 8;
    const GROUP: usize = 8;
    const UNIT: f32 = 1.0;
    const BITS: usize = 3;

    fn grid(_: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 1] = grid!(IQ3_S, 1 of IQ3_ODD);
        &grid[0]
    }

    fn digits() -> [&'static [[u8; 256]]; 2] {
        static DIGITS: [[[u8; 256]; 2]; 2] = digits(3, &grids::IQ3_S);
        [&DIGITS[0], &DIGITS[1]]
    }

    fn levels() -> &'static [[u8; 64]; 4] {
        static LEVELS: [[u8; 64]; 4] = levels(3, &IQ3_ODD);
        &LEVELS
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
            let high = [B::columns(rows, at + 66)[side]; 8];
            Read { numbers, high, signs: B::columns(rows, at + 74 + 16 * side) }
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
