use super::{dot, matmul};
use crate::base::Bytes;
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{DType, Isa, Matrix, Pool, isa};
use half::{bf16, f16};
use proptest::prelude::*;

pub(super) const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// Types that are multiplied in f32, then the other types whose rows are converted to f32.
const DENSE: [DType; 15] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q1_0,
    DType::Q2_0,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

pub(super) fn number(n: usize) -> f32 {
    ((n * 7919 + 13) % 1009) as f32 / 311.0 - 1.6
}

pub(super) fn matrix(dtype: DType, rows: usize, cols: usize) -> Matrix {
    let values = (0..rows * cols).map(|n| number(n + rows));
    let data: Vec<u8> = match dtype {
        DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        DType::F16 => values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
        _ => values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
    };
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

fn product<'a>(threads: usize, isa: Isa, x: &[f32], weights: &[&'a Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let cols = weights[0].cols;
    let stride = weights.iter().map(|m| m.rows).sum::<usize>();
    let mut out = vec![f32::NAN; x.len() / cols * stride];
    let mut column = 0;
    let part = |matrix: &&'a Matrix| {
        column += matrix.rows;
        Part { matrix, column: column - matrix.rows }
    };
    let parts: Vec<Part> = weights.iter().map(part).collect();
    matmul(&pool, isa, x, cols, &parts, stride, &mut out);
    out.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn instruction_sets_threads_and_company_change_no_bit() {
    for dtype in TYPES {
        for (cols, rows_a, rows_b) in [(1, 3, 2), (15, 7, 20), (96, 35, 1), (331, 40, 33), (4096, 9, 2)] {
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
                    _ => bf16::from_f32(v).to_f32(),
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

/// Random codes and scales; scales of every finite size, with subnormal ones and zeros.
fn random(dtype: DType, rows: usize, cols: usize, seed: u64) -> Matrix {
    let (elements, bytes) = dtype.block();
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 48) as u16
    };
    let mut data: Vec<u8> = (0..rows * (cols / elements) * bytes).map(|_| next() as u8).collect();
    let halves: &[usize] = match dtype {
        DType::F16 | DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::Q1_0 | DType::Q2_0 => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        _ => &[],
    };
    for block in data.chunks_exact_mut(bytes) {
        for at in halves {
            let bits = match next() % 4 {
                0 => next() & 0x83ff,
                1 => 0x2000 | next() & 0x8fff,
                _ if next().is_multiple_of(16) => 0x7bff,
                _ => next() & 0xbfff,
            };
            block[*at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        if let DType::F32 | DType::BF16 = dtype {
            // Limit exponents to that of 1.
            block[bytes - 1] &= 0xbf;
        }
    }
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

/// The definition of `matmul`: each row as f32, each dot product by itself.
fn reference(m: &Matrix, x: &[f32]) -> Vec<u32> {
    let mut w = vec![0.0; m.cols];
    let mut out = vec![0; x.len() / m.cols * m.rows];
    for row in 0..m.rows {
        dequantize_row(Isa::Scalar, m, row, &mut w);
        for (t, x) in x.chunks_exact(m.cols).enumerate() {
            out[t * m.rows + row] = dot(x, &w).to_bits();
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn rows_decode_alike(seed in any::<u64>(), blocks in 1usize..9) {
        for dtype in DENSE {
            // Rows of single elements may end anywhere.
            let cols = blocks * dtype.block().0 * if dtype.block().0 == 1 { 1 + seed as usize % 40 } else { 1 };
            let m = random(dtype, 2, cols, seed);
            let (mut a, mut b) = (vec![0.0; cols], vec![f32::NAN; cols]);
            for row in 0..2 {
                dequantize_row(Isa::Scalar, &m, row, &mut a);
                dequantize_row(isa(), &m, row, &mut b);
                for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                    prop_assert_eq!(a.to_bits(), b.to_bits(), "{:?} row {} element {}", dtype, row, i);
                }
            }
        }
    }

    #[test]
    fn products_are_the_reference(
        seed in any::<u64>(), dtype in 0..4usize, rows in 1usize..60, width in 1usize..1400, tokens in 1usize..14,
    ) {
        let dtype = DENSE[dtype];
        let cols = width.next_multiple_of(dtype.block().0);
        let m = random(dtype, rows, cols, seed);
        let x: Vec<f32> = (0..tokens * cols).map(|i| number(i + seed as usize % 1000)).collect();
        let want = reference(&m, &x);
        prop_assert_eq!(&want, &product(2, isa(), &x, &[&m]), "{:?} {}x{} {}", dtype, rows, cols, tokens);
        prop_assert_eq!(&want, &product(1, Isa::Scalar, &x, &[&m]));
    }
}

/// More tokens than a panel is swept over at once, and more than one part of columns.
#[test]
fn long_prompts_are_the_reference() {
    for (dtype, cols) in [(DType::F16, 1030), (DType::BF16, 1280)] {
        for tokens in [127, 128, 129, 263] {
            let m = random(dtype, 14, cols, 5);
            let x: Vec<f32> = (0..tokens * cols).map(number).collect();
            assert!(reference(&m, &x) == product(2, isa(), &x, &[&m]), "{dtype:?} {tokens}");
        }
    }
}
