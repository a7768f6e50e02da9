//! The processor: AMX, and AVX-512 beside it.

use super::supers::CODE_LINES;
use super::{Machine, SIDE};
use crate::kernels::DType;
use crate::kernels::gemm::driver::Scratch;
use crate::kernels::gemm::formats::short_blocks::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Short};
use crate::kernels::gemm::formats::super_blocks::{Super, scales, with_super};
use crate::kernels::gemm::{int8, quantized, ternary};
use crate::kernels::pool::buffer::Line;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::amx;
use crate::kernels::simd::x86::{self, loaded};
use std::arch::x86_64::*;

/// Runs `$body` in a function that has the instructions, which are those of `Isa::Amx`.
macro_rules! with_instructions {
    ($(pub unsafe fn $name:ident($($arg:ident: $type:ty),*) $body:block)+) => {$(
        /// # Safety
        /// `Isa::Amx` is available.
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
        pub unsafe fn $name($($arg: $type),*) {
            // SAFETY: this function has the instructions.
            unsafe { $body }
        }
    )+};
}

with_instructions! {
    pub unsafe fn int8(task: &int8::Task, scratch: &mut Vec<Line>) {
        super::int8::product::<Amx>(task, scratch)
    }
    pub unsafe fn arrange_supers(x: &BlockActivations, group: usize, out: &mut [Line]) {
        super::supers::arrange_group::<Amx>(x, group, out)
    }
    pub unsafe fn supers(task: &quantized::Task, arranged: &[Line], scratch: &mut quantized::Scratch) {
        super::supers::product::<Amx>(task, arranged, scratch)
    }
    pub unsafe fn arrange_ternary(x: &ternary::Activations, group: usize, out: &mut [Line]) {
        super::ternary::arrange_group::<Amx>(x, group, out)
    }
    pub unsafe fn arrange_blocks(x: &BlockActivations, group: usize, out: &mut [Line]) {
        super::blocks::arrange_group::<Amx>(x, group, out)
    }
    pub unsafe fn blocks(task: &quantized::Task, arranged: &[Line], scratch: &mut quantized::Scratch) {
        super::blocks::product::<Amx>(task, arranged, scratch)
    }
    pub unsafe fn ternary(task: &ternary::Task, scratch: &mut Scratch) {
        super::ternary::product::<Amx>(task, scratch)
    }
}

pub struct Amx;

/// `Machine::decode` of a type.
#[inline(always)]
unsafe fn rows<F: Short>(from: *const u8, stride: usize, count: usize, depth: usize, to: *mut [u8; 32]) {
    for r in 0..count {
        for b in 0..depth {
            // SAFETY: a block of a row; sixteen rows of each of `depth` blocks.
            unsafe {
                let block = from.add(r * stride + b * F::BYTES);
                let codes = match F::BITS {
                    8 => _mm256_loadu_si256(block.add(F::CODES).cast()),
                    _ => {
                        let packed = _mm_loadu_si128(block.add(F::CODES).cast());
                        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
                        _mm256_and_si256(both, _mm256_set1_epi8(15))
                    }
                };
                let fifths =
                    if F::FIFTHS { block.add(F::CODES - 4).cast::<u32>().read_unaligned() } else { 0 };
                let codes = _mm256_or_si256(codes, _mm256_maskz_mov_epi8(fifths, _mm256_set1_epi8(16)));
                let signed = _mm256_sub_epi8(codes, _mm256_set1_epi8(F::OFFSET as i8));
                _mm256_storeu_si256(to.add(b * SIDE + r).cast(), signed);
            }
        }
    }
}

