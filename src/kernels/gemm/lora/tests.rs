use super::*;
use crate::base::Bytes;
use crate::kernels::available;
use half::{bf16, f16};
use proptest::prelude::*;

fn number(n: usize) -> f32 {
    ((n * 7919 + 13) % 1009) as f32 / 311.0 - 1.6
}

fn matrix(dtype: DType, rows: usize, cols: usize, seed: usize) -> Matrix {
    let values = (0..rows * cols).map(|n| number(n + seed));
    let data: Vec<u8> = match dtype {
        DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        DType::F16 => values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
        _ => values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
    };
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

/// Rows of `y` with their own adapters.
struct Case {
    cols: usize,
    widths: Vec<usize>,
    /// The pairs of each adapter, and the rows that have it.
    adapters: Vec<(Vec<Option<Pair>>, Vec<u32>)>,
    rows: usize,
}

impl Case {
    fn new(dtype: DType, cols: usize, widths: &[usize], ranks: &[usize], rows: usize) -> Self {
        let pair = |n: usize, i: usize, rank: usize| Pair {
            a: matrix(dtype, rank, cols, n * 31 + i),
            b: matrix(dtype, rank, widths[i], n * 17 + i + 5),
            scale: 0.5 + n as f32,
        };
        let adapter = |(n, rank): (usize, &usize)| {
            let pairs =
                (0..widths.len()).map(|i| ((n + i) % 3 != 1).then(|| pair(n, i, *rank + i))).collect();
            // Each row has one adapter, or none.
            let own = (0..rows as u32).filter(|row| *row as usize % (ranks.len() + 1) == n).collect();
            (pairs, own)
        };
        let adapters = ranks.iter().enumerate().map(adapter).collect();
        Self { cols, widths: widths.to_vec(), adapters, rows }
    }

    fn x(&self, row: u32) -> Vec<f32> {
        (0..self.cols).map(|i| number(row as usize * 3 + i * 11)).collect()
    }

    fn y(&self) -> Vec<f32> {
        (0..self.rows * self.widths.iter().sum::<usize>()).map(|i| number(i + 3)).collect()
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<f32> {
        let inputs: Vec<Vec<f32>> =
            self.adapters.iter().map(|(_, rows)| rows.iter().flat_map(|r| self.x(*r)).collect()).collect();
        let updates: Vec<_> = self
            .adapters
            .iter()
            .zip(&inputs)
            .map(|((pairs, rows), x)| Update { pairs, x, rows, scale: 2.0 })
            .collect();
        let numbers = updates.iter().map(|u| u.ranks() * u.rows.len()).sum();
        let (mut y, mut between) = (self.y(), vec![f32::NAN; numbers]);
        add(&Pool::new(threads).unwrap(), isa, &updates, self.cols, &self.widths, &mut between, &mut y);
        y
    }

    /// The result in f64, matrix by matrix.
    fn want(&self) -> Vec<f64> {
        let mut y: Vec<f64> = self.y().into_iter().map(f64::from).collect();
        let stride: usize = self.widths.iter().sum();
        let value = |m: &Matrix, at: usize| match m.dtype {
            DType::F32 => F32::value(&m.data[4 * at..]),
            DType::F16 => F16::value(&m.data[2 * at..]),
            _ => BF16::value(&m.data[2 * at..]),
        };
        for (pairs, rows) in &self.adapters {
            for row in rows {
                let x = self.x(*row);
                let mut column = 0;
                for (pair, width) in pairs.iter().zip(&self.widths) {
                    for (k, pair) in pair.iter().flat_map(|p| (0..p.a.rows).map(move |k| (k, p))) {
                        let dot = |i: usize| f64::from(x[i]) * f64::from(value(&pair.a, k * self.cols + i));
                        let t: f64 = (0..self.cols).map(dot).sum::<f64>() * f64::from(2.0 * pair.scale);
                        for j in 0..*width {
                            let at = *row as usize * stride + column + j;
                            y[at] += t * f64::from(value(&pair.b, k * width + j));
                        }
                    }
                    column += width;
                }
            }
        }
        y
    }
}

#[test]
fn updates_are_what_they_are_in_f64_with_the_same_bits_everywhere() {
    for (n, dtype) in [DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        for (cols, widths, ranks, rows) in [
            (7, &[5][..], &[1][..], 1),
            (64, &[33, 16, 3], &[4, 1], 9),
            (300, &[700, 1030], &[8, 16, 3], 23),
            (2048, &[600], &[32], 2),
        ] {
            let case = Case::new(dtype, cols, widths, ranks, rows);
            let got = case.run(Isa::Scalar, 1);
            for (got, want) in got.iter().zip(case.want()) {
                let error = (f64::from(*got) - want).abs() / want.abs().max(100.0);
                assert!(error < 2e-4, "{dtype:?}, {cols} columns: {got} for {want}");
            }
            for isa in available() {
                let other = case.run(*isa, 1 + n);
                assert!(got.iter().map(|v| v.to_bits()).eq(other.iter().map(|v| v.to_bits())), "{isa:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_row_does_not_depend_on_company(
        cols in 1usize..200, width in 1usize..700, rank in 1usize..20, rows in 2usize..20,
    ) {
        let together = Case::new(DType::F16, cols, &[width, 9], &[rank, 3], rows);
        for isa in available() {
            let got = together.run(*isa, 2);
            for (n, adapter) in together.adapters.iter().enumerate() {
                for row in &adapter.1 {
                    let mut alone = Case::new(DType::F16, cols, &[width, 9], &[rank, 3], rows);
                    alone.adapters = vec![(adapter.0.clone(), vec![*row])];
                    let alone = alone.run(*isa, 1);
                    let at = *row as usize * (width + 9)..(*row as usize + 1) * (width + 9);
                    prop_assert_eq!(&got[at.clone()], &alone[at], "adapter {}, row {}", n, row);
                }
            }
        }
    }
}
