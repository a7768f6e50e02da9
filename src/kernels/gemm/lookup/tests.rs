use super::turn::turn;
use super::{Share, share};
use crate::base::Bytes;
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::quantized::{self, block_of};
use crate::kernels::gemm::tokens::{self, Activations, padded};
use crate::kernels::rows::quantize::QuantRow;
use crate::kernels::rows::quantize_blocks::BlockActivations;
use crate::kernels::simd::isa::tested;
use crate::kernels::{DType, Isa, Matrix, Pool};
use half::f16;

const TYPES: [DType; 8] = [
    DType::I2S,
    DType::Ternary,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::Q1_0,
    DType::Q2_0,
    DType::Q2_0_128,
    DType::PTQ1_0,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Random weights that have entries: codes from 0 to 2, or bits.
fn matrix(dtype: DType, rows: usize, cols: usize, random: &mut Random) -> Matrix {
    let mut data = vec![0; dtype.byte_len(rows, cols).unwrap()];
    let codes = |random: &mut Random| (0..4).fold(0, |byte, _| byte << 2 | (random.next() % 3) as u8);
    let any = matches!(dtype, DType::Q1_0 | DType::TQ1_0 | DType::PTQ1_0);
    data.fill_with(|| if any { random.next() as u8 } else { codes(random) });
    let scale = |n: usize| 0.01 + (n % 19) as f32 * 0.003;
    let packed = rows * cols.div_ceil(128) * 32;
    match dtype {
        DType::I2S => data[packed..packed + 4].copy_from_slice(&0.037f32.to_le_bytes()),
        DType::Ternary => {
            for (n, to) in data[packed..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *to = scale(n).to_le_bytes();
            }
        }
        _ => {
            let at = match dtype {
                DType::TQ1_0 => 52,
                DType::TQ2_0 => 64,
                DType::PTQ1_0 => 26,
                _ => 0,
            };
            for (n, block) in data.chunks_exact_mut(dtype.block().1).enumerate() {
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale(n)).to_le_bytes());
            }
        }
    }
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

/// The bits of a product of `tokens` rows of random activations, always the same ones.
fn product(isa: Isa, threads: usize, m: &Matrix, tokens: usize, values: &[i8]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let mut out = vec![f32::NAN; tokens * m.rows];
    let part = [Part { matrix: m, column: 0 }];
    let scale = |n: usize| 0.5 + (n % 7) as f32 * 0.31;
    match block_of(m.dtype) {
        Some(block) => {
            let values = &values[..tokens * m.cols];
            let scales: Vec<f32> = (0..values.len() / block).map(scale).collect();
            let sums: Vec<i16> = values.chunks(block).map(|v| v.iter().map(|v| *v as i16).sum()).collect();
            let x = BlockActivations { values, scales: &scales, sums: &sums, cols: m.cols, block };
            quantized::matmul(&pool, isa, &x, &part, m.rows, &mut out);
        }
        None => {
            let cols = padded(m.cols);
            let values = &values[..tokens * cols];
            let row = |(n, row): (usize, &[i8])| QuantRow {
                scale: scale(n),
                sum: row.iter().map(|v| *v as i32).sum(),
            };
            let rows: Vec<_> = values.chunks_exact(cols).enumerate().map(row).collect();
            tokens::matmul(&pool, isa, &Activations { values, rows: &rows, cols }, &part, m.rows, &mut out);
        }
    }
    out.iter().map(|v| v.to_bits()).collect()
}

/// Values between the extremes, and the extremes.
fn activations(count: usize, random: &mut Random) -> Vec<i8> {
    let mut one = || match random.next() {
        n if n % 4 == 0 => [-127, 127][n as usize / 4 % 2],
        n => (n % 255) as i8,
    };
    (0..count).map(|_| one().max(-127)).collect()
}

#[test]
fn products_are_the_reference() {
    let mut random = Random(3);
    for dtype in TYPES {
        // Rows of one task and of several, and columns that end within a panel.
        for (rows, cols, most) in [(1, 256, 70), (37, 768, 35), (1041, 256, 33), (530, 512, 17)] {
            let m = matrix(dtype, rows, cols, &mut random);
            let values = activations(most * cols, &mut random);
            let want = product(Isa::Scalar, 1, &m, most, &values);
            for isa in tested() {
                for tokens in [13, 15, 16, 17, 23, 24, 32, 33, 41, 64, 70].into_iter().filter(|n| *n <= most)
                {
                    let got = product(isa, 2, &m, tokens, &values);
                    assert!(
                        got == want[..tokens * rows],
                        "{dtype:?}, {rows}x{cols}, {tokens} tokens, {isa:?}"
                    );
                }
            }
        }
    }
}

