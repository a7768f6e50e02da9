use super::{block_of, matmul};
use crate::base::Bytes;
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::formats::decode::decode;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::tiles;
use crate::kernels::pack::tq2_0_block;
use crate::kernels::rows::quantize_blocks::{BlockActivations, columns_of_sum, quantize_blocks};
use crate::kernels::simd::isa::tested;
use crate::kernels::{DType, Isa, Matrix, Pool, available, isa};
use half::f16;
use proptest::prelude::*;

const TYPES: [DType; 24] = [
    DType::Q1_0,
    DType::Q2_0,
    DType::Q2_0_128,
    DType::PTQ1_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::TQ1_0_256,
    DType::TQ2_0_256,
    DType::MXFP4,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
];

/// Offsets of the f16 in a block.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0_256 => &[52],
        DType::TQ2_0_256 => &[64],
        DType::PTQ1_0 => &[26],
        DType::MXFP4 => &[],
        _ => &[0],
    }
}

/// Sets the scales of all blocks to one that `half` gives.
fn set_scales(dtype: DType, data: &mut [u8], mut half: impl FnMut() -> f16) {
    for block in data.chunks_exact_mut(dtype.block().1) {
        for at in halves(dtype) {
            block[*at..at + 2].copy_from_slice(&half().to_le_bytes());
        }
        if dtype == DType::MXFP4 {
            block[0] = (half().to_f32().to_bits() >> 23) as u8;
        }
    }
}

/// Number of columns that makes whole blocks of weights and of activations.
fn whole(dtype: DType) -> usize {
    dtype.block().0.max(block_of(dtype).unwrap())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u16 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 48) as u16
    }
}

/// Random codes, or all bits set or unset; scales of every size, with subnormal ones, zeros and sometimes an
/// infinity.
fn matrix(dtype: DType, rows: usize, cols: usize, seed: u64) -> Matrix {
    let (elements, bytes) = dtype.block();
    let mut random = Random(seed);
    let mut data = vec![0u8; rows * (cols / elements) * bytes];
    for block in data.chunks_exact_mut(bytes) {
        match random.next() % 8 {
            0 => block.fill(0xff),
            1 => block.fill(0x80),
            2 => block.fill(0x7f),
            _ => block.fill_with(|| random.next() as u8),
        }
        for at in halves(dtype) {
            let bits = match random.next() % 4 {
                0 => random.next() & 0x83ff,
                1 => 0x2000 | random.next() & 0x8fff,
                _ if random.next().is_multiple_of(64) => 0x7bff + random.next() % 2,
                _ => random.next() & 0xbfff,
            };
            block[*at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    }
    Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap()
}

/// Activations of tokens; a few are extreme.
fn activations(tokens: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed ^ 0x5555);
    let mut one = || match random.next() % 512 {
        0 => f32::NAN,
        1 => 1e30,
        2 => f32::from_bits(3),
        3 if random.next().is_multiple_of(64) => f32::INFINITY,
        n if n % 8 == 0 => 127.0,
        _ => random.next() as i16 as f32 / 4096.0,
    };
    (0..tokens * cols).map(|_| one()).collect()
}

struct Quantized {
    values: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
    cols: usize,
    block: usize,
}

impl Quantized {
    fn new(block: usize, cols: usize, x: &[f32]) -> Self {
        let mut values = vec![0; x.len()];
        let (mut scales, mut sums) = (vec![0.0; x.len() / block], vec![0; x.len() / columns_of_sum(block)]);
        // Rows are whole blocks, so all rows can be quantized as one.
        quantize_blocks(Isa::Scalar, block, x, &mut values, &mut scales, &mut sums);
        Self { values, scales, sums, cols, block }
    }

    fn rows(&self, tokens: std::ops::Range<usize>) -> BlockActivations<'_> {
        let per = |len: usize| tokens.start * self.cols / len..tokens.end * self.cols / len;
        BlockActivations {
            values: &self.values[per(1)],
            scales: &self.scales[per(self.block)],
            sums: &self.sums[per(columns_of_sum(self.block))],
            cols: self.cols,
            block: self.block,
        }
    }
}

