use super::*;
use crate::kernels::attention::kv::store;
use crate::kernels::available;

fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// K and V of one sequence in blocks, with a reversed block table. Slots that were never written are NaN.
struct Stored {
    kind: KvType,
    kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    data: [Vec<u8>; 2],
    table: Vec<u32>,
    cap: Option<f32>,
    sinks: Vec<f32>,
    /// K and V are the same.
    joint: bool,
}

impl Stored {
    /// `values` are `[positions, kv_heads, head_dim]`.
    fn new(kind: KvType, values: [&[f32]; 2], kv_heads: usize, head_dim: usize, block_size: usize) -> Self {
        let positions = values[0].len() / (kv_heads * head_dim);
        let blocks = positions.div_ceil(block_size);
        let bytes = blocks * kv_heads * block_size / TILE * kind.tile_bytes(head_dim);
        let table = (0..blocks as u32).rev().collect();
        let mut stored = Self {
            kind,
            kv_heads,
            head_dim,
            block_size,
            data: [0, 1].map(|_| vec![0xff; bytes]),
            table,
            cap: None,
            sinks: Vec::new(),
            joint: false,
        };
        for (half, values) in [Half::K, Half::V].into_iter().zip(values) {
            for (at, row) in values.chunks_exact(kv_heads * head_dim).enumerate() {
                (0..kv_heads)
                    .for_each(|head| stored.put(half, at, head, &row[head * head_dim..][..head_dim]));
            }
        }
        stored
    }

    fn paged(&self, half: Half) -> Paged<'_> {
        let Self { kind, kv_heads, head_dim, block_size, .. } = *self;
        Paged { data: &self.data[half as usize], kind, kv_heads, block_size, head_dim }
    }

    fn put(&mut self, half: Half, at: usize, head: usize, row: &[f32]) {
        let offset = self.paged(half).offset(&self.table, head, at / TILE);
        let bytes = self.kind.tile_bytes(self.head_dim);
        let mut row = row.to_vec();
        turn(Isa::Scalar, self.kind, half, &mut row);
        store(
            Isa::Scalar,
            self.kind,
            half,
            &mut self.data[half as usize][offset..offset + bytes],
            at % TILE,
            &row,
        );
    }

    /// The row after rounding.
    fn row(&self, half: Half, at: usize, head: usize) -> Vec<f32> {
        let half = if self.joint { Half::V } else { half };
        let tile = self.paged(half).tile(&self.table, head, at / TILE);
        let (kind, dim, at) = (self.kind, self.head_dim, at % TILE);
        let mut row: Vec<f32> = (0..dim).map(|d| value(kind, half, tile, at, d, dim)).collect();
        for (group, columns) in kind.groups(dim).enumerate() {
            let factor = scale(kind, tile, at, group, dim).unwrap_or(1.0);
            row[columns].iter_mut().for_each(|x| *x *= factor);
        }
        turn(Isa::Scalar, self.kind, half, &mut row);
        row
    }

    fn context(&self, kv_head: usize) -> Context<'_> {
        let (k, v) = (self.paged(if self.joint { Half::V } else { Half::K }), self.paged(Half::V));
        let Self { joint, cap, ref sinks, ref table, .. } = *self;
        Context { k, v, joint, table, kv_head, cap, sinks }
    }

    /// Softmax attention of query head `head` in f64.
    fn naive(&self, q: &[f32], kv_head: usize, head: usize, seen: Seen) -> Vec<f64> {
        let positions = seen.first..=seen.last;
        let dot = |k: Vec<f32>| q.iter().zip(k).map(|(a, b)| *a as f64 * b as f64).sum::<f64>();
        let capped = |s: f64| self.cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
        let score = |at| capped(dot(self.row(Half::K, at, kv_head)));
        let scores: Vec<f64> = positions.clone().map(score).collect();
        let sink = self.sinks.get(head).map(|sink| f64::from(*sink));
        let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
        let mut out = vec![0.0; self.head_dim];
        for (at, s) in positions.zip(&scores) {
            let row = self.row(Half::V, at, kv_head);
            out.iter_mut().zip(row).for_each(|(o, v)| *o += (s - max).exp() / total * v as f64);
        }
        out
    }
}

