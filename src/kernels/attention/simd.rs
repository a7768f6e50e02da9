//! One piece of attention on 16 lanes and several queries at a time, with the bits of the reference.

#![allow(clippy::needless_range_loop)] // fixed ranges keep the sums in registers

use super::kv::SCALES_BYTES;
use super::stored::{Int4, Product, Stored, Unpacked, offset, unpack};
use super::{Context, Half, KvType, Rows, SPAN, State, TILE, WIDEST, decay, state_len, total, value};
use super::{Isa, PIECE, QUERIES, Spans, TOGETHER};
use crate::kernels::rows::cap::soft_lanes;
use crate::kernels::rows::exp::exp_lanes;
use crate::kernels::simd::dispatch::by_isa;
use crate::kernels::simd::lanes::{F16, F32, Int8, Lanes, Real, Register};
use std::mem::MaybeUninit;
use std::ops::Range;

const TILES: usize = SPAN / TILE;
/// Distance between heads of `Rows::q`.
const STRIDE: usize = WIDEST + TILE;
/// Indices of `Span`'s arrays.
const K: usize = Half::K as usize;
const V: usize = Half::V as usize;

/// Runs a method for blocks of queries, `n` being the first of each, until all are done. A block has as many queries
/// and vectors as there are registers for sums: those of the first line that fits.
macro_rules! in_blocks {
    ($queries:expr, |$n:ident| $call:ident.$of:ident $arguments:tt) => {
        in_blocks!($queries, |$n| $call.$of $arguments,
            (12.., 16..) if !E::FETCH => 12 by 2,
            (16.., 16..) => 16 by 1,
            (8.., 16..) => 8 by 2,
            (4.., 16..) => 4 by 4,
            (4.., _) => 4 by 1,
            (2.., 16..) => 2 by 4,
            (2.., _) => 2 by 2,
            _ => 1 by 4,
        )
    };
    ($queries:expr, |$n:ident| $call:ident.$of:ident $arguments:tt,
        $($fits:pat $(if $when:expr)? => $few:literal by $vectors:literal,)+) => {{
        let (queries, mut $n) = ($queries, 0);
        while $n < queries {
            // SAFETY: the caller has the instructions, and operands of all queries.
            $n += unsafe {
                match (queries - $n, L::SUMS) {
                    $($fits $(if $when)? => $call.$of::<L, E, $few, $vectors> $arguments,)+
                }
            };
        }
    }};
}

/// As `super::piece`, which has checked the arguments. `isa` has AVX2 or NEON, and heads are at most `WIDEST` wide.
pub(super) fn piece(
    isa: Isa,
    rows: &Rows,
    context: &Context,
    index: usize,
    spans: &mut Spans,
    states: &mut [f32],
) {
    let (scores, unpacked) = (&mut spans.scores, &mut spans.unpacked);
    let mut next = Span::new(rows, context, index * PIECE);
    if let (Some(first), true) = (&mut next, index == rows.pieces().start) {
        first.begins = true;
    }
    for start in (index * PIECE..(index + 1) * PIECE).step_by(SPAN) {
        // The tiles of the next span are prefetched while this span is computed, even if it is in the next piece.
        let after = Span::new(rows, context, start + SPAN);
        let Some(mut span) = std::mem::replace(&mut next, after) else { continue };
        if let Some(after) = &next {
            span.next = after.stored;
        }
        match context.k.kind {
            KvType::F32 => attend::<F32>(isa, rows, &span, scores, states),
            KvType::F16 => attend_or_unpack::<F16>(isa, rows, span, unpacked, scores, states),
            KvType::Int8 => attend_or_unpack::<Int8>(isa, rows, span, unpacked, scores, states),
            KvType::Int4 => attend_or_unpack::<Int4>(isa, rows, span, unpacked, scores, states),
        }
    }
}

/// Attends to a span, whose tiles are converted to f32 first if there are many queries.
fn attend_or_unpack<'a, E: Stored>(
    isa: Isa,
    rows: &Rows,
    mut span: Span<'a>,
    unpacked: &'a mut [f32],
    scores: &mut [f32],
    states: &mut [f32],
) {
    if span.rows.len() * rows.heads <= QUERIES {
        return attend::<E>(isa, rows, &span, scores, states);
    }
    let tile = TILE * span.dim;
    let out = unpacked[..2 * TILES * tile].chunks_exact_mut(tile).enumerate();
    for (n, out) in out.skip(if span.joint { TILES } else { 0 }) {
        let (half, t) = ([Half::K, Half::V][n / TILES], n % TILES);
        let (stored, next) = (&mut span.stored[half as usize][t], span.next[half as usize][t]);
        if span.tiles.contains(&t) {
            unpack::<E>(isa, half, stored, next, span.dim, out);
            // SAFETY: f32 may be read as bytes.
            *stored = unsafe { std::slice::from_raw_parts(out.as_ptr().cast(), size_of_val(out)) };
        }
    }
    if span.joint {
        span.stored[K] = span.stored[V];
    }
    span.begins = false;
    attend::<Unpacked>(isa, rows, &span, scores, states);
}

