//! e^x with the same bits from scalar and vector code.
//!
//! Range reduction by n = round(x log2 e) with ln 2 in two parts (Cody and Waite 1980), a minimax polynomial of
//! degree 5 for the rest (the coefficients of Cephes' expf), relative error below 2e-7.

/// Below it the result is 0, above `-LOW`... far above what softmax and SiLU need, infinity.
const LOW: f32 = -87.0;
const HIGH: f32 = 88.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
const P: [f32; 6] = [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x; 0 below -87, infinity above 88, NaN for NaN.
#[inline(always)] // fused where the caller may use FMA
pub fn exp(x: f32) -> f32 {
    if x < LOW {
        return 0.0;
    }
    if x > HIGH {
        return f32::INFINITY;
    }
    let n = (x * LOG2_E).round_ties_even();
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = P[1..].iter().fold(P[0], |p, c| p.mul_add(r, *c));
    let y = p.mul_add(r * r, r) + 1.0;
    // n lies within -126..=127: the exponent's bits are a normal number's.
    y * f32::from_bits(((n as i32 + 127) << 23) as u32)
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    /// Eight at a time, the bits of `super::exp`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn exp(x: __m256) -> __m256 {
        let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
            x,
            _mm256_set1_ps(LOG2_E),
        ));
        let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_HIGH), x);
        let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_LOW), r);
        let mut p = _mm256_set1_ps(P[0]);
        for c in &P[1..] {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
        }
        let y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0));
        let bits = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
        let y = _mm256_mul_ps(y, _mm256_castsi256_ps(bits));
        let low = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(LOW));
        let high = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(HIGH));
        _mm256_blendv_ps(_mm256_andnot_ps(low, y), _mm256_set1_ps(f32::INFINITY), high)
    }
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx512 {
    use super::*;
    use std::arch::x86_64::*;

    /// Sixteen at a time, the bits of `super::exp`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn exp(x: __m512) -> __m512 {
        let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
            x,
            _mm512_set1_ps(LOG2_E),
        ));
        let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_HIGH), x);
        let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_LOW), r);
        let mut p = _mm512_set1_ps(P[0]);
        for c in &P[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
        }
        let y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0));
        let bits = _mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)));
        let y = _mm512_mul_ps(y, _mm512_castsi512_ps(bits));
        let low = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(LOW));
        let high = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(HIGH));
        let y = _mm512_mask_blend_ps(low, y, _mm512_setzero_ps());
        _mm512_mask_blend_ps(high, y, _mm512_set1_ps(f32::INFINITY))
    }
}

#[cfg(target_arch = "aarch64")]
pub(in crate::kernels) mod neon {
    use super::*;
    use std::arch::aarch64::*;

    /// Four at a time, the bits of `super::exp`.
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn exp(x: float32x4_t) -> float32x4_t {
        let n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(LOG2_E)));
        let r = vfmaq_f32(x, n, vdupq_n_f32(-LN2_HIGH));
        let r = vfmaq_f32(r, n, vdupq_n_f32(-LN2_LOW));
        let mut p = vdupq_n_f32(P[0]);
        for c in &P[1..] {
            p = vfmaq_f32(vdupq_n_f32(*c), p, r);
        }
        let y = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0));
        let bits = vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)));
        let y = vmulq_f32(y, vreinterpretq_f32_s32(bits));
        let low = vcltq_f32(x, vdupq_n_f32(LOW));
        let high = vcgtq_f32(x, vdupq_n_f32(HIGH));
        let y = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), low));
        vbslq_f32(high, vdupq_n_f32(f32::INFINITY), y)
    }
}

#[cfg(test)]
mod tests {
    use super::exp;

    fn inputs() -> impl Iterator<Item = f32> {
        (-90_000..90_000).map(|i| i as f32 * 1.003e-3).chain([0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY])
    }

    #[test]
    fn close_to_the_true_value() {
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (1.0, 0.0, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
        for x in inputs().filter(|x| (-87.0..88.0).contains(x)) {
            let want = (x as f64).exp();
            assert!(((exp(x) as f64 - want) / want).abs() < 2e-7, "{x}");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn vector_bits_are_scalar_bits() {
        use std::arch::aarch64::*;
        #[target_feature(enable = "neon")]
        fn four(x: [f32; 4]) -> [f32; 4] {
            let mut y = [0.0; 4];
            // SAFETY: four floats are read and written.
            unsafe { vst1q_f32(y.as_mut_ptr(), super::neon::exp(vld1q_f32(x.as_ptr()))) };
            y
        }
        let x: Vec<f32> = inputs().collect();
        for x in x.as_chunks::<4>().0 {
            // SAFETY: every aarch64 that std runs on has NEON.
            let y = unsafe { four(*x) };
            assert_eq!(y.map(f32::to_bits), x.map(|x| exp(x).to_bits()), "{x:?}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vector_bits_are_scalar_bits() {
        use std::arch::x86_64::*;
        if !crate::kernels::isa().has_avx2() {
            return;
        }
        #[target_feature(enable = "avx2,fma")]
        fn eight(x: f32) -> f32 {
            _mm256_cvtss_f32(super::avx2::exp(_mm256_set1_ps(x)))
        }
        for x in inputs() {
            // SAFETY: this machine has AVX2 and FMA.
            let y = unsafe { eight(x) };
            assert_eq!(y.to_bits(), exp(x).to_bits(), "{x}");
        }
    }
}
