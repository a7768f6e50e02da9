//! One piece of attention on 16 lanes and several queries at a time, with the bits of the reference.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::stored::{F16, F32, Int4, Int8, Stored, Unpacked, scaled, unpack};
use super::{Context, Half, KvType, Paged, Rows, SPAN, State, TILE, WIDEST, decay, state_len, total, value};
use super::{Isa, PIECE, QUERIES, Spans, TOGETHER};
use crate::kernels::rows::cap::soft_lanes;
use crate::kernels::rows::exp::exp_lanes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{Lanes, Register};
use std::ops::Range;

const TILES: usize = SPAN / TILE;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Distance between heads of `Rows::q`.
const STRIDE: usize = WIDEST + TILE;
/// As `super::piece`, which has checked the arguments. `isa` has AVX2 or NEON, and heads are at most `WIDEST` wide.
pub fn piece(isa: Isa, rows: &Rows, context: &Context, index: usize, spans: &mut Spans, states: &mut [f32]) {
    let (scores, unpacked) = (&mut spans.scores, &mut spans.unpacked);
    let mut next = Span::new(rows, context, index * PIECE);
    if let (Some(first), true) = (&mut next, index == rows.pieces().start) {
        first.begins = true;
    }
    for start in (index * PIECE..(index + 1) * PIECE).step_by(SPAN) {
        // The tiles of the next span, even if it is in the next piece, are prefetched while this span is computed.
        let after = Span::new(rows, context, start + SPAN);
        let Some(mut span) = std::mem::replace(&mut next, after) else { continue };
        if let Some(after) = &next {
            (span.next_keys, span.next_values) = (after.keys, after.values);
        }
        let many = span.rows.len() * rows.heads > QUERIES;
        match (context.k.kind, many) {
            (KvType::F32, _) => attend::<F32>(isa, rows, &span, scores, states),
            (KvType::F16, false) => attend::<F16>(isa, rows, &span, scores, states),
            (KvType::Int8, false) => attend::<Int8>(isa, rows, &span, scores, states),
            (KvType::Int4, false) => attend::<Int4>(isa, rows, &span, scores, states),
            (KvType::F16, true) => unpacked_span::<F16>(isa, rows, span, unpacked, scores, states),
            (KvType::Int8, true) => unpacked_span::<Int8>(isa, rows, span, unpacked, scores, states),
            (KvType::Int4, true) => unpacked_span::<Int4>(isa, rows, span, unpacked, scores, states),
        }
    }
}

/// Attends to a span whose tiles are converted to f32 first.
fn unpacked_span<'a, E: Stored>(
    isa: Isa,
    rows: &Rows,
    mut span: Span<'a>,
    unpacked: &'a mut [f32],
    scores: &mut [f32],
    states: &mut [f32],
) {
    let dim = rows.head_dim;
    let (keys, values) = unpacked[..2 * SPAN * dim].split_at_mut(SPAN * dim);
    let parts = [
        (Half::K, &mut span.keys, span.next_keys, keys),
        (Half::V, &mut span.values, span.next_values, values),
    ];
    for (half, tiles, next, out) in parts.into_iter().skip(usize::from(span.joint)) {
        for (t, out) in out.chunks_exact_mut(TILE * dim).enumerate().filter(|(t, _)| span.tiles.contains(t)) {
            unpack::<E>(isa, half, tiles[t], next[t], dim, out);
            // SAFETY: f32 may be read as bytes.
            tiles[t] = unsafe { std::slice::from_raw_parts(out.as_ptr().cast(), size_of_val(out)) };
        }
    }
    if span.joint {
        span.keys = span.values;
    }
    span.begins = false;
    attend::<Unpacked>(isa, rows, &span, scores, states);
}

by_isa!(
    fn attend<E: Stored>(rows: &Rows, span: &Span, scores: &mut [f32], states: &mut [f32])
        = in_lanes::<lanes>
);

