//! Vector code for attention: reading of the stored types, the sums of products, and tiles in f32 for many
//! queries.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::TILE;
use super::kv::{CODES, Half, KvType, value};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{Element, F16, F32, Int8, Lanes, Register};
use std::ops::Range;

/// A stored type. A tile consists of rows. A row of K has one element of 16 positions, a row of V all
/// elements of one position.
pub(super) trait Stored {
    const KIND: KvType;
    /// Rows that share bytes, one or two.
    const SHARING: usize = 1;
    /// Bytes of an element of the rows that share bytes.
    const BYTES: usize;
    /// Whether the tiles that follow are to be prefetched.
    const FETCH: bool = true;
    /// 16 elements of one of the rows at `from`. `part`, a constant after inlining, selects one of the rows that share
    /// bytes.
    unsafe fn load<L: Lanes>(from: *const u8, part: usize) -> L;
}

/// f32 that `unpack` has made. They are not prefetched.
pub(super) struct Unpacked;
/// `KvType::Int4`: two elements a byte.
pub(super) struct Int4;

macro_rules! plain {
    ($($name:ident: $element:ty, $kind:ident $(, $fetch:literal)?;)*) => {$(
        impl Stored for $name {
            const KIND: KvType = KvType::$kind;
            const BYTES: usize = <$element as Element>::BYTES;
            $(const FETCH: bool = $fetch;)?
            #[inline(always)]
            unsafe fn load<L: Lanes>(from: *const u8, _: usize) -> L {
                // SAFETY: the caller's promise.
                unsafe { <$element as Element>::load(from) }
            }
        }
    )*};
}
plain! {
    F32: F32, F32;
    F16: F16, F16;
    Int8: Int8, Int8;
    Unpacked: F32, F32, false;
}

impl Stored for Int4 {
    const KIND: KvType = KvType::Int4;
    const SHARING: usize = 2;
    const BYTES: usize = 1;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, part: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { if part == 0 { L::low_codes(from, &CODES) } else { L::high_codes(from, &CODES) } }
    }
}

/// Offset of an element in rows of `width` elements.
#[inline(always)]
pub(super) fn offset<E: Stored>(row: usize, column: usize, width: usize) -> usize {
    (row / E::SHARING * width + column) * E::BYTES
}

/// `N` rows of factors and `V` vectors of rows of stored elements: the operands of sums of products, row by row.
pub(super) struct Product<const V: usize> {
    /// The factors of row 0, and the distance from one row of factors to the next.
    pub factors: (*const f32, usize),
    /// The vectors of row 0.
    pub from: [*const u8; V],
    /// The vectors of the tiles that follow, which are prefetched.
    pub next: [*const u8; V],
    /// Elements of a row.
    pub width: usize,
}

impl<const V: usize> Product<V> {
    /// Adds the products of `rows` to `sums`.
    ///
    /// Each load prefetches the same place of `next`, even if that repeats a line, since processors drop prefetches
    /// while many are under way. They are spread among the loads, because consecutive prefetches wait for each other.
    ///
    /// # Safety
    /// `L`'s instructions are available, and the rows have `N` factors and `V` vectors.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lanes, E: Stored, const N: usize>(
        &self,
        rows: Range<usize>,
        sums: &mut [[L; V]; N],
    ) {
        let (factors, stride) = self.factors;
        for shared in rows.start / E::SHARING..rows.end.div_ceil(E::SHARING) {
            let at = offset::<E>(shared * E::SHARING, 0, self.width);
            for part in 0..E::SHARING {
                let row = shared * E::SHARING + part;
                if E::SHARING > 1 && !rows.contains(&row) {
                    continue;
                }
                // SAFETY: the caller's.
                unsafe {
                    let mut value = [L::splat(0.0); V];
                    for v in 0..V {
                        value[v] = E::load::<L>(self.from[v].add(at), part);
                        if E::FETCH && part == 0 {
                            L::fetch(self.next[v].wrapping_add(at));
                        }
                    }
                    for n in 0..N {
                        let x = L::splat(*factors.add(n * stride + row));
                        for v in 0..V {
                            sums[n][v] = x.fma(value[v], sums[n][v]);
                        }
                    }
                }
            }
        }
    }
}

by_isa!(
    /// Writes the elements of a tile as f32, without its scales, and prefetches as much of `next`.
    pub(super) fn unpack<E: Stored>(half: Half, tile: &[u8], next: &[u8], dim: usize, out: &mut [f32]) = unpack_lanes::<lanes>
);

#[inline(always)]
unsafe fn unpack_lanes<L: Lanes, E: Stored>(
    half: Half,
    tile: &[u8],
    next: &[u8],
    dim: usize,
    out: &mut [f32],
) {
    assert!(tile.len() >= E::KIND.tile_parts(dim)[0] && out.len() >= TILE * dim, "a tile");
    L::Register::fetch_lines(next.as_ptr(), next.len());
    let (rows, width) = if half == Half::K { (dim, TILE) } else { (TILE, dim) };
    let whole = width / TILE * TILE;
    for pair in (0..rows).step_by(2) {
        for column in (0..whole).step_by(TILE) {
            // SAFETY: elements of the tile, and room for them.
            unsafe {
                let (from, to) = (tile.as_ptr(), out.as_mut_ptr().add(pair * width + column));
                E::load::<L>(from.add(offset::<E>(pair, column, width)), 0).store(to);
                if pair + 1 < rows {
                    E::load::<L>(from.add(offset::<E>(pair + 1, column, width)), 1).store(to.add(width));
                }
            }
        }
    }
    // Only V has rows whose width is not that of a vector.
    for at in 0..TILE {
        (whole..width).for_each(|d| out[at * width + d] = value(E::KIND, Half::V, tile, at, d, width));
    }
}
