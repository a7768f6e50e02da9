//! Paged attention with grouped queries and an online softmax (Milakov and Gimelshein 2018).
//!
//! Every sum adds up in the order of positions, counted from 0, whatever a row's chunk, batch or block size (invariant
//! 3). A score is a chain of multiply-adds along the head, or 16 chains if K is stored in the layout of V. If stored
//! groups have scales, the score is a chain over the groups' sums times their scales. A step of the softmax takes the
//! scores of 64 positions; it sums their weights in 16 lanes, position modulo 16. After 256 positions (a piece) the
//! softmax starts anew. The results of the pieces are merged in order, so that several tasks can share a long context.

use crate::kernels::Isa;
use crate::kernels::pool::buffer::grown;
use crate::kernels::rows::cap::soft;
use crate::kernels::rows::exp::exp;
pub use kv::{Half, KvType, Paged, TILE, turn};
use kv::{scale, value};
use std::ops::Range;

pub mod kv;
mod simd;
mod stored;
pub mod whole;

/// Positions per step of the softmax.
const SPAN: usize = 64;
/// Positions per piece: pieces are computed separately and then merged.
pub const PIECE: usize = 256;
/// Maximum number of query heads in a task; they share each tile of K and V. A single row may have more.
pub const QUERIES: usize = 16;
/// Maximum number of query heads of a prompt's rows in a task. Tiles are converted to f32 once for all of them.
pub const TOGETHER: usize = 96;
/// The widest head that vector code supports; the reference computes wider ones.
const WIDEST: usize = 576;

/// K and V of one KV head of one sequence.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub k: Paged<'a>,
    pub v: Paged<'a>,
    /// K and V are the same rows, in tiles of V.
    pub joint: bool,
    /// The sequence's block table.
    pub table: &'a [u32],
    pub kv_head: usize,
    /// The soft cap of scores (`rows::cap`).
    pub cap: Option<f32>,
    /// Attention sinks: for each query head of the KV head, a score without a value, whose weight adds up to 1 with
    /// the weights of the row. Empty: there are none.
    pub sinks: &'a [f32],
}

/// The positions that a row attends to: `first..=last`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// 0, or the start of a sliding window; at most `last`.
    pub first: usize,
    /// The row's own position, or a later one that it sees too.
    pub last: usize,
}

impl Seen {
    /// The seen positions of `start..start + len`, counted from `start`.
    fn within(&self, start: usize, len: usize) -> Range<usize> {
        let end = (self.last + 1).clamp(start, start + len);
        self.first.clamp(start, end) - start..end - start
    }

    /// The pieces that contain the seen positions.
    pub fn pieces(&self) -> Range<usize> {
        self.first / PIECE..self.last / PIECE + 1
    }
}

/// Rows of one sequence, each with the query heads that share a KV head.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The model's `head_dim`.
    pub head_dim: usize,
    pub heads: usize,
    /// One entry per row. From row to row neither end moves back.
    pub seen: &'a [Seen],
    /// `[rows, heads]` heads, rotated and scaled, then rotated as the stored heads are (`turn`). Each has `head_dim`
    /// elements; heads start `stride(head_dim)` apart.
    pub q: &'a [f32],
}

impl Rows<'_> {
    fn queries(&self) -> usize {
        self.seen.len() * self.heads
    }

    /// The pieces that at least one row sees.
    pub fn pieces(&self) -> Range<usize> {
        let first = self.seen.first().map_or(0, |seen| seen.pieces().start);
        first..self.seen.last().map_or(0, |seen| seen.pieces().end)
    }
}

/// Distance between heads of `Rows::q`, in elements: a constant for vector code, and not a power of two.
pub fn stride(head_dim: usize) -> usize {
    if head_dim <= WIDEST { WIDEST + TILE } else { head_dim }
}

/// Number of elements of a query's state: the weighted sum of values, 16 sums of weights, and the largest score.
pub fn state_len(head_dim: usize) -> usize {
    head_dim + 2 * TILE
}

/// The state of a query's online softmax.
struct State<'a> {
    values: &'a mut [f32],
    sums: &'a mut [f32],
    max: &'a mut f32,
}

impl<'a> State<'a> {
    fn of(state: &'a mut [f32], head_dim: usize) -> Self {
        let (values, rest) = state.split_at_mut(head_dim);
        let (sums, max) = rest.split_at_mut(TILE);
        Self { values, sums, max: &mut max[0] }
    }
}

/// Scratch buffers of a task, kept to reuse their memory.
#[derive(Default)]
pub struct Scratch {
    q: Vec<f32>,
    spans: Spans,
    states: Vec<f32>,
    piece: Vec<f32>,
}

/// Buffers of a step of the softmax.
#[derive(Default)]
struct Spans {
    scores: Vec<f32>,
    /// The step's tiles of K and V in f32, for more queries than `QUERIES`.
    unpacked: Vec<f32>,
}

