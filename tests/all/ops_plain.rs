//! Compares every operation of `CpuOps` with the same on plain candle.

use crate::ops_support::{Chunk, Eager, Random, batch, error, pick, plain, rope, tables, times, values};
use crate::plain_ops::PlainOps;
use bn_engine::base::{Bytes, Result};
use bn_engine::kernels::attention::{KvType, TILE};
use bn_engine::kernels::pack::requantize::quantize;
use bn_engine::kernels::{Arithmetic, DType, Matrix, Pool};
use bn_engine::ops::pass::{Op, Pass, Program, Step};
use bn_engine::ops::{
    Activation, Attention, AttentionShape, Choice, CpuOps, Expert, Experts, Fold, HeadOrder, HostMemory,
    KvLayout, Memory, MemoryLayout, Norm, OpSet, Outputs, Paging, Projections, RaggedBatch, Regrouped,
    RopeStyle, Shared,
};
use candle_core::{Device, Tensor};
use std::sync::Arc;

const TOLERANCE: f32 = 1e-5;
const TYPES: [DType; 9] = [
    DType::Int8,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q6_K,
    DType::TQ2_0,
    DType::I2S,
    DType::Ternary,
];

/// `[layers, kv_heads, head_dim, blocks, block_size]`.
fn cache(kind: KvType, [layers, kv_heads, head_dim, blocks, block_size]: [usize; 5]) -> Result<HostMemory> {
    let (others, joint) = (None, false);
    let kv = KvLayout { kind, layers, kv_heads, head_dim, others, joint, blocks, block_size };
    HostMemory::new(MemoryLayout::of(kv))
}

fn fused() -> CpuOps {
    CpuOps::new(Pool::new(2).unwrap())
}

fn tokens(ids: &[u32]) -> Arc<RaggedBatch> {
    Arc::new(RaggedBatch { tokens: ids.to_vec(), ..Default::default() })
}

#[test]
fn embedding_of_every_type() {
    for dtype in TYPES {
        let table = Random(1).matrix(dtype, 40, 512);
        let batch = tokens(&[0, 39, 7, 7, 12]);
        for scale in [1.0, 22.6] {
            let got = fused().embed(&batch, &table, scale).unwrap();
            let want = PlainOps.embed(&batch, &table, scale).unwrap();
            assert_eq!(values(&got), values(&want), "{dtype:?}, times {scale}");
        }
    }
}

#[test]
fn products_of_every_type() {
    let mut random = Random(2);
    for dtype in TYPES {
        for rows in [1, 2, 3, 5, 17] {
            let weights = [37, 8, 1].map(|outputs| random.matrix(dtype, outputs, 768));
            let x = random.tensor(rows, 768);
            let got = fused().linear(&x, None, &plain(&weights)).unwrap();
            let want = PlainOps.linear(&x, None, &plain(&weights)).unwrap();
            let error = error(&got, &want);
            assert!(error <= TOLERANCE, "{dtype:?}, {rows} rows: {error}");
        }
    }
}

/// A column that is 24 times the others' root mean square, as in real models, and columns with a common mean.
#[test]
fn int8_products_survive_outliers() {
    let (mut random, rows, cols) = (Random(22), 5, 1536);
    for [outlier, mean] in [[13.9, 0.0], [0.0, 1.0]] {
        let weights = random.floats(96 * cols).into_iter().enumerate();
        let weights =
            weights.flat_map(|(i, w)| (if i % cols == 0 { w + outlier / 2.0 } else { w }).to_le_bytes());
        let exact = Matrix::new(Bytes::new(weights.collect::<Vec<u8>>()), DType::F32, 96, cols).unwrap();
        let int8 = quantize(&Pool::new(2).unwrap(), &exact, DType::Int8).unwrap();
        let mut x: Vec<f32> = random.floats(rows * cols).iter().map(|x| x + mean).collect();
        x.iter_mut().skip(700).step_by(cols).for_each(|x| *x += outlier);
        let x = Tensor::from_vec(x, (rows, cols), &Device::Cpu).unwrap();
        let [got, want] = [int8, exact].map(|m| fused().linear(&x, None, &plain(&[m])).unwrap());
        assert!(error(&got, &want) < 0.02, "{outlier}, {mean}: {}", error(&got, &want));
    }
}

