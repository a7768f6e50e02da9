//! The types with codebooks: the positions of numbers, signs and scales in a block.

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use super::super::{grids, twos};
use super::fields::*;
use super::tables::*;
use super::{Book, Read};
use crate::kernels::simd::bytes::Bytes;

/// A type, with its functions `scales`, `read`, `entry` and `entries`.
macro_rules! book {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $count:literal entries of $columns:literal,
     $magnitudes:ident + $offset:literal,
     unit $unit:literal, steps $steps:literal, group $group:literal, |$rows:ident, $at:ident| $scales:expr,
     |$side:ident| $read:expr, |$from:ident, $k:ident, $j:ident| $entry:expr, |$n:ident| $entries:expr) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub(crate) struct $name;

        impl Book for $name {
            const BYTES: usize = $bytes;
            const STEPS: usize = $steps;
            const GROUP: usize = $group;
            const UNIT: f32 = $unit;
            const OFFSET: u8 = $offset;
            const BITS: usize = if $columns == 8 { 2 } else { 3 };

            fn grid() -> &'static [u32] {
                static GRID: [u32; $count * $columns / 4] = grid($name::BITS, &grids::$name, &$magnitudes, $offset);
                &GRID
            }

            fn digits() -> [&'static [[u8; 256]]; 2] {
                static DIGITS: InLines<[[[u8; 256]; $count / 256]; 2]> =
                    InLines(digits($name::BITS, &grids::$name));
                [&DIGITS.0[0], &DIGITS.0[1]]
            }

            fn levels() -> &'static [[u8; 64]; 4] {
                static LEVELS: InLines<[[u8; 64]; 4]> = InLines(levels($name::BITS, &$magnitudes, $offset));
                &LEVELS.0
            }

            // SAFETY of all blocks: the caller's promise.

            #[inline(always)]
            unsafe fn scales<B: Bytes>($rows: &[*const u8], $at: usize) -> [B; 4] {
                unsafe { $scales }
            }

            #[inline(always)]
            unsafe fn read<B: Bytes>($rows: &[*const u8], $at: usize, $side: usize) -> Read<B> {
                unsafe { $read }
            }

            #[inline(always)]
            unsafe fn entry<B: Bytes>($from: &Read<B>, $k: usize, $j: usize) -> B {
                unsafe { $entry }
            }

            #[inline(always)]
            #[allow(unused_unsafe)] // for numbers that need no change
            unsafe fn entries<B: Bytes>($from: &Read<B>, $n: usize) -> [B; 2] {
                unsafe { $entries }
            }
        }
    };
}

book!(
    /// For each 32 columns: four bytes with numbers, and a word with four times seven signs and a scale.
    IQ2_XXS, 66, 256 entries of 8, IQ2 + 64, unit 0.125, steps 1, group 8,
    |rows, at| {
        let [_, a, _, b, _, c, _, d] = words(rows, at + 2);
        let first = odd_of_words([a, b, c, d]);
        let [_, a, _, b, _, c, _, d] = words(rows, at + 34);
        let second = odd_of_words([a, b, c, d]);
        [first, second, first, second]
    },
    |side| {
        let [a, first, b, second, c, third, d, fourth] = words(rows, at + 2 + 32 * side);
        let numbers = twice([a, b, c, d]);
        Read { numbers, high: numbers, signs: all_sevens([first, second, third, fourth]) }
    },
    |read, k, j| byte(read.numbers[k / 2], 2 * (k % 2) + j / 2, 0),
    |n| [read.numbers[n]; 2]
);
book!(
    /// Nine bits for each entry, and seven signs above them. A scale for each sixteen columns.
    IQ2_XS, 74, 512 entries of 8, IQ2 + 64, unit 0.125, steps 1, group 4,
    |rows, at| scales_of_sixteens(rows, at + 66),
    |side| {
        let numbers = words::<B>(rows, at + 2 + 32 * side);
        let mut signs = [numbers[0]; 4];
        for g in 0..4 {
            signs[g] = with_parity(upper_bytes(numbers[2 * g], numbers[2 * g + 1]).right::<1>(127));
        }
        Read { numbers, high: numbers, signs }
    },
    |read, k, j| {
        let both = read.numbers[k];
        if j < 2 { both.only(511) } else { both.reorder(0x8080_0302).only(511) }
    },
    |n| {
        let (a, b) = (read.numbers[2 * n], read.numbers[2 * n + 1]);
        [a.reorder(0x8080_0200).or(b.reorder(0x0200_8080)), upper_bytes(a, b)]
    }
);
book!(
    /// A byte for each entry, a byte of signs for each, two high bits for each. A scale for each sixteen columns.
    IQ2_S, 82, 1024 entries of 8, IQ2 + 64, unit 0.125, steps 1, group 4,
    |rows, at| scales_of_sixteens(rows, at + 74),
    |side| {
        let numbers = twice(B::columns(rows, at + 2 + 16 * side));
        let [_, high, ..] = B::columns(rows, at + 62 + 4 * side);
        Read { numbers, high: [high; 8], signs: B::columns(rows, at + 34 + 16 * side) }
    },
    |read, k, j| {
        let n = 2 * (k % 2) + j / 2;
        byte(read.numbers[k / 2], n, 0).or(twos(byte(read.high[k], k / 2, 1))[n])
    },
    |n| {
        let at = 8 * n as u8;
        [read.numbers[n], read.high[n].fields([at, at + 2, at + 4, at + 6])]
    }
);
book!(
    /// A byte for each entry; for each 32 columns a word with four times seven signs and a scale.
    IQ3_XXS, 98, 256 entries of 4, IQ3_EVEN + 64, unit 0.25, steps 1, group 8,
    |rows, at| {
        let first = odd_of_words(B::columns(rows, at + 66));
        let second = odd_of_words(B::columns(rows, at + 82));
        [first, second, first, second]
    },
    |side| {
        let numbers = words::<B>(rows, at + 2 + 32 * side);
        Read { numbers, high: numbers, signs: all_sevens(B::columns(rows, at + 66 + 16 * side)) }
    },
    |read, k, j| byte(read.numbers[k], j, 0),
    |n| [read.numbers[n]; 2]
);
book!(
    /// A byte for each entry, a high bit for each, signs. A scale for each 32 columns.
    IQ3_S, 110, 512 entries of 4, IQ3_ODD + 16, unit 1.0, steps 4, group 8,
    |rows, at| {
        let [first, second] = odd_of_nibbles(B::columns(rows, at + 94)[3]);
        [first, second, first, second]
    },
    |side| {
        let numbers = words(rows, at + 2 + 32 * side);
        let [_, high, ..] = B::columns(rows, at + 62 + 4 * side);
        Read { numbers, high: [high; 8], signs: B::columns(rows, at + 74 + 16 * side) }
    },
    |read, k, j| byte(read.numbers[k], j, 0).or(byte(read.high[k].sixteens(k), j, 1).right::<4>(1)),
    |n| {
        let at = 4 * n as u8;
        [read.numbers[n], read.high[n].fields([at, at + 1, at + 2, at + 3])]
    }
);
