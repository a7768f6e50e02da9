//! TQ1_0 and PTQ1_0: five digits of base 3 in a byte. Field f of a tile has its columns f, f + 8, f + 16 and f + 24.

use super::TILE;
use super::formats::Format;
use super::sums::{Codes, OfBlocks, OfPanels};
use crate::kernels::simd::shorts::Shorts;

/// One digit of eight bytes, for eight neighboring columns.
#[derive(Clone, Copy)]
struct Plane {
    /// Offset of the bytes in a block.
    at: usize,
    /// Number of bytes; fewer than eight are repeated.
    bytes: usize,
    /// Three to the power of the digit's number, for each.
    powers: [i16; 8],
}

/// Digit `n` of the eight bytes at `at`.
const fn plane(at: usize, n: u32) -> Plane {
    Plane { at, bytes: 8, powers: [3i16.pow(n); 8] }
}

/// Planes of two tiles, for each of the four digits of an entry.
type Pair = [[Plane; 2]; 4];

/// Each eight columns of PTQ1_0: sixteen bytes by five digits, eight bytes by five, and two bytes by four.
const OF_128: [Pair; 2] = {
    let rest = Plane { at: 24, bytes: 2, powers: [1, 1, 3, 3, 9, 9, 27, 27] };
    [
        [
            [plane(0, 0), plane(0, 2)],
            [plane(8, 0), plane(8, 2)],
            [plane(0, 1), plane(0, 3)],
            [plane(8, 1), plane(8, 3)],
        ],
        [
            [plane(0, 4), plane(16, 2)],
            [plane(8, 4), plane(16, 3)],
            [plane(16, 0), plane(16, 4)],
            [plane(16, 1), rest],
        ],
    ]
};

/// Each eight columns of TQ1_0: 32 bytes by five digits, sixteen bytes by five, and four bytes by four.
const OF_256: [Pair; 4] = {
    let low = Plane { at: 48, bytes: 4, powers: [1, 1, 1, 1, 3, 3, 3, 3] };
    let high = Plane { powers: [9, 9, 9, 9, 27, 27, 27, 27], ..low };
    [
        [
            [plane(0, 0), plane(0, 1)],
            [plane(8, 0), plane(8, 1)],
            [plane(16, 0), plane(16, 1)],
            [plane(24, 0), plane(24, 1)],
        ],
        [
            [plane(0, 2), plane(0, 3)],
            [plane(8, 2), plane(8, 3)],
            [plane(16, 2), plane(16, 3)],
            [plane(24, 2), plane(24, 3)],
        ],
        [
            [plane(0, 4), plane(32, 0)],
            [plane(8, 4), plane(40, 0)],
            [plane(16, 4), plane(32, 1)],
            [plane(24, 4), plane(40, 1)],
        ],
        [
            [plane(32, 2), plane(32, 4)],
            [plane(40, 2), plane(40, 4)],
            [plane(32, 3), low],
            [plane(40, 3), high],
        ],
    ]
};

/// The bytes of a plane.
///
/// # Safety
/// The block can be read.
#[inline(always)]
unsafe fn bytes_of(block: *const u8, plane: &Plane) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        let from = block.add(plane.at);
        u64::from_le(match plane.bytes {
            8 => from.cast::<u64>().read_unaligned(),
            4 => u64::from(from.cast::<u32>().read_unaligned()) * 0x0000_0001_0000_0001,
            _ => u64::from(from.cast::<u16>().read_unaligned()) * 0x0001_0001_0001_0001,
        })
    }
}

/// The entries of two tiles, times 32. A digit is the upper byte of three times the lower byte of the product.
///
/// # Safety
/// `S`'s instructions are available; the block can be read.
#[inline(always)]
unsafe fn entries<S: Shorts>(block: *const u8, pair: &Pair) -> S {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = S::zero();
        for digit in (0..4).rev() {
            let [low, high] = &pair[digit];
            let bytes = [bytes_of(block, low), bytes_of(block, high)].map(u64::to_le_bytes);
            let powers = [low.powers, high.powers];
            let x = S::load_u8(bytes.as_flattened().as_ptr()).mul(S::load(powers.as_flattened().as_ptr()));
            let tops = x.and(S::load([0xff; 16].as_ptr())).mul(S::load([3; 16].as_ptr())).down::<8>();
            sum = sum.up::<2>().add(tops);
        }
        sum.up::<5>()
    }
}

/// Defines the `Format` of a type.
macro_rules! thirds {
    ($(#[$doc:meta] $name:ident: $sums:ty, $tiles:literal, $bytes:literal, $pairs:ident;)*) => {$(
        #[$doc]
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub(super) struct $name;

        impl Format for $name {
            type Sums = $sums;
            const TILES: usize = $tiles;
            const BYTES: usize = $bytes;
            const SCALE: Option<usize> = Some($bytes - 2);
            #[inline(always)]
            fn column(tile: usize, field: usize, digit: usize) -> usize {
                TILE * tile + field + 8 * digit
            }
            #[inline(always)]
            unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, _: &mut S) -> S {
                // SAFETY: the caller's promise.
                unsafe { entries(codes, &$pairs[pair]) }
            }
        }
    )*};
}

thirds! {
    /// TQ1_0 with one scale of activations for each token.
    TQ1_0: OfPanels, 8, 54, OF_256;
    /// PrismML's form of it, with shorter blocks.
    PTQ1_0: OfBlocks<Codes>, 4, 28, OF_128;
}