/// Matrices of one product in several types, as in files of mixed types, give the results of each one alone.
#[test]
fn products_of_several_types() {
    let mut random = Random(12);
    for types in [
        [DType::Q8_0, DType::Q6_K, DType::F16],
        [DType::Q6_K, DType::Q8_0, DType::Q6_K],
        [DType::F32, DType::Q8_0, DType::BF16],
        [DType::Int8, DType::Q8_0, DType::Int8],
    ] {
        let weights = [(types[0], 37), (types[1], 8), (types[2], 40)];
        let weights = weights.map(|(dtype, outputs)| random.matrix(dtype, outputs, 768));
        for rows in [1, 3, 9] {
            let x = random.tensor(rows, 768);
            let got = fused().linear(&x, None, &plain(&weights)).unwrap();
            assert!(error(&got, &PlainOps.linear(&x, None, &plain(&weights)).unwrap()) <= TOLERANCE);
            let alone = weights
                .each_ref()
                .map(|m| fused().linear(&x, None, &plain(std::slice::from_ref(m))).unwrap());
            assert_eq!(values(&got), values(&side_by_side(&alone)), "{types:?}, {rows}");
        }
    }
}

/// Rows that end within a block: the activations after them are zeros, whatever was stored there before.
#[test]
fn products_of_odd_widths() {
    let (mut random, ops) = (Random(6), fused());
    for cols in [200, 640, 65, 1, 127, 8640] {
        for rows in [1, 2, 6] {
            let weights = [9, 4].map(|outputs| random.matrix(DType::Ternary, outputs, cols));
            let x = random.tensor(rows, cols);
            let got = ops.linear(&x, None, &plain(&weights)).unwrap();
            let error = error(&got, &PlainOps.linear(&x, None, &plain(&weights)).unwrap());
            assert!(error <= TOLERANCE, "{cols} columns, {rows} rows: {error}");
        }
    }
}

/// `[n, n]` ones on the diagonal: its product is the normed row itself.
fn identity(n: usize) -> Matrix {
    let ones = (0..n * n).flat_map(|i| f32::to_le_bytes((i / n == i % n) as u8 as f32));
    Matrix::new(Bytes::new(ones.collect::<Vec<u8>>()), DType::F32, n, n).unwrap()
}

#[test]
fn norm_before_a_product() {
    let mut random = Random(3);
    let norm = random.norm(512);
    let x = times(random.tensor(6, 512), 30.0);
    let diagonal = [identity(512)];
    let normed = fused().linear(&x, Some(&norm), &plain(&diagonal)).unwrap();
    assert!(error(&normed, &PlainOps.linear(&x, Some(&norm), &plain(&diagonal)).unwrap()) <= TOLERANCE);
    for dtype in TYPES {
        let weights = [random.matrix(dtype, 24, 512)];
        let got = fused().linear(&x, Some(&norm), &plain(&weights)).unwrap();
        // Starts from our normed rows: one bit of a norm can change an int8 by one, which is no error of the
        // product.
        let want = PlainOps.linear(&normed, None, &plain(&weights)).unwrap();
        let error = error(&got, &want);
        assert!(error <= TOLERANCE, "{dtype:?}: {error}");
    }
}

