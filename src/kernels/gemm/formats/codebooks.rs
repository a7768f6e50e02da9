//! Super-blocks whose codes come from codebooks: ggml's IQ2 and IQ3 types (github.com/ggml-org/ggml, ggml-quants.c).
//!
//! An entry of a codebook has the magnitudes of four or eight columns in a row. Signs are apart, one bit per column.
//! Rows stay in the layout of their file: entries are gathered for several rows at once.
//!
//! Nothing here takes a closure: compilers leave closures as calls if functions have more target features.

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use super::grids;
use super::super_blocks::{Super, column};
use crate::kernels::simd::bytes::Bytes;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::bytes::Portable;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::wide::Wide;

/// A type with a codebook. Its weights are `d * UNIT * scale * code`, where the scale is odd.
pub trait Book {
    const BYTES: usize;
    const STEPS: usize;
    const GROUP: usize;
    const UNIT: f32;

    /// Magnitudes of four columns for each entry. If entries have eight columns, those of an odd `j` are the last four.
    fn grid(j: usize) -> &'static [u32];

    /// As `Super::scales`.
    ///
    /// # Safety
    /// `B`'s instructions are available; the blocks can be read.
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4];

    /// Reads a side of the block at `at` of each of ROWS rows.
    ///
    /// # Safety
    /// As for `scales`.
    unsafe fn read<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B>;

    /// The number of the entry that has the four columns `16 k + 4 j ..` of a side; below the length of the grid.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B;
}

/// The bytes of a side of a block.
#[derive(Clone, Copy)]
pub struct Read<B> {
    /// Numbers of entries, or their low bits: for each sixteen columns, or in the first four for each 32.
    numbers: [B; 8],
    /// High bits of the numbers.
    high: B,
    /// For each 32 columns a bit per column, set if it is negative.
    signs: [B; 4],
}

impl<K: Book> Super for K {
    const BYTES: usize = K::BYTES;
    const STEPS: usize = K::STEPS;
    const GROUP: usize = K::GROUP;
    const D: usize = 0;
    const MIN: usize = 0;
    const UNIT: f32 = K::UNIT;
    const OFFSET: i16 = 0;
    const SIGNED: bool = true;
    const HALVES: bool = true;
    type Packed<B: Bytes> = Read<B>;

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2] {
        // SAFETY: the caller's promise.
        unsafe { [<K as Book>::scales(rows, at); 2] }
    }

    #[inline(always)]
    unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Read<B> {
        // SAFETY: the caller's promise.
        unsafe { K::read(rows, at, side) }
    }

    #[inline(always)]
    unsafe fn codes<B: Bytes>(read: &Read<B>, j: usize) -> [B; 8] {
        let mut codes = [read.high; 8];
        for k in 0..8 {
            // SAFETY: the caller's promise; `entry` gives numbers of entries.
            codes[k] = unsafe {
                K::entry(read, k, j).gather(K::grid(j)).negate_where(read.signs[k / 2], 4 * (k % 2) + j)
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
            let read = unsafe { K::read::<Portable>(&[block], 0, side) };
            for j in 0..4 {
                // SAFETY: any processor has the instructions.
                let codes = unsafe { <K as Super>::codes(&read, j) };
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

macro_rules! grid {
    ($name:ident, $parts:literal of $magnitudes:expr) => {{
        const N: usize = grids::$name.len();
        static GRID: [[u32; N]; $parts] = expanded(&grids::$name, &$magnitudes);
        &GRID
    }};
}

const IQ2: [u8; 3] = [8, 25, 43];
const IQ3_EVEN: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// The magnitudes of each four columns of all entries.
const fn expanded<const N: usize, const PARTS: usize>(
    entries: &[u16; N],
    magnitudes: &[u8],
) -> [[u32; N]; PARTS] {
    let bits = if PARTS == 2 { 2 } else { 3 };
    let (mut grid, mut n) = ([[0; N]; PARTS], 0);
    while n < N {
        let mut i = 0;
        while i < 4 * PARTS {
            let digit = entries[n] as usize >> (bits * i) & ((1 << bits) - 1);
            grid[i / 4][n] |= (magnitudes[digit] as u32) << (8 * (i % 4));
            i += 1;
        }
        n += 1;
    }
    grid
}

/// Entries of eight columns. For each 32: four bytes with numbers, and a word with four times seven signs and a scale.
#[allow(non_camel_case_types)] // the names that files and their users know
pub struct IQ2_XXS;

impl Book for IQ2_XXS {
    const BYTES: usize = 66;
    const STEPS: usize = 2;
    const GROUP: usize = 8;
    const UNIT: f32 = 0.125;

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_XXS, 2 of IQ2);
        &grid[j % 2]
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
            Read { numbers: twice(numbers), high: a[0], signs: all_sevens([a[1], a[3], b[1], b[3]]) }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY: the caller's promise.
        unsafe { byte(read.numbers[k / 2], 2 * (k % 2) + j / 2, 0) }
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

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_XS, 2 of IQ2);
        &grid[j % 2]
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
                let (low, high) = (numbers[2 * g].right::<1>(127), numbers[2 * g + 1].right::<1>(127));
                signs[g] = with_parity(low.reorder(0x8080_0301).or(high.reorder(0x0301_8080)));
            }
            Read { numbers, high: numbers[0], signs }
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

    fn grid(j: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 2] = grid!(IQ2_S, 2 of IQ2);
        &grid[j % 2]
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
            let high = B::columns(rows, at + 66)[side];
            Read { numbers, high, signs: B::columns(rows, at + 34 + 16 * side) }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        let n = 2 * (k % 2) + j / 2;
        // SAFETY (of all): the caller's promise.
        unsafe { byte(read.numbers[k / 2], n, 0).or(pair(byte(read.high, k / 2, 1), n)) }
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

    fn grid(_: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 1] = grid!(IQ3_XXS, 1 of IQ3_EVEN);
        &grid[0]
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
            Read { numbers, high: numbers[0], signs }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY: the caller's promise.
        unsafe { byte(read.numbers[k], j, 0) }
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

    fn grid(_: usize) -> &'static [u32] {
        let grid: &[[u32; _]; 1] = grid!(IQ3_S, 1 of IQ3_ODD);
        &grid[0]
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
            let high = B::columns(rows, at + 66)[side];
            Read { numbers, high, signs: B::columns(rows, at + 74 + 16 * side) }
        }
    }

    #[inline(always)]
    unsafe fn entry<B: Bytes>(read: &Read<B>, k: usize, j: usize) -> B {
        // SAFETY (of all): the caller's promise.
        unsafe { byte(read.numbers[k], j, 0).or(byte(read.high.sixteens(k), j, 1).right::<4>(1)) }
    }
}