/// `Machine::decode_super` of a type.
#[inline(always)]
unsafe fn super_rows<K: Super>(from: *const u8, stride: usize, count: usize, to: &mut [Line; CODE_LINES]) {
    for r in 0..count {
        // SAFETY (of all): a block of a row; halves of lines, and a line.
        unsafe {
            let block = from.add(r * stride);
            let mut packed = [_mm256_setzero_si256(); 6];
            for (packed, at) in packed.iter_mut().zip(K::PACKED) {
                *packed = _mm256_loadu_si256(block.add(*at).cast());
            }
            let codes = K::codes(packed);
            let [scales, minimums] = scales::<K>(std::slice::from_raw_parts(block, K::BYTES));
            let (scales, minimums) = (loaded(&scales), loaded(&minimums));
            let scales = _mm512_castsi256_si512(_mm256_cvtepi8_epi16(scales));
            for (k, codes) in codes.into_iter().enumerate() {
                let two = _mm512_inserti64x4::<1>(
                    _mm512_set1_epi16(2 * k as i16),
                    _mm256_set1_epi16(2 * k as i16 + 1),
                );
                let codes = _mm512_sub_epi16(_mm512_cvtepu8_epi16(codes), _mm512_set1_epi16(K::OFFSET));
                let products = _mm512_mullo_epi16(codes, _mm512_permutexvar_epi16(two, scales));
                let high = _mm512_cvtepi16_epi8(_mm512_srai_epi16::<7>(products));
                let low = _mm512_cvtepi16_epi8(_mm512_and_si512(products, _mm512_set1_epi16(127)));
                let line = k / 2 * SIDE + r;
                let at = 32 * (k % 2);
                _mm256_store_si256(to[line].0[at..].as_mut_ptr().cast(), high);
                _mm256_store_si256(to[4 * SIDE + line].0[at..].as_mut_ptr().cast(), low);
            }
            _mm512_store_si512(to[8 * SIDE + r].0.as_mut_ptr().cast(), _mm512_zextsi128_si512(minimums));
        }
    }
}

/// `Machine::decode` of Q1_0.
#[inline(always)]
unsafe fn one_bit(from: *const u8, stride: usize, count: usize, depth: usize, to: *mut [u8; 32]) {
    for r in 0..count {
        for b in 0..depth {
            // SAFETY: four bytes of a row; sixteen rows of each of `depth` blocks.
            unsafe {
                let bits = from.add(r * stride + b / 4 * 18 + 2 + b % 4 * 4).cast::<u32>().read_unaligned();
                let signs = _mm256_mask_blend_epi8(bits, _mm256_set1_epi8(-1), _mm256_set1_epi8(1));
                _mm256_storeu_si256(to.add(b * SIDE + r).cast(), signs);
            }
        }
    }
}

/// `Machine::decode` of Q2_0 with `N` times 32 columns a block.
#[inline(always)]
unsafe fn two_bits<const N: usize>(
    from: *const u8,
    stride: usize,
    count: usize,
    depth: usize,
    to: *mut [u8; 32],
) {
    // SAFETY (of all): sixteen bytes of a row, of two times 32 columns; sixteen rows of each of `depth`, which is even.
    unsafe {
        let each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 2, 4, 6));
        let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let order = _mm512_broadcast_i32x4(order);
        for r in 0..count {
            for b in (0..depth).step_by(2) {
                let packed =
                    _mm_loadu_si128(from.add(r * stride + b / N * (2 + 8 * N) + 2 + b % N * 8).cast());
                let words = _mm512_permutexvar_epi32(each, _mm512_castsi128_si512(packed));
                let codes = _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi8(3));
                let signed = _mm512_sub_epi8(_mm512_shuffle_epi8(codes, order), _mm512_set1_epi8(1));
                _mm256_storeu_si256(to.add(b * SIDE + r).cast(), _mm512_castsi512_si256(signed));
                let high = _mm512_extracti64x4_epi64::<1>(signed);
                _mm256_storeu_si256(to.add((b + 1) * SIDE + r).cast(), high);
            }
        }
    }
}

