//! The operations of latent attention against the same on plain candle, and by a row's company.

use crate::ops_support::{Chunk, Eager, Random, batch, error, pick, plain, rope, tables, values};
use crate::plain_ops::PlainOps;
use bn_engine::kernels::attention::KvType;
use bn_engine::kernels::{DType, Pool};
use bn_engine::ops::{
    Attention, CpuOps, HostMemory, KvLayout, Latent, LatentShape, Memory, MemoryLayout, Paging, RopeStyle,
    Unit,
};
use candle_core::Tensor;
use std::sync::Arc;

const TOLERANCE: f32 = 1e-5;

fn fused(threads: usize) -> CpuOps {
    CpuOps::new(Pool::new(threads).unwrap())
}

fn latent(random: &mut Random, dtype: DType, shape: LatentShape) -> Arc<Latent> {
    let LatentShape { heads, rank, nope, value, .. } = shape;
    let mut each = |rows, cols| (0..heads).map(|_| plain(&[random.matrix(dtype, rows, cols)])).collect();
    let (keys, values) = (each(rank, nope), each(value, rank));
    Arc::new(Latent { shape, norm: random.norm(rank), keys, values })
}

/// Few rows and many, of few heads and many for the threads.
#[test]
fn products_of_heads() {
    let mut random = Random(61);
    for (dtype, heads, rows) in [
        (DType::F32, 3, 1),
        (DType::F16, 3, 40),
        (DType::BF16, 9, 5),
        (DType::Q8_0, 2, 33),
        (DType::Q8_0, 5, 2),
    ] {
        let shape = LatentShape { heads, rank: 64, rope: 6, nope: 32, value: 20 };
        let latent = latent(&mut random, dtype, shape);
        let q = random.tensor(rows, shape.queries());
        let kv = random.tensor(rows, shape.compressed());
        let x = random.tensor(rows, heads * shape.head_dim());
        for threads in [1, 2, 3] {
            let ops = fused(threads);
            let got = ops.absorb(&q, &kv, &latent).unwrap();
            assert_eq!(got.dims(), [rows, (heads + 1) * shape.head_dim()]);
            assert!(error(&got, &PlainOps.absorb(&q, &kv, &latent).unwrap()) <= TOLERANCE, "{dtype:?}");
            let got = ops.expand(&x, &latent).unwrap();
            assert_eq!(got.dims(), [rows, heads * 20]);
            assert!(error(&got, &PlainOps.expand(&x, &latent).unwrap()) <= TOLERANCE, "{dtype:?}");
            assert!(ops.absorb(&x, &kv, &latent).is_err() && ops.expand(&q, &latent).is_err());
        }
    }
}

/// A row's bits are those of the row alone.
#[test]
fn products_of_heads_by_company() {
    let mut random = Random(62);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let shape = LatentShape { heads: 5, rank: 96, rope: 4, nope: 64, value: 32 };
        let latent = latent(&mut random, dtype, shape);
        let q = random.tensor(50, shape.queries());
        let kv = random.tensor(50, shape.compressed());
        let run = |rows: &[u32], threads| {
            let ops = fused(threads);
            let of = |x| pick(x, rows);
            let absorbed = ops.absorb(&of(&q), &of(&kv), &latent).unwrap();
            let heads: Vec<u32> = (0..rows.len() as u32).collect();
            let part = values(&pick(&absorbed, &heads));
            let part: Vec<f32> = part.iter().flat_map(|row| &row[shape.head_dim()..]).copied().collect();
            let dims = (rows.len(), 5 * shape.head_dim());
            let x = Tensor::from_vec(part, dims, &candle_core::Device::Cpu).unwrap();
            (values(&absorbed), values(&ops.expand(&x, &latent).unwrap()))
        };
        let all: Vec<u32> = (0..50).collect();
        let want = run(&all, 1);
        assert!(run(&all, 4) == want);
        for rows in [&all[..1], &all[17..20], &all[9..45]] {
            for threads in [1, 3] {
                let (absorbed, expanded) = run(rows, threads);
                let range = rows[0] as usize..rows[rows.len() - 1] as usize + 1;
                assert!(
                    absorbed == want.0[range.clone()] && expanded == want.1[range],
                    "{dtype:?}, {rows:?}"
                );
            }
        }
    }
}

/// Attention over rows that are K and V.
#[test]
fn attention_over_one_row_of_a_position() {
    let (blocks, block_size) = (16, 16);
    let mut random = Random(63);
    let tables = tables(&mut random, &[40, 21], block_size, blocks);
    let shape = LatentShape { heads: 6, rank: 20, rope: 8, nope: 10, value: 10 }.attention(0.3);
    let rope = rope(4, RopeStyle::Interleaved);
    let how = Attention::plain(&shape, &rope);
    let cache = |joint| {
        let (kv_heads, head_dim) = (1, shape.head_dim);
        let (kind, layers, others) = (KvType::F32, 1, None);
        let kv = KvLayout { kind, layers, kv_heads, head_dim, others, joint, blocks, block_size };
        HostMemory::new(MemoryLayout::of(kv)).unwrap()
    };
    let mut caches = [0, 1].map(|_| cache(true));
    let [joint, both] = [true, false].map(|joint| *cache(joint).layout());
    assert_eq!(2 * joint.bytes(Unit::Block), both.bytes(Unit::Block));
    for chunks in [[(0, 0, 30), (1, 0, 5)], [(1, 5, 16), (0, 30, 10)]] {
        let chunks = chunks.map(|(seq, start, rows)| Chunk { seq, start, rows });
        let batch = batch(&chunks, &tables, |_, _| 0);
        let paging = Paging::new(&batch, &joint.kv, &shape).unwrap();
        assert!(Paging::new(&batch, &both.kv, &shape).is_err());
        let qkv = random.tensor(batch.tokens.len(), 7 * shape.head_dim);
        let want = PlainOps.attention(&qkv, &paging, &mut caches[0], 0, &how).unwrap();
        let got = fused(2).attention(&qkv, &paging, &mut caches[1], 0, &how).unwrap();
        assert!(error(&got, &want) <= TOLERANCE);
    }
}
