//! Super-blocks of 256 columns: ggml's K-quants and IQ4_XS, and those of `codebooks` (github.com/ggml-org/ggml,
//! ggml-quants.c).

#![allow(clippy::needless_range_loop)] // fixed ranges keep codes in registers

pub(crate) use super::codebooks::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::short_blocks::UNEVEN;
use super::{thirds, twos};
use crate::kernels::simd::bytes::{Bytes, Portable};
#[cfg(any(test, target_arch = "x86_64"))]
use crate::kernels::simd::wide::Wide;

/// A type of super-blocks. Its weights are `d * UNIT * scale * (code - OFFSET)`, or `d * scale * code - dmin * minimum`
/// if it has MINIMA. Each group of 16 or 32 columns has a scale and a minimum.
///
/// A block is decoded in two sides. A side has sixteen of each 32 columns, or 128 columns in a row if the type is in
/// HALVES. `column` is the first of sixteen columns of a side.
pub(crate) trait Super {
    const BYTES: usize;
    /// Number of steps of four columns whose pairs of products with int8, each at most 2 * largest code * 128, add up
    /// within an i16. Values that are multiplied with SIGNED codes are -127 or more.
    const STEPS: usize;
    /// Number of steps of four columns that share a scale.
    const GROUP: usize;
    /// Offset of the block's f16 scale, and of the f16 scale of its minima; the same offset if there are no minima.
    const D: usize;
    const MIN: usize;
    const MINIMA: bool = Self::D != Self::MIN;
    /// A power of two that the f16 scale is multiplied by.
    const UNIT: f32 = 1.0;
    /// The offset that codes have over the integers they stand for; 0 if they are SIGNED.
    const OFFSET: i16;
    /// Whether codes are int8; otherwise they are unsigned, below 128.
    const SIGNED: bool = false;
    const HALVES: bool = false;
    /// Whether the type has a codebook.
    const BOOK: bool = false;
    /// Whether codes are looked up in tables of bytes, if registers can do that.
    const LOOKED_UP: bool = Self::BOOK;

    /// The bytes of one side of a block that are needed for its codes.
    type Packed<B: Bytes>: Copy;

    /// Scales, as i8, and minima of groups of columns of the block at `at` of each of ROWS rows: byte after byte of
    /// each lane. The second four are the scales again if the type has no minima.
    ///
    /// # Safety
    /// `B`'s instructions are available; the blocks can be read.
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2];

    /// Reads a side of the block at `at` of each of ROWS rows.
    ///
    /// # Safety
    /// As for `scales`.
    unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Self::Packed<B>;

    /// Codes of the four columns that are `4 j` after `column(k)`, for each `k`. If the type is a BOOK and `B` has
    /// TABLES, the activations are in the order of `codebooks::fours`.
    ///
    /// # Safety
    /// `B`'s instructions are available.
    unsafe fn codes<B: Bytes>(packed: &Self::Packed<B>, j: usize) -> [B; 8];

    /// Codes of a whole block: of columns `32 k ..` in the lower half of line `k`, and of columns `128 + 32 k ..` in
    /// its upper half.
    ///
    /// # Safety
    /// `W`'s instructions are available; the block can be read.
    #[cfg(any(test, target_arch = "x86_64"))]
    unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4];
}

/// The first of sixteen columns of a side of a block.
#[inline(always)]
pub(crate) const fn column<K: Super>(k: usize, side: usize) -> usize {
    if K::HALVES { 128 * side + 16 * k } else { 32 * k + 16 * side }
}

/// Reads bytes `16 side ..` of the 32 bytes at each offset, of the block at `at` of each of ROWS rows: four bytes, the
/// next four, and so on.
#[inline(always)]
unsafe fn columns<B: Bytes>(offsets: &[usize], rows: &[*const u8], at: usize, side: usize) -> [[B; 6]; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut columns = B::columns(rows, at + 16 * side + offsets[0]).map(|first| [first; 6]);
        for v in 1..offsets.len() {
            let four = B::columns(rows, at + 16 * side + offsets[v]);
            for j in 0..4 {
                columns[j][v] = four[j];
            }
        }
        columns
    }
}

