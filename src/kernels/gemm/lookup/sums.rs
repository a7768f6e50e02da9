//! How sums of integers become products: the arithmetic of each kind of weights, in the order of `scalar`.

use super::tables::{bits, ternary};
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

/// Entries from one table to the next. Tables have gaps, and with some distances all entries that are used would fall
/// on a part of the L1 cache's sets.
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

pub(super) trait Sums {
    type Digits: Digits;
    /// Whether sums of i16 go on over the tiles of a panel; otherwise tokens have a scale in each tile.
    const LONG: bool;
    /// Adds the sums of a panel if LONG, else of each of two tiles, to the totals of a row: an i32 or an f32 for each
    /// token. `scale` is the row's in these tiles, `tokens` are those of tokens.
    ///
    /// # Safety
    /// `S`'s instructions are available, and as many totals and scales of tokens as lanes.
    unsafe fn end<S: Shorts>(sums: [S; 2], scale: f32, tokens: [*const f32; 2], totals: *mut f32);
    /// The products of sixteen tokens with a row.
    ///
    /// # Safety
    /// As for `end`.
    unsafe fn product<S: Shorts>(totals: *const f32, scale: f32, tokens: *const f32) -> S::Floats;
}

/// One scale for each row, and one for each token.
pub(super) struct OfRows;

impl Sums for OfRows {
    type Digits = Codes;
    const LONG: bool = true;
    #[inline(always)]
    unsafe fn end<S: Shorts>([sum, _]: [S; 2], _: f32, _: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { sum.add_to(totals.cast()) }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(totals: *const f32, scale: f32, tokens: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::floats(totals.cast()).mul(S::Floats::splat(scale).div(S::Floats::load(tokens))) }
    }
}

/// One scale for each 256 columns of a row, and one for each token.
pub(super) struct OfPanels;

impl Sums for OfPanels {
    type Digits = Codes;
    const LONG: bool = true;
    #[inline(always)]
    unsafe fn end<S: Shorts>([sum, _]: [S; 2], scale: f32, _: [*const f32; 2], totals: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            for n in (0..S::LANES).step_by(16) {
                let so_far = S::Floats::load(totals.add(n));
                so_far.add(sum.to_f32(n).mul(S::Floats::splat(scale))).store(totals.add(n));
            }
        }
    }
    #[inline(always)]
    unsafe fn product<S: Shorts>(totals: *const f32, _: f32, tokens: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::Floats::load(totals).div(S::Floats::load(tokens)) }
    }
}

/// One scale for each block of a row, and one for each 32 columns of a token.
pub(super) struct OfBlocks<D>(std::marker::PhantomData<D>);

impl<D: Digits> Sums for OfBlocks<D> {
    type Digits = D;
    const LONG: bool = false;
    #[inline(always)]
    unsafe fn end<S: Shorts>(sums: [S; 2], scale: f32, tokens: [*const f32; 2], totals: *mut f32) {
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
    #[inline(always)]
    unsafe fn product<S: Shorts>(totals: *const f32, _: f32, _: *const f32) -> S::Floats {
        // SAFETY: the caller's promise.
        unsafe { S::Floats::load(totals) }
    }
}
