//! Blocks of 32 to 128 columns with one scale: ggml's Q4_0 to Q8_0, Q1_0, Q2_0, IQ4_NL and MXFP4
//! (github.com/ggml-org/ggml, ggml-quants.c), PrismML's PTQ1_0 (github.com/PrismML-Eng/llama.cpp, pull request 148).

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

use super::{f16_at, thirds, twos};
use crate::kernels::simd::bytes::Bytes;
use crate::kernels::simd::lanes::{Register, half_power};

/// The numbers that codes of IQ4_NL and IQ4_XS stand for, as int8.
pub(crate) const UNEVEN: [u8; 16] = {
    let numbers: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let (mut bytes, mut i) = ([0; 16], 0);
    while i < 16 {
        bytes[i] = numbers[i] as u8;
        i += 1;
    }
    bytes
};

/// Twice the numbers that codes of MXFP4 stand for, with an offset of 12.
const DOUBLED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// A type of short blocks. A block has an f16 scale; then an f16 minimum if the type has MINIMUMS; then one bit for
/// each of 32 columns if it has FIFTHS; then the codes. Weights are `d * (code - OFFSET)`, or `d * code + min`.
///
/// Codes of BITS bits are in little-endian words of four bytes. With 4 and 8 bits, the codes at the same bits of a
/// word's four bytes belong to four neighboring columns, and the next four columns are at the same bits of the next
/// word. With fewer bits, the codes are in the order of columns, byte by byte; activations for them are reordered to
/// match (`planes`). If the type has a TABLE, four bits of the block are an index into it, and the entry is the code.
/// If BITS is 0, codes are trits (`thirds`), in the order of columns.
pub(crate) trait Short {
    const BITS: usize;
    const OFFSET: i32;
    const MINIMUMS: bool;
    const FIFTHS: bool;
    /// Columns per block, in units of 32.
    const COUNT: usize;
    /// Codes from a table are below 32, or SIGNED.
    const TABLE: Option<&[u8; 16]> = None;
    /// Whether the scale is one byte, an exponent, instead of an f16.
    const EXPONENT: bool = false;
    /// Whether codes are int8; otherwise they are unsigned, below 128.
    const SIGNED: bool = Self::BITS == 8;
    /// Offset of the scale in a block.
    const SCALE: usize = 0;
    /// Whether that scale is also in the upper half of the second result of `words`, where it is found sooner.
    const ENDS: bool = false;
    /// Offset of the codes in a block.
    const CODES: usize =
        2 - Self::EXPONENT as usize + 2 * Self::MINIMUMS as usize + 4 * Self::FIFTHS as usize;
    const BYTES: usize = Self::CODES + 4 * Self::BITS * Self::COUNT;
    /// Number of steps of four columns whose pairs of products with int8, each at most 2 * largest code * 127, add up
    /// within an i16.
    const STEPS: usize = match Self::SIGNED {
        true => 1,
        false => 8 >> (Self::FIFTHS || Self::TABLE.is_some()) as usize,
    };

    /// The scale of a block.
    fn scale(block: &[u8]) -> f32 {
        if Self::EXPONENT { half_power(block[0]) } else { f16_at(&block[Self::SCALE..]) }
    }

    /// The scales of the blocks at `at` of each of WIDTH rows.
    ///
    /// # Safety
    /// `R`'s instructions are available; the blocks can be read.
    #[inline(always)]
    unsafe fn scales<R: Register>(rows: &[*const u8], at: usize) -> R {
        // SAFETY: the caller's promise.
        unsafe { if Self::EXPONENT { R::half_powers(rows, at) } else { R::halves(rows, at + Self::SCALE) } }
    }

    /// Reads all words of the block at `at` of each of ROWS rows, and the fifth bits if there are any, or the word
    /// that ENDS.
    ///
    /// # Safety
    /// `B`'s instructions are available; the blocks can be read.
    #[inline(always)]
    unsafe fn words<B: Bytes>(rows: &[*const u8], at: usize) -> ([B; 8], B) {
        let at = at + Self::CODES;
        // SAFETY: the caller's promise. After the fifth bits there are sixteen bytes.
        unsafe {
            let [a, b, c, d] = B::columns(rows, at);
            let mut words = [a, b, c, d, a, b, c, d];
            if Self::BITS * Self::COUNT == 8 {
                let [a, b, c, d] = B::columns(rows, at + 16);
                (words[4], words[5], words[6], words[7]) = (a, b, c, d);
            }
            (words, if Self::FIFTHS { B::columns(rows, at - 4)[0] } else { a })
        }
    }