// SAFETY of all blocks: the caller has AVX-512 F, BW, VL and VNNI, and what pointers point to.
impl Machine for Amx {
    type Tiles = amx::Amx;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn planes<const HIGH_FIRST: bool>(from: *const u8, len: usize, to: *mut Line) {
        unsafe {
            let packed = _mm512_maskz_loadu_epi8(u64::MAX >> (64 - len), from.cast());
            let mask = _mm512_set1_epi8(3);
            // Shifts of 16-bit lanes: what crosses from byte to byte falls to the mask.
            let planes = [
                _mm512_and_si512(packed, mask),
                _mm512_and_si512(_mm512_srli_epi16::<2>(packed), mask),
                _mm512_and_si512(_mm512_srli_epi16::<4>(packed), mask),
                _mm512_and_si512(_mm512_srli_epi16::<6>(packed), mask),
            ];
            for (k, plane) in planes.into_iter().enumerate() {
                let k = if HIGH_FIRST { 3 - k } else { k };
                _mm512_store_si512(to.add(SIDE * k).cast(), plane);
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(rows: &[*const i8; SIDE], at: usize, to: &mut [Line; 4]) {
        unsafe {
            let mut fours = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                let v = _mm512_castsi128_si512(_mm_loadu_si128(rows[i].add(at).cast()));
                let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(rows[4 + i].add(at).cast()));
                let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(rows[8 + i].add(at).cast()));
                fours[i] = _mm512_inserti32x4::<3>(v, _mm_loadu_si128(rows[12 + i].add(at).cast()));
            }
            let [a, b, c, d] = fours;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            let lines = to.as_mut_ptr();
            _mm512_store_si512(lines.cast(), _mm512_unpacklo_epi64(ab, cd));
            _mm512_store_si512(lines.add(1).cast(), _mm512_unpackhi_epi64(ab, cd));
            _mm512_store_si512(lines.add(2).cast(), _mm512_unpacklo_epi64(ab_high, cd_high));
            _mm512_store_si512(lines.add(3).cast(), _mm512_unpackhi_epi64(ab_high, cd_high));
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn decode(
        dtype: DType,
        from: *const u8,
        stride: usize,
        count: usize,
        depth: usize,
        to: *mut [u8; 32],
    ) {
        // SAFETY: as above.
        unsafe {
            match dtype {
                DType::Q8_0 => rows::<Q8_0>(from, stride, count, depth, to),
                DType::Q4_0 => rows::<Q4_0>(from, stride, count, depth, to),
                DType::Q4_1 => rows::<Q4_1>(from, stride, count, depth, to),
                DType::Q5_0 => rows::<Q5_0>(from, stride, count, depth, to),
                DType::Q5_1 => rows::<Q5_1>(from, stride, count, depth, to),
                DType::Q1_0 => one_bit(from, stride, count, depth, to),
                DType::Q2_0 => two_bits::<2>(from, stride, count, depth, to),
                DType::Q2_0_128 => two_bits::<4>(from, stride, count, depth, to),
                other => unreachable!("tiles know no {other:?}"),
            }
        }
    }
    #[inline(always)]
    unsafe fn decode_super(
        dtype: DType,
        from: *const u8,
        stride: usize,
        count: usize,
        to: &mut [Line; CODE_LINES],
    ) {
        // SAFETY: as above.
        unsafe { with_super!(dtype, K => super_rows::<K>(from, stride, count, to)) }
    }
    #[inline(always)]
    unsafe fn halves<const LAST: bool>(from: *const u8, stride: usize, count: usize) -> __m512 {
        unsafe {
            let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let at = _mm512_mullo_epi32(rows, _mm512_set1_epi32(stride as i32));
            let (mask, zero) = (((1u32 << count.min(SIDE)) - 1) as u16, _mm512_setzero_si512());
            let from = if LAST { from.sub(2) } else { from };
            let pairs = _mm512_mask_i32gather_epi32::<1>(zero, mask, at, from.cast());
            let ones = if LAST { _mm512_srli_epi32::<16>(pairs) } else { pairs };
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(ones))
        }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_split(high: *const i32, low: *const i32) -> __m512 {
        unsafe {
            let high = _mm512_slli_epi32::<7>(_mm512_loadu_si512(high.cast()));
            _mm512_cvtepi32_ps(_mm512_add_epi32(high, _mm512_loadu_si512(low.cast())))
        }
    }
    #[inline(always)]
    unsafe fn store(x: __m512, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn transpose(x: [__m512; SIDE]) -> [__m512; SIDE] {
        unsafe {
            // Pairs, fours, then the quarters of fours that belong together.
            let (mut a, mut b) = (x, x);
            for i in (0..SIDE).step_by(2) {
                a[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                a[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
            }
            for i in (0..SIDE).step_by(4) {
                let (p, q) = (_mm512_castps_pd(a[i]), _mm512_castps_pd(a[i + 1]));
                let (r, s) = (_mm512_castps_pd(a[i + 2]), _mm512_castps_pd(a[i + 3]));
                b[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, r));
                b[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, r));
                b[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(q, s));
                b[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(q, s));
            }
            for i in 0..4 {
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(b[i], b[4 + i]);
                let high = _mm512_shuffle_f32x4::<0b10_00_10_00>(b[8 + i], b[12 + i]);
                let low_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(b[i], b[4 + i]);
                let high_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(b[8 + i], b[12 + i]);
                a[i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
                a[8 + i] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
                a[4 + i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low_odd, high_odd);
                a[12 + i] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low_odd, high_odd);
            }
            a
        }
    }
    #[inline(always)]
    fn fetch(from: *const u8, bytes: usize) {
        x86::fetch(from, bytes);
    }
}
