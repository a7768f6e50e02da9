use super::*;

fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Softmax attention in f64 over gathered rows.
fn naive(q: &[f32], context: &Context, first: usize, position: usize) -> Vec<f64> {
    let &Context { k, v, table, kv_head, scale } = context;
    let dim = k.head_dim;
    let row = |p: Paged, at: usize| p.data[p.offset(table, kv_head, at)..][..dim].to_vec();
    q.chunks(dim)
        .flat_map(|q| {
            let score =
                |at| q.iter().zip(row(k, at)).map(|(a, b)| *a as f64 * b as f64).sum::<f64>() * scale as f64;
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let max = scores.iter().cloned().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut out = vec![0.0; dim];
            for (at, s) in (first..).zip(&scores) {
                let value = row(v, at);
                out.iter_mut().zip(value).for_each(|(o, v)| *o += (s - max).exp() / total * v as f64);
            }
            out
        })
        .collect()
}

/// K or V of one sequence laid out in blocks of `block_size`, with the block table turned round.
fn paged(values: &[f32], kv_heads: usize, dim: usize, block_size: usize) -> (Vec<f32>, Vec<u32>) {
    let positions = values.len() / (kv_heads * dim);
    let blocks = positions.div_ceil(block_size);
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let mut data = vec![f32::NAN; blocks * kv_heads * block_size * dim];
    for at in 0..positions {
        for head in 0..kv_heads {
            let shape = Paged { data: &[], kv_heads, block_size, head_dim: dim };
            let to = shape.offset(&table, head, at);
            data[to..to + dim].copy_from_slice(&values[(at * kv_heads + head) * dim..][..dim]);
        }
    }
    (data, table)
}

#[test]
fn equals_the_plain_formula_and_one_set_of_bits() {
    for (case, (dim, group, kv_heads)) in
        [(8, 1, 1), (64, 2, 2), (12, 3, 2), (128, 20, 1)].into_iter().enumerate()
    {
        let positions = 70;
        let (ks, vs) = (
            noise(case as u32, positions * kv_heads * dim),
            noise(99 + case as u32, positions * kv_heads * dim),
        );
        let q: Vec<f32> = noise(7, group * dim).iter().map(|x| x * 4.0).collect();
        let windows = [0, 1, 15, 16, 31, 47, 69].map(|position| (0, position));
        let sliding = [(69, 69), (68, 69), (64, 69), (63, 69), (16, 31), (17, 47), (15, 15), (33, 66)];
        for (first, position) in windows.into_iter().chain(sliding) {
            let mut all = Vec::new();
            for block_size in [16, 32, 64] {
                let (kd, table) = paged(&ks, kv_heads, dim, block_size);
                let (vd, _) = paged(&vs, kv_heads, dim, block_size);
                let k = Paged { data: &kd, kv_heads, block_size, head_dim: dim };
                let v = Paged { data: &vd, ..k };
                let scale = 1.1 / (dim as f32).sqrt();
                let context = Context { k, v, table: &table, kv_head: kv_heads - 1, scale };
                for isa in [Isa::Scalar, crate::kernels::isa()] {
                    let mut out = vec![0.0; q.len()];
                    let row = Query { q: &q, out: &mut out, first, position };
                    attend(isa, &mut [row], &context);
                    all.push(out);
                }
                let want = naive(&q, &context, first, position);
                let error = all[0].iter().zip(&want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
                assert!(error < 2e-6, "dim {dim}, positions {first}..={position}: {error}");
            }
            let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(
                all.iter().all(|out| bits(out) == bits(&all[0])),
                "dim {dim}, positions {first}..={position}"
            );
        }
    }
}

#[test]
fn a_nan_is_not_hidden() {
    let k = Paged { data: &[f32::NAN; 16 * 8], kv_heads: 1, block_size: 16, head_dim: 8 };
    let mut out = [0.0; 8];
    let row = Query { q: &[1.0; 8], out: &mut out, first: 0, position: 3 };
    let context = Context { k, v: k, table: &[0], kv_head: 0, scale: 1.0 };
    attend(crate::kernels::isa(), &mut [row], &context);
    assert!(out.iter().all(|x| x.is_nan()));
}

#[test]
fn rows_together_have_the_bits_of_rows_alone() {
    let (dim, heads, positions) = (40, 17, 40);
    let (kd, table) = paged(&noise(1, positions * dim), 1, dim, 16);
    let (vd, _) = paged(&noise(2, positions * dim), 1, dim, 16);
    let k = Paged { data: &kd, kv_heads: 1, block_size: 16, head_dim: dim };
    let v = Paged { data: &vd, ..k };
    let qs: Vec<_> = (0..ROWS as u32).map(|row| noise(row + 3, heads * dim)).collect();
    let context = Context { k, v, table: &table, kv_head: 0, scale: 0.15 };
    for (isa, window) in
        [Isa::Scalar, crate::kernels::isa()].into_iter().flat_map(|i| [1, 3, 15, 40].map(|w| (i, w)))
    {
        let first = |i: usize| (31 + i).saturating_sub(window);
        let mut together = vec![vec![0.0; heads * dim]; ROWS];
        let rows = qs.iter().zip(&mut together).enumerate();
        let mut rows: Vec<_> =
            rows.map(|(i, (q, out))| Query { q, out, first: first(i), position: 30 + i }).collect();
        attend(isa, &mut rows, &context);
        for (i, (q, want)) in qs.iter().zip(&together).enumerate() {
            let mut out = vec![0.0; heads * dim];
            let row = Query { q, out: &mut out, first: first(i), position: 30 + i };
            attend(isa, &mut [row], &context);
            assert!(
                out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()),
                "row {i}, window {window}"
            );
        }
    }
}

/// What lies before a window is not even read: its blocks may hold anything.
#[test]
fn nothing_before_a_window_is_read() {
    let (mut keys, mut values) = (noise(1, 48 * 8), noise(2, 48 * 8));
    let run = |keys: &[f32], values: &[f32]| {
        let k = Paged { data: keys, kv_heads: 1, block_size: 16, head_dim: 8 };
        let mut out = [0.0; 8];
        let row = Query { q: &[1.0; 8], out: &mut out, first: 21, position: 40 };
        let context =
            Context { k, v: Paged { data: values, ..k }, table: &[0, 1, 2], kv_head: 0, scale: 1.0 };
        attend(crate::kernels::isa(), &mut [row], &context);
        out
    };
    let want = run(&keys, &values);
    keys[..21 * 8].fill(f32::NAN);
    values[..21 * 8].fill(f32::NAN);
    assert_eq!(run(&keys, &values), want);
}