/// Loads the 32 bytes at each offset: in the lower half of a vector the bytes for columns below 128, in its upper half
/// the bytes for the columns from 128 on. With 2 or 4 vectors of codes, the upper half comes from the second half of
/// the vectors. For higher bits it comes from the next vector, or from the upper four bits of each byte.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
unsafe fn both_halves<W: Wide>(offsets: &[usize], block: *const u8) -> [W; 6] {
    let codes = if offsets.len() < 4 { 2 } else { 4 };
    // SAFETY (of all): 32 bytes at each offset are within the block.
    unsafe {
        let at = |v: usize| block.add(offsets[v]);
        let mut packed = [W::two(at(0), at(codes / 2)); 6];
        packed[1] = W::two(at(codes / 2 - 1), at(codes - 1));
        match offsets.len() - codes {
            0 => {}
            1 => packed[codes] = W::nibbles(at(codes)),
            _ => packed[codes] = W::two(at(codes), at(codes + 1)),
        }
        packed
    }
}

/// Scales, as i8, and minima of each 16 columns of a block.
#[inline(always)]
pub(crate) fn scales<K: Super>(block: &[u8]) -> [[u8; 16]; 2] {
    assert_eq!(block.len(), K::BYTES, "a whole block");
    // SAFETY: a whole block; any processor has the instructions.
    let both = unsafe { K::scales::<Portable>(&[block.as_ptr()], 0) };
    both.map(|words| {
        let mut all = [0; 16];
        for (n, byte) in all.iter_mut().enumerate() {
            let group = 4 * n / K::GROUP;
            *byte = (words[group / 4].0 >> (8 * (group % 4))) as u8;
        }
        all
    })
}

/// Expands to `$call` with `$k` as the `Super` of a type of super-blocks.
macro_rules! with_super {
    ($dtype:expr, $k:ident => $call:expr) => {
        $crate::kernels::gemm::formats::super_blocks::with_super!(
            $dtype, $k => $call,
            Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0_256 TQ2_0_256 IQ4_XS IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
        )
    };
    ($dtype:expr, $k:ident => $call:expr, $($name:ident)*) => {
        match $dtype {
            $($crate::kernels::DType::$name => {
                type $k = $crate::kernels::gemm::formats::super_blocks::$name;
                $call
            })*
            other => panic!("{other:?} has no super-blocks"),
        }
    };
}
pub(in crate::kernels) use with_super;

/// Types whose codes are in vectors of 32 bytes, at some offsets in a block, and whose scales are in sixteen bytes.
macro_rules! super_block {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $packed:expr, steps $steps:literal, group $group:literal,
     d $d:literal $min:literal, offset $offset:literal, scales at $at:literal, |$w:ident| $scales:expr,
     |$p:ident| $codes:expr) => {
        $(#[$doc])*
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub(crate) struct $name;
        impl Super for $name {
            const BYTES: usize = $bytes;
            const STEPS: usize = $steps;
            const GROUP: usize = $group;
            const D: usize = $d;
            const MIN: usize = $min;
            const OFFSET: i16 = $offset;
            type Packed<B: Bytes> = [[B; 6]; 4];

            #[inline(always)]
            unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2] {
                // SAFETY: the caller's promise; sixteen bytes of a block.
                unsafe {
                    let $w = B::columns(rows, at + $at);
                    $scales
                }
            }

            #[inline(always)]
            unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> [[B; 6]; 4] {
                // SAFETY: the caller's promise.
                unsafe { columns(&$packed, rows, at, side) }
            }

            #[inline(always)]
            unsafe fn codes<B: Bytes>(packed: &[[B; 6]; 4], j: usize) -> [B; 8] {
                let $p = packed[j];
                // SAFETY: the caller's promise.
                unsafe { $codes }
            }

            #[cfg(any(test, target_arch = "x86_64"))]
            #[inline(always)]
            unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4] {
                // SAFETY: the caller's promise.
                let $p = unsafe { both_halves::<W>(&$packed, block) };
                // SAFETY: the caller's promise.
                let [a, b, c, d, ..] = unsafe { $codes };
                [a, b, c, d]
            }
        }
    };
}

