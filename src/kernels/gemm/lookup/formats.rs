//! The formats of weights: which columns have a table together, and where a row's bytes say which entry it takes.

use super::TILE;
use super::tables::{bits, ternary};
pub(super) use super::thirds::{Thirds128, Thirds256};
use crate::kernels::simd::lanes::Real;
use crate::kernels::simd::shorts::Shorts;

/// The tables of a tile.
pub(super) trait Digits {
    /// Columns of each table; 0: there is no such table.
    const FIELDS: [usize; 8];
    /// Number of entries before those of each.
    const STARTS: [usize; 8];
    /// Number of entries in all.
    const ENTRIES: usize;
    /// Fills a table; `x` has the activations of the columns, the lowest digit first.
    ///
    /// # Safety
    /// `S`'s instructions are available, and there is room for the entries.
    unsafe fn fill<S: Shorts>(x: &[S; 6], digits: usize, to: *mut i16);
}

/// Four ternary weights: a byte of two-bit codes, from 0 to 2.
pub(super) struct Codes;

/// Entries from one table to the next. Tables have gaps, and with some distances all entries that are used would fall on
/// a part of the L1 cache's sets.
const APART: usize = 290;

impl Digits for Codes {
    const FIELDS: [usize; 8] = [4; 8];
    const STARTS: [usize; 8] = [0, APART, 2 * APART, 3 * APART, 4 * APART, 5 * APART, 6 * APART, 7 * APART];
    const ENTRIES: usize = 8 * APART;
    #[inline(always)]
    unsafe fn fill<S: Shorts>(x: &[S; 6], _: usize, to: *mut i16) {
        // SAFETY: the caller's promise.
        unsafe { ternary(x, to) }
    }
}

/// Six, five and five bits of each half of a tile.
pub(super) struct Bits;

impl Digits for Bits {
    const FIELDS: [usize; 8] = [6, 5, 5, 0, 6, 5, 5, 0];
    const STARTS: [usize; 8] = [0, 64, 96, 128, 128, 192, 224, 256];
    const ENTRIES: usize = 256;
    #[inline(always)]
    unsafe fn fill<S: Shorts>(x: &[S; 6], digits: usize, to: *mut i16) {
        // SAFETY: the caller's promise.
        unsafe { bits(x, digits, to) }
    }
}

pub(super) trait Format {
    type Digits: Digits;
    /// Tiles and bytes of a unit, which is a block of the file.
    const TILES: usize;
    const BYTES: usize;
    /// Offset of the codes in a unit.
    const CODES: usize;
    /// Offset of the f16 scale in a unit. If there is none, a row has one scale.
    const SCALE: Option<usize>;
    /// Whether sums of i16 go on over the tiles of a panel; otherwise tokens have a scale in each tile.
    const LONG: bool;
    /// The column, in a unit, of a digit of a table.
    fn column(tile: usize, field: usize, digit: usize) -> usize;
    /// The entries of two tiles, times 32, from the codes of a unit. `odd` gets bits of `ODD` if a weight has no entry.
    ///
    /// # Safety
    /// `S`'s instructions are available, and all codes of the unit.
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S;
    /// Adds the sums of a panel if LONG, else of each of two tiles, to the totals of a row: an i32 or an f32 for each
    /// token. `tokens` are the scales of tokens in these tiles.
    ///
    /// # Safety
    /// `S`'s instructions are available, and as many totals and scales of tokens as lanes.
    unsafe fn end<S: Shorts>(sums: [S; 2], scale: f32, tokens: [*const f32; 2], totals: *mut f32);
    /// The products of sixteen tokens.
    ///
    /// # Safety
    /// As for `end`.
    unsafe fn product<S: Shorts>(total: *const f32, scale: f32, token: *const f32) -> S::Floats;
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

/// I2_S, and the rows of `Ternary`.
pub(super) struct I2S;

impl Format for I2S {
    type Digits = Codes;
    const TILES: usize = 4;
    const BYTES: usize = 32;
    const CODES: usize = 0;
    const SCALE: Option<usize> = None;
    const LONG: bool = true;
    #[inline(always)]
    fn column(tile: usize, field: usize, digit: usize) -> usize {
        8 * tile + field + 32 * (3 - digit)
    }
    #[inline(always)]
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S {
        // SAFETY: the caller's promise.
        unsafe { of_codes(codes, pair, odd) }
    }
    #[inline(always)]
    unsafe fn end<S: Shorts>([sum, _]: [S; 2], _: f32, _: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { sum.add_to(totals.cast()) }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(total: *const f32, scale: f32, token: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::floats(total.cast()).mul(S::Floats::splat(scale).div(S::Floats::load(token))) }
    }
}

/// TQ2_0 with one scale of activations for each token.
#[allow(non_camel_case_types)] // the name that files and their users know
pub(super) struct TQ2_0;

impl Format for TQ2_0 {
    type Digits = Codes;
    const TILES: usize = 8;
    const BYTES: usize = 66;
    const CODES: usize = 0;
    const SCALE: Option<usize> = Some(64);
    const LONG: bool = true;
    #[inline(always)]
    fn column(tile: usize, field: usize, digit: usize) -> usize {
        tile / 4 * 128 + 8 * (tile % 4) + field + 32 * digit
    }
    #[inline(always)]
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S {
        // SAFETY: the caller's promise.
        unsafe { of_codes(codes, pair, odd) }
    }
    #[inline(always)]
    unsafe fn end<S: Shorts>([sum, _]: [S; 2], scale: f32, _: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { add_scaled(sum, scale, totals) }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(total: *const f32, _: f32, token: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::Floats::load(total).div(S::Floats::load(token)) }
    }
}

/// Adds the sums of 256 columns, as `ternary` does.
#[inline(always)]
pub(super) unsafe fn add_scaled<S: Shorts>(sum: S, scale: f32, totals: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        for n in (0..S::LANES).step_by(16) {
            let so_far = S::Floats::load(totals.add(n));
            so_far.add(sum.to_f32(n).mul(S::Floats::splat(scale))).store(totals.add(n));
        }
    }
}