by_isa!(
    fn attend<E: Stored>(rows: &Rows, span: &Span, scores: &mut [f32], states: &mut [f32])
        = attend_lanes::<lanes>
);

/// # Safety
/// `L`'s instructions are available, and lengths are as `super::piece` asserts.
#[inline(always)]
unsafe fn attend_lanes<L: Lanes, E: Stored>(
    rows: &Rows,
    span: &Span,
    scores: &mut [f32],
    states: &mut [f32],
) {
    let (heads, dim, len) = (rows.heads, rows.head_dim, state_len(rows.head_dim));
    let queries = span.rows.start * heads..span.rows.end * heads;
    if span.begins {
        let lines = span.stored.as_flattened().iter().flat_map(|tile| tile.chunks(64));
        lines.for_each(|line| L::fetch(line.as_ptr()));
    }
    // Prefetch the scales after the values of the next tiles, which nothing else does.
    let [values, scales] = E::KIND.tile_parts(dim);
    if E::FETCH {
        let tiles = span.next.as_flattened().iter();
        tiles.for_each(|tile| L::Register::fetch_lines(tile.as_ptr().wrapping_add(values), scales));
    }
    let q = rows.q[queries.start * STRIDE..].as_ptr();
    let lines = scores[queries.start * SPAN..].as_mut_ptr();
    match span.joint {
        true => in_blocks!(
            queries.len(),
            |n| span.row_scores(q.add(n * STRIDE), lines.add(n * SPAN)),
            (4.., 16..) => 4 by 4,
            (2.., _) => 2 by 2,
            _ => 1 by 4,
        ),
        false => in_blocks!(queries.len(), |n| span.scores(q.add(n * STRIDE), lines.add(n * SPAN))),
    }
    // Rows that see the same positions of the span are handled together.
    let mut row = span.rows.start;
    while row < span.rows.end {
        let range = span.within(rows, row);
        let same = (row..span.rows.end).take_while(|r| span.within(rows, *r) == range).count();
        let mut from = row * heads;
        row += same;
        while from < row * heads {
            let some = TOGETHER.min(row * heads - from);
            let mut keep = [0.0f32; TOGETHER];
            for (i, keep) in keep[..some].iter_mut().enumerate() {
                let scores = &mut scores[(from + i) * SPAN..][..SPAN];
                let state = State::of(&mut states[(from + i) * len..][..len], dim);
                // SAFETY: the instructions are available.
                *keep = unsafe { span.softmax::<L>(scores, &range, state) };
            }
            let (weights, states) = (&scores[from * SPAN..], &mut states[from * len..][..some * len]);
            in_blocks!(some, |n| span.values(
                &weights[n * SPAN..],
                &keep[n..some],
                &range,
                &mut states[n * len..]
            ));
            from += some;
        }
    }
}

