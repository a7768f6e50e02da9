//! Quantization of activations to int8, with one scale per token (BitNet b1.58, "The Era of 1-bit LLMs", 2024).

use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{Lanes, Register};

/// The scale and the sum of a row of int8 activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantRow {
    /// `127 / max(absmax, 1e-5)`: the int8 values are the real values times this.
    pub scale: f32,
    /// Sum of the row's int8 values.
    pub sum: i32,
}

/// Quantizes one row: `out = clamp(round_half_even(x * scale), -127, 127)`, where NaN becomes 0. `out` is as long as
/// `x`.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [i8]) -> QuantRow {
    assert_eq!(x.len(), out.len(), "a quantized row is as long as its source");
    let scale = 127.0 / absmax(isa, x).max(1e-5);
    QuantRow { scale, sum: round_row(isa, x, scale, out) }
}

/// The largest magnitude; NaN is ignored.
pub fn absmax(isa: Isa, x: &[f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<16>();
    rest.iter().fold(largest(isa, whole), |max, v| if v.abs() > max { v.abs() } else { max })
}

/// `out = clamp(round_half_even(x * scale), -127, 127)`, where NaN becomes 0, and the sum of the results. A finite
/// `scale` takes no value beyond 127.
pub fn round_row(isa: Isa, x: &[f32], scale: f32, out: &mut [i8]) -> i32 {
    if !scale.is_finite() {
        return round(x, scale, out);
    }
    let ((whole, rest), (bytes, last)) = (x.as_chunks::<16>(), out.as_chunks_mut::<16>());
    rounded(isa, whole, scale, bytes) + round(rest, scale, last)
}

/// Like `rounded`, for any number of values and any `scale`.
pub(super) fn round(x: &[f32], scale: f32, out: &mut [i8]) -> i32 {
    let mut sum = 0;
    for (out, x) in out.iter_mut().zip(x) {
        // The bounds are for a scale that has overflowed to infinity. The cast turns NaN into 0.
        *out = (x * scale).round_ties_even().clamp(-127.0, 127.0) as i8;
        sum += *out as i32;
    }
    sum
}

by_isa!(
    fn largest(x: &[[f32; 16]]) -> f32 = largest_in_lanes::<lanes>, Scalar
);

/// # Safety
/// `L`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn largest_in_lanes<L: Lanes>(x: &[[f32; 16]]) -> f32 {
    // SAFETY: arrays of sixteen.
    unsafe {
        let mut most = [L::splat(0.0); 2];
        for (i, x) in x.iter().enumerate() {
            most[i % 2] = L::load(x.as_ptr()).abs().above(most[i % 2]);
        }
        most[0].above(most[1]).largest()
    }
}

by_isa!(
    /// `out = round_half_even(x * scale)`; NaN becomes 0, all other results must be within -127 and 127. Returns
    /// their sum.
    fn rounded(x: &[[f32; 16]], scale: f32, out: &mut [[i8; 16]]) -> i32 = rounded_in_lanes::<lanes>, Scalar
);

/// # Safety
/// `L`'s instructions are available.
#[inline(always)]
pub(super) unsafe fn rounded_in_lanes<L: Lanes>(x: &[[f32; 16]], scale: f32, out: &mut [[i8; 16]]) -> i32 {
    // SAFETY: arrays of sixteen.
    unsafe {
        let mut sums = L::Register::no_ints();
        for (x, out) in x.iter().zip(out) {
            L::load(x.as_ptr()).mul(L::splat(scale)).store_i8(out.as_mut_ptr(), &mut sums);
        }
        L::Register::total(sums)
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
