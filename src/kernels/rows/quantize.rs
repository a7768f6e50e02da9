//! Activations to int8, one scale per token (BitNet b1.58, "The Era of 1-bit LLMs", 2024).

use crate::kernels::Isa;

/// What goes with a row of int8 activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantRow {
    /// `127 / max(absmax, 1e-5)`: int8 values are this times the real ones.
    pub scale: f32,
    /// Sum of the row's int8 values.
    pub sum: i32,
}

/// One row: `out = clamp(round_half_even(x * scale), -128, 127)`, where NaN becomes 0. `out` is as long as `x`.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [i8]) -> QuantRow {
    assert_eq!(x.len(), out.len(), "a quantized row is as long as its source");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2.
        _ if isa.has_avx2() => unsafe { avx2::quantize_row(x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `Isa::Neon` stands for a machine that has NEON and its dot products.
        Isa::Neon => unsafe { neon::quantize_row(x, out) },
        _ => {
            let scale = scale_of(absmax(0.0, x));
            QuantRow { scale, sum: round(x, scale, out) }
        }
    }
}

fn scale_of(absmax: f32) -> f32 {
    127.0 / absmax.max(1e-5)
}

/// NaN is passed over.
fn absmax(start: f32, x: &[f32]) -> f32 {
    x.iter().fold(start, |max, v| if v.abs() > max { v.abs() } else { max })
}

fn round(x: &[f32], scale: f32, out: &mut [i8]) -> i32 {
    let mut sum = 0;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * scale).round_ties_even().clamp(-128.0, 127.0) as i8;
        sum += *out as i32;
    }
    sum
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{QuantRow, absmax, round, scale_of};
    use std::arch::x86_64::*;

    /// As the scalar version. `out` is as long as `x`.
    #[target_feature(enable = "avx2,fma")]
    pub fn quantize_row(x: &[f32], out: &mut [i8]) -> QuantRow {
        let end = x.len() / 32 * 32;
        let magnitude = _mm256_set1_ps(f32::from_bits(0x7fff_ffff));
        let mut max = _mm256_setzero_ps();
        for i in (0..end).step_by(8) {
            // SAFETY: i + 8 <= end <= x.len().
            let v = unsafe { _mm256_loadu_ps(x.as_ptr().add(i)) };
            // maxps gives its second operand where one is NaN.
            max = _mm256_max_ps(_mm256_and_ps(v, magnitude), max);
        }
        let mut lanes = [0.0f32; 8];
        // SAFETY: `lanes` has eight elements.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), max) };
        let scale = scale_of(absmax(absmax(0.0, &lanes), &x[end..]));
        let wide = _mm256_set1_ps(scale);
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let mut sums = _mm256_setzero_si256();
        for i in (0..end).step_by(32) {
            let mut q = [_mm256_setzero_si256(); 4];
            for (j, q) in q.iter_mut().enumerate() {
                // SAFETY: i + 32 <= end <= x.len(), and j < 4.
                let v = unsafe { _mm256_loadu_ps(x.as_ptr().add(i + 8 * j)) };
                let scaled = _mm256_mul_ps(v, wide);
                // NaN to zero; the rest lies within ±127.1, so the conversion rounds to even and fits int8.
                let number = _mm256_and_ps(scaled, _mm256_cmp_ps::<_CMP_ORD_Q>(scaled, scaled));
                *q = _mm256_cvtps_epi32(number);
                sums = _mm256_add_epi32(sums, *q);
            }
            let low = _mm256_packs_epi32(q[0], q[1]);
            let high = _mm256_packs_epi32(q[2], q[3]);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            // SAFETY: i + 32 <= end <= out.len().
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(i).cast(), bytes) };
        }
        let mut parts = [0i32; 8];
        // SAFETY: `parts` has eight elements.
        unsafe { _mm256_storeu_si256(parts.as_mut_ptr().cast(), sums) };
        let sum = parts.iter().sum::<i32>() + round(&x[end..], scale, &mut out[end..]);
        QuantRow { scale, sum }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{QuantRow, absmax, round, scale_of};
    use crate::kernels::simd::neon::{dot, largest, to_bytes};
    use std::arch::aarch64::*;

    /// As the scalar version. `out` is as long as `x`.
    #[target_feature(enable = "neon,dotprod")]
    pub fn quantize_row(x: &[f32], out: &mut [i8]) -> QuantRow {
        let (whole, rest) = x.as_chunks::<16>();
        let scale = scale_of(absmax(largest(whole), rest));
        let (bytes, last) = out.as_chunks_mut::<16>();
        let mut sums = vdupq_n_s32(0);
        for (x, out) in whole.iter().zip(bytes) {
            let q = to_bytes(x, scale);
            sums = dot(sums, q, vdupq_n_s8(1));
            // SAFETY: 16 bytes are written to as many.
            unsafe { vst1q_s8(out.as_mut_ptr(), q) };
        }
        QuantRow { scale, sum: vaddvq_s32(sums) + round(rest, scale, last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa;

    fn both(x: &[f32]) -> (QuantRow, Vec<i8>) {
        let (mut a, mut b) = (vec![0; x.len()], vec![0; x.len()]);
        let row = quantize_row(Isa::Scalar, x, &mut a);
        assert_eq!(row, quantize_row(isa(), x, &mut b));
        assert_eq!(a, b);
        assert_eq!(row.sum, a.iter().map(|v| *v as i32).sum::<i32>());
        (row, a)
    }

    #[test]
    fn instruction_sets_agree() {
        for len in [0, 1, 31, 32, 33, 127, 2560, 8191] {
            let mut state = len as u32 + 1;
            let x: Vec<f32> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                    (state >> 8) as f32 / (1 << 22) as f32 - 2.0
                })
                .collect();
            both(&x);
        }
    }

    #[test]
    fn halves_go_to_the_even_side_and_the_largest_to_127() {
        let mut x = vec![0.5f32, 1.5, 2.5, -0.5, -1.5, -2.5, 127.0, -127.0];
        for _ in 0..3 {
            let (row, q) = both(&x);
            assert_eq!(row.scale, 1.0);
            assert_eq!(q[..8], [0, 2, 2, 0, -2, -2, 127, -127]);
            x.extend(x.clone());
        }
    }

    #[test]
    fn tiny_and_odd_values() {
        let (row, q) = both(&[0.0; 40]);
        assert_eq!((row.scale, row.sum, q), (127.0 / 1e-5, 0, vec![0; 40]));
        let mut x = [1.0f32; 64];
        x[3] = f32::NAN;
        x[40] = f32::NAN;
        let (row, q) = both(&x);
        assert_eq!((row.scale, q[3], q[40], q[4]), (127.0, 0, 0, 127));
        x[5] = f32::INFINITY;
        assert_eq!(both(&x).0, QuantRow { scale: 0.0, sum: 0 });
    }
}