#[test]
fn biases_and_norms_of_their_own() {
    let mut random = Random(9);
    for dtype in TYPES {
        for rows in [1, 5] {
            let matrices = [37, 8, 1].map(|outputs| random.matrix(dtype, outputs, 512)).to_vec();
            let (x, shared) = (times(random.tensor(rows, 512), 9.0), random.norm(512));
            let bias: Arc<[f32]> = random.floats(46).into();
            let norms: Vec<_> = (0..3).map(|_| random.norm(512)).collect();
            let biased = Projections {
                matrices: matrices.clone(),
                bias: Some(bias.clone()),
                norms: vec![],
                fold: None,
                columns: None,
                whole: false,
            };
            let got = fused().linear(&x, None, &biased).unwrap();
            let product = fused().linear(&x, None, &plain(&matrices)).unwrap();
            let sum = |row: &Vec<f32>| row.iter().zip(&*bias).map(|(x, b)| x + b).collect::<Vec<_>>();
            assert_eq!(values(&got), values(&product).iter().map(sum).collect::<Vec<_>>(), "{dtype:?}");
            assert!(error(&got, &PlainOps.linear(&x, None, &biased).unwrap()) <= TOLERANCE, "{dtype:?}");
            // Each matrix alone, its two norms one after the other.
            let own = Projections {
                matrices: matrices.clone(),
                bias: Some(bias.clone()),
                norms,
                fold: None,
                columns: None,
                whole: false,
            };
            let got = fused().linear(&x, Some(&shared), &own).unwrap();
            let once = fused().linear(&x, Some(&shared), &plain(&[identity(512)])).unwrap();
            let alone = (0..3)
                .map(|i| fused().linear(&once, Some(&own.norms[i]), &plain(&matrices[i..i + 1])).unwrap());
            let alone = side_by_side(&alone.collect::<Vec<_>>());
            assert_eq!(values(&got), values(&alone).iter().map(sum).collect::<Vec<_>>(), "{dtype:?}");
            if dtype.arithmetic() == Arithmetic::Float {
                let want = PlainOps.linear(&x, Some(&shared), &own).unwrap();
                assert!(error(&got, &want) <= TOLERANCE, "{dtype:?}");
            }
        }
    }
}

#[test]
fn halves_are_quantized_to_the_even_side() {
    // The largest is 127, so the scale is 1 and the values are their own int8.
    let mut row: Vec<f32> = (0..128).map(|i| i as f32 / 2.0 - 32.0).collect();
    row[0] = 127.0;
    let x = Tensor::from_vec(row, (1, 128), &Device::Cpu).unwrap();
    let weights = [Random(4).matrix(DType::I2S, 16, 128)];
    let got = fused().linear(&x, None, &plain(&weights)).unwrap();
    assert!(error(&got, &PlainOps.linear(&x, None, &plain(&weights)).unwrap()) <= 1e-6);
}

