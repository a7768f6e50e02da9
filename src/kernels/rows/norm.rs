//! Root mean square normalization. Rows are in the caches and start at any address. Nearly all loads of 64 bytes
//! would cross a cache line, but only half of the loads of 32 bytes; wider registers are therefore slower.

use crate::kernels::Isa;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::Lanes;

/// Number of partial sums of a row. Element i is added to lane i % LANES with every instruction set.
const LANES: usize = 32;

/// Normalizes one row: `out = x / sqrt(mean(x²) + eps) * weight` (Zhang and Sennrich 2019). All slices have the same
/// length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == weight.len() && x.len() == out.len(),
        "a norm's row, weight and output differ in length"
    );
    let isa = isa.of_256_bits();
    scaled(isa, x, weight, scale(isa, x, eps), out);
}

/// As `rms_norm`, in place.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "a norm's row and weight differ in length");
    let isa = isa.of_256_bits();
    scale_in_place(isa, x, weight, scale(isa, x, eps));
}

/// `x += y / sqrt(mean(y²) + eps) * weight`, where the norm has the bits of `rms_norm`. All slices have the same
/// length.
pub fn add_rms_norm(isa: Isa, x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
    assert!(x.len() == weight.len() && x.len() == y.len(), "a norm's row, weight and sum differ in length");
    let isa = isa.of_256_bits();
    add_scaled(isa, x, y, weight, scale(isa, y, eps));
}

/// As `rms_norm` of `x` less its mean, plus `bias`, in place (Ba et al. 2016, "Layer Normalization").
pub fn layer_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    assert!(
        x.len() == weight.len() && x.len() == bias.len(),
        "a norm's row, weight and bias differ in length"
    );
    let isa = isa.of_256_bits();
    let mut lanes = [0.0; LANES];
    sums(isa, x, &mut lanes);
    let mean = tree_sum(&lanes) / x.len() as f32;
    x.iter_mut().for_each(|x| *x -= mean);
    let scale = scale(isa, x, eps);
    scale_in_place(isa, x, weight, scale);
    x.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
}

by_isa!(fn sums(x: &[f32], lanes: &mut [f32; LANES]) = sums_loop);

#[inline(always)]
fn sums_loop(x: &[f32], lanes: &mut [f32; LANES]) {
    for x in x.chunks(LANES) {
        lanes.iter_mut().zip(x).for_each(|(lane, x)| *lane += x);
    }
}

/// `x / sqrt(sum(x²) + eps) * by`, in place.
pub fn l2_norm_in_place(isa: Isa, x: &mut [f32], eps: f32, by: f32) {
    let scale = by / (sum_of_squares(isa.of_256_bits(), x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

/// The factor of a row before its weights: `1 / sqrt(mean(x²) + eps)`.
fn scale(isa: Isa, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(isa, x) / x.len() as f32 + eps).sqrt()
}

fn sum_of_squares(isa: Isa, x: &[f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    squares(isa, whole, &mut lanes);
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = v.mul_add(*v, *lane);
    }
    tree_sum(&lanes)
}

by_isa!(fn squares(x: &[[f32; LANES]], lanes: &mut [f32; LANES]) = squares_in_lanes::<lanes>, Scalar);

#[inline(always)]
unsafe fn squares_in_lanes<L: Lanes>(x: &[[f32; LANES]], lanes: &mut [f32; LANES]) {
    // SAFETY: LANES is two times sixteen.
    unsafe {
        let mut sums = [L::splat(0.0); 2];
        for x in x {
            for (half, sum) in sums.iter_mut().enumerate() {
                let v = L::load(x.as_ptr().add(16 * half));
                *sum = v.fma(v, *sum);
            }
        }
        sums.iter().enumerate().for_each(|(half, sum)| sum.store(lanes.as_mut_ptr().add(16 * half)));
    }
}

by_isa!(fn scaled(x: &[f32], weight: &[f32], scale: f32, out: &mut [f32]) = scaled_loop);
by_isa!(fn scale_in_place(x: &mut [f32], weight: &[f32], scale: f32) = in_place_loop);
by_isa!(fn add_scaled(x: &mut [f32], y: &[f32], weight: &[f32], scale: f32) = add_loop);

#[inline(always)]
fn scaled_loop(x: &[f32], weight: &[f32], scale: f32, out: &mut [f32]) {
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * w;
    }
}

#[inline(always)]
fn in_place_loop(x: &mut [f32], weight: &[f32], scale: f32) {
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

#[inline(always)]
fn add_loop(x: &mut [f32], y: &[f32], weight: &[f32], scale: f32) {
    for ((x, y), w) in x.iter_mut().zip(y).zip(weight) {
        *x += y * scale * w;
    }
}

/// Adds the upper half to the lower half until one lane is left. Every instruction set uses this order.
#[inline(always)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::isa;

    #[test]
    fn layer_norms_are_the_formula_with_one_set_of_bits() {
        for len in [1, 7, 32, 33, 100, 2560] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 37 + 11) % 101) as f32 * 0.31 - 5.0).collect();
            let weight: Vec<f32> = (0..len).map(|i| 0.5 + (i % 13) as f32 * 0.1).collect();
            let bias: Vec<f32> = (0..len).map(|i| (i % 7) as f32 - 3.0).collect();
            let made = |isa| {
                let mut own = x.clone();
                layer_norm_in_place(isa, &mut own, &weight, &bias, 1e-5);
                own
            };
            let (plain, fast) = (made(Isa::Scalar), made(isa()));
            assert!(plain.iter().zip(&fast).all(|(a, b)| a.to_bits() == b.to_bits()), "length {len}");
            let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / len as f64;
            let var = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / len as f64;
            for i in 0..len {
                let want = (f64::from(x[i]) - mean) / (var + 1e-5).sqrt() * f64::from(weight[i])
                    + f64::from(bias[i]);
                assert!(
                    (f64::from(plain[i]) - want).abs() <= 2e-6 * want.abs().max(1.0),
                    "length {len}, {i}"
                );
            }
        }
    }

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