/// The tiles of one step of the softmax, and the rows that see any of it.
struct Span<'a> {
    start: usize,
    /// `Rows::head_dim`.
    dim: usize,
    rows: Range<usize>,
    tiles: Range<usize>,
    /// The tiles of K and of V in the range `tiles`; the others are empty.
    stored: [[&'a [u8]; TILES]; 2],
    /// The tiles of the next span; the same as `stored` if there is none.
    next: [[&'a [u8]; TILES]; 2],
    kind: KvType,
    /// The scales of `stored`; empty if the type has none.
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
        let Context { k, v, joint, table, kv_head, cap, sinks: _ } = *context;
        let stored = [k, v].map(|half| {
            std::array::from_fn(|t| match tiles.contains(&t) {
                true => half.tile(table, kv_head, start / TILE + t),
                false => &[][..],
            })
        });
        let dim = rows.head_dim;
        let values = k.kind.tile_parts(dim)[0];
        let scales = stored.map(|half| half.map(|tile: &[u8]| tile.get(values..).unwrap_or(&[])));
        let (rows, next, kind, begins) = (first..last + 1, stored, k.kind, false);
        Some(Self { start, dim, rows, tiles, stored, next, kind, scales, begins, cap, joint })
    }

    fn within(&self, rows: &Rows, row: usize) -> Range<usize> {
        rows.seen[row].within(self.start, SPAN)
    }

    /// The scales of group `group` of the 16 positions of tile `t`, in BF16. `half` is an index of `scales`.
    #[inline(always)]
    fn scales(&self, half: usize, t: usize, group: usize) -> *const u16 {
        self.scales[half][t][group * SCALES_BYTES..][..SCALES_BYTES].as_ptr().cast()
    }

    /// Like `scores`, for K in the layout of V, `T` positions at a time.
    #[inline(always)]
    unsafe fn row_scores<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        scores: *mut f32,
    ) -> usize {
        for t in self.tiles.clone() {
            for at in (0..TILE).step_by(T) {
                // SAFETY: a tile of the span has 16 rows of `dim`; the caller has N heads and room for N lines of
                // scores.
                unsafe { self.row_dots::<L, E, N, T>(q, t, at, scores.add(t * TILE + at)) };
            }
        }
        N
    }

    /// Computes the scores of all tiles for `N` heads, `STRIDE` apart in `q` and `SPAN` apart in `scores`, `T` tiles at
    /// a time. Returns N.
    #[inline(always)]
    unsafe fn scores<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        scores: *mut f32,
    ) -> usize {
        let mut t = self.tiles.start;
        while t < self.tiles.end {
            // SAFETY: t is a tile of the span.
            t += unsafe {
                match self.tiles.end - t >= T {
                    true => self.dots::<L, E, N, T>(q, t, scores.add(t * TILE)),
                    false => self.dots::<L, E, N, 1>(q, t, scores.add(t * TILE)),
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
        scores: *mut f32,
    ) -> usize {
        // SAFETY: the caller has N heads and room for N lines of scores; a tile of keys holds `dim` times 16. Parts are
        // read where they were written.
        unsafe {
            let [from, next] =
                [&self.stored[K], &self.next[K]].map(|k| std::array::from_fn(|i| k[t + i].as_ptr()));
            let keys = Product { factors: (q, STRIDE), from, next, width: TILE };
            let mut parts = MaybeUninit::<[[f32; SPAN]; N]>::uninit();
            let to = if self.kind.scaled() { parts.as_mut_ptr().cast() } else { scores };
            for (group, columns) in self.kind.groups(self.dim).enumerate() {
                let mut sums = [[L::splat(0.0); T]; N];
                keys.add::<L, E, N>(columns, &mut sums);
                // Short loops are unrolled, which keeps the sums in registers, so scales are applied later.
                for n in 0..N {
                    for i in 0..T {
                        sums[n][i].store(to.add(n * SPAN + i * TILE));
                    }
                }
                if !self.kind.scaled() {
                    break;
                }
                for i in 0..T * N {
                    let at = i / T * SPAN + i % T * TILE;
                    let scale = L::load_bf16(self.scales(K, t + i % T, group));
                    let before = if group > 0 { L::load(scores.add(at)) } else { L::splat(0.0) };
                    L::load(to.add(at)).fma(scale, before).store(scores.add(at));
                }
            }
        }
        T
    }

    /// The middle part of `super::span`: turns scores into the weights of values. Returns the factor of earlier
    /// sums.
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
                weight.store(at);
            }
            sums.store(state.sums.as_mut_ptr());
            keep
        }
    }

    /// Scales the values of `N` states by their `keep`, and adds the weighted values of `range`, `C` times 16 elements
    /// at a time. Returns N.
    #[inline(always)]
    unsafe fn values<L: Lanes, E: Stored, const N: usize, const C: usize>(
        &self,
        weights: &[f32],
        keep: &[f32],
        range: &Range<usize>,
        states: &mut [f32],
    ) -> usize {
        let (dim, len) = (self.dim, state_len(self.dim));
        assert!(weights.len() >= N * SPAN && keep.len() >= N && states.len() >= N * len, "N queries");
        let mut scaled = MaybeUninit::<[[f32; SPAN]; N]>::uninit();
        let to: *mut f32 = scaled.as_mut_ptr().cast();
        for (group, columns) in self.kind.groups(dim).enumerate() {
            let mut factors = weights.as_ptr();
            if self.kind.scaled() {
                factors = to;
                for t in range.start / TILE..range.end.div_ceil(TILE) {
                    // SAFETY: weights and the room for scaled ones have a line for each query.
                    unsafe {
                        let scale = L::load_bf16(self.scales(V, t, group));
                        for at in (0..N).map(|n| n * SPAN + t * TILE) {
                            L::load(weights.as_ptr().add(at)).mul(scale).store(to.add(at));
                        }
                    }
                }
            }
            let whole = columns.end / TILE * TILE;
            let mut d = columns.start;
            while d < whole {
                let out = states[d..].as_mut_ptr();
                // SAFETY: the elements are within the head; the states of the heads are `len` apart.
                d += unsafe {
                    match (whole - d) / TILE {
                        vectors if vectors >= C => self.columns::<L, E, N, C>(factors, keep, range, out, d),
                        2.. if C > 2 => self.columns::<L, E, N, 2>(factors, keep, range, out, d),
                        _ => self.columns::<L, E, N, 1>(factors, keep, range, out, d),
                    }
                };
            }
            for (n, d) in (0..N).flat_map(|n| (whole..columns.end).map(move |d| (n, d))) {
                let sum = &mut states[n * len + d];
                *sum = range.clone().fold(*sum * keep[n], |sum, j| {
                    let value = value(E::KIND, Half::V, self.stored[V][j / TILE], j % TILE, d, dim);
                    // SAFETY: position j is in range.
                    unsafe { *factors.add(n * SPAN + j) }.mul_add(value, sum)
                });
            }
        }
        N
    }

    /// Computes elements `d..d + 16 C` of the sums of `N` queries at `out`, `state_len(dim)` apart.
    #[inline(always)]
    unsafe fn columns<L: Lanes, E: Stored, const N: usize, const C: usize>(
        &self,
        weights: *const f32,
        keep: &[f32],
        range: &Range<usize>,
        out: *mut f32,
        d: usize,
    ) -> usize {
        let (dim, len) = (self.dim, state_len(self.dim));
        // SAFETY: the caller's; a tile of values holds 16 rows of `dim`, and `weights` has a line for each query.
        unsafe {
            let mut sums = [[L::splat(0.0); C]; N];
            for n in 0..N {
                for c in 0..C {
                    sums[n][c] = L::load(out.add(n * len + c * TILE)).mul(L::splat(keep[n]));
                }
            }
            for t in range.start / TILE..range.end.div_ceil(TILE) {
                let rows = range.start.max(t * TILE) - t * TILE..range.end.min((t + 1) * TILE) - t * TILE;
                let [from, next] = [self.stored[V][t], self.next[V][t]].map(|v| {
                    std::array::from_fn(|c| v.as_ptr().wrapping_add(offset::<E>(0, d + c * TILE, dim)))
                });
                let factors = (weights.add(t * TILE), SPAN);
                Product { factors, from, next, width: dim }.add::<L, E, N>(rows, &mut sums);
            }
            for n in 0..N {
                for c in 0..C {
                    sums[n][c].store(out.add(n * len + c * TILE));
                }
            }
        }
        C * TILE
    }

    /// Computes the scores of `N` heads with `T` rows of tile `t` from `at` on; both are even.
    #[inline(always)]
    unsafe fn row_dots<L: Lanes, E: Stored, const N: usize, const T: usize>(
        &self,
        q: *const f32,
        t: usize,
        at: usize,
        scores: *mut f32,
    ) {
        let (dim, tile, next) = (self.dim, self.stored[K][t], self.next[K][t]);
        // SAFETY: the caller's.
        unsafe {
            let mut sums = [[L::splat(0.0); T]; N];
            for (group, columns) in self.kind.groups(dim).enumerate() {
                let whole = columns.end / TILE * TILE;
                let mut own = [[L::splat(0.0); T]; N];
                for d in (columns.start..whole).step_by(TILE) {
                    let mut key = [L::splat(0.0); T];
                    for i in 0..T {
                        let from = offset::<E>(at + i, d, dim);
                        key[i] = E::load::<L>(tile.as_ptr().add(from), i % E::SHARING);
                        if E::FETCH && i % E::SHARING == 0 {
                            L::fetch(next.as_ptr().wrapping_add(from));
                        }
                    }
                    for n in 0..N {
                        let x = L::load(q.add(n * STRIDE + d));
                        for i in 0..T {
                            own[n][i] = x.fma(key[i], own[n][i]);
                        }
                    }
                }
                for n in 0..N {
                    for i in 0..T {
                        if whole < columns.end {
                            let mut lanes = [0.0f32; TILE];
                            own[n][i].store(lanes.as_mut_ptr());
                            for d in whole..columns.end {
                                let key = value(E::KIND, Half::V, tile, at + i, d, dim);
                                let lane = &mut lanes[d - whole];
                                *lane = (*q.add(n * STRIDE + d)).mul_add(key, *lane);
                            }
                            own[n][i] = L::load(lanes.as_ptr());
                        }
                        sums[n][i] = match self.kind.scaled() {
                            true => {
                                let scale = f32::load_bf16(self.scales(K, t, group).add(at + i));
                                own[n][i].fma(L::splat(scale), sums[n][i])
                            }
                            false => own[n][i],
                        };
                    }
                }
            }
            for n in 0..N {
                for i in 0..T {
                    let mut lanes = [0.0f32; TILE];
                    sums[n][i].store(lanes.as_mut_ptr());
                    *scores.add(n * SPAN + i) = total(&lanes);
                }
            }
        }
    }
}