#[test]
fn attention_of_ragged_batches() {
    for (case, (heads, kv_heads, head_dim, pairs, style, window)) in [
        (4, 4, 32, 16, RopeStyle::Neox, None),
        (8, 2, 64, 32, RopeStyle::Interleaved, Some(20)),
        (5, 1, 128, 64, RopeStyle::Neox, None),
        (6, 2, 20, 5, RopeStyle::Neox, Some(1)),
        (34, 2, 8, 2, RopeStyle::Interleaved, Some(16)),
        (4, 2, 16, 8, RopeStyle::Neox, Some(1000)),
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = Random(case as u32 + 10);
        let (lengths, block_size, blocks) = ([70, 33, 1, 16], 16 << (case % 3), 16);
        let tables = tables(&mut random, &lengths, block_size, blocks);
        let mut caches =
            [0, 1].map(|_| cache(KvType::F32, [2, kv_heads, head_dim, blocks, block_size]).unwrap());
        let mut shape = AttentionShape::new(heads, kv_heads, head_dim);
        let (mut rope, norms) = (rope(pairs, style), [0, 1].map(|_| random.norm(head_dim)));
        let sinks: Vec<f32> = random.floats(heads).iter().map(|x| 3.0 * x).collect();
        // Odd cases have features of few models.
        let odd = case % 2 == 1;
        (shape.scale, rope.factor) = if odd { (shape.scale * 1.3, 1.2) } else { (shape.scale, 1.0) };
        let how = Attention {
            window,
            from: usize::from(odd),
            norms: odd.then_some(&norms),
            sinks: odd.then_some(&sinks),
            ..Attention::plain(&shape, &rope)
        };
        // Chunks in steps: prompts in parts, then together with a decode row.
        let chunk = |seq, start, rows| Chunk { seq, start, rows };
        let steps = [
            vec![chunk(0, 0, 50), chunk(1, 0, 7)],
            vec![chunk(1, 7, 25), chunk(2, 0, 1), chunk(0, 50, 1)],
            vec![chunk(3, 0, 16), chunk(0, 51, 19), chunk(1, 32, 1)],
        ];
        for chunks in steps {
            let batch = batch(&chunks, &tables, |_, _| 0);
            let qkv = random.tensor(batch.tokens.len(), (heads + 2 * kv_heads) * head_dim);
            let paging = Paging::new(&batch, &caches[0].layout().kv, &shape).unwrap();
            let want = PlainOps.attention(&qkv, &paging, &mut caches[0], 1, &how).unwrap();
            let got = fused().attention(&qkv, &paging, &mut caches[1], 1, &how).unwrap();
            let error = error(&got, &want);
            assert!(error <= TOLERANCE, "case {case}: {error}");
            let all = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            // Our layout has K in tiles [head_dim, 16].
            let tiles = (blocks * kv_heads * block_size / TILE, head_dim, TILE);
            let layer = caches[1].layer(1).unwrap();
            let keys = layer.get(0).unwrap().reshape(tiles).unwrap().transpose(1, 2).unwrap();
            let plain = all(caches[0].layer(1).unwrap().clone());
            let ours = [all(keys), all(layer.get(1).unwrap())].concat();
            assert_eq!(plain.len(), ours.len());
            let stored = plain.iter().zip(ours).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(stored <= 1e-6, "case {case}: K and V as stored differ by {stored}");
        }
        let layer = caches[1].layer(0).unwrap();
        let untouched = layer.abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(untouched, 0.0, "only the layer asked for is written");
    }
}

/// V that is K, its norm without weights, and K and V that another layer has written.
#[test]
fn values_that_are_keys_and_keys_of_other_layers() {
    let (heads, kv_heads, head_dim, blocks, block_size) = (6, 2, 16, 16, 16);
    let mut random = Random(31);
    let tables = tables(&mut random, &[40, 21], block_size, blocks);
    for keys_are_values in [false, true] {
        let shape = AttentionShape {
            scale: 1.0,
            value_eps: Some(1e-6),
            keys_are_values,
            ..AttentionShape::new(heads, kv_heads, head_dim)
        };
        let (rope, norms) = (rope(head_dim / 2, RopeStyle::Neox), [0, 1].map(|_| random.norm(head_dim)));
        let ones = Norm { weight: vec![1.0; head_dim].into(), bias: None, eps: 1e-6 };
        let how = Attention {
            norms: Some(&norms),
            value_norm: Some(&ones),
            window: Some(9),
            ..Attention::plain(&shape, &rope)
        };
        let mut caches =
            [0, 1].map(|_| cache(KvType::F32, [1, kv_heads, head_dim, blocks, block_size]).unwrap());
        for chunks in [[(0, 0, 30), (1, 0, 5)], [(1, 5, 16), (0, 30, 10)]] {
            let chunks = chunks.map(|(seq, start, rows)| Chunk { seq, start, rows });
            let batch = batch(&chunks, &tables, |_, _| 0);
            let rows = batch.tokens.len();
            let paging = Paging::new(&batch, &caches[0].layout().kv, &shape).unwrap();
            let kv = if keys_are_values { kv_heads } else { 2 * kv_heads };
            let qkv = random.tensor(rows, (heads + kv) * head_dim);
            let queries = random.tensor(rows, heads * head_dim);
            let shared = Attention { shared: true, window: None, ..how };
            for (x, how) in [(&qkv, &how), (&queries, &shared)] {
                let want = PlainOps.attention(x, &paging, &mut caches[0], 0, how).unwrap();
                let got = fused().attention(x, &paging, &mut caches[1], 0, how).unwrap();
                assert!(error(&got, &want) <= TOLERANCE, "{keys_are_values}, {}", how.shared);
                assert!(fused().attention(&random.tensor(rows, 8), &paging, &mut caches[1], 0, how).is_err());
            }
            let none = Attention { value_norm: None, ..how };
            assert!(
                fused().attention(&qkv, &paging, &mut caches[1], 0, &none).is_err(),
                "the norm is missing"
            );
        }
    }
}

