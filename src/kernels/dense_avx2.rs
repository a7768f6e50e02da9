//! The dense product's inner loop with AVX2 and FMA: each dot product in the order of `dense::dot`.

use super::dense::{GROUP, LANES, SHARED};
use super::norm::tree_sum;
use std::arch::x86_64::*;

/// Up to SHARED rows `[n, cols]` of x with the GROUP rows `[GROUP, cols]` of w; results of missing rows are 0.
#[target_feature(enable = "avx2,fma")]
pub fn dots(x: &[f32], w: &[f32], cols: usize) -> [[f32; GROUP]; SHARED] {
    let mut out = [[0.0; GROUP]; SHARED];
    match x.len() / cols {
        1 => out[..1].copy_from_slice(&tile::<1>(x, w, cols)),
        2 => out[..2].copy_from_slice(&tile::<2>(x, w, cols)),
        3 => out = tile::<SHARED>(x, w, cols),
        n => unreachable!("{n} tokens at once"),
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const N: usize>(x: &[f32], w: &[f32], cols: usize) -> [[f32; GROUP]; N] {
    assert!(x.len() == N * cols && w.len() == GROUP * cols);
    let whole = cols / LANES * LANES;
    let mut sums = [[[_mm256_setzero_ps(); LANES / 8]; GROUP]; N];
    for k in (0..whole).step_by(LANES) {
        for half in 0..LANES / 8 {
            let at = k + 8 * half;
            // SAFETY: at + 8 <= whole <= cols, the length of each row of w and x.
            unsafe {
                let w: [__m256; GROUP] =
                    std::array::from_fn(|r| _mm256_loadu_ps(w.as_ptr().add(r * cols + at)));
                for (t, sums) in sums.iter_mut().enumerate() {
                    let v = _mm256_loadu_ps(x.as_ptr().add(t * cols + at));
                    for (sums, w) in sums.iter_mut().zip(w) {
                        sums[half] = _mm256_fmadd_ps(v, w, sums[half]);
                    }
                }
            }
        }
    }
    let mut out = [[0.0; GROUP]; N];
    for t in 0..N {
        for r in 0..GROUP {
            let mut lanes = [0.0; LANES];
            for (half, sum) in sums[t][r].iter().enumerate() {
                // SAFETY: eight floats at 8·half of LANES.
                unsafe { _mm256_storeu_ps(lanes.as_mut_ptr().add(8 * half), *sum) };
            }
            let tails = x[t * cols + whole..(t + 1) * cols].iter().zip(&w[r * cols + whole..(r + 1) * cols]);
            for (lane, (x, w)) in lanes.iter_mut().zip(tails) {
                *lane = x.mul_add(*w, *lane);
            }
            out[t][r] = tree_sum(&lanes);
        }
    }
    out
}
