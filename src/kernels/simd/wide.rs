//! A line of 64 bytes as one value, for the left operand of matrix tiles.
//!
//! As in `bytes`, all functions need the instructions of their type, and the bytes.

#![allow(clippy::missing_safety_doc)] // said above, once

use super::bytes::Bytes;
use super::dispatch::inlined;

pub(crate) trait Wide: Bytes {
    /// Loads 32 bytes from each address.
    unsafe fn two(a: *const u8, b: *const u8) -> Self;
    /// Loads 32 bytes twice, the second time shifted down by four bits. The upper half of the shifted bytes is
    /// unspecified.
    unsafe fn nibbles(from: *const u8) -> Self;
    /// Loads 16 bytes from each address twice, the second time shifted down as `nibbles` does.
    unsafe fn nibbles_of_two(a: *const u8, b: *const u8) -> Self;
    /// Loads the first `len` bytes at `from`, followed by zeros.
    unsafe fn first(from: *const u8, len: usize) -> Self;
    /// Multiplies int8 by four of sixteen int8 `scales`: the first sixteen bytes by scale `n`, the next by `n + 1`,
    /// `n + 8` and `n + 9`. Returns the low bytes of the products, and the high bytes.
    unsafe fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2];
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Wide, inlined};
    use std::arch::x86_64::*;

    // SAFETY of all blocks: the caller has AVX-512 F and BW, and the bytes.
    impl Wide for __m512i {
        inlined! {
            fn two(a: *const u8, b: *const u8) -> Self = {
                let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
                _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
            };
            fn nibbles(from: *const u8) -> Self = {
                let twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(from.cast()));
                _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4))
            };
            fn nibbles_of_two(a: *const u8, b: *const u8) -> Self = {
                let twice = |at: *const u8| _mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()));
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(twice(a)), twice(b));
                _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4))
            };
            fn first(from: *const u8, len: usize) -> Self =
                _mm512_maskz_loadu_epi8(u64::MAX >> (64 - len), from.cast());
            fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2] = {
                // Scales are in the high bytes of i16, as codes are: the upper half of such a product is the product
                // of the bytes.
                const LANE: i64 = 0x0080_0080_0080_0080;
                const ONE: i64 = 0x0100_0100_0100_0100;
                let [a, b, c, d] = [0, 1, 8, 9].map(|g| LANE + g * ONE);
                let order = _mm512_setr_epi64(a, a, b, b, c, c, d, d);
                let order = _mm512_add_epi16(order, _mm512_set1_epi16((n as i16) << 8));
                let scales = _mm512_broadcast_i32x4(_mm_loadu_si128(scales.as_ptr().cast()));
                let scales = _mm512_shuffle_epi8(scales, order);
                let upper = _mm512_set1_epi16(0xff00u16 as i16);
                let even = _mm512_mulhi_epi16(_mm512_slli_epi16::<8>(self), scales);
                let odd = _mm512_mulhi_epi16(_mm512_and_si512(self, upper), scales);
                let low = _mm512_or_si512(_mm512_andnot_si512(upper, even), _mm512_slli_epi16::<8>(odd));
                let high = _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_and_si512(odd, upper));
                [low, high]
            };
        }
    }
}

/// Several registers, for tests.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct Many<B, const N: usize>([B; N]);

#[cfg(test)]
impl<B: Bytes, const N: usize> Many<B, N> {
    fn each(f: impl Fn(usize) -> B) -> Self {
        Self(std::array::from_fn(f))
    }
    inlined! {
        fn of(bytes: [u8; 64]) -> Self = Self::load(bytes.as_ptr());
        fn bytes(self) -> [u8; 64] = {
            let mut bytes = [0; 64];
            self.store(bytes.as_mut_ptr());
            bytes
        };
    }
}

// SAFETY of all blocks: as above.
#[cfg(test)]
impl<B: Bytes, const N: usize> Bytes for Many<B, N> {
    const ROWS: usize = N * B::ROWS;

    inlined! {
        fn load(from: *const u8) -> Self = Self::each(|i| B::load(from.add(4 * B::ROWS * i)));
        fn store(self, to: *mut u8) = (0..N).for_each(|i| self.0[i].store(to.add(4 * B::ROWS * i)));
        fn columns(rows: &[*const u8], at: usize) -> [Self; 4] =
            [0, 1, 2, 3].map(|n| Self::each(|i| B::columns(&rows[B::ROWS * i..], at)[n]));
        fn quads(rows: [Self; 4]) -> [Self; 4] =
            [0, 1, 2, 3].map(|n| Self::each(|i| B::quads(rows.map(|row| row.0[i]))[n]));
        fn or(self, other: Self) -> Self = Self::each(|i| self.0[i].or(other.0[i]));
        fn right<const BITS: i32>(self, mask: u8) -> Self = Self::each(|i| self.0[i].right::<BITS>(mask));
        fn sixteens(self, n: usize) -> Self = Self::each(|i| self.0[i].sixteens(n));
        fn less(self, by: u8) -> Self = Self::each(|i| self.0[i].less(by));
        fn xor(self, other: Self) -> Self = Self::each(|i| self.0[i].xor(other.0[i]));
        fn up<const BITS: i32>(self) -> Self = Self::each(|i| self.0[i].up::<BITS>());
        fn gather(numbers: *const u32, table: &[u32]) -> Self =
            Self::each(|i| B::gather(numbers.add(B::ROWS * i), table));
        fn gather_pairs(numbers: *const u32, table: &[[u32; 2]]) -> [Self; 2] =
            [0, 1].map(|n| Self::each(|i| B::gather_pairs(numbers.add(B::ROWS * i), table)[n]));
        fn take_where(self, signs: Self, n: usize, whole: u8) -> Self =
            Self::each(|i| self.0[i].take_where(signs.0[i], n, whole));
        fn only(self, mask: u32) -> Self = Self::each(|i| self.0[i].only(mask));
        fn reorder(self, order: u32) -> Self = Self::each(|i| self.0[i].reorder(order));
        fn pick(self, table: &[u8; 16]) -> Self = Self::each(|i| self.0[i].pick(table));
        fn trits<const DIGIT: usize>(self) -> [Self; 2] =
            [0, 1].map(|n| Self::each(|i| self.0[i].trits::<DIGIT>()[n]));
    }
}

// SAFETY of all blocks: as above.
#[cfg(test)]
impl<B: Bytes, const N: usize> Wide for Many<B, N> {
    inlined! {
        fn two(a: *const u8, b: *const u8) -> Self =
            Self::of(std::array::from_fn(|i| if i < 32 { *a.add(i) } else { *b.add(i - 32) }));
        fn nibbles(from: *const u8) -> Self =
            Self::of(std::array::from_fn(|i| *from.add(i % 32) >> (i / 32 * 4)));
        fn nibbles_of_two(a: *const u8, b: *const u8) -> Self =
            Self::of(std::array::from_fn(|i| *[a, b][i / 32].add(i % 16) >> (i / 16 % 2 * 4)));
        fn first(from: *const u8, len: usize) -> Self =
            Self::of(std::array::from_fn(|i| if i < len { *from.add(i) } else { 0 }));
        fn times_scales(self, scales: &[u8; 16], n: usize) -> [Self; 2] = {
            let codes = self.bytes();
            let product = |i: usize| {
                let scale = scales[n + [0, 1, 8, 9][i / 16]];
                (codes[i] as i8 as i16 * scale as i8 as i16).to_le_bytes()
            };
            [0, 1].map(|byte| Self::of(std::array::from_fn(|i| product(i)[byte])))
        };
    }
}