/// Parts of rows with a norm, gates on some columns, and a factor on all.
#[test]
fn inputs_of_single_layers() {
    let mut random = Random(32);
    let (x, norm) = (random.tensor(5, 3 * 20), random.norm(20));
    let changed = |ops: &dyn OpSet| values(&ops.scale(&ops.norm_parts(&x, &norm).unwrap(), 0.75).unwrap());
    let got = changed(&fused());
    for (ours, plain) in got.concat().iter().zip(changed(&PlainOps).concat()) {
        assert!((ours - plain).abs() <= 1e-6, "{ours} for {plain}");
    }
    for (row, parts) in values(&x).iter().zip(&got) {
        for (n, x) in row.iter().enumerate() {
            let part = &row[n / 20 * 20..][..20];
            let mean = part.iter().map(|x| x * x).sum::<f32>() / 20.0;
            let want = 0.75 * x / (mean + norm.eps).sqrt() * norm.weight[n % 20];
            assert!((parts[n] - want).abs() <= 1e-5, "{} for {want}", parts[n]);
        }
    }
    let (gate, act) = (random.tensor(5, 20), Activation::GeGlu);
    for from in [0, 20, 40] {
        let got = fused().gated_columns(&gate, &x, from, act).unwrap();
        assert!(error(&got, &PlainOps.gated_columns(&gate, &x, from, act).unwrap()) <= TOLERANCE);
        let gelu = |g: f32| 0.5 * g * (1.0 + (0.797_884_6 * (g + 0.044_715 * g * g * g)).tanh());
        for ((got, gate), x) in values(&got).iter().zip(values(&gate)).zip(values(&x)) {
            for (n, got) in got.iter().enumerate() {
                assert!((got - gelu(gate[n]) * x[from + n]).abs() <= 1e-5);
            }
        }
    }
    assert!(fused().gated_columns(&gate, &x, 41, act).is_err(), "columns behind the last");
    assert!(fused().norm_parts(&pick(&x, &[0]), &random.norm(7)).is_err());
}

#[test]
fn gates_and_sums() {
    let mut random = Random(5);
    let x = times(random.tensor(5, 2 * 77), 20.0);
    let clamped = Activation::ClampedSwiGlu { limit: 0.5 };
    let scaled = Activation::ScaledSwiGlu { by: 0.3, output: -1.7 };
    let steep = Activation::SteepSwiGlu { alpha: 1.7, limit: 0.5 };
    for activation in [Activation::SwiGlu, Activation::Relu2, Activation::GeGlu, clamped, scaled, steep] {
        let got = fused().gated(&x, activation).unwrap();
        let want = PlainOps.gated(&x, activation).unwrap();
        assert!(error(&got, &want) <= TOLERANCE, "{activation:?}");
    }
    let y = random.tensor(5, 2 * 77);
    let norm = random.norm(2 * 77);
    let got = fused().add(&x, &y, Some(&norm)).unwrap();
    assert!(error(&got, &PlainOps.add(&x, &y, Some(&norm)).unwrap()) <= TOLERANCE);
    assert!(fused().add(&x, &y, Some(&random.norm(77))).is_err(), "a narrower norm");
    let want = PlainOps.add(&x, &y, None).unwrap();
    assert_eq!(values(&fused().add(&x, &y, None).unwrap()), values(&want));
}

