//! The formats of weights: where the columns of a table are, and where a row's bytes say which entry it takes.

use super::TILE;
use super::sums::{Bits, Codes, OfBlocks, OfPanels, OfRows, Sums};
pub(super) use super::thirds::{PTQ1_0, TQ1_0};
use crate::kernels::simd::shorts::Shorts;

pub(super) trait Format {
    type Sums: Sums;
    /// Tiles and bytes of a unit, which is a block of the file.
    const TILES: usize;
    const BYTES: usize;
    /// Offset of the codes in a unit.
    const CODES: usize = 0;
    /// Offset of the f16 scale in a unit. If there is none, a row has one scale.
    const SCALE: Option<usize>;
    /// The column, in a unit, of a digit of a table.
    fn column(tile: usize, field: usize, digit: usize) -> usize;
    /// The entries of two tiles, times 32, from the codes of a unit. `odd` gets bits of `ODD` if a weight has no entry.
    ///
    /// # Safety
    /// `S`'s instructions are available, and all codes of the unit.
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S;
}

/// The lower bit of each code, which is set in `v & v >> 1` for a code 3.
pub(super) const ODD: i16 = 0x55;

/// The entries of sixteen bytes of two-bit codes, times 32.
#[inline(always)]
unsafe fn of_codes<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = S::load_u8(codes.add(16 * pair));
        *odd = odd.or(bytes.and(bytes.down::<1>()));
        bytes.up::<5>()
    }
}

/// Defines the `Format` of a type whose bytes are entries: four columns each.
macro_rules! two_bits {
    ($(#[$doc:meta] $name:ident $(<const $count:ident>)?: $sums:ty, $tiles:expr, $bytes:expr, codes $codes:literal,
        scale $scale:expr, |$tile:ident, $field:ident, $digit:ident| $column:expr;)*) => {$(
        #[$doc]
        #[allow(non_camel_case_types)] // the names that files and their users know
        pub(super) struct $name $(<const $count: usize>)?;

        impl $(<const $count: usize>)? Format for $name $(<$count>)? {
            type Sums = $sums;
            const TILES: usize = $tiles;
            const BYTES: usize = $bytes;
            const CODES: usize = $codes;
            const SCALE: Option<usize> = $scale;
            #[inline(always)]
            fn column($tile: usize, $field: usize, $digit: usize) -> usize {
                $column
            }
            #[inline(always)]
            unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S {
                // SAFETY: the caller's promise.
                unsafe { of_codes(codes, pair, odd) }
            }
        }
    )*};
}

two_bits! {
    /// I2_S, and the rows of `Ternary`.
    I2S: OfRows, 4, 32, codes 0, scale None, |tile, field, digit| 8 * tile + field + 32 * (3 - digit);
    /// TQ2_0 with one scale of activations for each token.
    TQ2_0: OfPanels, 8, 66, codes 0, scale Some(64),
        |tile, field, digit| tile / 4 * 128 + 8 * (tile % 4) + field + 32 * digit;
    /// Q2_0 with a scale for COUNT tiles.
    Q2_0<const COUNT>: OfBlocks<Codes>, COUNT, 2 + 8 * COUNT, codes 2, scale Some(0),
        |tile, field, digit| TILE * tile + 4 * field + digit;
}

#[allow(non_camel_case_types)] // the name that files and their users know
pub(super) struct Q1_0;

impl Format for Q1_0 {
    type Sums = OfBlocks<Bits>;
    const TILES: usize = 4;
    const BYTES: usize = 18;
    const CODES: usize = 2;
    const SCALE: Option<usize> = Some(0);
    #[inline(always)]
    fn column(tile: usize, field: usize, digit: usize) -> usize {
        TILE * tile + field / 4 * 16 + [0, 6, 11][field % 4] + digit
    }
    #[inline(always)]
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, _: &mut S) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::fields(codes.add(8 * pair)) }
    }
}

/// Expands to `$call` with `$f` as the `Format` of a type.
macro_rules! with_format {
    ($dtype:expr, $f:ident => $call:expr) => {
        $crate::kernels::gemm::lookup::formats::with_format!($dtype, $f => $call, I2S: I2S, Ternary: I2S, TQ1_0: TQ1_0,
            TQ2_0: TQ2_0, Q1_0: Q1_0, Q2_0: Q2_0<2>, Q2_0_128: Q2_0<4>, PTQ1_0: PTQ1_0)
    };
    ($dtype:expr, $f:ident => $call:expr, $($name:ident: $type:ident $(<$count:literal>)?),*) => {
        match $dtype {
            $($crate::kernels::DType::$name => {
                type $f = $crate::kernels::gemm::lookup::formats::$type $(<$count>)?;
                $call
            })*
            other => unreachable!("{other:?} has no tables"),
        }
    };
}
pub(super) use with_format;
