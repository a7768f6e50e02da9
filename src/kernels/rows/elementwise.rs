//! What stands between the products: gated activations and the residual sum.

use super::exp::exp;
use crate::kernels::Isa;

/// `out = silu(gate) * up`, silu(g) = g / (1 + e^-g) (Shazeer 2020, "GLU Variants").
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::swiglu(gate, up, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON.
        Isa::Neon => unsafe { neon::swiglu(gate, up, out) },
        _ => swiglu_scalar(gate, up, out),
    }
}

fn swiglu_scalar(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp(-g)) * up;
    }
}

/// 2 sqrt(2/pi), and that times 0.044715: twice the argument of GELU's tanh is `g (GELU_1 + GELU_3 g^2)`.
const GELU_1: f32 = 1.595_769_2;
const GELU_3: f32 = 0.071_354_814;

/// `out = gelu(gate) * up` in the tanh form, g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) (Hendrycks and Gimpel 2016),
/// computed as g / (1 + e^-2u), which it equals: 1 + tanh(u) = 2 / (1 + e^-2u).
pub fn geglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::geglu(gate, up, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON.
        Isa::Neon => unsafe { neon::geglu(gate, up, out) },
        _ => geglu_scalar(gate, up, out),
    }
}

fn geglu_scalar(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp((g * g).mul_add(GELU_3, GELU_1) * -g)) * up;
    }
}

/// `out = relu(gate)^2 * up` (BitNet b1.58 2B-4T; So et al. 2021, "Primer").
pub fn relu2(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::relu2(gate, up, out) },
        _ => relu2_scalar(gate, up, out),
    }
}

#[inline(always)]
fn relu2_scalar(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
        // Not `max`, which would hide a NaN.
        let g = if *g < 0.0 { 0.0 } else { *g };
        *out = g * g * up;
    }
}

/// `x += y`.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "a sum of equal shapes");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::add(x, y) },
        _ => add_scalar(x, y),
    }
}