#[test]
fn mixtures_of_experts() {
    let mut random = Random(14);
    for (dtype, count, used, renormalize, beside) in [
        (DType::F32, 7, 3, true, false),
        (DType::Q8_0, 4, 4, false, false),
        (DType::TQ2_0, 9, 2, true, true),
        (DType::F32, 3, 1, false, true),
    ] {
        let mut expert = |width: usize| {
            let mut products = |rows, cols| random.matrix(dtype, rows, cols);
            let gate_up = [products(width, 512), products(width, 512)];
            Expert { gate_up: gate_up.into(), down: [products(512, width)].into() }
        };
        let experts = (0..count).map(|_| expert(256)).collect();
        let shared = beside.then(|| expert(768));
        let gate = random.matrix(DType::F32, 1, 512);
        // Some have no weight of their own.
        let gate = (count > 3).then(|| [gate].into());
        let shared = shared.map(|expert| Shared { expert, gate });
        let router = [random.matrix(DType::F32, count, 512)].into();
        let own = Random(33).norm(512);
        let scales = (0..count).map(|n| 0.5 + n as f32).collect();
        let experts = Arc::new(Experts {
            router_norm: (dtype == DType::F32).then_some(own),
            router,
            choice: Choice::softmax(used, renormalize),
            bias: None,
            scales: (dtype == DType::F32).then_some(scales),
            experts,
            shared,
        });
        let norm = random.norm(512);
        let x = random.tensor(33, 512);
        let mixed = |x: &Tensor| fused().experts(x, Some(&norm), &experts, Activation::SwiGlu).unwrap();
        let got = mixed(&x);
        let want = PlainOps.experts(&x, Some(&norm), &experts, Activation::SwiGlu).unwrap();
        assert!(error(&got, &want) <= TOLERANCE, "{dtype:?}: {}", error(&got, &want));
        for (row, got) in values(&got).iter().enumerate() {
            let alone = pick(&x, &[row as u32]);
            assert_eq!(&values(&mixed(&alone))[0], got, "{dtype:?}: row {row} alone");
        }
    }
}

/// Rotated inputs of products of each arithmetic, and a rotated table.
#[test]
fn rotations() {
    let mut random = Random(17);
    let signs: Vec<f32> = (0..256).map(|i| if i % 7 < 3 { -1.0 } else { 1.0 }).collect();
    let heads = Regrouped::of(2, 8, HeadOrder::Tiled);
    for (block, signs, heads) in [(256, None, None), (64, Some(signs), None), (32, None, heads)] {
        let fold = Fold { block, signs: signs.map(Into::into), heads };
        for dtype in [DType::F32, DType::Q8_0, DType::Q6_K, DType::TQ2_0] {
            let matrices = [random.matrix(dtype, 33, 256), random.matrix(dtype, 16, 256)];
            let weights = Projections { fold: Some(Arc::new(fold.clone())), ..matrices.into() };
            let (x, norm) = (random.tensor(5, 256), random.norm(256));
            for norm in [None, Some(&norm)] {
                let [got, want] =
                    [&fused() as &dyn OpSet, &PlainOps].map(|ops| ops.linear(&x, norm, &weights).unwrap());
                // Rounding to int8 may part at a half.
                let tolerance = if dtype == DType::F32 { TOLERANCE } else { 2e-3 };
                assert!(error(&got, &want) <= tolerance, "{dtype:?}, {block}: {}", error(&got, &want));
                for (row, got) in values(&got).iter().enumerate() {
                    let alone = pick(&x, &[row as u32]);
                    assert_eq!(
                        &values(&fused().linear(&alone, norm, &weights).unwrap())[0],
                        got,
                        "row {row} alone"
                    );
                }
            }
            let gate_up = random.tensor(3, 512);
            let [got, want] = [&fused() as &dyn OpSet, &PlainOps]
                .map(|ops| ops.gated_linear(&gate_up, Activation::SwiGlu, None, &weights, true).unwrap());
            assert!(error(&got, &want) <= 2e-3, "{dtype:?}: {}", error(&got, &want));
        }
        let [got, want] = [&fused() as &dyn OpSet, &PlainOps]
            .map(|ops| ops.unfold(&Random(18).tensor(3, 256), &fold).unwrap());
        assert!(error(&got, &want) <= TOLERANCE);
        let narrow = Projections { fold: Some(Arc::new(fold)), ..[random.matrix(DType::F32, 4, 80)].into() };
        assert!(fused().linear(&random.tensor(1, 80), None, &narrow).is_err(), "blocks of {block}");
    }
}

