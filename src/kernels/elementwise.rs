//! What stands between the products: gated activations and the residual sum.

use super::Isa;
use super::exp::exp;

/// `out = silu(gate) * up`, silu(g) = g / (1 + e^-g) (Shazeer 2020, "GLU Variants").
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2 and FMA.
        Isa::Avx2 => unsafe { avx2::swiglu(gate, up, out) },
        _ => swiglu_scalar(gate, up, out),
    }
}

fn swiglu_scalar(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp(-g)) * up;
    }
}

/// `out = relu(gate)^2 * up` (BitNet b1.58 2B-4T; So et al. 2021, "Primer").
pub fn relu2(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "one gate and one up for each output");
    for ((out, g), up) in out.iter_mut().zip(gate).zip(up) {
        // Not `max`, which would hide a NaN.
        let g = if *g < 0.0 { 0.0 } else { *g };
        *out = g * g * up;
    }
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "a sum of equal shapes");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use crate::kernels::exp::avx2::exp;
    use std::arch::x86_64::*;

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swiglu_bits_do_not_depend_on_the_instruction_set() {
        let gate: Vec<f32> = (0..1003).map(|i| (i as f32 - 500.0) * 0.37).collect();
        let up: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.77).sin()).collect();
        let (mut a, mut b) = (vec![0.0; 1003], vec![0.0; 1003]);
        swiglu(Isa::Scalar, &gate, &up, &mut a);
        swiglu(crate::kernels::isa(), &gate, &up, &mut b);
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn relu2_keeps_nan_and_drops_negatives() {
        let mut out = [0.0; 3];
        relu2(&[-2.0, 3.0, f32::NAN], &[5.0, 2.0, 1.0], &mut out);
        assert_eq!(out[..2], [0.0, 18.0]);
        assert!(out[2].is_nan());
    }
}