/// Computes rows `[rows, heads, head_dim]` together.
fn run(isa: Isa, q: &[f32], heads: usize, seen: &[Seen], context: &Context) -> Vec<f32> {
    let mut scratch = Scratch::default();
    fill(&mut scratch, q, context);
    let mut out = vec![0.0; q.len()];
    let mut places: Vec<_> = out.chunks_exact_mut(context.k.head_dim).map(Some).collect();
    scratch.attend(isa, seen, heads, context, |row, head| places[row * heads + head].take().unwrap());
    out
}

fn fill(scratch: &mut Scratch, q: &[f32], context: &Context) {
    let head_dim = context.k.head_dim;
    let to = scratch.queries(q.len() / head_dim, head_dim);
    let keys = if context.joint { Half::V } else { Half::K };
    for (to, q) in to.chunks_exact_mut(stride(head_dim)).zip(q.chunks_exact(head_dim)) {
        to[..head_dim].copy_from_slice(q);
        turn(Isa::Scalar, context.k.kind, keys, &mut to[..head_dim]);
    }
}

fn bits(out: &[f32]) -> Vec<u32> {
    out.iter().map(|x| x.to_bits()).collect()
}

/// (head_dim, query heads per KV head, KV heads)
const SHAPES: [(usize, usize, usize); 8] =
    [(8, 1, 1), (64, 4, 2), (12, 3, 2), (128, 20, 1), (40, 7, 1), (80, 2, 1), (300, 2, 1), (584, 2, 1)];