/// Sums of a whole panel at the ends of i16.
#[test]
fn extremes_fit() {
    for (dtype, byte) in [(DType::I2S, 0xaa), (DType::TQ2_0, 0xaa), (DType::I2S, 0), (DType::TQ2_0, 0)] {
        let mut data = matrix(dtype, 3, 512, &mut Random(1)).data.to_vec();
        match dtype {
            DType::TQ2_0 => data.chunks_exact_mut(66).for_each(|block| block[..64].fill(byte)),
            _ => data[..3 * 128].fill(byte),
        }
        let m = Matrix::new(Bytes::new(data), dtype, 3, 512).unwrap();
        for value in [-127, 127] {
            let values = vec![value; 32 * 512];
            let want = product(Isa::Scalar, 1, &m, 32, &values);
            for isa in tested() {
                assert!(product(isa, 1, &m, 32, &values) == want, "{dtype:?}, {byte}, {value}, {isa:?}");
            }
        }
    }
}

/// The value 2 of Q2_0, in one row of many, has no entry: such products are computed otherwise.
#[test]
fn weights_without_entries_are_multiplied() {
    let mut random = Random(7);
    for dtype in [DType::Q2_0, DType::Q2_0_128] {
        let m = matrix(dtype, 1100, 512, &mut random);
        let values = activations(40 * 512, &mut random);
        let mut data = m.data.to_vec();
        let last = data.len() - 1;
        data[last] |= 0xc0;
        let odd = Matrix::new(Bytes::new(data), dtype, 1100, 512).unwrap();
        for isa in tested() {
            let want = product(Isa::Scalar, 1, &odd, 40, &values);
            assert!(product(isa, 2, &odd, 40, &values) == want, "{dtype:?}, {isa:?}");
            assert_ne!(product(isa, 2, &m, 40, &values), want);
        }
    }
}

#[test]
fn shares_are_tokens_that_are_there() {
    for (isa, dtype) in
        [Isa::Avx2, Isa::Avx512Vbmi].into_iter().flat_map(|isa| TYPES.map(|dtype| (isa, dtype)))
    {
        for tokens in 1..200 {
            let mut done = 0;
            while let Some(Share { tokens: some, lanes }) = share(isa, dtype, tokens - done) {
                assert!(some > 0 && done + some <= tokens, "{isa:?}, {dtype:?}, {tokens} tokens");
                assert!(some % lanes == 0 || done + some == tokens, "{isa:?}, {dtype:?}, {tokens} tokens");
                done += some;
            }
            assert!(tokens - done < 32);
        }
    }
    assert!(share(Isa::Scalar, DType::I2S, 64).is_none() && share(Isa::Avx2, DType::Q4_0, 64).is_none());
}

#[test]
fn turned_activations_are_columns() {
    let mut random = Random(5);
    let pool = Pool::new(2).unwrap();
    for (tokens, cols, lanes) in [(1, 32, 16), (19, 544, 16), (40, 1056, 32)] {
        let values = activations(tokens * cols, &mut random);
        let scales: Vec<f32> = (0..tokens * 2).map(|n| n as f32).collect();
        let row = |t: usize| (&values[t * cols..(t + 1) * cols], &scales[2 * t..2 * t + 2]);
        let mut buffers = super::Buffers::default();
        let turned = turn(&pool, Share { tokens, lanes }, cols, &row, &mut buffers);
        for token in 0..tokens.next_multiple_of(lanes) {
            let (block, lane) = (token / lanes, token % lanes);
            let of_token = |values: &[i8]| -> Vec<i8> { values.chunks(lanes).map(|v| v[lane]).collect() };
            let got = of_token(turned.columns(block));
            let want = if token < tokens { row(token).0.to_vec() } else { vec![0; cols] };
            assert_eq!(got, want);
            let want = if token < tokens { row(token).1 } else { &[0.0; 2] };
            assert_eq!([0, 1].map(|tile| turned.scales(block, tile)[lane]), want);
        }
    }
}
