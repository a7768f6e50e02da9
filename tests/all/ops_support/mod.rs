//! Random weights, rows and ragged batches for the tests of operations, and passes of single operations.
#![allow(dead_code)]

mod eager;

pub use eager::{Eager, parts};

use bn_engine::base::Bytes;
use bn_engine::kernels::gemm::int8;
use bn_engine::kernels::{DType, Matrix, Pool};
use bn_engine::ops::{Norm, Projections, RaggedBatch, Rope, RopeStyle, SeqRows};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use std::sync::Arc;

/// A linear congruential generator: the same numbers on every machine.
pub struct Random(pub u32);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        self.next() as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    pub fn tensor(&mut self, rows: usize, cols: usize) -> Tensor {
        Tensor::from_vec(self.floats(rows * cols), (rows, cols), &Device::Cpu).unwrap()
    }

    pub fn norm(&mut self, width: usize) -> Norm {
        Norm { weight: self.floats(width).iter().map(|w| 1.0 + 0.3 * w).collect(), bias: None, eps: 1e-5 }
    }

    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> Matrix {
        if dtype == DType::Int8 {
            let seed = self.next();
            let fill = |row: usize, out: &mut [i8]| {
                let mut own = Random(seed ^ row as u32);
                out.iter_mut().for_each(|w| *w = (own.below(255) as i32 - 127) as i8);
                Ok(0.002 + 0.001 * own.float())
            };
            return int8::pack(&Pool::new(1).unwrap(), rows, cols, &fill).unwrap();
        }
        let (elements, _) = dtype.block();
        let mut data = Vec::new();
        let blocks =
            if dtype == DType::Ternary { rows * cols.div_ceil(elements) } else { rows * cols / elements };
        for _ in 0..blocks {
            self.block(dtype, &mut data);
        }
        if dtype == DType::Ternary {
            data.extend((0..rows).flat_map(|_| (0.02 + 0.01 * self.float()).to_le_bytes()));
        }
        if dtype == DType::I2S {
            data.extend((0.02 + 0.01 * self.float()).to_le_bytes());
            data.extend([0; 28]);
        }
        Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
    }

    fn block(&mut self, dtype: DType, data: &mut Vec<u8>) {
        let scale = f16::from_f32(0.02 + 0.01 * self.float()).to_le_bytes();
        match dtype {
            DType::F32 => data.extend((0.1 * self.float()).to_le_bytes()),
            DType::F16 => data.extend(f16::from_f32(0.1 * self.float()).to_le_bytes()),
            DType::BF16 => data.extend(bf16::from_f32(0.1 * self.float()).to_le_bytes()),
            DType::Q8_0 => {
                data.extend(scale);
                data.extend((0..32).map(|_| self.next() as u8));
            }
            DType::Q6_K => {
                data.extend((0..208).map(|_| self.next() as u8));
                data.extend(f16::from_f32(0.001 + 0.0005 * self.float()).to_le_bytes());
            }
            DType::TQ2_0 => {
                data.extend((0..64).map(|_| self.codes()));
                data.extend(scale);
            }
            // The codes after a row's last column meet zeros.
            DType::I2S | DType::Ternary => data.extend((0..32).map(|_| self.codes())),
            _ => panic!("no test makes {dtype:?} weights"),
        }
    }

    /// Four ternary codes: never 3.
    fn codes(&mut self) -> u8 {
        (0..4).fold(0, |byte, _| byte << 2 | self.below(3) as u8)
    }
}

/// Without biases and norms of their own.
pub fn plain(matrices: &[Matrix]) -> Projections {
    matrices.to_vec().into()
}

pub fn rope(pairs: usize, style: RopeStyle) -> Rope {
    let inv_freq = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / pairs as f32)).collect();
    Rope { inv_freq, style, factor: 1.0, axes: None }
}

/// Rows `start..start + rows` of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    pub seq: usize,
    pub start: usize,
    pub rows: usize,
}

/// A batch of these chunks, `tables[seq]` being a sequence's blocks and `token` its token at a position.
pub fn batch(chunks: &[Chunk], tables: &[Vec<u32>], token: impl Fn(usize, usize) -> u32) -> Arc<RaggedBatch> {
    let mut batch = RaggedBatch::default();
    for chunk in chunks {
        let table = &tables[chunk.seq];
        batch.seqs.push(SeqRows {
            row: batch.tokens.len() as u32,
            rows: chunk.rows as u32,
            table: batch.block_tables.len() as u32,
            table_len: table.len() as u32,
        });
        batch.block_tables.extend(table);
        for position in chunk.start..chunk.start + chunk.rows {
            batch.tokens.push(token(chunk.seq, position));
            batch.positions.push(position as u32);
        }
    }
    Arc::new(batch)
}

/// For each sequence blocks for `lengths[seq]` positions, in random order out of `blocks`.
pub fn tables(random: &mut Random, lengths: &[usize], block_size: usize, blocks: usize) -> Vec<Vec<u32>> {
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    random.shuffle(&mut free);
    lengths.iter().map(|length| free.split_off(free.len() - length.div_ceil(block_size))).collect()
}

pub fn values(x: &Tensor) -> Vec<Vec<f32>> {
    x.to_vec2().unwrap()
}

/// Multiplies each element by `by`.
pub fn times(x: Tensor, by: f64) -> Tensor {
    (x * by).unwrap()
}

/// These rows of `x`.
pub fn pick(x: &Tensor, rows: &[u32]) -> Tensor {
    x.index_select(&Tensor::from_slice(rows, rows.len(), &Device::Cpu).unwrap(), 0).unwrap()
}

/// The largest difference, relative to the largest value of its row.
pub fn error(got: &Tensor, want: &Tensor) -> f32 {
    assert_eq!(got.dims(), want.dims());
    let row = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let size = b.iter().fold(1e-20f32, |max, v| max.max(v.abs()));
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs() / size)
            .fold(0.0f32, |m, e| if e > m || e.is_nan() { e } else { m })
    };
    values(got).iter().zip(&values(want)).map(row).fold(0.0, |m, e| if e > m || e.is_nan() { e } else { m })
}
