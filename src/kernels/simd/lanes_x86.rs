//! Registers of AVX2 and of AVX-512.

use super::dispatch::inlined;
use super::lanes::{Real, Register, Sixteen};
use super::x86::fetch;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C.
pub(crate) type Avx2 = Sixteen<__m256, 2>;
/// AVX-512 F, BW and VL.
pub(crate) type Avx512 = Sixteen<__m512, 1>;

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

/// The byte at `at` from each of eight addresses.
#[inline(always)]
unsafe fn bytes(rows: &[*const u8], at: usize) -> __m128i {
    // SAFETY: the caller has them.
    unsafe {
        let byte = |r: usize| *rows[r].add(at) as i8;
        let (a, b, c, d) = (byte(0), byte(1), byte(2), byte(3));
        _mm_setr_epi8(a, b, c, d, byte(4), byte(5), byte(6), byte(7), 0, 0, 0, 0, 0, 0, 0, 0)
    }
}

inlined! {
    // Steps of `tree_sums`: the halves of `a` added, and those of `b`; then the same in each half, and each quarter.
    fn halves256(a: __m256, b: __m256) -> __m256 =
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    fn pairs256(a: __m256, b: __m256) -> __m256 = {
        let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
        let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
        _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
    };
    // A step of `transpose`: column `i` of pairs of rows, for each part of four lanes.
    fn fours256(a: __m256, b: __m256, i: usize) -> __m256 = {
        let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
        _mm256_castpd_ps(if i.is_multiple_of(2) { _mm256_unpacklo_pd(a, b) } else { _mm256_unpackhi_pd(a, b) })
    };
    fn fours512(a: __m512, b: __m512, i: usize) -> __m512 = {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_castpd_ps(if i.is_multiple_of(2) { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) })
    };
    // The codes of the low halves of eight bytes.
    fn eight_codes(bytes: __m128i, codes: &[i8; 16]) -> __m256 = {
        let low = _mm_and_si128(bytes, _mm_set1_epi8(15));
        let found = _mm_shuffle_epi8(_mm_loadu_si128(codes.as_ptr().cast()), low);
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(found))
    };
    fn halves512(a: __m512, b: __m512) -> __m512 =
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    fn pairs512(a: __m512, b: __m512) -> __m512 = {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
}

// SAFETY of all blocks: the caller has the instructions, and elements for all lanes.
impl Real for __m256 {
    inlined! {
        fn splat(x: f32) -> Self = _mm256_set1_ps(x);
        fn load(from: *const f32) -> Self = _mm256_loadu_ps(from);
        fn load_f16(from: *const u16) -> Self = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        fn load_bf16(from: *const u16) -> Self = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        fn load_i8(from: *const i8) -> Self =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())));
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self = eight_codes(_mm_loadl_epi64(from.cast()), codes);
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            eight_codes(_mm_srli_epi16::<4>(_mm_loadl_epi64(from.cast())), codes);
        fn load_split(high: *const i32, low: *const i32) -> Self = {
            let high = _mm256_slli_epi32::<8>(_mm256_loadu_si256(high.cast()));
            _mm256_cvtepi32_ps(_mm256_add_epi32(high, _mm256_loadu_si256(low.cast())))
        };
        fn store(self, to: *mut f32) = _mm256_storeu_ps(to, self);
        fn add(self, other: Self) -> Self = _mm256_add_ps(self, other);
        fn sub(self, other: Self) -> Self = _mm256_sub_ps(self, other);
        fn mul(self, other: Self) -> Self = _mm256_mul_ps(self, other);
        fn div(self, other: Self) -> Self = _mm256_div_ps(self, other);
        fn fma(self, a: Self, b: Self) -> Self = _mm256_fmadd_ps(self, a, b);
        fn above(self, other: Self) -> Self = _mm256_max_ps(self, other);
        fn less(self, bound: Self, yes: Self, no: Self) -> Self =
            _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(self, bound));
        fn abs(self) -> Self = _mm256_andnot_ps(_mm256_set1_ps(-0.0), self);
        fn round(self) -> Self = _mm256_round_ps::<NEAREST>(self);
        fn power_of_two(self) -> Self = {
            let power = _mm256_add_epi32(_mm256_cvtps_epi32(self), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(power))
        };
        fn largest(self) -> f32 = {
            let four = _mm_max_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        };
        fn cut(self) -> Self = _mm256_and_ps(self, _mm256_castsi256_ps(_mm256_set1_epi32(-0x1_0000)));
        fn pair(self, high: Self) -> Self = {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(self));
            _mm256_castsi256_ps(_mm256_blend_epi16::<0xaa>(low, _mm256_castps_si256(high)))
        };
    }
}

