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
fn naive(q: &[f32], k: Paged, v: Paged, table: &[u32], kv_head: usize, position: usize) -> Vec<f64> {
    let dim = k.head_dim;
    let row = |p: Paged, at: usize| p.data[p.offset(table, kv_head, at)..][..dim].to_vec();
    q.chunks(dim)
        .flat_map(|q| {
            let score = |at| {
                q.iter().zip(row(k, at)).map(|(a, b)| *a as f64 * b as f64).sum::<f64>() / (dim as f64).sqrt()
            };
            let scores: Vec<f64> = (0..=position).map(score).collect();
            let max = scores.iter().cloned().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut out = vec![0.0; dim];
            for (at, s) in scores.iter().enumerate() {
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
        for position in [0, 1, 15, 16, 31, 47, 69] {
            let mut all = Vec::new();
            for block_size in [16, 32, 64] {
                let (kd, table) = paged(&ks, kv_heads, dim, block_size);
                let (vd, _) = paged(&vs, kv_heads, dim, block_size);
                let k = Paged { data: &kd, kv_heads, block_size, head_dim: dim };
                let v = Paged { data: &vd, ..k };
                for isa in [Isa::Scalar, crate::kernels::isa()] {
                    let mut out = vec![0.0; q.len()];
                    let row = Query { q: &q, out: &mut out, position };
                    attend(isa, &mut [row], k, v, &table, kv_heads - 1);
                    all.push(out);
                }
                let want = naive(&q, k, v, &table, kv_heads - 1, position);
                let error = all[0].iter().zip(&want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
                assert!(error < 2e-6, "dim {dim}, position {position}: {error}");
            }
            let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(all.iter().all(|out| bits(out) == bits(&all[0])), "dim {dim}, position {position}");
        }
    }
}

#[test]
fn a_nan_is_not_hidden() {
    let k = Paged { data: &[f32::NAN; 16 * 8], kv_heads: 1, block_size: 16, head_dim: 8 };
    let mut out = [0.0; 8];
    let row = Query { q: &[1.0; 8], out: &mut out, position: 3 };
    attend(crate::kernels::isa(), &mut [row], k, k, &[0], 0);
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
    for isa in [Isa::Scalar, crate::kernels::isa()] {
        let mut together = vec![vec![0.0; heads * dim]; ROWS];
        let rows = qs.iter().zip(&mut together).enumerate();
        let mut rows: Vec<_> = rows.map(|(i, (q, out))| Query { q, out, position: 30 + i }).collect();
        attend(isa, &mut rows, k, v, &table, 0);
        for (i, (q, want)) in qs.iter().zip(&together).enumerate() {
            let mut out = vec![0.0; heads * dim];
            attend(isa, &mut [Query { q, out: &mut out, position: 30 + i }], k, v, &table, 0);
            assert!(out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "row {i}");
        }
    }
}