#[test]
fn rows_that_are_k_and_v_give_one_set_of_bits() {
    for (case, (dim, heads)) in
        [(8, 1), (12, 3), (40, 7), (72, 2), (576, 20), (584, 2)].into_iter().enumerate()
    {
        let (positions, seed) = (90, 40 + case as u32);
        let rows = noise(seed, positions * dim);
        // Scores of rows with themselves are large.
        let q: Vec<f32> = noise(7, 2 * heads * dim).iter().map(|x| x * 4.4 / (dim as f32).sqrt()).collect();
        for (kind, last) in KvType::ALL.into_iter().flat_map(|kind| [1, 16, 63, 89].map(|last| (kind, last)))
        {
            let kv = Stored { joint: true, ..Stored::new(kind, [&rows, &rows], 1, dim, 32) };
            let seen = [last - 1, last].map(|last| Seen { first: 0, last });
            let all: Vec<_> =
                available().iter().map(|isa| run(*isa, &q, heads, &seen, &kv.context(0))).collect();
            for (n, (q, out)) in q.chunks_exact(dim).zip(all[0].chunks_exact(dim)).enumerate() {
                let want = kv.naive(q, 0, n % heads, seen[n / heads]);
                let error = out.iter().zip(&want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
                assert!(error < 2e-6, "{kind:?}, dim {dim}, to {last}: {error}");
            }
            assert!(all.iter().all(|out| bits(out) == bits(&all[0])), "{kind:?}, dim {dim}, to {last}");
            let single = run(available()[0], &q[heads * dim..], heads, &seen[1..], &kv.context(0));
            assert_eq!(bits(&single), bits(&all[0][heads * dim..]), "{kind:?}, dim {dim}, to {last}");
        }
    }
}

#[test]
fn equals_the_plain_formula_and_one_set_of_bits() {
    for (case, (dim, heads, kv_heads)) in SHAPES.into_iter().enumerate() {
        let positions = 70;
        let [ks, vs] = [0, 99].map(|seed| noise(seed + case as u32, positions * kv_heads * dim));
        let q: Vec<f32> = noise(7, heads * dim).iter().map(|x| x * 4.4 / (dim as f32).sqrt()).collect();
        let windows = [0, 1, 15, 16, 31, 47, 69].map(|position| (0, position));
        let sliding = [(69, 69), (68, 69), (64, 69), (63, 69), (16, 31), (17, 47), (15, 15), (33, 66)];
        for (kind, (first, position)) in
            KvType::ALL.into_iter().flat_map(|k| windows.into_iter().chain(sliding).map(move |w| (k, w)))
        {
            let seen = Seen { first, last: position };
            let mut all = Vec::new();
            for block_size in [16, 32, 64] {
                let cap = (case % 2 == 1).then_some(2.0);
                // A head's sink may be its largest score, or next to none.
                let sinks = (case % 3 == 1).then(|| (0..heads).map(|head| [0.5, 6.0, -90.0][head % 3]));
                let sinks = sinks.into_iter().flatten().collect();
                let kv = Stored { cap, sinks, ..Stored::new(kind, [&ks, &vs], kv_heads, dim, block_size) };
                for &isa in available() {
                    all.push(run(isa, &q, heads, &[seen], &kv.context(kv_heads - 1)));
                }
                for (head, (q, out)) in q.chunks_exact(dim).zip(all[0].chunks_exact(dim)).enumerate() {
                    let want = kv.naive(q, kv_heads - 1, head, seen);
                    let error = out.iter().zip(&want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
                    assert!(error < 2e-6, "{kind:?}, dim {dim}, positions {first}..={position}: {error}");
                }
            }
            let same = all.iter().all(|out| bits(out) == bits(&all[0]));
            assert!(same, "{kind:?}, dim {dim}, positions {first}..={position}");
        }
    }
}

/// Rows of one task, of any number and any window, have the same bits as each row alone, and as the row's pieces
/// merged.
#[test]
fn rows_together_have_the_bits_of_rows_alone() {
    for (case, (dim, heads, kv_heads)) in SHAPES.into_iter().enumerate() {
        let positions = 2 * PIECE + 90;
        let [ks, vs] = [3, 44].map(|seed| noise(seed + case as u32, positions * kv_heads * dim));
        for kind in KvType::ALL {
            let mut kv = Stored::new(kind, [&ks, &vs], kv_heads, dim, 32);
            if case % 2 == 1 {
                kv.sinks = (0..heads).map(|head| head as f32 - 1.0).collect();
            }
            let context = kv.context(0);
            // These cover single rows in pieces, and rows that begin within the first piece and after it. In the last
            // two cases all rows, or some, see later positions.
            for (rows, from, window, until) in [
                (1, 590, 2000, 0),
                (4, 254, 300, 0),
                (3, 62, 30, 0),
                (9, 510, 260, 0),
                (5, 300, 1, 0),
                (16, 570, 64, 0),
                (6, 250, 40, 521),
                (7, 14, 9, 18),
            ] {
                let seen: Vec<Seen> = (from..from + rows)
                    .map(|at| Seen { first: (at + 1usize).saturating_sub(window), last: at.max(until) })
                    .collect();
                let q: Vec<f32> = noise(7, rows * heads * dim).iter().map(|x| x * 0.3).collect();
                let together = run(crate::kernels::isa(), &q, heads, &seen, &context);
                for (row, (q, want)) in
                    q.chunks_exact(heads * dim).zip(together.chunks_exact(heads * dim)).enumerate()
                {
                    for &isa in available() {
                        let what = format!("{kind:?} {isa:?}, dim {dim}, row {row} of {rows} from {from}");
                        // The reference is slow: it computes only the first and the last row.
                        if isa == Isa::Scalar && row > 0 && row + 1 < rows {
                            continue;
                        }
                        let alone = run(isa, q, heads, &seen[row..row + 1], &context);
                        assert!(bits(&alone) == bits(want), "{what}");
                        assert!(
                            bits(&in_pieces(isa, q, heads, seen[row], &context)) == bits(want),
                            "{what}: pieces"
                        );
                    }
                }
                let head = &q[..dim];
                let want = kv.naive(head, 0, 0, seen[0]);
                let error =
                    together.iter().zip(&want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
                assert!(error < 2e-6, "{kind:?}, dim {dim}: {error}");
            }
        }
    }
}

/// Computes one row in separate pieces, last piece first.
fn in_pieces(isa: Isa, q: &[f32], heads: usize, seen: Seen, context: &Context) -> Vec<f32> {
    let dim = context.k.head_dim;
    let len = state_len(dim);
    let mut scratch = Scratch::default();
    fill(&mut scratch, q, context);
    let mut pieces: Vec<Vec<f32>> = seen.pieces().map(|_| vec![f32::NAN; heads * len]).collect();
    for (index, states) in seen.pieces().zip(&mut pieces).rev() {
        scratch.attend_piece(isa, &[seen], heads, context, index, states);
    }
    let (mut total, mut out) = (vec![f32::NAN; heads * len], vec![0.0; heads * dim]);
    for (n, (state, out)) in total.chunks_exact_mut(len).zip(out.chunks_exact_mut(dim)).enumerate() {
        for (index, states) in seen.pieces().zip(&mut pieces) {
            merge(&seen, index, state, &mut states[n * len..][..len], dim);
        }
        finish(state, out, context.sinks.get(n).copied());
        turn(Isa::Scalar, context.v.kind, Half::V, out);
    }
    out
}

#[test]
fn a_nan_is_not_hidden() {
    for kind in KvType::ALL {
        for isa in available() {
            let mut kv = Stored::new(kind, [&noise(1, 20 * 16), &noise(2, 20 * 16)], 1, 16, 16);
            kv.put(Half::K, 2, 0, &[f32::NAN; 16]);
            let seen = Seen { first: 0, last: 19 };
            let out = run(*isa, &[1.0; 16], 1, &[seen], &kv.context(0));
            assert!(out.iter().all(|x| x.is_nan()), "{kind:?} {isa:?}");
        }
    }
}

/// Scores beyond the range of the exponential, and infinite ones, give the reference's bits.
#[test]
fn extremes() {
    for (size, value) in [(1e4, 1.0), (1e18, 1e30), (1e-30, 1e-38), (0.0, 0.0), (3e38, 1.0)] {
        let ks: Vec<f32> = noise(1, 100 * 16).iter().map(|x| x * size).collect();
        let vs: Vec<f32> = noise(2, 100 * 16).iter().map(|x| x * value).collect();
        for kind in KvType::ALL {
            let kv = Stored::new(kind, [&ks, &vs], 1, 16, 32);
            let seen = Seen { first: 0, last: 99 };
            let all: Vec<_> = available()
                .iter()
                .map(|isa| run(*isa, &noise(5, 5 * 16), 5, &[seen], &kv.context(0)))
                .collect();
            let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(
                all.iter().all(|out| out.iter().zip(&all[0]).all(|(a, b)| same(a, b))),
                "{kind:?} {size}"
            );
        }
    }
}

/// Positions before a window and after a row are read but never used: their slots may hold anything.
#[test]
fn nothing_outside_of_a_window_matters() {
    let (ks, vs) = (noise(1, 48 * 24), noise(2, 48 * 24));
    for kind in KvType::ALL {
        for isa in available() {
            let mut kv = Stored::new(kind, [&ks, &vs], 1, 24, 16);
            let seen = Seen { first: 21, last: 40 };
            let want = run(*isa, &[1.0; 24], 1, &[seen], &kv.context(0));
            for at in (0..21).chain(41..48) {
                kv.put(Half::K, at, 0, &[f32::NAN; 24]);
                kv.put(Half::V, at, 0, &[f32::NAN; 24]);
            }
            assert_eq!(bits(&run(*isa, &[1.0; 24], 1, &[seen], &kv.context(0))), bits(&want));
        }
    }
}