// SAFETY of all blocks: as above.
impl Register for __m256 {
    type Ints = __m256i;
    const WIDTH: usize = 8;
    const COUNT: usize = 16;
    const SUMS: usize = 4;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }
    inlined! {
        fn halves(rows: &[*const u8], at: usize) -> Self = _mm256_cvtph_ps(words(rows, at));
        fn half_powers(rows: &[*const u8], at: usize) -> Self = {
            let (e, one) = (_mm256_cvtepu8_epi32(bytes(rows, at)), _mm256_set1_epi32(1));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
            let small = _mm256_slli_epi32::<21>(_mm256_add_epi32(e, one));
            _mm256_castsi256_ps(_mm256_max_epi32(normal, small))
        };
        fn tree_sums(rows: &[Self]) -> Self = {
            let a = pairs256(halves256(rows[0], rows[4]), halves256(rows[1], rows[5]));
            let b = pairs256(halves256(rows[2], rows[6]), halves256(rows[3], rows[7]));
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
        };
        fn transpose(rows: &mut [Self]) = {
            let mut twos = [rows[0]; 8];
            for i in 0..4 {
                let (a, b) = (rows[2 * i], rows[2 * i + 1]);
                (twos[2 * i], twos[2 * i + 1]) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            }
            for i in 0..4 {
                // Columns i and i + 4 of the first four rows, and of the others.
                let at = i / 2;
                let (a, b) = (fours256(twos[at], twos[at + 2], i), fours256(twos[at + 4], twos[at + 6], i));
                rows[i] = _mm256_permute2f128_ps::<0x20>(a, b);
                rows[i + 4] = _mm256_permute2f128_ps::<0x31>(a, b);
            }
        };
        fn no_ints() -> __m256i = _mm256_setzero_si256();
        fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut __m256i) = {
            let whole = |x| _mm256_cvtps_epi32(_mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x)));
            let (low, high) = (whole(sixteen[0]), whole(sixteen[1]));
            *sums = _mm256_add_epi32(*sums, _mm256_add_epi32(low, high));
            let words = _mm256_packs_epi32(low, high);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, words), order);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(bytes));
        };
        fn total(sums: __m256i) -> i32 = {
            let four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
            _mm_cvtsi128_si32(two).wrapping_add(_mm_extract_epi32::<1>(two))
        };
    }
}

