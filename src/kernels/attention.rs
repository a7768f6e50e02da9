//! Paged causal attention with grouped queries, by tiles with an online softmax (Milakov and Gimelshein 2018).
//!
//! A row's tiles are the 16 positions from each multiple of 16 on, whatever its chunk, batch or block size, so its
//! bits depend on its sequence alone (invariant 3). Rows and heads that share K and V take turns at each tile.

use super::Isa;
use super::exp::exp;

#[cfg(target_arch = "x86_64")]
#[path = "attention_avx2.rs"]
mod avx2;

/// Positions per tile; KV block sizes are multiples of it.
pub const TILE: usize = 16;
/// Rows of one sequence that share one pass over K and V at most.
pub const ROWS: usize = 4;
/// Query heads that share one pass over K and V at most.
const HEADS: usize = 16;
const LANES: usize = 8;

/// One layer's K or V: `[blocks, kv_heads, block_size, head_dim]`; `block_size` is a multiple of `TILE`.
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

/// One sequence's K and V of one KV head.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub k: Paged<'a>,
    pub v: Paged<'a>,
    /// The sequence's blocks.
    pub table: &'a [u32],
    pub kv_head: usize,
    /// What scores are multiplied with; 1/sqrt(head_dim) in most models.
    pub scale: f32,
}

/// One row's heads of one KV head: `q` and `out` are `[heads, head_dim]`; the row attends to `first..=position`.
#[derive(Default)]
pub struct Query<'a> {
    pub q: &'a [f32],
    pub out: &'a mut [f32],
    /// 0, or where a sliding window begins; at most `position`.
    pub first: usize,
    pub position: usize,
}

/// The online softmax of each head of a row.
#[derive(Clone, Copy)]
struct State {
    scale: f32,
    max: [f32; HEADS],
    sum: [f32; HEADS],
}

/// Attention of up to `ROWS` rows of one sequence, of equally many heads.
pub fn attend(isa: Isa, rows: &mut [Query], context: &Context) {
    let Some(first) = rows.first() else { return };
    let (len, dim) = (first.q.len(), context.k.head_dim);
    assert!(rows.len() <= ROWS && len.is_multiple_of(dim), "a few rows of whole heads");
    assert!(rows.iter().all(|row| row.q.len() == len && row.out.len() == len), "rows of equal width");
    assert!(rows.iter().all(|row| row.first <= row.position), "a row sees itself");
    assert!(
        dim == context.v.head_dim && context.k.block_size.is_multiple_of(TILE),
        "K and V in blocks of whole tiles"
    );
    for from in (0..len).step_by(HEADS * dim) {
        attend_heads(isa, rows, from..len.min(from + HEADS * dim), context);
    }
}

/// As `attend`, for the elements `part` of the rows. A row skips the tiles before its window and those behind its
/// position; of the window's first tile it takes the end.
fn attend_heads(isa: Isa, rows: &mut [Query], part: std::ops::Range<usize>, context: &Context) {
    let &Context { k, v, table, kv_head, scale } = context;
    let dim = k.head_dim;
    let mut states = [State { scale, max: [f32::NEG_INFINITY; HEADS], sum: [0.0; HEADS] }; ROWS];
    let first = rows.iter().map(|row| row.first).min().unwrap_or(0) / TILE * TILE;
    let last = rows.iter().map(|row| row.position).max().unwrap_or(0);
    rows.iter_mut().for_each(|row| row.out[part.clone()].fill(0.0));
    for start in (first..=last).step_by(TILE) {
        let len = TILE.min(last + 1 - start);
        let keys = k.tile(table, kv_head, start, len);
        let values = v.tile(table, kv_head, start, len);
        let sees = |row: &Query| row.position >= start && row.first < start + TILE;
        for (row, state) in rows.iter_mut().zip(&mut states).filter(|(row, _)| sees(row)) {
            let seen = row.first.saturating_sub(start) * dim..TILE.min(row.position + 1 - start) * dim;
            let (keys, values) = (&keys[seen.clone()], &values[seen]);
            tile(isa, &row.q[part.clone()], &mut row.out[part.clone()], state, keys, values, dim);
        }
    }
    for (row, state) in rows.iter_mut().zip(&states) {
        for (out, sum) in row.out[part.clone()].chunks_exact_mut(dim).zip(&state.sum) {
            let inverse = 1.0 / sum;
            out.iter_mut().for_each(|x| *x *= inverse);
        }
    }
}

/// One tile of up to 16 keys and values, for all heads of `q`.
fn tile(isa: Isa, q: &[f32], out: &mut [f32], state: &mut State, keys: &[f32], values: &[f32], dim: usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: such a set stands for a machine that has AVX2 and FMA.
        _ if isa.has_avx2() => unsafe { avx2::tile(q, out, state, keys, values, dim) },
        _ => {
            for (head, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
                let mut scores = [f32::NEG_INFINITY; TILE];
                for (score, key) in scores.iter_mut().zip(keys.chunks_exact(dim)) {
                    *score = dot(q, key) * state.scale;
                }
                let keep = softmax(&mut scores, keys.len() / dim, &mut state.max[head], &mut state.sum[head]);
                accumulate_from(0, out, keep, &scores, values);
            }
        }
    }
}

/// Turns the first `len` scores into weights relative to the new maximum, the others into 0, and updates a head's
/// maximum and sum. Returns the factor of what was summed before.
///
/// NaN scores leave the maximum as it was and reach the output through the weights.
fn softmax(scores: &mut [f32; TILE], len: usize, max: &mut f32, sum: &mut f32) -> f32 {
    let high = scores[..len].iter().fold(*max, |high, s| if *s > high { *s } else { high });
    let keep = if *max == high { 1.0 } else { exp(*max - high) };
    *max = high;
    scores[..len].iter_mut().for_each(|s| *s = exp(*s - high));
    scores[len..].fill(0.0);
    let halves = std::array::from_fn(|i| scores[i] + scores[i + LANES]);
    *sum = sum.mul_add(keep, tree(halves));
    keep
}

/// `a · b` in eight lanes, summed pair by pair, then the tail in order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (mut a8, mut b8) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in a8.by_ref().zip(b8.by_ref()) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    a8.remainder().iter().zip(b8.remainder()).fold(tree(lanes), |sum, (a, b)| a.mul_add(*b, sum))
}

#[inline(always)]
fn tree(l: [f32; LANES]) -> f32 {
    ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))
}

/// `out = out * keep + Σ weights[j] * values[j]`, j ascending; each element by itself, from `first` on.
#[inline(always)]
fn accumulate_from(first: usize, out: &mut [f32], keep: f32, weights: &[f32; TILE], values: &[f32]) {
    let dim = out.len();
    for (d, out) in out.iter_mut().enumerate().skip(first) {
        let rows = weights.iter().zip(values.chunks_exact(dim));
        *out = rows.fold(*out * keep, |sum, (w, value)| w.mul_add(value[d], sum));
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
