//! A causal convolution of each channel over the last few tokens (depthwise, as in Mamba), with SiLU or without.

use crate::kernels::Isa;
use crate::kernels::rows::elementwise::logistic;
use crate::kernels::simd::dispatch::by_isa;

/// `out = sum over t of taps[t] * weights[t]`, for the channels of all slices. The taps are the inputs of the last
/// tokens, the oldest first.
pub fn sum<'a>(isa: Isa, taps: impl Iterator<Item = (&'a [f32], &'a [f32])>, out: &mut [f32]) {
    out.fill(0.0);
    taps.for_each(|(tap, weights)| add_of(isa, out, tap, weights));
}

/// `out = silu(sum)`, with room for the sum in `sums`.
pub fn run<'a>(
    isa: Isa,
    taps: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    sums: &mut [f32],
    out: &mut [f32],
) {
    sum(isa, taps, sums);
    logistic(isa, sums, sums, out);
}

by_isa!(fn add_of(sums: &mut [f32], tap: &[f32], weights: &[f32]) = add_loop);

#[inline(always)]
fn add_loop(sums: &mut [f32], tap: &[f32], weights: &[f32]) {
    for ((sum, x), w) in sums.iter_mut().zip(tap).zip(weights) {
        *sum = x.mul_add(*w, *sum);
    }
}
