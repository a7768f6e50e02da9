use super::dense::matmul;
use super::rows::dequantize_row;
use super::{DType, Isa, Matrix, Pool, isa};
use crate::base::Bytes;
use half::{bf16, f16};

const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];

fn number(n: usize) -> f32 {
    ((n * 7919 + 13) % 1009) as f32 / 311.0 - 1.6
}

fn matrix(dtype: DType, rows: usize, cols: usize) -> Matrix {
    let values = (0..rows * cols).map(|n| number(n + rows));
    let data: Vec<u8> = match dtype {
        DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        DType::F16 => values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => {
            let block = |n: usize| {
                let d = f16::from_f32(0.01 + (n % 5) as f32 * 0.002).to_le_bytes();
                d.into_iter().chain((0..32).map(move |i| (n * 31 + i * 97) as u8))
            };
            (0..rows * cols / 32).flat_map(block).collect()
        }
    };
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

fn product(threads: usize, isa: Isa, x: &[f32], weights: &[&Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let cols = weights[0].cols;
    let mut out = vec![f32::NAN; x.len() / cols * weights.iter().map(|m| m.rows).sum::<usize>()];
    matmul(&pool, isa, x, cols, weights, &mut out);
    out.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn instruction_sets_threads_and_company_change_no_bit() {
    for dtype in TYPES {
        for (cols, rows_a, rows_b) in [(1, 3, 2), (15, 7, 20), (96, 35, 1), (331, 40, 33), (4096, 9, 2)] {
            let cols = if dtype == DType::Q8_0 { cols / 32 * 32 + 32 } else { cols };
            let (a, b) = (matrix(dtype, rows_a, cols), matrix(dtype, rows_b, cols));
            let weights = [&a, &b];
            let x: Vec<f32> = (0..8 * cols).map(number).collect();
            let all = product(1, Isa::Scalar, &x, &weights);
            for threads in 1..=3 {
                assert_eq!(all, product(threads, isa(), &x, &weights), "{dtype:?}, {cols}, {threads}");
            }
            let stride = rows_a + rows_b;
            for (start, count) in [(0, 1), (7, 1), (1, 2), (2, 3), (3, 4), (3, 5)] {
                let some = product(2, isa(), &x[start * cols..(start + count) * cols], &weights);
                assert_eq!(some, all[start * stride..(start + count) * stride], "{dtype:?}, {cols}, {count}");
            }
        }
    }
}

#[test]
fn agrees_with_f64() {
    for dtype in TYPES {
        let (rows, cols) = (21, 1056);
        let m = matrix(dtype, rows, cols);
        let x: Vec<f32> = (0..2 * cols).map(number).collect();
        let out = product(2, isa(), &x, &[&m]);
        let mut w = vec![0.0; cols];
        for i in 0..rows {
            dequantize_row(Isa::Scalar, &m, i, &mut w);
            for t in 0..2 {
                let terms = x[t * cols..].iter().zip(&w).map(|(x, w)| *x as f64 * *w as f64);
                let size: f64 = terms.clone().map(f64::abs).sum();
                let got = f32::from_bits(out[t * rows + i]) as f64;
                assert!((got - terms.sum::<f64>()).abs() < 1e-6 * size, "{dtype:?} {i} {t}");
            }
        }
    }
}

#[test]
fn rows_have_the_files_values() {
    for dtype in TYPES {
        let (rows, cols) = (3, 96);
        let m = matrix(dtype, rows, cols);
        let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..rows {
            dequantize_row(Isa::Scalar, &m, row, &mut a);
            dequantize_row(isa(), &m, row, &mut b);
            assert_eq!(a, b);
            for (i, got) in a.iter().enumerate() {
                let n = row * cols + i;
                let v = number(n + rows);
                let want = match dtype {
                    DType::F32 => v,
                    DType::F16 => f16::from_f32(v).to_f32(),
                    DType::BF16 => bf16::from_f32(v).to_f32(),
                    _ => {
                        let block = n / 32;
                        let d = f16::from_f32(0.01 + (block % 5) as f32 * 0.002).to_f32();
                        ((block * 31 + n % 32 * 97) as u8 as i8) as f32 * d
                    }
                };
                assert_eq!(*got, want, "{dtype:?} {row} {i}");
            }
        }
    }
}

#[test]
fn every_half_reads_alike() {
    let data: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let m = Matrix::new(Bytes::new(data), DType::F16, 1, 1 << 16).unwrap();
    let (mut a, mut b) = (vec![0.0; 1 << 16], vec![0.0; 1 << 16]);
    dequantize_row(Isa::Scalar, &m, 0, &mut a);
    dequantize_row(isa(), &m, 0, &mut b);
    assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
}