impl Scratch {
    /// Bytes that `queries` heads need.
    pub fn bytes(queries: usize, head_dim: usize) -> usize {
        let unpacked = if queries > QUERIES { 2 * SPAN * head_dim } else { 0 };
        (queries * (stride(head_dim) + SPAN + 2 * state_len(head_dim)) + unpacked) * size_of::<f32>()
    }

    /// Makes room for `queries` heads, and returns it: they start `stride(head_dim)` apart.
    pub fn queries(&mut self, queries: usize, head_dim: usize) -> &mut [f32] {
        grown(&mut self.spans.scores, queries * SPAN);
        if queries > QUERIES {
            grown(&mut self.spans.unpacked, 2 * SPAN * head_dim);
        }
        grown(&mut self.states, queries * state_len(head_dim));
        grown(&mut self.piece, queries * state_len(head_dim));
        grown(&mut self.q, queries * stride(head_dim))
    }

    /// Computes attention for the rows whose heads were written to `queries`; `out(row, head)` returns the slice for
    /// that head's output.
    pub fn attend<'o>(
        &mut self,
        isa: Isa,
        seen: &[Seen],
        heads: usize,
        context: &Context,
        mut out: impl FnMut(usize, usize) -> &'o mut [f32],
    ) {
        let head_dim = context.k.head_dim;
        let rows = Rows { head_dim, heads, seen, q: &self.q };
        let len = state_len(head_dim);
        for index in rows.pieces() {
            piece(isa, &rows, context, index, &mut self.spans, &mut self.piece);
            let states = self.states.chunks_exact_mut(len).zip(self.piece.chunks_exact_mut(len));
            for (n, (state, piece)) in states.take(rows.queries()).enumerate() {
                merge(&seen[n / heads], index, state, piece, head_dim);
            }
        }
        for (n, state) in self.states.chunks_exact_mut(len).take(rows.queries()).enumerate() {
            let out = out(n / heads, n % heads);
            finish(state, out, context.sinks.get(n % heads).copied());
            turn(isa, context.v.kind, Half::V, out);
        }
    }

    /// Computes one piece of the context for the rows whose heads were written to `queries`. `states` receives a
    /// state for each head of each row; the state is meaningless if the row sees no position of the piece.
    pub fn attend_piece(
        &mut self,
        isa: Isa,
        seen: &[Seen],
        heads: usize,
        context: &Context,
        index: usize,
        states: &mut [f32],
    ) {
        let rows = Rows { head_dim: context.k.head_dim, heads, seen, q: &self.q };
        piece(isa, &rows, context, index, &mut self.spans, states);
    }
}

/// Computes attention over the positions of one piece, into a state for each query that sees any of them.
fn piece(isa: Isa, rows: &Rows, context: &Context, index: usize, spans: &mut Spans, states: &mut [f32]) {
    let Rows { head_dim, heads, seen, q } = *rows;
    let (k, v) = (&context.k, &context.v);
    assert!(k.head_dim == head_dim && v.head_dim == head_dim && k.kind == v.kind, "K and V of one kind");
    assert!(k.block_size.is_multiple_of(TILE) && v.block_size == k.block_size, "blocks of whole tiles");
    assert!(heads > 0 && head_dim > 0 && q.len() >= rows.queries() * stride(head_dim), "whole heads");
    assert!(seen.iter().all(|row| row.first <= row.last), "a row sees a position");
    let ascending = |w: &[Seen]| w[0].first <= w[1].first && w[0].last <= w[1].last;
    assert!(seen.windows(2).all(ascending), "rows in order");
    let len = state_len(head_dim);
    assert!(states.len() >= rows.queries() * len && spans.scores.len() >= rows.queries() * SPAN, "scratch");
    for (n, state) in states.chunks_exact_mut(len).take(rows.queries()).enumerate() {
        if !seen[n / heads].within(index * PIECE, PIECE).is_empty() {
            state.fill(0.0);
            *State::of(state, head_dim).max = f32::NEG_INFINITY;
        }
    }
    if (isa.has_avx2() || isa.has_neon()) && head_dim <= WIDEST {
        // Without AVX-512's registers more queries gain nothing, except that four bits take long to convert.
        let few = !isa.has_avx512() && k.kind != KvType::Int4;
        let most = if few { (QUERIES / heads).max(1) } else { seen.len().max(1) };
        for (n, seen) in seen.chunks(most).enumerate() {
            let from = n * most * heads;
            let rows = Rows { seen, q: &q[from * stride(head_dim)..], ..*rows };
            simd::piece(isa, &rows, context, index, spans, &mut states[from * len..]);
        }
        return;
    }
    for (n, state) in states.chunks_exact_mut(len).take(rows.queries()).enumerate() {
        let q = &q[n * stride(head_dim)..][..head_dim];
        for start in (index * PIECE..(index + 1) * PIECE).step_by(SPAN) {
            span(q, &seen[n / heads], context, start, State::of(state, head_dim));
        }
    }
}