/// Blocks of `COUNT` tiles with a scale, of one bit or, if `TWO`, of two. Activations have a scale in each tile.
pub(super) struct Short<const TWO: bool, const COUNT: usize>;

impl<const COUNT: usize> Format for Short<true, COUNT> {
    type Digits = Codes;
    const TILES: usize = COUNT;
    const BYTES: usize = 2 + 8 * COUNT;
    const CODES: usize = 2;
    const SCALE: Option<usize> = Some(0);
    const LONG: bool = false;
    #[inline(always)]
    fn column(tile: usize, field: usize, digit: usize) -> usize {
        TILE * tile + 4 * field + digit
    }
    #[inline(always)]
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, odd: &mut S) -> S {
        // SAFETY: the caller's promise.
        unsafe { of_codes(codes, pair, odd) }
    }
    #[inline(always)]
    unsafe fn end<S: Shorts>(sums: [S; 2], scale: f32, tokens: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { add_blocks(sums, scale, tokens, totals) }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(total: *const f32, _: f32, _: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::Floats::load(total) }
    }
}

impl<const COUNT: usize> Format for Short<false, COUNT> {
    type Digits = Bits;
    const TILES: usize = COUNT;
    const BYTES: usize = 2 + 4 * COUNT;
    const CODES: usize = 2;
    const SCALE: Option<usize> = Some(0);
    const LONG: bool = false;
    #[inline(always)]
    fn column(tile: usize, field: usize, digit: usize) -> usize {
        TILE * tile + field / 4 * 16 + [0, 6, 11][field % 4] + digit
    }
    #[inline(always)]
    unsafe fn entries<S: Shorts>(codes: *const u8, pair: usize, _: &mut S) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::fields(codes.add(8 * pair)) }
    }
    #[inline(always)]
    unsafe fn end<S: Shorts>(sums: [S; 2], scale: f32, tokens: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { add_blocks(sums, scale, tokens, totals) }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(total: *const f32, _: f32, _: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::Floats::load(total) }
    }
}

/// Adds the sums of twice 32 columns, as `quantized` does.
#[inline(always)]
pub(super) unsafe fn add_blocks<S: Shorts>(
    sums: [S; 2],
    scale: f32,
    tokens: [*const f32; 2],
    totals: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for n in (0..S::LANES).step_by(16) {
            let mut total = S::Floats::load(totals.add(n));
            for tile in 0..2 {
                let factor = S::Floats::splat(scale).mul(S::Floats::load(tokens[tile].add(n)));
                total = sums[tile].to_f32(n).fma(factor, total);
            }
            total.store(totals.add(n));
        }
    }
}

/// Expands to `$call` with `$f` as the `Format` of a type.
macro_rules! with_format {
    ($dtype:expr, $f:ident => $call:expr) => {
        $crate::kernels::gemm::lookup::formats::with_format!($dtype, $f => $call,
            I2S: I2S, Ternary: I2S, TQ1_0: Thirds256, TQ2_0: TQ2_0, Q1_0: Short<false, 4>, Q2_0: Short<true, 2>,
            Q2_0_128: Short<true, 4>, PTQ1_0: Thirds128)
    };
    ($dtype:expr, $f:ident => $call:expr, $($name:ident: $type:ident $(<$two:literal, $count:literal>)?),*) => {
        match $dtype {
            $($crate::kernels::DType::$name => {
                type $f = $crate::kernels::gemm::lookup::formats::$type $(<$two, $count>)?;
                $call
            })*
            other => unreachable!("{other:?} has no tables"),
        }
    };
}
pub(super) use with_format;