#[test]
fn norms_of_columns() {
    let mut random = Random(13);
    let (x, norm) = (times(random.tensor(9, 100), 5.0), random.norm(37));
    let normed = |ops: &dyn OpSet, from| ops.norm_columns(&x, from, &norm);
    for from in [0, 20, 63] {
        let (got, want) = (normed(&fused(), from).unwrap(), normed(&PlainOps, from).unwrap());
        assert!(error(&got, &want) <= TOLERANCE, "from {from}");
        for (got, x) in values(&got).iter().zip(values(&x)) {
            assert_eq!([&got[..from], &got[from + 37..]], [&x[..from], &x[from + 37..]], "other columns");
        }
    }
    assert!(normed(&fused(), 64).is_err(), "beyond the row");
}

fn side_by_side(parts: &[Tensor]) -> Tensor {
    Tensor::cat(parts, 1).unwrap()
}

/// The wanted rows, after a sum that needs all of them.
#[test]
fn wanted_rows() {
    let (mut random, width) = (Random(6), 40);
    let (x, y) = (random.tensor(9, width), random.tensor(9, width));
    let mut pass = Pass::default();
    let inputs = [pass.register(width), pass.register(width)];
    pass.add(inputs[0], inputs[1], None);
    pass.push(Op::Want { x: inputs[0] });
    pass.push(Op::Hidden { x: inputs[0], norm: None });
    let program = Program::new(&pass, &inputs, true).unwrap();
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let run = |wanted: &[u32], hidden: &[u32]| {
        let batch =
            RaggedBatch { tokens: vec![0; 9], hidden_rows: hidden.to_vec(), ..RaggedBatch::default() };
        let step = Step { wanted: Some(wanted.to_vec()), ..Step::of_rows(&batch) };
        let mut out = Outputs::default();
        let given = [flat(&x), flat(&y)];
        fused()
            .run(&program, &step, None, &[&given[0], &given[1]], &mut out, &mut || Ok(()))
            .map(|()| out.hidden)
    };
    for (wanted, hidden) in [(&[0, 4, 8][..], &[0, 4, 8][..]), (&[3, 5], &[5]), (&[8], &[]), (&[], &[])] {
        let want = flat(&pick(&(&x + &y).unwrap(), hidden));
        assert_eq!(run(wanted, hidden).unwrap(), want, "{wanted:?}, {hidden:?}");
    }
    assert!(run(&[4, 3], &[]).is_err(), "not in order");
    assert!(run(&[9], &[]).is_err(), "no such row");
    assert!(run(&[3], &[4]).is_err(), "a row that is not wanted");
}

#[test]
fn mistakes_are_errors() {
    let (ops, mut random) = (fused(), Random(7));
    let x = random.tensor(4, 64);
    let dense = |random: &mut Random, cols| random.matrix(DType::F32, 8, cols);
    assert!(ops.linear(&x, None, &plain(&[])).is_err());
    assert!(ops.linear(&x, None, &plain(&[dense(&mut random, 32)])).is_err());
    assert!(ops.linear(&x, None, &plain(&[dense(&mut random, 64), dense(&mut random, 32)])).is_err());
    assert!(ops.linear(&x, Some(&random.norm(32)), &plain(&[dense(&mut random, 64)])).is_err());
    let with = |bias: usize, norms: &[usize], random: &mut Random| Projections {
        matrices: vec![dense(random, 64), dense(random, 64)],
        bias: Some(random.floats(bias).into()),
        norms: norms.iter().map(|n| random.norm(*n)).collect(),
        fold: None,
        columns: None,
        whole: false,
    };
    assert!(ops.linear(&x, None, &with(16, &[64, 64], &mut random)).is_ok());
    for (bias, norms) in [(15, &[][..]), (17, &[]), (16, &[64]), (16, &[64, 63]), (16, &[64, 64, 64])] {
        assert!(ops.linear(&x, None, &with(bias, norms, &mut random)).is_err(), "{bias}, {norms:?}");
    }
    let mixed = [random.matrix(DType::F32, 8, 128), random.matrix(DType::I2S, 8, 128)];
    assert!(ops.linear(&random.tensor(1, 128), None, &plain(&mixed)).is_err());
    assert!(ops.embed(&tokens(&[8]), &dense(&mut random, 64), 1.0).is_err());
    assert!(ops.add(&x, &random.tensor(4, 32), None).is_err());
}

