//! Registers of AVX2 and of AVX-512.

use super::lanes::{Register, Sixteen};
use super::x86::fetch;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C.
pub type Avx2 = Sixteen<__m256, 2>;
/// AVX-512 F, BW and VL.
pub type Avx512 = Sixteen<__m512, 1>;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Two bytes at `at` from each of eight addresses.
#[inline(always)]
unsafe fn words(rows: &[*const u8], at: usize) -> __m128i {
    // SAFETY: the caller has them.
    unsafe {
        let word = |r: usize| rows[r].add(at).cast::<i16>().read_unaligned();
        _mm_setr_epi16(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7))
    }
}

// SAFETY of all blocks: the caller has the instructions, and elements for all lanes.
impl Register for __m256 {
    type Ints = __m256i;
    const WIDTH: usize = 8;
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn halves(rows: &[*const u8], at: usize) -> Self {
        unsafe { _mm256_cvtph_ps(words(rows, at)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm256_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, a, b) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { _mm256_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn less(self, bound: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(self, bound)) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { _mm256_round_ps::<NEAREST>(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let power = _mm256_add_epi32(_mm256_cvtps_epi32(self), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(power))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn no_ints() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut __m256i) {
        unsafe {
            let whole = |x| _mm256_cvtps_epi32(_mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x)));
            let (low, high) = (whole(sixteen[0]), whole(sixteen[1]));
            *sums = _mm256_add_epi32(*sums, _mm256_add_epi32(low, high));
            let words = _mm256_packs_epi32(low, high);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, words), order);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(bytes));
        }
    }
    #[inline(always)]
    unsafe fn total(sums: __m256i) -> i32 {
        unsafe {
            let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
            _mm_cvtsi128_si32(two).wrapping_add(_mm_extract_epi32::<1>(two))
        }
    }
}

// SAFETY of all blocks: as above.
impl Register for __m512 {
    type Ints = __m512i;
    const WIDTH: usize = 16;
    const SUMS: usize = 16;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn halves(rows: &[*const u8], at: usize) -> Self {
        unsafe { _mm512_cvtph_ps(_mm256_set_m128i(words(&rows[8..], at), words(rows, at))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { _mm512_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm512_fmadd_ps(self, a, b) }
    }
    #[inline(always)]
    unsafe fn above(self, other: Self) -> Self {
        unsafe { _mm512_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn less(self, bound: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, bound), no, yes) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { _mm512_abs_ps(self) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { _mm512_roundscale_ps::<NEAREST>(self) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let power = _mm512_add_epi32(_mm512_cvtps_epi32(self), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(power))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self) }
    }
    #[inline(always)]
    unsafe fn no_ints() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut __m512i) {
        unsafe {
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(sixteen[0], sixteen[0]);
            let whole = _mm512_maskz_cvtps_epi32(number, sixteen[0]);
            *sums = _mm512_add_epi32(*sums, whole);
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(whole));
        }
    }
    #[inline(always)]
    unsafe fn total(sums: __m512i) -> i32 {
        unsafe { _mm512_reduce_add_epi32(sums) }
    }
}