/// One step of a query's softmax.
fn span(q: &[f32], seen: &Seen, context: &Context, start: usize, state: State) {
    let Context { k, v, joint, table, kv_head, cap, sinks: _ } = *context;
    let head_dim = q.len();
    let range = seen.within(start, SPAN);
    if range.is_empty() {
        return;
    }
    let mut weights = [0.0f32; SPAN];
    let mut high = *state.max;
    for j in range.clone() {
        let keys = k.tile(table, kv_head, (start + j) / TILE);
        let score = match joint {
            true => total(&dots::<TILE>(q, k.kind, Half::V, keys, j % TILE)),
            false => dots::<1>(q, k.kind, Half::K, keys, j % TILE)[0],
        };
        weights[j] = cap.map_or(score, |cap| soft(score, cap));
        // A NaN does not change the maximum; it reaches the output through its weight.
        high = if weights[j] > high { weights[j] } else { high };
    }
    let keep = decay(*state.max, high);
    *state.max = high;
    weights[range.clone()].iter_mut().for_each(|w| *w = exp(*w - high));
    state.sums.iter_mut().for_each(|sum| *sum *= keep);
    for tile in weights[range.start / TILE * TILE..range.end.next_multiple_of(TILE)].chunks_exact(TILE) {
        state.sums.iter_mut().zip(tile).for_each(|(sum, weight)| *sum += weight);
    }
    for (group, d) in v.kind.groups(head_dim).enumerate().flat_map(|(group, ds)| ds.map(move |d| (group, d)))
    {
        let sum = &mut state.values[d];
        *sum = range.clone().fold(*sum * keep, |sum, j| {
            let values = v.tile(table, kv_head, (start + j) / TILE);
            let weight =
                scale(v.kind, values, j % TILE, group, head_dim).map_or(weights[j], |s| weights[j] * s);
            weight.mul_add(value(v.kind, Half::V, values, j % TILE, d, head_dim), sum)
        });
    }
}

/// `N` sums of the products of a query and a key at position `at` of a tile, of the elements modulo N.
fn dots<const N: usize>(q: &[f32], kind: KvType, half: Half, tile: &[u8], at: usize) -> [f32; N] {
    let mut sums = [0.0f32; N];
    for (group, columns) in kind.groups(q.len()).enumerate() {
        let mut own = [0.0f32; N];
        for d in columns {
            own[d % N] = q[d].mul_add(value(kind, half, tile, at, d, q.len()), own[d % N]);
        }
        let scale = scale(kind, tile, at, group, q.len());
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = scale.map_or(own, |s| own.mul_add(s, *sum)));
    }
    sums
}

/// The sum of 16 numbers.
#[inline(always)]
fn total(sums: &[f32]) -> f32 {
    let l: [f32; TILE / 2] = std::array::from_fn(|i| sums[i] + sums[i + TILE / 2]);
    ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + (l[6] + l[7]))
}

/// The factor for sums that were taken relative to `max`, now that `high` is the maximum.
#[inline(always)]
fn decay(max: f32, high: f32) -> f32 {
    if max == high { 1.0 } else { exp(max - high) }
}

/// Merges piece `index` into a row's `state`; the first piece that the row sees initializes the state.
pub fn merge(seen: &Seen, index: usize, state: &mut [f32], piece: &mut [f32], head_dim: usize) {
    if !seen.pieces().contains(&index) {
        return;
    }
    if seen.pieces().start == index {
        return state.copy_from_slice(piece);
    }
    let (state, piece) = (State::of(state, head_dim), State::of(piece, head_dim));
    let high = if *piece.max > *state.max { *piece.max } else { *state.max };
    let (a, b) = (decay(*state.max, high), decay(*piece.max, high));
    *state.max = high;
    state.sums.iter_mut().zip(piece.sums).for_each(|(x, y)| *x = *x * a + *y * b);
    state.values.iter_mut().zip(piece.values).for_each(|(x, y)| *x = *x * a + *y * b);
}

/// Computes a head's output from its state and its sink. The output is rotated as the stored heads are
/// (`turn`).
pub fn finish(state: &mut [f32], out: &mut [f32], sink: Option<f32>) {
    let state = State::of(state, out.len());
    let total = total(state.sums);
    let inverse = match sink {
        Some(sink) => {
            let high = if sink > *state.max { sink } else { *state.max };
            let keep = decay(*state.max, high);
            keep / total.mul_add(keep, exp(sink - high))
        }
        None => 1.0 / total,
    };
    out.iter_mut().zip(state.values).for_each(|(out, x)| *out = *x * inverse);
}

#[cfg(test)]
mod tests;