#[inline(always)]
unsafe fn in_lanes<L: Lanes, E: Stored>(rows: &Rows, span: &Span, scores: &mut [f32], states: &mut [f32]) {
    // SAFETY: the caller has the instructions.
    unsafe { span.attend::<L, E>(rows, scores, states) }
}

/// The tiles of one step of the softmax, and the rows that see any of it.
struct Span<'a> {
    start: usize,
    rows: Range<usize>,
    tiles: Range<usize>,
    /// The tiles in the range `tiles`; the others are empty.
    keys: [&'a [u8]; TILES],
    values: [&'a [u8]; TILES],
    /// The tiles of the next span; the same as `keys` and `values` if there is none.
    next_keys: [&'a [u8]; TILES],
    next_values: [&'a [u8]; TILES],
    kind: KvType,
    /// The scales of `keys` and of `values`; empty if the type has none.
    scales: [[&'a [u8]; TILES]; 2],
    /// Whether nothing has prefetched this span.
    begins: bool,
    /// `Context::cap`.
    cap: Option<f32>,
    /// `Context::joint`.
    joint: bool,
}

impl<'a> Span<'a> {
    fn new(rows: &Rows, context: &Context<'a>, start: usize) -> Option<Self> {
        let sees = |row: &usize| !rows.seen[*row].within(start, SPAN).is_empty();
        let first = (0..rows.seen.len()).find(sees)?;
        let last = (0..rows.seen.len()).rfind(sees)?;
        // Rows ascend: the first row sees the earliest position, the last row the latest.
        let begin = rows.seen[first].within(start, SPAN).start;
        let end = rows.seen[last].within(start, SPAN).end;
        let tiles = begin / TILE..end.div_ceil(TILE);
        let all = |of: &Paged<'a>| {
            std::array::from_fn(|t| match tiles.contains(&t) {
                true => of.tile(context.table, context.kv_head, start / TILE + t),
                false => &[][..],
            })
        };
        let (keys, values) = (all(&context.k), all(&context.v));
        let (rows_dim, rows) = (rows.head_dim, first..last + 1);
        let (next_keys, next_values) = (keys, values);
        let Context { cap, joint, .. } = *context;
        let kind = context.k.kind;
        let values_of_tile = kind.tile_parts(rows_dim)[0];
        let scales = [keys, values].map(|tiles| tiles.map(|tile| tile.get(values_of_tile..).unwrap_or(&[])));
        Some(Self {
            start,
            rows,
            tiles,
            keys,
            values,
            next_keys,
            next_values,
            kind,
            scales,
            begins: false,
            cap,
            joint,
        })
    }

    fn within(&self, rows: &Rows, row: usize) -> Range<usize> {
        rows.seen[row].within(self.start, SPAN)
    }

    /// # Safety
    /// `L`'s instructions are available, and lengths are as `super::piece` asserts.
    #[inline(always)]
    unsafe fn attend<L: Lanes, E: Stored>(&self, rows: &Rows, scores: &mut [f32], states: &mut [f32]) {
        let (heads, dim, len) = (rows.heads, rows.head_dim, state_len(rows.head_dim));
        let queries = self.rows.start * heads..self.rows.end * heads;
        if self.begins {
            let tiles = self.keys.iter().chain(&self.values);
            tiles.flat_map(|tile| tile.chunks(64)).for_each(|line| L::fetch(line.as_ptr()));
        }
        // SAFETY: scores and q have a line for each query.
        unsafe {
            let q = rows.q.as_ptr().add(queries.start * STRIDE);
            let scores = scores[queries.start * SPAN..].as_mut_ptr();
            match self.joint {
                true => self.row_scores::<L, E>(q, queries.len(), dim, scores),
                false => self.scores::<L, E>(q, queries.len(), dim, scores),
            }
        }
        // Rows that see the same positions of the span are handled together.
        let mut row = self.rows.start;
        while row < self.rows.end {
            let range = self.within(rows, row);
            let same = (row..self.rows.end).take_while(|r| self.within(rows, *r) == range).count();
            let mut from = row * heads;
            row += same;
            while from < row * heads {
                let some = TOGETHER.min(row * heads - from);
                let mut keep = [0.0f32; TOGETHER];
                for (i, keep) in keep[..some].iter_mut().enumerate() {
                    let scores = &mut scores[(from + i) * SPAN..][..SPAN];
                    let state = State::of(&mut states[(from + i) * len..][..len], dim);
                    // SAFETY: the instructions are available.
                    *keep = unsafe { self.softmax::<L>(scores, &range, state) };
                }
                let states = &mut states[from * len..][..some * len];
                // SAFETY: the instructions are available.
                unsafe { self.values::<L, E>(&scores[from * SPAN..], &keep[..some], &range, states, dim) };
                from += some;
            }
        }
    }

    /// Computes the scores of all tiles for `queries` heads, `STRIDE` apart in `q` and `SPAN` apart in `scores`.
    #[inline(always)]
    unsafe fn scores<L: Lanes, E: Stored>(
        &self,
        q: *const f32,
        queries: usize,
        dim: usize,
        scores: *mut f32,
    ) {
        let mut n = 0;
        while n < queries {
            // SAFETY: n < queries.
            let (q, scores) = unsafe { (q.add(n * STRIDE), scores.add(n * SPAN)) };
            // SAFETY: as many queries are left.
            n += unsafe {
                match (queries - n, L::SUMS) {
                    (12.., 16..) if !E::FETCH => self.block::<L, E, 12, 2>(q, dim, scores),
                    (16.., 16..) => self.block::<L, E, 16, 1>(q, dim, scores),
                    (8.., 16..) => self.block::<L, E, 8, 2>(q, dim, scores),
                    (4.., 16..) => self.block::<L, E, 4, 4>(q, dim, scores),
                    (4.., _) => self.block::<L, E, 4, 1>(q, dim, scores),
                    (2.., 16..) => self.block::<L, E, 2, 4>(q, dim, scores),
                    (2.., _) => self.block::<L, E, 2, 2>(q, dim, scores),
                    _ => self.block::<L, E, 1, 4>(q, dim, scores),
                }
            };
        }
    }

    /// As `scores`, of keys in tiles of V.
    #[inline(always)]
    unsafe fn row_scores<L: Lanes, E: Stored>(
        &self,
        q: *const f32,
        queries: usize,
        dim: usize,
        scores: *mut f32,
    ) {
        let mut n = 0;
        while n < queries {
            // SAFETY: n < queries, and as many are left.
            n += unsafe {
                let (q, scores) = (q.add(n * STRIDE), scores.add(n * SPAN));
                match (queries - n, L::SUMS) {
                    (4.., 16..) => self.row_block::<L, E, 4, 4>(q, dim, scores),
                    (2.., _) => self.row_block::<L, E, 2, 2>(q, dim, scores),
                    _ => self.row_block::<L, E, 1, 4>(q, dim, scores),
                }
            };
        }
    }

    /// The same for `N` heads, `T` positions at a time.
    #[inline(always)]
    unsafe fn row_block<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        dim: usize,
        scores: *mut f32,
    ) -> usize {
        for t in self.tiles.clone() {
            // SAFETY: a tile of the span has 16 rows of `dim`; the caller has N heads and room for N lines of scores.
            unsafe {
                let scores = scores.add(t * TILE);
                for at in (0..TILE).step_by(T) {
                    let tiles = [self.keys[t], self.next_keys[t]];
                    row_dots::<L, E, N, T>(q, tiles, at, dim, scores.add(at));
                }
                for n in 0..N {
                    let line = scores.add(n * SPAN);
                    scaled(L::load(line), self.kind, self.scales[0][t]).store(line);
                }
            }
        }
        N
    }

    /// Computes the scores of all tiles for `N` heads, `T` tiles at a time.
    #[inline(always)]
    unsafe fn block<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        dim: usize,
        scores: *mut f32,
    ) -> usize {
        let mut t = self.tiles.start;
        while t < self.tiles.end {
            // SAFETY: t is a tile of the span.
            t += unsafe {
                match self.tiles.end - t >= T {
                    true => self.dots::<L, E, N, T>(q, t, dim, scores.add(t * TILE)),
                    false => self.dots::<L, E, N, 1>(q, t, dim, scores.add(t * TILE)),
                }
            };
        }
        N
    }

    /// Computes the scores of `N` heads with `T` tiles from `t` on.
    #[inline(always)]
    unsafe fn dots<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        t: usize,
        dim: usize,
        scores: *mut f32,
    ) -> usize {
        // SAFETY: the caller has N heads and room for N lines of scores; a tile of keys holds `dim` times 16.
        unsafe {
            let keys: [*const u8; T] = std::array::from_fn(|i| self.keys[t + i].as_ptr());
            let next: [*const u8; T] = std::array::from_fn(|i| self.next_keys[t + i].as_ptr());
            let mut sums = [[L::splat(0.0); T]; N];
            for pair in 0..dim / 2 {
                add_keys::<L, E, N, T>(q, keys, next, pair, 0, &mut sums);
                add_keys::<L, E, N, T>(q, keys, next, pair, 1, &mut sums);
            }
            if dim % 2 == 1 {
                add_keys::<L, E, N, T>(q, keys, next, dim / 2, 0, &mut sums);
            }
            // Short loops are unrolled, which keeps the sums in registers; so scales come later.
            for n in 0..N {
                for i in 0..T {
                    sums[n][i].store(scores.add(n * SPAN + i * TILE));
                }
            }
            if matches!(self.kind, KvType::Int8 | KvType::Int4) {
                for i in 0..T * N {
                    let line = scores.add(i / T * SPAN + i % T * TILE);
                    scaled(L::load(line), self.kind, self.scales[0][t + i % T]).store(line);
                }
            }
        }
        T
    }

    /// The middle of `super::span`: turns scores into the weights of values. Returns the factor of earlier sums.
    #[inline(always)]
    unsafe fn softmax<L: Lanes>(&self, scores: &mut [f32], range: &Range<usize>, state: State) -> f32 {
        let tiles = range.start / TILE..range.end.div_ceil(TILE);
        let lanes = |t: usize| (range.start.saturating_sub(t * TILE), TILE.min(range.end - t * TILE));
        // SAFETY: the instructions are available; `scores` holds SPAN elements, `sums` TILE.
        unsafe {
            let mut top = L::splat(*state.max);
            for t in tiles.clone() {
                let at = scores.as_mut_ptr().add(t * TILE);
                let mut score = L::load(at);
                if let Some(cap) = self.cap {
                    score = soft_lanes(score, cap);
                    score.store(at);
                }
                top = match lanes(t) {
                    (0, TILE) => score.above(top),
                    (from, to) => score.only(from, to, L::splat(f32::NEG_INFINITY)).above(top),
                };
            }
            let high = top.largest();
            let keep = decay(*state.max, high);
            *state.max = high;
            let mut sums = L::load(state.sums.as_ptr()).mul(L::splat(keep));
            for t in tiles {
                let at = scores.as_mut_ptr().add(t * TILE);
                let mut weight = exp_lanes(L::load(at).sub(L::splat(high)));
                if let (from @ 1.., to) | (from, to @ ..TILE) = lanes(t) {
                    weight = weight.only(from, to, L::splat(0.0));
                }
                sums = sums.add(weight);
                scaled(weight, self.kind, self.scales[1][t]).store(at);
            }
            sums.store(state.sums.as_mut_ptr());
            keep
        }
    }

    /// Scales the values of each state by its `keep`, and adds the weighted values of `range`.
    #[inline(always)]
    unsafe fn values<L: Lanes, E: Stored>(
        &self,
        weights: &[f32],
        keep: &[f32],
        range: &Range<usize>,
        states: &mut [f32],
        dim: usize,
    ) {
        let (len, mut n) = (state_len(dim), 0);
        while n < keep.len() {
            let (weights, states) = (&weights[n * SPAN..], &mut states[n * len..]);
            let keep = &keep[n..];
            // SAFETY: as many queries are left.
            n += unsafe {
                match (keep.len(), L::SUMS) {
                    (12.., 16..) if !E::FETCH => self.sums::<L, E, 12, 2>(weights, keep, range, states, dim),
                    (16.., 16..) => self.sums::<L, E, 16, 1>(weights, keep, range, states, dim),
                    (8.., 16..) => self.sums::<L, E, 8, 2>(weights, keep, range, states, dim),
                    (4.., 16..) => self.sums::<L, E, 4, 4>(weights, keep, range, states, dim),
                    (4.., _) => self.sums::<L, E, 4, 1>(weights, keep, range, states, dim),
                    (2.., 16..) => self.sums::<L, E, 2, 4>(weights, keep, range, states, dim),
                    (2.., _) => self.sums::<L, E, 2, 2>(weights, keep, range, states, dim),
                    _ => self.sums::<L, E, 1, 4>(weights, keep, range, states, dim),
                }
            };
        }
    }

    /// As `values`, for `N` queries, `C` times 16 elements at a time.
    #[inline(always)]
    unsafe fn sums<L: Lanes, E: Stored, const N: usize, const C: usize>(
        &self,
        weights: &[f32],
        keep: &[f32],
        range: &Range<usize>,
        states: &mut [f32],
        dim: usize,
    ) -> usize {
        let len = state_len(dim);
        assert!(weights.len() >= N * SPAN && keep.len() >= N && states.len() >= N * len, "N queries");
        let whole = dim / TILE * TILE;
        let mut d = 0;
        while d < whole {
            let out = states[d..].as_mut_ptr();
            // SAFETY: the elements are within the head; the states of the heads are `len` apart.
            d += unsafe {
                match whole - d >= C * TILE {
                    true => self.columns::<L, E, N, C>(weights, keep, range, out, d, dim),
                    false => self.columns::<L, E, N, 1>(weights, keep, range, out, d, dim),
                }
            };
        }
        for n in 0..N {
            for d in whole..dim {
                let sum = &mut states[n * len + d];
                *sum = range.clone().fold(*sum * keep[n], |sum, j| {
                    let tile = self.values[j / TILE];
                    weights[n * SPAN + j].mul_add(value(E::KIND, Half::V, tile, j % TILE, d, dim), sum)
                });
            }
        }
        N
    }

    /// Computes elements `d..d + 16 C` of the sums of `N` queries at `out`, `state_len(dim)` apart.
    #[inline(always)]
    unsafe fn columns<L: Lanes, E: Stored, const N: usize, const C: usize>(
        &self,
        weights: &[f32],
        keep: &[f32],
        range: &Range<usize>,
        out: *mut f32,
        d: usize,
        dim: usize,
    ) -> usize {
        let len = state_len(dim);
        // SAFETY: the caller's; a tile of values holds 16 rows of `dim`, and `weights` has a line for each query.
        unsafe {
            let mut sums = [[L::splat(0.0); C]; N];
            for n in 0..N {
                for c in 0..C {
                    sums[n][c] = L::load(out.add(n * len + c * TILE)).mul(L::splat(keep[n]));
                }
            }
            for t in range.start / TILE..range.end.div_ceil(TILE) {
                let (from, to) = (range.start.max(t * TILE), range.end.min((t + 1) * TILE));
                let (tile, next) = (self.values[t].as_ptr(), self.next_values[t].as_ptr());
                // Measured: with types that take longer to convert, one loop for both cases is faster.
                let whole = !matches!(E::KIND, KvType::Int8 | KvType::Int4) && to - from == TILE;
                for pair in (from - t * TILE) / 2..(to - t * TILE).div_ceil(2) {
                    for half in 0..2 {
                        let j = t * TILE + 2 * pair + half;
                        if E::FETCH && !(E::SHARED && half == 1) {
                            let line = next.wrapping_add(E::at(pair, half, d, dim));
                            L::Part::fetch_lines(line, C * E::VALUES);
                        }
                        if !whole && (j < from || j >= to) {
                            continue;
                        }
                        let mut value = [L::splat(0.0); C];
                        for c in 0..C {
                            value[c] = E::value::<L>(tile, pair, half, d + c * TILE, dim);
                        }
                        for n in 0..N {
                            let weight = L::splat(*weights.as_ptr().add(n * SPAN + j));
                            for c in 0..C {
                                sums[n][c] = weight.fma(value[c], sums[n][c]);
                            }
                        }
                    }
                }
            }
            for n in 0..N {
                for c in 0..C {
                    sums[n][c].store(out.add(n * len + c * TILE));
                }
            }
        }
        C * TILE
    }
}

/// Adds the products of an element of `N` heads and of `T` tiles of keys. Prefetches are spread among the loads: one
/// after the other, they wait.
#[inline(always)]
unsafe fn add_keys<L: Lanes, E: Stored, const N: usize, const T: usize>(
    q: *const f32,
    keys: [*const u8; T],
    next: [*const u8; T],
    pair: usize,
    half: usize,
    sums: &mut [[L; T]; N],
) {
    // SAFETY: the caller's.
    unsafe {
        let mut key = [L::splat(0.0); T];
        for i in 0..T {
            key[i] = E::key::<L>(keys[i], pair, half);
            if E::FETCH && E::KEYS > LINE {
                L::fetch(next[i].wrapping_add(pair * E::KEYS + half * LINE));
            } else if E::FETCH && half == i % 2 {
                L::fetch(next[i].wrapping_add(pair * E::KEYS));
            }
        }
        for n in 0..N {
            let x = L::splat(*q.add(n * STRIDE + 2 * pair + half));
            for i in 0..T {
                sums[n][i] = x.fma(key[i], sums[n][i]);
            }
        }
    }
}

/// Computes the scores of `N` heads with `T` rows of a tile of V from `at` on, without their scales; both are even. The
/// tile comes with the one that is prefetched.
#[inline(always)]
unsafe fn row_dots<L: Lanes, E: Stored, const N: usize, const T: usize>(
    q: *const f32,
    [tile, next]: [&[u8]; 2],
    at: usize,
    dim: usize,
    scores: *mut f32,
) {
    let whole = dim / TILE * TILE;
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[L::splat(0.0); T]; N];
        for d in (0..whole).step_by(TILE) {
            let mut key = [L::splat(0.0); T];
            for t in 0..T {
                let (pair, half) = (at / 2 + t / 2, t % 2);
                key[t] = E::value::<L>(tile.as_ptr(), pair, half, d, dim);
                if E::FETCH && !(E::SHARED && half == 1) {
                    L::fetch(next.as_ptr().wrapping_add(E::at(pair, half, d, dim)));
                }
            }
            for n in 0..N {
                let x = L::load(q.add(n * STRIDE + d));
                for t in 0..T {
                    sums[n][t] = x.fma(key[t], sums[n][t]);
                }
            }
        }
        for n in 0..N {
            for t in 0..T {
                let mut lanes = [0.0f32; TILE];
                sums[n][t].store(lanes.as_mut_ptr());
                for d in whole..dim {
                    let key = value(E::KIND, Half::V, tile, at + t, d, dim);
                    lanes[d - whole] = (*q.add(n * STRIDE + d)).mul_add(key, lanes[d - whole]);
                }
                *scores.add(n * SPAN + t) = total(&lanes);
            }
        }
    }
}
