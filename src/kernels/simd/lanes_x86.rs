//! Sixteen lanes of AVX2 and of AVX-512.

use crate::kernels::rows::exp;
use crate::kernels::simd::lanes::Lanes;
use crate::kernels::simd::x86::fetch;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

impl Avx2 {
    #[inline(always)]
    unsafe fn both(self, f: impl Fn(__m256) -> __m256) -> Self {
        Self(f(self.0), f(self.1))
    }

    #[inline(always)]
    unsafe fn with(self, other: Self, f: impl Fn(__m256, __m256) -> __m256) -> Self {
        Self(f(self.0, other.0), f(self.1, other.1))
    }
}

// SAFETY of all blocks: the caller has the instructions, and 16 elements to load or store.
impl Lanes for Avx2 {
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast()));
            Self(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let (low, high) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
            Self(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| _mm256_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| _mm256_sub_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| _mm256_mul_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, a.0, b.0), _mm256_fmadd_ps(self.1, a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { self.with(other, |a, b| _mm256_max_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe { self.both(|x| exp::avx2::exp(x)) }
    }
    #[inline(always)]
    unsafe fn only(self, from: usize, to: usize, other: Self) -> Self {
        unsafe {
            let (from, to) = (_mm256_set1_epi32(from as i32 - 1), _mm256_set1_epi32(to as i32));
            let pick = |lanes: __m256i, a, b| {
                let within = _mm256_and_si256(_mm256_cmpgt_epi32(lanes, from), _mm256_cmpgt_epi32(to, lanes));
                _mm256_blendv_ps(b, a, _mm256_castsi256_ps(within))
            };
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            Self(pick(low, self.0, other.0), pick(high, self.1, other.1))
        }
    }
}

/// AVX-512 F.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

// SAFETY of all blocks: as above.
impl Lanes for Avx512 {
    const SUMS: usize = 16;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe { Self(exp::avx512::exp(self.0)) }
    }
    #[inline(always)]
    unsafe fn only(self, from: usize, to: usize, other: Self) -> Self {
        unsafe {
            let within = ((1u32 << to) - (1u32 << from)) as u16;
            Self(_mm512_mask_blend_ps(within, other.0, self.0))
        }
    }
}
