//! How vector code reads the stored types, and tiles in f32 for many queries.

use super::TILE;
use super::kv::{CODES, Half, KvType, value};
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{self, Element, Lanes};

/// A stored type, read in pairs of elements: `half` is 0 or 1, a constant where it is inlined.
pub trait Stored {
    const KIND: KvType;
    /// Bytes of a pair of elements of 16 keys.
    const KEYS: usize;
    /// Bytes of 16 values of a position, or of two positions that share bytes.
    const VALUES: usize;
    /// Whether the two of a pair share bytes.
    const SHARED: bool = false;
    /// Whether the tiles that follow are to be prefetched.
    const FETCH: bool = true;
    /// Element `2 * pair + half` of the 16 keys of a tile.
    unsafe fn key<L: Lanes>(tile: *const u8, pair: usize, half: usize) -> L;
    /// Offset of element `d` of position `2 * pair + half` in a tile of V.
    fn at(pair: usize, half: usize, d: usize, dim: usize) -> usize;
    /// 16 elements from `d` on of position `2 * pair + half` of a tile of V.
    unsafe fn value<L: Lanes>(tile: *const u8, pair: usize, half: usize, d: usize, dim: usize) -> L;
}

macro_rules! plain {
    ($($name:ident: $element:ty, $kind:ident, $fetch:literal;)*) => {
        $(
            pub struct $name;
            impl Stored for $name {
                const KIND: KvType = KvType::$kind;
                const KEYS: usize = 2 * TILE * <$element>::BYTES;
                const VALUES: usize = TILE * <$element>::BYTES;
                const FETCH: bool = $fetch;
                #[inline(always)]
                unsafe fn key<L: Lanes>(tile: *const u8, pair: usize, half: usize) -> L {
                    // SAFETY: the caller's promise.
                    unsafe { <$element>::load(tile.add((2 * pair + half) * TILE * <$element>::BYTES)) }
                }
                #[inline(always)]
                fn at(pair: usize, half: usize, d: usize, dim: usize) -> usize {
                    ((2 * pair + half) * dim + d) * <$element>::BYTES
                }
                #[inline(always)]
                unsafe fn value<L: Lanes>(tile: *const u8, pair: usize, half: usize, d: usize, dim: usize) -> L {
                    // SAFETY: the caller's promise.
                    unsafe { <$element>::load(tile.add(Self::at(pair, half, d, dim))) }
                }
            }
        )*
    };
}
plain! {
    F32: lanes::F32, F32, true;
    F16: lanes::F16, F16, true;
    Int8: lanes::Int8, Int8, true;
    // Tiles that `unpack` made.
    Unpacked: lanes::F32, F32, false;
}

pub struct Int4;
impl Stored for Int4 {
    const KIND: KvType = KvType::Int4;
    const KEYS: usize = TILE;
    const VALUES: usize = TILE;
    const SHARED: bool = true;
    #[inline(always)]
    unsafe fn key<L: Lanes>(tile: *const u8, pair: usize, half: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { codes(tile.add(pair * TILE), half) }
    }
    #[inline(always)]
    fn at(pair: usize, _: usize, d: usize, dim: usize) -> usize {
        pair * dim + d
    }
    #[inline(always)]
    unsafe fn value<L: Lanes>(tile: *const u8, pair: usize, half: usize, d: usize, dim: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { codes(tile.add(pair * dim + d), half) }
    }
}

#[inline(always)]
unsafe fn codes<L: Lanes>(from: *const u8, half: usize) -> L {
    // SAFETY: the caller's promise.
    unsafe { if half == 0 { L::low_codes(from, &CODES) } else { L::high_codes(from, &CODES) } }
}

/// `x` times the scales of a tile of `kind`, if it has any.
#[inline(always)]
pub unsafe fn scaled<L: Lanes>(x: L, kind: KvType, scales: &[u8]) -> L {
    // SAFETY: the scales of 16 positions.
    unsafe {
        match kind {
            KvType::Int8 => x.mul(L::load(scales[..4 * TILE].as_ptr().cast())),
            KvType::Int4 => x.mul(L::load_bf16(scales[..2 * TILE].as_ptr().cast())),
            KvType::F32 | KvType::F16 => x,
        }
    }
}

by_isa!(
    /// Writes the elements of a tile as f32, without its scales, and prefetches as much of `next`.
    pub fn unpack<E: Stored>(half: Half, tile: &[u8], next: &[u8], dim: usize, out: &mut [f32]) = unpack_lanes::<lanes>
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
    <L::Part as lanes::Register>::fetch_lines(next.as_ptr(), next.len());
    let (from, to) = (tile.as_ptr(), out.as_mut_ptr());
    // SAFETY: elements of the tile, and room for them.
    unsafe {
        if half == Half::K {
            for pair in 0..dim / 2 {
                E::key::<L>(from, pair, 0).store(to.add(2 * pair * TILE));
                E::key::<L>(from, pair, 1).store(to.add((2 * pair + 1) * TILE));
            }
            if dim % 2 == 1 {
                E::key::<L>(from, dim / 2, 0).store(to.add((dim - 1) * TILE));
            }
            return;
        }
        let whole = dim / TILE * TILE;
        for pair in 0..TILE / 2 {
            for d in (0..whole).step_by(TILE) {
                E::value::<L>(from, pair, 0, d, dim).store(to.add(2 * pair * dim + d));
                E::value::<L>(from, pair, 1, d, dim).store(to.add((2 * pair + 1) * dim + d));
            }
        }
        for at in 0..TILE {
            (whole..dim).for_each(|d| out[at * dim + d] = value(E::KIND, Half::V, tile, at, d, dim));
        }
    }
}
