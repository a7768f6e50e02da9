//! Root mean square normalization.

use crate::kernels::Isa;

/// Partial sums of a row's reduction: element i goes to lane i % LANES, whatever the instruction set.
const LANES: usize = 32;

/// One row: `out = x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019). All slices have one length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == weight.len() && x.len() == out.len(),
        "a norm's row, weight and output differ in length"
    );
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::rms_norm(x, weight, eps, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON.
        Isa::Neon => unsafe { neon::rms_norm(x, weight, eps, out) },
        _ => scalar(x, weight, eps, out),
    }
}

/// As `rms_norm`, of a row in its place: a head of q or k.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "a norm's row and weight differ in length");
    let scale = row_scale(isa, x, eps);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::scale_in_place(x, weight, scale) },
        _ => scale_in_place(x, weight, scale),
    }
}

#[inline(always)]
fn scale_in_place(x: &mut [f32], weight: &[f32], scale: f32) {
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// `x += y / sqrt(mean(y²) + eps) * weight`, the norm with the bits of `rms_norm`. All slices have one length.
pub fn add_rms_norm(isa: Isa, x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
    assert!(x.len() == weight.len() && x.len() == y.len(), "a norm's row, weight and sum differ in length");
    let scale = row_scale(isa, y, eps);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::add_scaled(x, y, weight, scale) },
        _ => add_scaled(x, y, weight, scale),
    }
}

#[inline(always)]
fn add_scaled(x: &mut [f32], y: &[f32], weight: &[f32], scale: f32) {
    for ((x, y), w) in x.iter_mut().zip(y).zip(weight) {
        *x += y * scale * w;
    }
}

/// What a row is multiplied with before the weights.
fn row_scale(isa: Isa, x: &[f32], eps: f32) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::row_scale(x, eps) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON.
        Isa::Neon => unsafe { neon::row_scale(x, eps) },
        _ => scalar_scale(x, eps),
    }
}

fn scalar(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = scalar_scale(x, eps);
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
}

fn scalar_scale(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = v.mul_add(*v, *lane);
        }
    }
    scale(&lanes, x.len(), eps)
}

fn scale(lanes: &[f32; LANES], len: usize, eps: f32) -> f32 {
    1.0 / (tree_sum(lanes) / len as f32 + eps).sqrt()
}