#[test]
fn mistaken_batches_are_errors() {
    let (ops, mut random) = (fused(), Random(8));
    let shape = AttentionShape::new(2, 1, 16);
    let mut memory = cache(KvType::F32, [1, 1, 16, 3, 16]).unwrap();
    let kv = memory.layout().kv;
    let good = batch(&[Chunk { seq: 0, start: 0, rows: 4 }], &[vec![2]], |_, _| 0);
    let qkv = random.tensor(4, 64);
    let mut run = |batch: &RaggedBatch, layer| {
        ops.attention(
            &qkv,
            &Paging::new(batch, &kv, &shape)?,
            &mut memory,
            layer,
            &Attention::plain(&shape, &rope(8, RopeStyle::Neox)),
        )
    };
    assert!(run(&good, 0).is_ok());
    assert!(run(&good, 1).is_err(), "no such layer");
    let changes: [fn(&mut RaggedBatch); 8] = [
        |b| b.block_tables[0] = 3,
        |b| b.positions[3] = 16,
        |b| b.seqs[0].table_len = 2,
        |b| b.seqs[0].rows = 3,
        |b| b.seqs[0].row = 1,
        |b| b.seqs.push(b.seqs[0]),
        |b| b.seqs[0].rows = u32::MAX,
        |b| b.positions.truncate(3),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut bad = (*good).clone();
        change(&mut bad);
        assert!(run(&bad, 0).is_err(), "change {index}");
    }
    let odd = KvLayout { blocks: 6, block_size: 8, ..kv };
    assert!(Paging::new(&good, &odd, &shape).is_err(), "half a tile");
    let twice = [Chunk { seq: 0, start: 0, rows: 2 }, Chunk { seq: 1, start: 2, rows: 2 }];
    let twice = batch(&twice, &[vec![2], vec![2]], |_, _| 0);
    assert!(Paging::new(&twice, &kv, &shape).is_err(), "two sequences write to one block");
    let turn = rope(8, RopeStyle::Neox);
    let paging = Paging::new(&good, &kv, &shape).unwrap();
    let how = Attention::plain(&shape, &turn);
    let mut other = cache(KvType::F16, [1, 1, 16, 3, 16]).unwrap();
    assert!(ops.attention(&qkv, &paging, &mut other, 0, &how).is_err(), "paging of another cache");
    assert!(ops.attention(&random.tensor(3, 64), &paging, &mut memory, 0, &how).is_err(), "fewer rows");
    let narrow = [0, 1].map(|_| random.norm(8));
    let how = Attention { norms: Some(&narrow), ..how };
    assert!(ops.attention(&qkv, &paging, &mut memory, 0, &how).is_err(), "norms of half a head");
    let how = Attention { norms: None, sinks: Some(&[0.0]), ..how };
    assert!(ops.attention(&qkv, &paging, &mut memory, 0, &how).is_err(), "a sink for one of two heads");
    assert!(cache(KvType::F16, [2, usize::MAX / 2, 64, 64, 16]).is_err());
    assert!(cache(KvType::Int8, [1, 1 << 20, 1 << 10, 1 << 20, 16]).is_err(), "64 PiB");
}
