//! One tile of attention with AVX2 and FMA: the bits of the scalar version, two heads at a time.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::{LANES, State, TILE, accumulate_from};
use crate::kernels::exp;
use std::arch::x86_64::*;

/// Keys whose dot products are summed together.
const KEYS: usize = 4;

/// As `super::tile`: `q` and `out` are whole heads of `dim`, `keys` and `values` equally many rows of `dim`, at
/// most `TILE`.
#[target_feature(enable = "avx2,fma")]
pub fn tile(q: &[f32], out: &mut [f32], state: &mut State, keys: &[f32], values: &[f32], dim: usize) {
    let pairs = q.len() / dim / 2;
    let (q2, q1) = q.split_at(pairs * 2 * dim);
    let (out2, out1) = out.split_at_mut(pairs * 2 * dim);
    for (i, (q, out)) in q2.chunks_exact(2 * dim).zip(out2.chunks_exact_mut(2 * dim)).enumerate() {
        heads::<2>(q, out, state, 2 * i, keys, values, dim);
    }
    if !q1.is_empty() {
        heads::<1>(q1, out1, state, 2 * pairs, keys, values, dim);
    }
}

/// `H` heads, the first of which is `head`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn heads<const H: usize>(
    q: &[f32],
    out: &mut [f32],
    state: &mut State,
    head: usize,
    keys: &[f32],
    values: &[f32],
    dim: usize,
) {
    let len = keys.len() / dim;
    assert!(q.len() == H * dim && out.len() == H * dim, "whole heads");
    assert!(len <= TILE && keys.len() == len * dim && values.len() == keys.len(), "whole rows of one tile");
    let mut scores = [[f32::NEG_INFINITY; TILE]; H];
    let whole = len / KEYS * KEYS;
    for j in (0..whole).step_by(KEYS) {
        dots::<H, KEYS>(q, &keys[j * dim..], dim, j, state.scale, &mut scores);
    }
    for j in whole..len {
        dots::<H, 1>(q, &keys[j * dim..], dim, j, state.scale, &mut scores);
    }
    let mut keep = [0.0f32; H];
    for h in 0..H {
        keep[h] = softmax(&mut scores[h], len, &mut state.max[head + h], &mut state.sum[head + h]);
    }
    let end = dim / (4 * LANES) * (4 * LANES);
    for d in (0..end).step_by(4 * LANES) {
        accumulate::<H, 4>(out, &keep, &scores, values, dim, d);
    }
    let tail = dim / LANES * LANES;
    for d in (end..tail).step_by(LANES) {
        accumulate::<H, 1>(out, &keep, &scores, values, dim, d);
    }
    for h in 0..H {
        accumulate_from(tail, &mut out[h * dim..(h + 1) * dim], keep[h], &scores[h], values);
    }
}

/// Scores `j..j + N` of each head against the first `N` rows of `keys`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dots<const H: usize, const N: usize>(
    q: &[f32],
    keys: &[f32],
    dim: usize,
    j: usize,
    scale: f32,
    scores: &mut [[f32; TILE]; H],
) {
    assert!(q.len() == H * dim && keys.len() >= N * dim, "N keys for H heads");
    let end = dim / LANES * LANES;
    let mut sums = [[_mm256_setzero_ps(); N]; H];
    for d in (0..end).step_by(LANES) {
        // SAFETY: d + 8 <= dim, `q` has H rows of dim and `keys` at least N.
        unsafe {
            let mut head = [_mm256_setzero_ps(); H];
            for h in 0..H {
                head[h] = _mm256_loadu_ps(q.as_ptr().add(h * dim + d));
            }
            for n in 0..N {
                let key = _mm256_loadu_ps(keys.as_ptr().add(n * dim + d));
                for h in 0..H {
                    sums[h][n] = _mm256_fmadd_ps(head[h], key, sums[h][n]);
                }
            }
        }
    }
    for h in 0..H {
        let totals = sum4([sums[h][0], sums[h][1 % N], sums[h][2 % N], sums[h][3 % N]]);
        for n in 0..N {
            let tail = q[h * dim..][end..dim].iter().zip(&keys[n * dim..][end..dim]);
            let dot = tail.fold(totals[n], |sum, (a, b)| a.mul_add(*b, sum));
            scores[h][j + n] = dot * scale;
        }
    }
}

/// Each vector's lanes summed as ((0+1)+(2+3))+((4+5)+(6+7)).
#[inline]
#[target_feature(enable = "avx2")]
fn sum4(v: [__m256; 4]) -> [f32; 4] {
    let quads = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let total = _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps::<1>(quads));
    let mut out = [0.0; 4];
    // SAFETY: `out` holds four.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), total) };
    out
}

/// As `super::softmax`; scores from `len` on are minus infinity.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn softmax(scores: &mut [f32; TILE], len: usize, max: &mut f32, sum: &mut f32) -> f32 {
    let high = scores[..len].iter().fold(*max, |high, s| if *s > high { *s } else { high });
    let keep = if *max == high { 1.0 } else { exp::exp(*max - high) };
    *max = high;
    let top = _mm256_set1_ps(high);
    // SAFETY: `scores` holds two vectors of eight.
    let halves = unsafe {
        let low = exp::avx2::exp(_mm256_sub_ps(_mm256_loadu_ps(scores.as_ptr()), top));
        let rest = exp::avx2::exp(_mm256_sub_ps(_mm256_loadu_ps(scores.as_ptr().add(LANES)), top));
        _mm256_storeu_ps(scores.as_mut_ptr(), low);
        _mm256_storeu_ps(scores.as_mut_ptr().add(LANES), rest);
        scores[len..].fill(0.0);
        _mm256_add_ps(_mm256_loadu_ps(scores.as_ptr()), _mm256_loadu_ps(scores.as_ptr().add(LANES)))
    };
    *sum = sum.mul_add(keep, sum4([halves; 4])[0]);
    keep
}

/// Elements `d..d + 8 * C` of each head's output.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn accumulate<const H: usize, const C: usize>(
    out: &mut [f32],
    keep: &[f32; H],
    weights: &[[f32; TILE]; H],
    values: &[f32],
    dim: usize,
    d: usize,
) {
    assert!(d + C * LANES <= dim && out.len() == H * dim, "a part of each head");
    let mut sums = [[_mm256_setzero_ps(); C]; H];
    for h in 0..H {
        for c in 0..C {
            // SAFETY: d + 8 * C <= dim, and `out` has H rows of dim.
            let old = unsafe { _mm256_loadu_ps(out.as_ptr().add(h * dim + d + c * LANES)) };
            sums[h][c] = _mm256_mul_ps(old, _mm256_set1_ps(keep[h]));
        }
    }
    for (j, row) in values.chunks_exact(dim).take(TILE).enumerate() {
        let mut value = [_mm256_setzero_ps(); C];
        for c in 0..C {
            // SAFETY: d + 8 * C <= dim, the length of `row`.
            value[c] = unsafe { _mm256_loadu_ps(row.as_ptr().add(d + c * LANES)) };
        }
        for h in 0..H {
            let weight = _mm256_set1_ps(weights[h][j]);
            for c in 0..C {
                sums[h][c] = _mm256_fmadd_ps(weight, value[c], sums[h][c]);
            }
        }
    }
    for h in 0..H {
        for c in 0..C {
            // SAFETY: as for the loads.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(h * dim + d + c * LANES), sums[h][c]) };
        }
    }
}
