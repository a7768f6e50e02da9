//! Paged causal attention with grouped queries, by tiles with an online softmax (Milakov and Gimelshein 2018).
//!
//! A row's tiles are the 16 positions from each multiple of 16 on, whatever its chunk, batch or block size, so its
//! bits depend on its sequence alone (invariant 3).

use super::Isa;
use super::exp::exp;

/// Positions per tile; KV block sizes are multiples of it.
pub const TILE: usize = 16;
/// Query heads that share one pass over K and V.
const GROUP: usize = 16;
const LANES: usize = 8;

/// One layer's K or V: `[blocks, kv_heads, block_size, head_dim]`.
#[derive(Clone, Copy)]
pub struct Paged<'a> {
    pub data: &'a [f32],
    pub kv_heads: usize,
    pub block_size: usize,
    pub head_dim: usize,
}

impl<'a> Paged<'a> {
    /// Where `position` of a sequence lies for `kv_head`.
    pub fn offset(&self, table: &[u32], kv_head: usize, position: usize) -> usize {
        let block = table[position / self.block_size] as usize;
        ((block * self.kv_heads + kv_head) * self.block_size + position % self.block_size) * self.head_dim
    }

    fn tile(&self, table: &[u32], kv_head: usize, start: usize, len: usize) -> &'a [f32] {
        let at = self.offset(table, kv_head, start);
        &self.data[at..at + len * self.head_dim]
    }
}

/// One query row's heads of one KV head: `q` and `out` are `[group, head_dim]`, `position` the row's own; attends to
/// `0..=position` with scores scaled by 1/sqrt(head_dim).
pub fn attend(
    isa: Isa,
    q: &[f32],
    k: Paged,
    v: Paged,
    table: &[u32],
    kv_head: usize,
    position: usize,
    out: &mut [f32],
) {
    assert_eq!(q.len(), out.len(), "an output for each query head");
    for (q, out) in q.chunks(GROUP * k.head_dim).zip(out.chunks_mut(GROUP * k.head_dim)) {
        attend_group(isa, q, k, v, table, kv_head, position, out);
    }
}

#[allow(clippy::too_many_arguments)]
fn attend_group(
    isa: Isa,
    q: &[f32],
    k: Paged,
    v: Paged,
    table: &[u32],
    kv_head: usize,
    position: usize,
    out: &mut [f32],
) {
    let dim = k.head_dim;
    let scale = 1.0 / (dim as f32).sqrt();
    let (mut max, mut sum) = ([f32::NEG_INFINITY; GROUP], [0.0f32; GROUP]);
    out.fill(0.0);
    for start in (0..=position).step_by(TILE) {
        let len = TILE.min(position + 1 - start);
        let keys = k.tile(table, kv_head, start, len);
        let values = v.tile(table, kv_head, start, len);
        for (head, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
            let mut weights = [0.0; TILE];
            let mut high = max[head];
            for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(dim)) {
                *weight = dot(isa, q, key) * scale;
                high = if *weight > high { *weight } else { high };
            }
            // NaN scores leave `high` as it was and reach the output through the weights.
            let keep = if max[head] == high { 1.0 } else { exp(max[head] - high) };
            max[head] = high;
            let mut total = sum[head] * keep;
            for weight in &mut weights[..len] {
                *weight = exp(*weight - high);
                total += *weight;
            }
            sum[head] = total;
            accumulate(isa, out, keep, &weights[..len], values);
        }
    }
    for (head, out) in out.chunks_exact_mut(dim).enumerate() {
        let inverse = 1.0 / sum[head];
        out.iter_mut().for_each(|x| *x *= inverse);
    }
}

/// `a · b` in eight lanes, summed by halves, then the tail in order.
fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot of equal lengths");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2 and FMA; the lengths are equal.
        Isa::Avx2 => unsafe { avx2::dot(a, b) },
        _ => {
            let mut lanes = [0.0f32; LANES];
            let (mut a8, mut b8) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
            for (a, b) in a8.by_ref().zip(b8.by_ref()) {
                for i in 0..LANES {
                    lanes[i] = a[i].mul_add(b[i], lanes[i]);
                }
            }
            finish_dot(lanes, a8.remainder(), b8.remainder())
        }
    }
}

fn finish_dot(l: [f32; LANES], a: &[f32], b: &[f32]) -> f32 {
    let whole = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    a.iter().zip(b).fold(whole, |sum, (a, b)| a.mul_add(*b, sum))
}

/// `out = out * keep + Σ weights[j] * values[j]`, j ascending; each element by itself.
fn accumulate(isa: Isa, out: &mut [f32], keep: f32, weights: &[f32], values: &[f32]) {
    assert_eq!(values.len(), weights.len() * out.len(), "a value row for each weight");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` stands for a machine that has AVX2 and FMA; the lengths fit.
        Isa::Avx2 => unsafe { avx2::accumulate(out, keep, weights, values) },
        _ => accumulate_from(0, out, keep, weights, values),
    }
}

fn accumulate_from(first: usize, out: &mut [f32], keep: f32, weights: &[f32], values: &[f32]) {
    let dim = out.len();
    for (d, out) in out.iter_mut().enumerate().skip(first) {
        *out =
            weights.iter().enumerate().fold(*out * keep, |sum, (j, w)| w.mul_add(values[j * dim + d], sum));
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{LANES, accumulate_from, finish_dot};
    use std::arch::x86_64::*;

    /// `a` and `b` are equally long.
    #[target_feature(enable = "avx2,fma")]
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        let end = a.len() / LANES * LANES;
        let mut sum = _mm256_setzero_ps();
        for i in (0..end).step_by(LANES) {
            // SAFETY: i + 8 <= end, which both slices have.
            unsafe {
                sum = _mm256_fmadd_ps(
                    _mm256_loadu_ps(a.as_ptr().add(i)),
                    _mm256_loadu_ps(b.as_ptr().add(i)),
                    sum,
                );
            }
        }
        let mut lanes = [0.0; LANES];
        // SAFETY: `lanes` holds eight.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        finish_dot(lanes, &a[end..], &b[end..])
    }

    /// `values` holds `weights.len()` rows as long as `out`.
    #[target_feature(enable = "avx2,fma")]
    pub fn accumulate(out: &mut [f32], keep: f32, weights: &[f32], values: &[f32]) {
        let dim = out.len();
        let end = dim / LANES * LANES;
        let keep8 = _mm256_set1_ps(keep);
        for d in (0..end).step_by(LANES) {
            // SAFETY: d + 8 <= dim, and row j of `values` starts at j * dim.
            unsafe {
                let mut sum = _mm256_mul_ps(_mm256_loadu_ps(out.as_ptr().add(d)), keep8);
                for (j, w) in weights.iter().enumerate() {
                    let row = _mm256_loadu_ps(values.as_ptr().add(j * dim + d));
                    sum = _mm256_fmadd_ps(_mm256_set1_ps(*w), row, sum);
                }
                _mm256_storeu_ps(out.as_mut_ptr().add(d), sum);
            }
        }
        accumulate_from(end, out, keep, weights, values);
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