super_block!(
    /// 16 bytes of 4-bit scales and minima, 64 bytes of 2-bit elements, two f16.
    Q2_K, 84, [16, 48], steps 4, group 4, d 80 82, offset 0, scales at 0,
    |w| [four(w, |w| w.right::<0>(15)), four(w, |w| w.right::<4>(15))],
    |p| pairs(p)
);
super_block!(
    /// 64 bytes of 2-bit elements, an f16. Scales within the block are 1.
    TQ2_0_256, 66, [0, 32], steps 8, group 8, d 64 64, offset 1, scales at 0,
    |w| {
        let one = w[0].right::<0>(0).less(255);
        [[one; 4]; 2]
    },
    |p| pairs(p)
);
super_block!(
    /// 32 bytes of third bits, 64 bytes of 2-bit elements, 12 bytes of 6-bit scales, an f16.
    Q3_K, 110, [32, 64, 0], steps 4, group 4, d 108 108, offset 4, scales at 92,
    |w| {
        // The low four bits of the 16 scales, then the high two bits of each in four words; the values are 32 too
        // large.
        let [_, a, b, c] = w;
        let scales = [
            a.right::<0>(15).or(c.left::<4>(48)),
            b.right::<0>(15).or(c.left::<2>(48)),
            a.right::<4>(15).or(c.right::<0>(48)),
            b.right::<4>(15).or(c.right::<2>(48)),
        ];
        [four(scales, |w| w.less(32)); 2]
    },
    |p| {
        let m = p[2];
        let third = [
            m.left::<2>(4), m.left::<1>(4), m.right::<0>(4), m.right::<1>(4), m.right::<2>(4), m.right::<3>(4),
            m.right::<4>(4), m.right::<5>(4),
        ];
        both(pairs(p), third)
    }
);
super_block!(
    /// Two f16, 12 bytes of 6-bit scales and minima for 32 elements each, 128 bytes of 4-bit elements.
    Q4_K, 144, [16, 48, 80, 112], steps 8, group 8, d 0 2, offset 0, scales at 0, |w| six_bits(w), |p| nibbles(p)
);
super_block!(
    /// As Q4_K, with 32 bytes of fifth bits before the elements.
    Q5_K, 176, [48, 80, 112, 144, 16], steps 4, group 8, d 0 2, offset 0, scales at 0, |w| six_bits(w),
    |p| {
        let h = p[4];
        let fifth = [
            h.left::<4>(16), h.left::<3>(16), h.left::<2>(16), h.left::<1>(16), h.right::<0>(16), h.right::<1>(16),
            h.right::<2>(16), h.right::<3>(16),
        ];
        both(nibbles(p), fifth)
    }
);
super_block!(
    /// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 int8 scales, an f16.
    Q6_K, 210, [0, 32, 64, 96, 128, 160], steps 2, group 4, d 208 208, offset 32, scales at 192,
    |w| [w; 2],
    |p| {
        let [a, b, c, d, h, i] = p;
        let low = [
            a.right::<0>(15), b.right::<0>(15), a.right::<4>(15), b.right::<4>(15), c.right::<0>(15),
            d.right::<0>(15), c.right::<4>(15), d.right::<4>(15),
        ];
        let high = [
            h.left::<4>(48), h.left::<2>(48), h.right::<0>(48), h.right::<2>(48), i.left::<4>(48), i.left::<2>(48),
            i.right::<0>(48), i.right::<2>(48),
        ];
        both(low, high)
    }
);

/// Codes in base 3 (`thirds`), an f16. Scales within the block are 1.
#[allow(non_camel_case_types)] // the name that files and their users know
pub(crate) struct TQ1_0_256;

impl Super for TQ1_0_256 {
    const BYTES: usize = thirds::BYTES;
    const STEPS: usize = 8;
    const GROUP: usize = 8;
    const D: usize = thirds::SCALE;
    const MIN: usize = thirds::SCALE;
    const OFFSET: i16 = 1;
    const LOOKED_UP: bool = true;
    type Packed<B: Bytes> = ([[B; 4]; 2], B, usize);

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2] {
        // SAFETY: the caller's promise; sixteen bytes of a block.
        let one = unsafe { B::columns(rows, at)[0].right::<0>(0).less(255) };
        [[one; 4]; 2]
    }

    #[inline(always)]
    unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> Self::Packed<B> {
        // SAFETY: the caller's promise; sixteen bytes each, within the codes of a block.
        unsafe {
            let [.., last] = B::columns(rows, at + 36);
            ([B::columns(rows, at + 16 * side), B::columns(rows, at + 32)], last, side)
        }
    }

    #[inline(always)]
    unsafe fn codes<B: Bytes>(&([first, second], last, side): &Self::Packed<B>, j: usize) -> [B; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let ([a, b], [c, d], [e, _]) =
                (first[j].trits::<0>(), first[j].trits::<1>(), first[j].trits::<2>());
            let (f, g) = (second[j].trits::<0>(), second[j].trits::<1>());
            let [h, _] = second[j].trits::<2>();
            // A side has every other trit of the second part. The last one of the second side is of the third part.
            match side {
                0 => [a, b, c, d, e, f[0], g[0], h],
                _ => {
                    let both = if j < 2 { last.trits::<0>() } else { last.trits::<1>() };
                    [a, b, c, d, e, f[1], g[1], both[j % 2]]
                }
            }
        }
    }

    #[cfg(any(test, target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4] {
        // SAFETY: the caller's promise.
        unsafe { thirds::lines(block) }
    }
}