/// Bits, with every NaN as the same one: IEEE 754 does not say which NaN an operation returns.
fn bits(out: &[f32]) -> Vec<u32> {
    out.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

fn product(threads: usize, isa: Isa, x: &BlockActivations, weights: &[&Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let stride = weights.iter().map(|m| m.rows).sum::<usize>();
    let mut column = 0;
    let parts: Vec<Part> = weights
        .iter()
        .map(|matrix| {
            column += matrix.rows;
            Part { matrix, column: column - matrix.rows }
        })
        .collect();
    let mut out = vec![1.0; x.tokens() * stride];
    matmul(&pool, isa, x, &parts, stride, &mut out);
    bits(&out)
}

/// The sum of the values that were rounded to int8, except for f32's own rounding.
#[test]
fn agrees_with_f64() {
    for dtype in TYPES {
        let (block, rows, cols) = (block_of(dtype).unwrap(), 5, 1024);
        let mut random = Random(9);
        let mut data: Vec<u8> =
            (0..dtype.byte_len(rows, cols).unwrap()).map(|_| random.next() as u8).collect();
        set_scales(dtype, &mut data, || f16::from_f32(0.01 + random.next() as f32 / 1e6));
        let m = Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap();
        let x: Vec<f32> = (0..2 * cols).map(|_| random.next() as i16 as f32 / 4096.0).collect();
        let quantized = Quantized::new(block, cols, &x);
        let out = product(1, isa(), &quantized.rows(0..2), &[&m]);
        let mut w = vec![0.0; cols];
        for row in 0..rows {
            dequantize_row(Isa::Scalar, &m, row, &mut w);
            for t in 0..2 {
                let x = |i: usize| {
                    let at = t * cols + i;
                    quantized.values[at] as f64 * quantized.scales[at / block] as f64
                };
                let terms: Vec<f64> = w.iter().enumerate().map(|(i, w)| *w as f64 * x(i)).collect();
                let size: f64 = terms.iter().map(|v| v.abs()).sum();
                let got = f32::from_bits(out[t * rows + row]) as f64;
                assert!((got - terms.iter().sum::<f64>()).abs() < 2e-6 * size, "{dtype:?} {row} {t}");
            }
        }
    }
}

/// Codes in base 3 give the bits of the same codes in two bits each.
#[test]
fn packing_in_base_3_changes_no_bit() {
    for (dtype, other) in [(DType::PTQ1_0, DType::Q2_0_128), (DType::TQ1_0_256, DType::TQ2_0_256)] {
        let m = matrix(dtype, 37, 1024, 8);
        let ((elements, bytes), at) = (dtype.block(), halves(dtype)[0]);
        let mut data = Vec::new();
        for block in m.data.chunks_exact(bytes) {
            let codes = decode(dtype, block).values.map(|value| (value + 1) as u8);
            let mut packed = [0; 64];
            match other {
                DType::TQ2_0_256 => tq2_0_block(&codes, &mut packed),
                _ => packed.iter_mut().zip(codes.as_chunks::<4>().0).for_each(|(out, codes)| {
                    *out = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6;
                }),
            }
            let (packed, scale) = (&packed[..elements / 4], &block[at..at + 2]);
            data.extend_from_slice(if other == DType::TQ2_0_256 { packed } else { scale });
            data.extend_from_slice(if other == DType::TQ2_0_256 { scale } else { packed });
        }
        let two_bits = Matrix::new(Bytes::new(data), other, 37, 1024).unwrap();
        let x = Quantized::new(block_of(dtype).unwrap(), 1024, &activations(20, 1024, 9));
        for isa in tested() {
            for tokens in [1, 5, 20] {
                let [got, want] = [&m, &two_bits].map(|m| product(1, isa, &x.rows(0..tokens), &[m]));
                assert_eq!(got, want, "{dtype:?} {isa:?} {tokens}");
            }
        }
    }
}

/// Uses so many activations that several threads arrange them.
#[test]
fn many_activations_are_arranged_as_few() {
    for dtype in [DType::Q8_0, DType::Q1_0, DType::Q2_0] {
        let m = matrix(dtype, 3, 1 << 14, 6);
        let x = Quantized::new(32, m.cols, &activations(12, m.cols, 7));
        let want = product(1, Isa::Scalar, &x.rows(0..12), &[&m]);
        for isa in tested() {
            assert_eq!(want, product(2, isa, &x.rows(0..12), &[&m]), "{dtype:?} {isa:?}");
        }
    }
}

#[test]
fn threads_and_company_change_no_bit() {
    for dtype in TYPES {
        let block = block_of(dtype).unwrap();
        let cols = 3 * whole(dtype);
        let (a, b) = (matrix(dtype, 35, cols, 1), matrix(dtype, 7, cols, 2));
        let weights = [&a, &b];
        let x = Quantized::new(block, cols, &activations(16, cols, 4));
        let all = product(1, Isa::Scalar, &x.rows(0..16), &weights);
        for (isa, threads) in tested().into_iter().flat_map(|isa| (1..=3).map(move |n| (isa, n))) {
            assert_eq!(all, product(threads, isa, &x.rows(0..16), &weights), "{dtype:?}, {isa:?}, {threads}");
        }
        for (start, count) in (1..16).map(|count| (16 - count, count)) {
            let some = product(2, isa(), &x.rows(start..start + count), &weights);
            assert_eq!(some, all[start * 42..(start + count) * 42], "{dtype:?}, {start}, {count}");
        }
    }
}

/// Tasks with few tokens get longer with more rows and with fewer threads.
#[test]
fn longer_tasks_change_no_bit() {
    for dtype in TYPES {
        let block = block_of(dtype).unwrap();
        let cols = whole(dtype);
        let (a, b) = (matrix(dtype, 1061, cols, 5), matrix(dtype, 37, cols, 6));
        let weights = [&a, &b];
        let x = Quantized::new(block, cols, &activations(4, cols, 7));
        let all = product(1, isa(), &x.rows(0..4), &weights);
        for (threads, count) in [(1, 1), (2, 1), (1, 2), (1, 3), (2, 3)] {
            let some = product(threads, isa(), &x.rows(0..count), &weights);
            assert_eq!(some, all[..count * 1098], "{dtype:?}, {threads}, {count}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn products_are_the_reference(
        seed in any::<u64>(), dtype in 0..TYPES.len(), rows in 1usize..70, width in 1usize..2100, tokens in 1usize..20,
    ) {
        is_the_reference(seed, TYPES[dtype], rows, width, tokens);
    }
}

fn is_the_reference(seed: u64, dtype: DType, rows: usize, width: usize, tokens: usize) {
    let block = block_of(dtype).unwrap();
    let cols = width.next_multiple_of(whole(dtype));
    let m = matrix(dtype, rows, cols, seed);
    let x = Quantized::new(block, cols, &activations(tokens, cols, seed));
    let want = product(1, Isa::Scalar, &x.rows(0..tokens), &[&m]);
    for isa in tested() {
        let got = product(2, isa, &x.rows(0..tokens), &[&m]);
        assert_eq!(want, got, "{isa:?} {dtype:?} {rows}x{cols} {tokens}");
    }
}

/// A regression: one block with a few tokens.
#[test]
fn a_row_of_one_block_is_the_reference() {
    for dtype in TYPES {
        is_the_reference(0, dtype, 1, 1, 5);
    }
}

/// The largest codes, scales and values that exist, and the smallest: no intermediate sum overflows.
#[test]
fn extremes_are_the_reference() {
    for dtype in TYPES {
        let (block, (_, bytes)) = (block_of(dtype).unwrap(), dtype.block());
        let cols = 5 * whole(dtype);
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut data = vec![byte; 17 * 5 * bytes];
            set_scales(dtype, &mut data, || f16::ONE);
            // Q6_K and Q3_K with extreme scales and codes of another kind.
            let m = Matrix::new(Bytes::new(data.clone()), dtype, 17, cols).unwrap();
            let scales = match dtype {
                DType::Q6_K => 192..208,
                DType::Q3_K => 96..108,
                DType::IQ4_XS => 2..8,
                DType::IQ2_XS => 66..74,
                DType::IQ2_S => 74..82,
                DType::IQ3_S => 106..110,
                _ => 0..0,
            };
            data.chunks_exact_mut(bytes).for_each(|b| b[scales.clone()].fill(!byte));
            let other = Matrix::new(Bytes::new(data), dtype, 17, cols).unwrap();
            let mut x = Quantized::new(block, cols, &vec![1.0; 14 * cols]);
            // The least value that `quantize_blocks` can produce; products with K-quants would also accept
            // -128.
            let k_quant =
                matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K);
            let least = if k_quant { -128 } else { -127 };
            for (i, value) in x.values.iter_mut().enumerate() {
                *value = match i / cols {
                    0 => least,
                    1 => 127,
                    2 => [127, least][i % 2],
                    3 => [127, least][i / 2 % 2],
                    4 => [127, least][i / 16 % 2],
                    5 => [127, least][i / 32 % 2],
                    6 => [127, least][i / 4 % 2],
                    n => n as i8,
                };
            }
            let columns = columns_of_sum(block);
            let sums = x.values.chunks(columns).map(|v| v.iter().map(|v| *v as i16).sum());
            x.sums = sums.collect();
            for tokens in [0..1, 1..2, 0..2, 2..3, 3..6, 0..4, 0..9, 0..12, 0..14] {
                let want = product(1, Isa::Scalar, &x.rows(tokens.clone()), &[&m, &other]);
                for isa in tested() {
                    let got = product(1, isa, &x.rows(tokens.clone()), &[&m, &other]);
                    assert_eq!(want, got, "{dtype:?} {isa:?} of {byte:#x}, {tokens:?}");
                }
            }
        }
    }
}

/// Any number of rows and tokens, on a model of tiles, and on tiles if the machine has them.
#[test]
fn tiles_are_the_reference() {
    for dtype in TYPES.into_iter().filter(|dtype| tiles::pays(Isa::Amx, *dtype, 64)) {
        let block = block_of(dtype).unwrap();
        for (blocks, counts) in [(1, 1..=41), (3, 15..=17), (33, 16..=16), (70, 33..=34), (5, 48..=50)] {
            let columns = block * if block == 32 { blocks } else { blocks.min(5) };
            let cols = columns.next_multiple_of(dtype.block().0);
            let (a, b) = (matrix(dtype, 37, cols, 21), matrix(dtype, 16, cols, 22));
            let x = Quantized::new(block, cols, &activations(*counts.end(), cols, 23));
            let all = product(1, Isa::Scalar, &x.rows(0..*counts.end()), &[&a, &b]);
            for tokens in counts {
                let (rows, want) = (x.rows(0..tokens), &all[..tokens * 53]);
                for isa in &available()[1..] {
                    let model = tiles::modelling(*isa, || product(1, Isa::Amx, &rows, &[&a, &b]));
                    assert_eq!(model, want, "the model, {isa:?}, {dtype:?}, {cols}, {tokens}");
                }
                if available().contains(&Isa::Amx) {
                    let got = product(2, Isa::Amx, &rows, &[&a, &b]);
                    assert_eq!(got, want, "{dtype:?}, {cols}, {tokens}");
                }
            }
        }
    }
}