/// Adds the upper half to the lower until one is left: the one order of every instruction set.
pub(in crate::kernels) fn tree_sum<const N: usize>(lanes: &[f32; N]) -> f32 {
    let mut sums = *lanes;
    let mut width = N;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{LANES, scale};
    use std::arch::x86_64::*;

    /// As `super::scalar_scale`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn row_scale(x: &[f32], eps: f32) -> f32 {
        let whole = x.len() / LANES * LANES;
        let mut sums = [_mm256_setzero_ps(); LANES / 8];
        for chunk in x[..whole].chunks_exact(LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has LANES elements, and i < LANES / 8.
                let v = unsafe { _mm256_loadu_ps(chunk.as_ptr().add(8 * i)) };
                *sum = _mm256_fmadd_ps(v, v, *sum);
            }
        }
        let mut lanes = [0.0f32; LANES];
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: `lanes` has LANES elements, and i < LANES / 8.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr().add(8 * i), *sum) };
        }
        for (lane, v) in lanes.iter_mut().zip(&x[whole..]) {
            *lane = v.mul_add(*v, *lane);
        }
        scale(&lanes, x.len(), eps)
    }

    /// The same code on wider registers: element by element, so the bits are the same.
    #[target_feature(enable = "avx2")]
    pub fn scale_in_place(x: &mut [f32], weight: &[f32], scale: f32) {
        super::scale_in_place(x, weight, scale);
    }

    /// As `scale_in_place`.
    #[target_feature(enable = "avx2")]
    pub fn add_scaled(x: &mut [f32], y: &[f32], weight: &[f32], scale: f32) {
        super::add_scaled(x, y, weight, scale);
    }

    /// As `super::scalar`. The slices have one length.
    #[target_feature(enable = "avx2,fma")]
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = row_scale(x, eps);
        let wide = _mm256_set1_ps(scale);
        let end = x.len() / 8 * 8;
        for i in (0..end).step_by(8) {
            // SAFETY: i + 8 <= end, and all three slices have x's length.
            unsafe {
                let scaled = _mm256_mul_ps(_mm256_loadu_ps(x.as_ptr().add(i)), wide);
                let weighted = _mm256_mul_ps(scaled, _mm256_loadu_ps(weight.as_ptr().add(i)));
                _mm256_storeu_ps(out.as_mut_ptr().add(i), weighted);
            }
        }
        for i in end..x.len() {
            out[i] = x[i] * scale * weight[i];
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{LANES, scale};
    use std::arch::aarch64::*;

    /// As `super::scalar_scale`.
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn row_scale(x: &[f32], eps: f32) -> f32 {
        let (whole, rest) = x.as_chunks::<LANES>();
        let mut sums = [vdupq_n_f32(0.0); LANES / 4];
        for chunk in whole {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has LANES elements, and i < LANES / 4.
                let v = unsafe { vld1q_f32(chunk.as_ptr().add(4 * i)) };
                *sum = vfmaq_f32(*sum, v, v);
            }
        }
        let mut lanes = [0.0f32; LANES];
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: `lanes` has LANES elements, and i < LANES / 4.
            unsafe { vst1q_f32(lanes.as_mut_ptr().add(4 * i), *sum) };
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = v.mul_add(*v, *lane);
        }
        scale(&lanes, x.len(), eps)
    }

    /// As `super::scalar`. The slices have one length.
    #[target_feature(enable = "neon")]
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = row_scale(x, eps);
        let end = x.len() / 4 * 4;
        for i in (0..end).step_by(4) {
            // SAFETY: i + 4 <= end, and all three slices have x's length.
            unsafe {
                let scaled = vmulq_f32(vld1q_f32(x.as_ptr().add(i)), vdupq_n_f32(scale));
                vst1q_f32(out.as_mut_ptr().add(i), vmulq_f32(scaled, vld1q_f32(weight.as_ptr().add(i))));
            }
        }
        for i in end..x.len() {
            out[i] = x[i] * scale * weight[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa;

    #[test]
    fn agrees_with_f64_and_between_instruction_sets() {
        for len in [1, 7, 8, 31, 32, 33, 100, 2560, 8191] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37 + 11) % 101) as f32 * 0.31 - 15.0).collect();
            let weight: Vec<f32> = (0..len).map(|i| 0.5 + (i % 13) as f32 * 0.1).collect();
            let (mut a, mut b) = (vec![0.0; len], vec![0.0; len]);
            rms_norm(Isa::Scalar, &x, &weight, 1e-5, &mut a);
            rms_norm(isa(), &x, &weight, 1e-5, &mut b);
            let bits = |v: &[f32]| v.iter().map(|f| f.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&a), bits(&b), "length {len}");
            for isa in [Isa::Scalar, isa()] {
                let mut own = x.clone();
                rms_norm_in_place(isa, &mut own, &weight, 1e-5);
                assert_eq!(bits(&a), bits(&own), "length {len}, in place");
                let mut sum = weight.clone();
                add_rms_norm(isa, &mut sum, &x, &weight, 1e-5);
                let want: Vec<f32> = weight.iter().zip(&a).map(|(w, a)| w + a).collect();
                assert_eq!(bits(&want), bits(&sum), "length {len}, added");
            }
            let mean = x.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / len as f64;
            for i in 0..len {
                let want = x[i] as f64 / (mean + 1e-5).sqrt() * weight[i] as f64;
                assert!((a[i] as f64 - want).abs() <= 1e-6 * want.abs().max(1e-3), "length {len}, {i}");
            }
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut out = [1.0; 9];
        rms_norm(isa(), &[0.0; 9], &[2.0; 9], 1e-5, &mut out);
        assert_eq!(out, [0.0; 9]);
    }
}
