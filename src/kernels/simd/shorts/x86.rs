//! Registers of AVX2 and of AVX-512.

use super::Shorts;
use crate::kernels::simd::dispatch::inlined;
use crate::kernels::simd::lanes::{self, Lanes};
use std::arch::x86_64::*;
pub(crate) use std::arch::x86_64::{__m256i, __m512i};

inlined! {
    // Eight lanes as i32.
    fn eight(v: __m256i, upper: bool) -> __m256i = {
        let half = if upper { _mm256_extracti128_si256::<1>(v) } else { _mm256_castsi256_si128(v) };
        _mm256_cvtepi16_epi32(half)
    };
    fn add_eight(v: __m256i, sums: *mut i32) =
        _mm256_storeu_si256(sums.cast(), _mm256_add_epi32(v, _mm256_loadu_si256(sums.cast())));
    fn add_sixteen(v: __m512i, sums: *mut i32) =
        _mm512_storeu_si512(sums.cast(), _mm512_add_epi32(v, _mm512_loadu_si512(sums.cast())));
    fn half(v: __m512i, upper: bool) -> __m256i =
        if upper { _mm512_extracti64x4_epi64::<1>(v) } else { _mm512_castsi512_si256(v) };
}

// SAFETY of all blocks: the caller has AVX2 and the memory.
impl Shorts for __m256i {
    type Floats = lanes::Avx2;
    const LANES: usize = 16;
    inlined! {
        fn zero() -> Self = _mm256_setzero_si256();
        fn load(from: *const i16) -> Self = _mm256_loadu_si256(from.cast());
        fn load_i8(from: *const i8) -> Self = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
        fn load_u8(from: *const u8) -> Self = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
        fn store(self, to: *mut i16) = _mm256_storeu_si256(to.cast(), self);
        fn and(self, other: Self) -> Self = _mm256_and_si256(self, other);
        fn or(self, other: Self) -> Self = _mm256_or_si256(self, other);
        fn up<const N: i32>(self) -> Self = _mm256_slli_epi16::<N>(self);
        fn down<const N: i32>(self) -> Self = _mm256_srli_epi16::<N>(self);
        fn add(self, other: Self) -> Self = _mm256_add_epi16(self, other);
        fn sub(self, other: Self) -> Self = _mm256_sub_epi16(self, other);
        fn mul(self, other: Self) -> Self = _mm256_mullo_epi16(self, other);
        fn fields(from: *const u8) -> Self = {
            // The first field is put in the upper byte of its lane, so that all are shifted right: by multiplying.
            let bytes = _mm256_setr_epi8(
                -1, 0, 0, 1, 0, 1, -1, -1, -1, 2, 2, 3, 2, 3, -1, -1, -1, 4, 4, 5, 4, 5, -1, -1, -1, 6, 6, 7, 6, 7,
                -1, -1,
            );
            let masks = _mm256_set1_epi64x(0x0000_f800_07c0_3f00);
            let powers = _mm256_set1_epi64x(0x0000_0400_8000_2000);
            let all = _mm256_set1_epi64x(from.cast::<i64>().read_unaligned());
            _mm256_mulhi_epu16(_mm256_and_si256(_mm256_shuffle_epi8(all, bytes), masks), powers)
        };
        fn add_to(self, sums: *mut i32) = {
            add_eight(eight(self, false), sums);
            add_eight(eight(self, true), sums.add(8));
        };
        fn to_f32(self, _: usize) -> Self::Floats =
            Self::Floats::of(|n| _mm256_cvtepi32_ps(eight(self, n == 1)));
        fn floats(from: *const i32) -> Self::Floats =
            Self::Floats::of(|n| _mm256_cvtepi32_ps(_mm256_loadu_si256(from.add(8 * n).cast())));
    }
}

// SAFETY of all blocks: the caller has AVX-512 F and BW, and the memory.
impl Shorts for __m512i {
    type Floats = lanes::Avx512;
    const LANES: usize = 32;
    inlined! {
        fn zero() -> Self = _mm512_setzero_si512();
        fn load(from: *const i16) -> Self = _mm512_loadu_si512(from.cast());
        fn load_i8(from: *const i8) -> Self = _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast()));
        fn load_u8(from: *const u8) -> Self = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
        fn store(self, to: *mut i16) = _mm512_storeu_si512(to.cast(), self);
        fn and(self, other: Self) -> Self = _mm512_and_si512(self, other);
        fn or(self, other: Self) -> Self = _mm512_or_si512(self, other);
        fn up<const N: i32>(self) -> Self = _mm512_sll_epi16(self, _mm_cvtsi32_si128(N));
        fn down<const N: i32>(self) -> Self = _mm512_srl_epi16(self, _mm_cvtsi32_si128(N));
        fn add(self, other: Self) -> Self = _mm512_add_epi16(self, other);
        fn sub(self, other: Self) -> Self = _mm512_sub_epi16(self, other);
        fn mul(self, other: Self) -> Self = _mm512_mullo_epi16(self, other);
        fn fields(from: *const u8) -> Self = {
            let low = _mm512_castsi256_si512(Shorts::fields(from));
            _mm512_inserti64x4::<1>(low, Shorts::fields(from.add(8)))
        };
        fn add_to(self, sums: *mut i32) = {
            add_sixteen(_mm512_cvtepi16_epi32(half(self, false)), sums);
            add_sixteen(_mm512_cvtepi16_epi32(half(self, true)), sums.add(16));
        };
        fn to_f32(self, first: usize) -> Self::Floats = Self::Floats::of(|_| {
            _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half(self, first == 16)))
        });
        fn floats(from: *const i32) -> Self::Floats =
            Self::Floats::of(|_| _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())));
    }
}