#[inline(always)]
fn add_scalar(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::kernels::rows::exp::avx2::exp;
    use std::arch::x86_64::*;

    /// The same code on wider registers: element by element, so the bits are the same.
    #[target_feature(enable = "avx2")]
    pub fn relu2(gate: &[f32], up: &[f32], out: &mut [f32]) {
        super::relu2_scalar(gate, up, out);
    }

    /// As `relu2`.
    #[target_feature(enable = "avx2")]
    pub fn add(x: &mut [f32], y: &[f32]) {
        super::add_scalar(x, y);
    }

    /// Slices of equal length.
    #[target_feature(enable = "avx2,fma")]
    pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let end = out.len() / 8 * 8;
        let one = _mm256_set1_ps(1.0);
        for i in (0..end).step_by(8) {
            // SAFETY: i + 8 <= end, which all three slices have.
            unsafe {
                let g = _mm256_loadu_ps(gate.as_ptr().add(i));
                let u = _mm256_loadu_ps(up.as_ptr().add(i));
                let e = exp(_mm256_xor_ps(g, _mm256_set1_ps(-0.0)));
                let y = _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
                _mm256_storeu_ps(out.as_mut_ptr().add(i), y);
            }
        }
        super::swiglu_scalar(&gate[end..], &up[end..], &mut out[end..]);
    }

    /// Slices of equal length.
    #[target_feature(enable = "avx2,fma")]
    pub fn geglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let end = out.len() / 8 * 8;
        let one = _mm256_set1_ps(1.0);
        let (first, third) = (_mm256_set1_ps(super::GELU_1), _mm256_set1_ps(super::GELU_3));
        for i in (0..end).step_by(8) {
            // SAFETY: i + 8 <= end, which all three slices have.
            unsafe {
                let g = _mm256_loadu_ps(gate.as_ptr().add(i));
                let u = _mm256_loadu_ps(up.as_ptr().add(i));
                let factor = _mm256_fmadd_ps(_mm256_mul_ps(g, g), third, first);
                let e = exp(_mm256_mul_ps(factor, _mm256_xor_ps(g, _mm256_set1_ps(-0.0))));
                let y = _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
                _mm256_storeu_ps(out.as_mut_ptr().add(i), y);
            }
        }
        super::geglu_scalar(&gate[end..], &up[end..], &mut out[end..]);
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use crate::kernels::rows::exp::neon::exp;
    use std::arch::aarch64::*;

    /// Slices of equal length.
    #[target_feature(enable = "neon")]
    pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let end = gated(gate, up, out, |g| exp(vnegq_f32(g)));
        super::swiglu_scalar(&gate[end..], &up[end..], &mut out[end..]);
    }

    /// Slices of equal length.
    #[target_feature(enable = "neon")]
    pub fn geglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let end = gated(gate, up, out, |g| {
            let (first, third) = (vdupq_n_f32(super::GELU_1), vdupq_n_f32(super::GELU_3));
            exp(vmulq_f32(vfmaq_f32(first, vmulq_f32(g, g), third), vnegq_f32(g)))
        });
        super::geglu_scalar(&gate[end..], &up[end..], &mut out[end..]);
    }

    /// `out = g / (1 + e) * up`, four at a time; returns how far that went.
    #[inline]
    #[target_feature(enable = "neon")]
    fn gated(gate: &[f32], up: &[f32], out: &mut [f32], e: impl Fn(float32x4_t) -> float32x4_t) -> usize {
        let end = out.len().min(gate.len()).min(up.len()) / 4 * 4;
        for i in (0..end).step_by(4) {
            // SAFETY: i + 4 <= end, which all three slices have.
            unsafe {
                let g = vld1q_f32(gate.as_ptr().add(i));
                let y = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0), e(g)));
                vst1q_f32(out.as_mut_ptr().add(i), vmulq_f32(y, vld1q_f32(up.as_ptr().add(i))));
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_have_one_set_of_bits() {
        let gate: Vec<f32> = (0..1003).map(|i| (i as f32 - 500.0) * 0.37).collect();
        let up: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.77).sin()).collect();
        for gated in [swiglu, geglu] {
            let (mut a, mut b) = (vec![0.0; 1003], vec![0.0; 1003]);
            gated(Isa::Scalar, &gate, &up, &mut a);
            gated(crate::kernels::isa(), &gate, &up, &mut b);
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn geglu_is_the_tanh_formula() {
        let gate: Vec<f32> = (-9000..9000).map(|i| i as f32 * 1.1e-3).chain([0.0, -1e30, 1e30]).collect();
        let (up, mut out) = (vec![1.0; gate.len()], vec![0.0; gate.len()]);
        geglu(crate::kernels::isa(), &gate, &up, &mut out);
        for (g, got) in gate.iter().zip(out) {
            let g = *g as f64;
            let u = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            let want = 0.5 * g * (1.0 + u.tanh());
            assert!((got as f64 - want).abs() <= 1e-6 * want.abs().max(1e-3), "{g}: {got} for {want}");
        }
    }

    #[test]
    fn relu2_keeps_nan_and_drops_negatives() {
        // Longer than a register, so that each form's ends are met too.
        let gate: Vec<f32> = [-2.0, 3.0, f32::NAN, -0.0].into_iter().cycle().take(43).collect();
        let up: Vec<f32> = [5.0, 2.0, 1.0, 7.0].into_iter().cycle().take(43).collect();
        for isa in [Isa::Scalar, crate::kernels::isa()] {
            let (mut out, mut sum) = (vec![0.0; 43], up.clone());
            relu2(isa, &gate, &up, &mut out);
            add(isa, &mut sum, &gate);
            for (i, (out, sum)) in out.into_iter().zip(sum).enumerate() {
                match i % 4 {
                    2 => assert!(out.is_nan() && sum.is_nan()),
                    i => assert_eq!((out, sum), ([0.0, 18.0, 0.0, 0.0][i], [3.0, 5.0, 0.0, 7.0][i])),
                }
            }
        }
    }
}