/// Eight words at `at` of each row.
///
/// # Safety
/// As for `Book::read`.
#[inline(always)]
unsafe fn words<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 8] {
    // SAFETY (of both): the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (B::columns(rows, at), B::columns(rows, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// `2 s + 1` for the scales `s` of each sixteen columns, of four bits each, in the eight bytes at `at`, the last ones of a
/// block.
///
/// # Safety
/// As for `Book::scales`.
#[inline(always)]
unsafe fn scales_of_sixteens<B: Bytes>(rows: &[*const u8], at: usize) -> [B; 4] {
    // SAFETY (of all): the caller's promise; the eight bytes before are read too.
    unsafe {
        let [_, _, a, b] = B::columns(rows, at - 8);
        let ([a, b], [c, d]) = (odd_of_nibbles(a), odd_of_nibbles(b));
        [a, b, c, d]
    }
}

/// Byte `n` of each lane at place `to`; the other bytes are zero.
#[inline(always)]
unsafe fn byte<B: Bytes>(lanes: B, n: usize, to: usize) -> B {
    let zeros = 0x8080_8080 & !(0xff << (8 * to));
    // SAFETY: the caller's promise.
    unsafe { lanes.reorder(zeros | (n as u32) << (8 * to)) }
}

/// Bits `2 n` and `2 n + 1` of each byte.
#[inline(always)]
unsafe fn pair<B: Bytes>(bytes: B, n: usize) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        match n {
            0 => bytes.right::<0>(3),
            1 => bytes.right::<2>(3),
            2 => bytes.right::<4>(3),
            _ => bytes.right::<6>(3),
        }
    }
}

#[inline(always)]
fn twice<B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 8] {
    [a, b, c, d, a, b, c, d]
}

/// Four bytes of signs from four times seven bits.
#[inline(always)]
unsafe fn sevens<B: Bytes>(word: B) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        let low = word.only(0x7f).or(word.only(0x3f80).up::<1>());
        with_parity(low.or(word.only(0x1f_c000).up::<2>()).or(word.only(0xfe0_0000).up::<3>()))
    }
}

#[inline(always)]
unsafe fn all_sevens<B: Bytes>([a, b, c, d]: [B; 4]) -> [B; 4] {
    // SAFETY: the caller's promise.
    unsafe { [sevens(a), sevens(b), sevens(c), sevens(d)] }
}

/// Each byte has seven signs; the eighth makes the number of negative ones even.
#[inline(always)]
unsafe fn with_parity<B: Bytes>(bytes: B) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        let fold = bytes.xor(bytes.right::<4>(15));
        let fold = fold.xor(fold.right::<2>(63));
        let fold = fold.xor(fold.right::<1>(127));
        bytes.or(fold.left::<7>(128))
    }
}

/// `2 s + 1`, with a scale `s` in the upper four bits of each word: the four scales byte by byte.
#[inline(always)]
unsafe fn odd_of_words<B: Bytes>([a, b, c, d]: [B; 4]) -> B {
    // SAFETY (of all): the caller's promise.
    unsafe {
        let all = byte(a, 3, 0).or(byte(b, 3, 1)).or(byte(c, 3, 2).or(byte(d, 3, 3)));
        all.right::<3>(30).less(255)
    }
}

/// `2 s + 1` for the eight scales `s` of four bits in each lane, byte by byte.
#[inline(always)]
unsafe fn odd_of_nibbles<B: Bytes>(lanes: B) -> [B; 2] {
    // SAFETY (of all): the caller's promise.
    unsafe { [odd_of_two(lanes.reorder(0x0101_0000)), odd_of_two(lanes.reorder(0x0303_0202))] }
}

/// The same for the scales in two bytes that stand twice each.
#[inline(always)]
unsafe fn odd_of_two<B: Bytes>(two: B) -> B {
    // SAFETY: the caller's promise.
    unsafe { two.left::<1>(30).only(0x00ff_00ff).or(two.right::<3>(30).only(0xff00_ff00)).less(255) }
}