// SAFETY of all blocks: as above.
impl Real for __m512 {
    inlined! {
        fn splat(x: f32) -> Self = _mm512_set1_ps(x);
        fn load(from: *const f32) -> Self = _mm512_loadu_ps(from);
        fn load_f16(from: *const u16) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        fn load_bf16(from: *const u16) -> Self = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        fn load_i8(from: *const i8) -> Self =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())));
        // The permutation looks at the low four bits of an index.
        fn low_codes(from: *const u8, codes: &[i8; 16]) -> Self =
            _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())), Self::load_i8(codes.as_ptr()));
        fn high_codes(from: *const u8, codes: &[i8; 16]) -> Self = {
            let high = _mm512_srli_epi32::<4>(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())));
            _mm512_permutexvar_ps(high, Self::load_i8(codes.as_ptr()))
        };
        fn load_split(high: *const i32, low: *const i32) -> Self = {
            let high = _mm512_slli_epi32::<8>(_mm512_loadu_si512(high.cast()));
            _mm512_cvtepi32_ps(_mm512_add_epi32(high, _mm512_loadu_si512(low.cast())))
        };
        fn store(self, to: *mut f32) = _mm512_storeu_ps(to, self);
        fn add(self, other: Self) -> Self = _mm512_add_ps(self, other);
        fn sub(self, other: Self) -> Self = _mm512_sub_ps(self, other);
        fn mul(self, other: Self) -> Self = _mm512_mul_ps(self, other);
        fn div(self, other: Self) -> Self = _mm512_div_ps(self, other);
        fn fma(self, a: Self, b: Self) -> Self = _mm512_fmadd_ps(self, a, b);
        fn above(self, other: Self) -> Self = _mm512_max_ps(self, other);
        fn less(self, bound: Self, yes: Self, no: Self) -> Self =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, bound), no, yes);
        fn abs(self) -> Self = _mm512_abs_ps(self);
        fn round(self) -> Self = _mm512_roundscale_ps::<NEAREST>(self);
        fn power_of_two(self) -> Self = {
            let power = _mm512_add_epi32(_mm512_cvtps_epi32(self), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(power))
        };
        fn largest(self) -> f32 = _mm512_reduce_max_ps(self);
        fn cut(self) -> Self =
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(self), _mm512_set1_epi32(-0x1_0000)));
        fn pair(self, high: Self) -> Self = {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(self));
            _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_castps_si512(high)))
        };
    }
}

// SAFETY of all blocks: as above.
impl Register for __m512 {
    type Ints = __m512i;
    const WIDTH: usize = 16;
    const COUNT: usize = 32;
    const SUMS: usize = 16;

    #[inline(always)]
    fn fetch(from: *const u8) {
        fetch(from, 64);
    }
    inlined! {
        fn halves(rows: &[*const u8], at: usize) -> Self =
            _mm512_cvtph_ps(_mm256_set_m128i(words(&rows[8..], at), words(rows, at)));
        fn half_powers(rows: &[*const u8], at: usize) -> Self = {
            let all = _mm_unpacklo_epi64(bytes(rows, at), bytes(&rows[8..], at));
            let (e, one) = (_mm512_cvtepu8_epi32(all), _mm512_set1_epi32(1));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, one));
            let small = _mm512_slli_epi32::<21>(_mm512_add_epi32(e, one));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, small))
        };
        fn tree_sums(rows: &[Self]) -> Self = {
            let mut quarters = [rows[0]; 4];
            for i in 0..4 {
                let (a, b) = (halves512(rows[i], rows[i + 4]), halves512(rows[i + 8], rows[i + 12]));
                quarters[i] =
                    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            }
            let (a, b) = (pairs512(quarters[0], quarters[1]), pairs512(quarters[2], quarters[3]));
            _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
        };
        fn transpose(rows: &mut [Self]) = {
            let mut twos = [rows[0]; 16];
            for i in 0..8 {
                let (a, b) = (rows[2 * i], rows[2 * i + 1]);
                (twos[2 * i], twos[2 * i + 1]) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            }
            for i in 0..4 {
                // Columns i, i + 4, i + 8 and i + 12 of four rows each.
                let at = i / 2;
                let (a, b) = (fours512(twos[at], twos[at + 2], i), fours512(twos[at + 4], twos[at + 6], i));
                let (c, d) =
                    (fours512(twos[at + 8], twos[at + 10], i), fours512(twos[at + 12], twos[at + 14], i));
                let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (even_below, odd_below) =
                    (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                rows[i] = _mm512_shuffle_f32x4::<0x88>(even, even_below);
                rows[i + 4] = _mm512_shuffle_f32x4::<0x88>(odd, odd_below);
                rows[i + 8] = _mm512_shuffle_f32x4::<0xdd>(even, even_below);
                rows[i + 12] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_below);
            }
        };
        fn no_ints() -> __m512i = _mm512_setzero_si512();
        fn store_i8(sixteen: &[Self], to: *mut i8, sums: &mut __m512i) = {
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(sixteen[0], sixteen[0]);
            let whole = _mm512_maskz_cvtps_epi32(number, sixteen[0]);
            *sums = _mm512_add_epi32(*sums, whole);
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(whole));
        };
        fn total(sums: __m512i) -> i32 = _mm512_reduce_add_epi32(sums);
    }
}
