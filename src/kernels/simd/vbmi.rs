//! Registers of AVX-512 whose bytes are looked up with VBMI; all else is as in AVX-512.

use super::bytes::{Bytes, as_within};
use super::dispatch::inlined;
use super::ints::Part;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Vbmi(pub __m512i);

// No closures: compilers leave them as calls if functions have more target features.

/// 64 entries of a table.
#[inline(always)]
unsafe fn part<const N: usize>(table: &[u8; N], n: usize) -> __m512i {
    // SAFETY: the caller has AVX-512 F, and the entries.
    unsafe { _mm512_loadu_si512(table.as_ptr().add(64 * n).cast()) }
}

/// Replaces each byte with the entry of `table` at that index.
#[inline(always)]
unsafe fn one_of_256(index: __m512i, table: &[u8; 256]) -> __m512i {
    // SAFETY (of all): the caller has AVX-512 BW and VBMI; 64 bytes at each address.
    unsafe {
        let low = _mm512_permutex2var_epi8(part(table, 0), index, part(table, 1));
        let high = _mm512_permutex2var_epi8(part(table, 2), index, part(table, 3));
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high)
    }
}

/// The same with two tables: the lowest bit of each byte of `which` says which one.
#[inline(always)]
unsafe fn one_of_512(index: __m512i, which: __m512i, first: &[u8; 256], second: &[u8; 256]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { by_bit(which, 1, one_of_256(index, first), one_of_256(index, second)) }
}

/// The bytes of `b` where bit `bit` of `which` is set, else those of `a`.
#[inline(always)]
unsafe fn by_bit(which: __m512i, bit: i8, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512 BW.
    unsafe { _mm512_mask_blend_epi8(_mm512_test_epi8_mask(which, _mm512_set1_epi8(bit)), a, b) }
}

// SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VBMI, and the bytes.
impl Bytes for Vbmi {
    as_within!(__m512i);

    const TABLES: bool = true;
    inlined! {
        fn look_up(self, which: Self, tables: &[[u8; 256]]) -> Self = Self(match tables {
            [a] => one_of_256(self.0, a),
            [a, b] => one_of_512(self.0, which.0, a, b),
            [a, b, c, d] => {
                let low = one_of_512(self.0, which.0, a, b);
                by_bit(which.0, 2, low, one_of_512(self.0, which.0, c, d))
            }
            _ => unreachable!("one, two or four"),
        });
        fn pick_of<const N: usize>(self, table: &[u8; N]) -> Self = Self(match N {
            64 => _mm512_permutexvar_epi8(self.0, part(table, 0)),
            _ => _mm512_permutex2var_epi8(part(table, 0), self.0, part(table, 1)),
        });
        fn fields(self, at: [u8; 4]) -> Self = {
            // Of two lanes in a row, the second begins at bit 32.
            let lane = i32::from_le_bytes(at);
            let order = _mm512_add_epi8(_mm512_set1_epi32(lane), _mm512_set1_epi64(0x2020_2020 << 32));
            Self(_mm512_multishift_epi64_epi8(order, self.0))
        };
        fn negate_by_bytes(self, signs: Self, n: usize) -> Self = {
            let set = _mm512_test_epi8_mask(signs.0, _mm512_set1_epi32(0x1001_1001 << n));
            Self(_mm512_mask_sub_epi8(self.0, set, _mm512_setzero_si512(), self.0))
        };
    }
}

// SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VNNI.
impl Part for Vbmi {
    type Floats = __m512;
    const NARROW: bool = false;
    const UNSIGNED: bool = true;
    const REGISTERS: usize = 32;

    inlined! {
        fn splat(x: i32) -> Self = Self(Part::splat(x));
        fn dot(self, codes: Self, x: Self) -> Self = Self(self.0.dot(codes.0, x.0));
        fn dot_signed(self, codes: Self, x: Self) -> Self = Self(self.0.dot_signed(codes.0, x.0));
        fn add(self, dots: Self, factor: Self) -> Self = Self(Part::add(self.0, dots.0, factor.0));
        fn factor(self, n: usize) -> Self = Self(self.0.factor(n));
        fn pair(self, a: usize, b: usize, by: i16) -> Self = Self(self.0.pair(a, b, by));
        fn add_pairs(self, pairs: Self, x: Self) -> Self = Self(self.0.add_pairs(pairs.0, x.0));
        fn to_f32(self) -> __m512 = self.0.to_f32();
    }
}