/// An f16, eight scales of six bits, less 32 (the high two bits of all, then the low four bits), and sixteen bytes of
/// 4-bit codes for each 32 columns, the first sixteen in the low bits.
#[allow(non_camel_case_types)] // the name that files and their users know
pub(crate) struct IQ4_XS;

impl Super for IQ4_XS {
    const BYTES: usize = 136;
    const STEPS: usize = 1;
    const GROUP: usize = 8;
    const D: usize = 0;
    const MIN: usize = 0;
    const OFFSET: i16 = 0;
    const SIGNED: bool = true;
    const HALVES: bool = true;
    type Packed<B: Bytes> = [[B; 6]; 4];

    #[inline(always)]
    unsafe fn scales<B: Bytes>(rows: &[*const u8], at: usize) -> [[B; 4]; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let [high, low, ..] = B::columns(rows, at);
            let first = six_of(high.reorder(0x0202_0202), low.reorder(0x0101_0000));
            let second = six_of(high.reorder(0x0303_0303), low.reorder(0x0303_0202));
            [[first, second, first, second]; 2]
        }
    }

    #[inline(always)]
    unsafe fn packed<B: Bytes>(rows: &[*const u8], at: usize, side: usize) -> [[B; 6]; 4] {
        // SAFETY: the caller's promise. A side has 64 bytes of its own.
        unsafe { columns(&[8, 24, 40, 56], rows, at + 48 * side, side) }
    }

    #[inline(always)]
    unsafe fn codes<B: Bytes>(packed: &[[B; 6]; 4], j: usize) -> [B; 8] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut codes = nibbles(packed[j]);
            for k in 0..8 {
                codes[k] = codes[k].pick(&UNEVEN);
            }
            codes
        }
    }

    #[cfg(any(test, target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn lines<W: Wide>(block: *const u8) -> [W; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut lines = [W::nibbles_of_two(block.add(8), block.add(72)); 4];
            for k in 0..4 {
                let at = block.add(8 + 16 * k);
                lines[k] = W::nibbles_of_two(at, at.add(64)).right::<0>(15).pick(&UNEVEN);
            }
            lines
        }
    }
}

/// Four scales of six bits, less 32, byte by byte: their high bits from a byte that stands four times in `high`, their
/// low bits from two bytes that occur twice each.
#[inline(always)]
unsafe fn six_of<B: Bytes>(high: B, low: B) -> B {
    // SAFETY: the caller's promise.
    unsafe {
        let low = low.right::<0>(15).only(0x00ff_00ff).or(low.right::<4>(15).only(0xff00_ff00));
        let a = high.left::<4>(48).only(0xff).or(high.left::<2>(48).only(0xff00));
        let b = high.right::<0>(48).only(0xff_0000).or(high.right::<2>(48).only(0xff00_0000));
        low.or(a.or(b)).less(32)
    }
}

/// Applies `one` to each of four.
#[inline(always)]
unsafe fn four<B: Bytes>(w: [B; 4], one: impl Fn(B) -> B) -> [B; 4] {
    [one(w[0]), one(w[1]), one(w[2]), one(w[3])]
}

/// Scales and minima of each 32 columns: six bits each, packed in 12 bytes after two f16.
#[inline(always)]
unsafe fn six_bits<B: Bytes>([_, a, b, c]: [B; 4]) -> [[B; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = [a.right::<0>(63), c.right::<0>(15).or(a.right::<2>(48))];
        let minima = [b.right::<0>(63), c.right::<4>(15).or(b.right::<2>(48))];
        [[scales[0], scales[1], scales[0], scales[1]], [minima[0], minima[1], minima[0], minima[1]]]
    }
}

/// Codes of two bits, of two vectors, from the low bits up.
#[inline(always)]
unsafe fn pairs<B: Bytes>([a, b, ..]: [B; 6]) -> [B; 8] {
    // SAFETY (of both): the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (twos(a), twos(b)) };
    [a, b, c, d, e, f, g, h]
}

/// Codes of four bits, of four vectors, from the low bits up.
#[inline(always)]
unsafe fn nibbles<B: Bytes>(packed: [B; 6]) -> [B; 8] {
    let mut codes = [packed[0]; 8];
    for v in 0..4 {
        // SAFETY (of both): the caller's promise.
        (codes[2 * v], codes[2 * v + 1]) = unsafe { (packed[v].right::<0>(15), packed[v].right::<4>(15)) };
    }
    codes
}

#[inline(always)]
unsafe fn both<B: Bytes>(mut a: [B; 8], b: [B; 8]) -> [B; 8] {
    for k in 0..8 {
        // SAFETY: the caller's promise.
        a[k] = unsafe { a[k].or(b[k]) };
    }
    a
}