    /// Codes of the `n`-th 32 columns: columns 0 to 3 of each row, columns 4 to 7, and so on.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    #[inline(always)]
    unsafe fn codes<B: Bytes>((words, fifths): &([B; 8], B), n: usize) -> [B; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            match Self::BITS {
                8 => *words,
                4 => {
                    let mut codes = [words[0]; 8];
                    for w in 0..4 {
                        (codes[w], codes[4 + w]) = (words[w].right::<0>(15), words[w].right::<4>(15));
                    }
                    for k in 0..8 {
                        if Self::FIFTHS {
                            codes[k] = codes[k].or(fifths.sixteens(k));
                        }
                        if let Some(table) = Self::TABLE {
                            codes[k] = codes[k].pick(table);
                        }
                    }
                    codes
                }
                2 => {
                    let ([a, c, e, g], [b, d, f, h]) = (twos(words[2 * n]), twos(words[2 * n + 1]));
                    [a, b, c, d, e, f, g, h]
                }
                // Bits become codes 0 and 2, so that the offset of these types is 1 too.
                _ => {
                    let a = words[n];
                    [
                        a.left::<1>(2),
                        a.right::<0>(2),
                        a.right::<1>(2),
                        a.right::<2>(2),
                        a.right::<3>(2),
                        a.right::<4>(2),
                        a.right::<5>(2),
                        a.right::<6>(2),
                    ]
                }
            }
        }
    }
}

macro_rules! short {
    ($($(#[$doc:meta])* $name:ident: $count:literal of $bits:literal bits, fifths $fifths:literal, offset $offset:literal,
        minimums $minimums:literal $(, with { $($more:item)* })?;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types)] // the names that files and their users know
            pub(crate) struct $name;
            impl Short for $name {
                const BITS: usize = $bits;
                const COUNT: usize = $count;
                const FIFTHS: bool = $fifths;
                const OFFSET: i32 = $offset;
                const MINIMUMS: bool = $minimums;
                $($($more)*)?
            }
        )*

        /// Expands to `$call` with `$f` as the `Short` of a type.
        macro_rules! with_short {
            ($dtype:expr, $f:ident => $call:expr) => {
                match $dtype {
                    $($crate::kernels::DType::$name => {
                        type $f = $crate::kernels::gemm::formats::short_blocks::$name;
                        $call
                    })*
                    other => panic!("{other:?} has no short blocks"),
                }
            };
        }
    };
}

short! {
    Q8_0: 1 of 8 bits, fifths false, offset 0, minimums false;
    Q4_0: 1 of 4 bits, fifths false, offset 8, minimums false;
    Q4_1: 1 of 4 bits, fifths false, offset 0, minimums true;
    Q5_0: 1 of 4 bits, fifths true, offset 16, minimums false;
    Q5_1: 1 of 4 bits, fifths true, offset 0, minimums true;
    Q1_0: 4 of 1 bits, fifths false, offset 1, minimums false;
    Q2_0: 2 of 2 bits, fifths false, offset 1, minimums false;
    Q2_0_128: 4 of 2 bits, fifths false, offset 1, minimums false;
    IQ4_NL: 1 of 4 bits, fifths false, offset 0, minimums false, with {
        const TABLE: Option<&[u8; 16]> = Some(&UNEVEN);
        const SIGNED: bool = true;
    };
    MXFP4: 1 of 4 bits, fifths false, offset 12, minimums false, with {
        const TABLE: Option<&[u8; 16]> = Some(&DOUBLED);
        const EXPONENT: bool = true;
    };
    PTQ1_0: 4 of 0 bits, fifths false, offset 1, minimums false, with {
        const SCALE: usize = 26;
        const ENDS: bool = true;
        const BYTES: usize = 28;

        #[inline(always)]
        unsafe fn words<B: Bytes>(rows: &[*const u8], at: usize) -> ([B; 8], B) {
            // SAFETY: the caller's promise; 28 bytes.
            unsafe {
                let ([a, b, c, d], [_, e, f, g]) = (B::columns(rows, at), B::columns(rows, at + 12));
                ([a, b, c, d, e, f, g, g], g)
            }
        }

        #[inline(always)]
        unsafe fn codes<B: Bytes>(([a, b, c, d, e, f, g, _], _): &([B; 8], B), n: usize) -> [B; 8] {
            // SAFETY: the caller's promise.
            unsafe {
                match n {
                    0 => thirds::pairs_of_four::<0, B>([*a, *b, *c, *d]),
                    1 => thirds::pairs_of_four::<1, B>([*a, *b, *c, *d]),
                    2 => {
                        let [[a, _], [b, _], [c, _], [d, _]] =
                            [a.trits::<2>(), b.trits::<2>(), c.trits::<2>(), d.trits::<2>()];
                        let ([e, g], [f, h]) = (e.trits::<0>(), f.trits::<0>());
                        [a, b, c, d, e, f, g, h]
                    }
                    _ => {
                        let ([a, c], [b, d]) = (e.trits::<1>(), f.trits::<1>());
                        let ([e, _], [f, _]) = (e.trits::<2>(), f.trits::<2>());
                        let [g, h] = thirds::of_two_bytes(*g);
                        [a, b, c, d, e, f, g, h]
                    }
                }
            }
        }
    };
}
pub(in crate::kernels) use with_short;

/// Index among 32 columns of the `i`-th one in the order of `Short::codes`.
pub(crate) const fn column(bits: usize, i: usize) -> usize {
    match bits {
        1 | 2 => (i / 4 % bits * 4 + i % 4) * (8 / bits) + i / 4 / bits,
        _ => i,
    }
}
