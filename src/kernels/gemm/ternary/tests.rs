use super::{Columns, FEW, Gates, MOST_TOKENS, gate_up, matmul_columns, validate};
use crate::base::{Bytes, Status};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::tiles;
use crate::kernels::gemm::tokens::{Activations, matmul, padded};
use crate::kernels::rows::quantize::{QuantRow, quantize_row};
use crate::kernels::simd::isa::tested;
use crate::kernels::{DType, Isa, Matrix, Pool, available, isa};
use half::f16;

const TYPES: [DType; 4] = [DType::I2S, DType::TQ1_0, DType::TQ2_0, DType::Ternary];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Packs codes into the blocks of each type; written independently of the kernels' own reading.
fn pack(dtype: DType, rows: usize, cols: usize, code: &mut dyn FnMut() -> u8) -> (Matrix, Vec<u8>) {
    let codes: Vec<u8> = (0..rows * cols).map(|_| code()).collect();
    let mut data = Vec::new();
    if dtype == DType::I2S {
        for block in codes.chunks_exact(128) {
            data.extend(
                (0..32).map(|p| block[p] << 6 | block[p + 32] << 4 | block[p + 64] << 2 | block[p + 96]),
            );
        }
        data.extend(
            [0.0371f32.to_le_bytes(), [0; 4], [0; 4], [0; 4], [0; 4], [0; 4], [0; 4], [0xff; 4]].concat(),
        );
    } else if dtype == DType::Ternary {
        for row in codes.chunks_exact(cols) {
            let mut row = row.to_vec();
            row.resize(padded(cols), 1);
            for block in row.chunks_exact(128) {
                data.extend(
                    (0..32).map(|p| block[p] << 6 | block[p + 32] << 4 | block[p + 64] << 2 | block[p + 96]),
                );
            }
        }
        data.extend((0..rows).flat_map(|row| row_scale(row).to_le_bytes()));
    } else if dtype == DType::TQ1_0 {
        for (n, block) in codes.chunks_exact(256).enumerate() {
            // Bytes of a part, and the first of its columns.
            for (bytes, first) in [(32, 0), (16, 160), (4, 240)] {
                data.extend((0..bytes).map(|m| {
                    let end = if bytes == 4 { 256 } else { first + 5 * bytes };
                    let digits =
                        (0..5).map(|n| block[..end].get(first + n * bytes + m).copied().unwrap_or(0));
                    (256 * digits.fold(0, |number, digit| 3 * number + digit as u32)).div_ceil(243) as u8
                }));
            }
            data.extend(block_scale(n).to_le_bytes());
        }
    } else {
        for (n, block) in codes.chunks_exact(256).enumerate() {
            for half in block.chunks_exact(128) {
                data.extend(
                    (0..32).map(|m| half[m] | half[m + 32] << 2 | half[m + 64] << 4 | half[m + 96] << 6),
                );
            }
            data.extend(block_scale(n).to_le_bytes());
        }
    }
    (Matrix::new(Bytes::new(data), dtype, rows, cols).unwrap(), codes)
}

fn block_scale(n: usize) -> f16 {
    f16::from_f32(0.01 + (n % 17) as f32 * 0.003)
}

fn row_scale(row: usize) -> f32 {
    0.0371 + row as f32 * 0.003
}

/// `tokens` rows, as wide as weights of `cols` columns need them, padded with zeros.
fn activations(tokens: usize, cols: usize, mut value: impl FnMut() -> i8) -> Vec<i8> {
    let mut values = vec![0; tokens * padded(cols)];
    values.chunks_exact_mut(padded(cols)).for_each(|row| row[..cols].iter_mut().for_each(|v| *v = value()));
    values
}

fn product(threads: usize, isa: Isa, values: &[i8], rows: &[QuantRow], weights: &[&Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let cols = padded(weights[0].cols);
    let mut out = vec![f32::NAN; rows.len() * weights.iter().map(|m| m.rows).sum::<usize>()];
    let (mut stride, mut parts) = (0, Vec::new());
    for matrix in weights {
        parts.push(Part { matrix, column: stride });
        stride += matrix.rows;
    }
    matmul(&pool, isa, &Activations { values, rows, cols }, &parts, stride, &mut out);
    out.iter().map(|v| v.to_bits()).collect()
}

fn quant_rows(values: &[i8], cols: usize) -> Vec<QuantRow> {
    let row = |(n, row): (usize, &[i8])| QuantRow {
        scale: 3.0 + n as f32 * 0.77,
        sum: row.iter().map(|v| *v as i32).sum(),
    };
    values.chunks_exact(cols).enumerate().map(row).collect()
}

#[test]
fn instruction_sets_threads_and_company_change_no_bit() {
    let mut random = Random(5);
    for dtype in TYPES {
        for (cols, rows_a, rows_b) in
            [(256, 37, 3), (768, 5, 64), (2560, 33, 1), (8192, 6, 3), (8640, 5, 34), (65, 9, 2)]
        {
            if dtype != DType::Ternary && cols % 256 != 0 {
                continue;
            }
            let mut code = || (random.next() % 3) as u8;
            let (a, _) = pack(dtype, rows_a, cols, &mut code);
            let (b, _) = pack(dtype, rows_b, cols, &mut code);
            let weights = [&a, &b];
            let tokens = 11;
            let values = activations(tokens, cols, || random.next() as i8);
            let width = padded(cols);
            let rows = quant_rows(&values, width);
            let all = product(1, Isa::Scalar, &values, &rows, &weights);
            for (threads, isa) in (1..=3).flat_map(|n| tested().into_iter().map(move |isa| (n, isa))) {
                let got = product(threads, isa, &values, &rows, &weights);
                assert_eq!(all, got, "{dtype:?}, {cols}, {threads}, {isa:?}");
            }
            let stride = rows_a + rows_b;
            for (start, count) in [(0, 1), (4, 1), (2, 2), (3, 3), (5, 4), (1, 5)] {
                for isa in tested() {
                    let part = &values[start * width..(start + count) * width];
                    let some = product(2, isa, part, &rows[start..start + count], &weights);
                    assert_eq!(
                        some,
                        all[start * stride..(start + count) * stride],
                        "{dtype:?}, {cols}, {count}, {isa:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_number_of_tokens_gives_the_same_bits() {
    let mut random = Random(21);
    for dtype in TYPES {
        // Sizes close to the widths and depths that are unpacked at once, and one block less or more than whole
        // rounds.
        for (cols, rows) in [(256, 1), (1280, 31), (1792, 33), (2304, 47), (16384, 3), (1100, 17), (4224, 2)]
        {
            if dtype != DType::Ternary && cols % 256 != 0 {
                continue;
            }
            let (m, _) = pack(dtype, rows, cols, &mut || (random.next() % 3) as u8);
            let most = if cols > 4096 { 9 } else { 40 };
            let values = activations(most, cols, || random.next() as i8);
            let width = padded(cols);
            let quants = quant_rows(&values, width);
            let want = product(1, Isa::Scalar, &values, &quants, &[&m]);
            for (tokens, isa) in
                (1..=most).flat_map(|n| tested().into_iter().skip(1).map(move |isa| (n, isa)))
            {
                let got = product(1, isa, &values[..tokens * width], &quants[..tokens], &[&m]);
                assert_eq!(got, want[..tokens * rows], "{dtype:?}, {rows}x{cols}, {tokens} tokens, {isa:?}");
            }
        }
    }
}

/// Codes in base 3 give the bits of the same codes in two bits each.
#[test]
fn packing_in_base_3_changes_no_bit() {
    let [one, other] = [DType::TQ1_0, DType::TQ2_0].map(|dtype| {
        let mut random = Random(33);
        pack(dtype, 35, 1536, &mut || (random.next() % 3) as u8).0
    });
    let mut random = Random(34);
    let values = activations(20, 1536, || random.next() as i8);
    let rows = quant_rows(&values, 1536);
    for isa in tested() {
        for tokens in [1, 4, 20] {
            let [got, want] =
                [&one, &other].map(|m| product(1, isa, &values[..1536 * tokens], &rows[..tokens], &[m]));
            assert_eq!(got, want, "{isa:?}, {tokens}");
        }
    }
}

#[test]
fn is_the_product_of_the_real_weights() {
    let mut random = Random(9);
    let pool = Pool::new(2).unwrap();
    for dtype in TYPES {
        let (m, _) = pack(dtype, 70, 512, &mut || (random.next() % 3) as u8);
        let x: Vec<f32> = (0..5 * 512).map(|_| random.next() as f32 / (1u32 << 30) as f32 - 1.0).collect();
        let mut values = vec![0i8; x.len()];
        let rows: Vec<_> =
            x.chunks(512).zip(values.chunks_mut(512)).map(|(x, q)| quantize_row(isa(), x, q)).collect();
        let mut out = vec![0.0; 5 * 70];
        let part = [Part { matrix: &m, column: 0 }];
        matmul(&pool, isa(), &Activations { values: &values, rows: &rows, cols: 512 }, &part, 70, &mut out);
        let mut w = vec![0.0; 512];
        for i in 0..70 {
            dequantize_row(isa(), &m, i, &mut w);
            for t in 0..5 {
                let q = &values[t * 512..(t + 1) * 512];
                let want: f64 =
                    q.iter().zip(&w).map(|(q, w)| *q as f64 * *w as f64).sum::<f64>() / rows[t].scale as f64;
                let got = out[t * 70 + i] as f64;
                assert!((got - want).abs() < 1e-5 * want.abs().max(0.1), "{dtype:?}: {got} for {want}");
            }
        }
    }
}

#[test]
fn extremes_do_not_overflow() {
    for dtype in TYPES {
        for cols in [2048, 8192, 16384] {
            for code in [0u8, 1, 2] {
                let (m, _) = pack(dtype, 5, cols, &mut || code);
                for value in [-127i8, 127] {
                    // Enough tokens to run every form, and one left over.
                    let values = vec![value; 17 * cols];
                    let rows = quant_rows(&values, cols);
                    let want = product(1, Isa::Scalar, &values, &rows, &[&m]);
                    for isa in tested() {
                        let all = product(1, isa, &values, &rows, &[&m]);
                        assert_eq!(want, all, "{dtype:?} {cols} {code} {value} {isa:?}");
                        for tokens in 1..=8 {
                            let few = product(1, isa, &values[..tokens * cols], &rows[..tokens], &[&m]);
                            let say = format!("{dtype:?} {cols} {code} {value}, {tokens}, {isa:?}");
                            assert_eq!(few, want[..tokens * 5], "{say}");
                        }
                    }
                    if dtype == DType::I2S {
                        let dot = (code as i64 - 1) * value as i64 * cols as i64;
                        let exact = (dot as f32 * (0.0371f32 / rows[0].scale)).to_bits();
                        assert_eq!(want[..5], [exact; 5]);
                    }
                }
            }
        }
    }
}

#[test]
fn dequantized_rows_are_the_codes() {
    let mut random = Random(3);
    for dtype in TYPES {
        let cols = 768;
        let (m, codes) = pack(dtype, 4, cols, &mut || (random.next() % 3) as u8);
        let mut out = vec![0.0; cols];
        for row in 0..4 {
            dequantize_row(isa(), &m, row, &mut out);
            for i in 0..cols {
                let scale = match dtype {
                    DType::I2S => 0.0371,
                    DType::Ternary => row_scale(row),
                    _ => block_scale((row * cols + i) / 256).to_f32(),
                };
                assert_eq!(out[i], (codes[row * cols + i] as f32 - 1.0) * scale, "{dtype:?} {row} {i}");
            }
        }
    }
}

#[test]
fn invalid_codes_and_scales_are_refused() {
    let pool = Pool::new(2).unwrap();
    for dtype in TYPES {
        // Any bytes are codes in base 3.
        let some: &[_] = if dtype == DType::TQ1_0 { &[] } else { &[0, 1, 255, 256, 700, 767, 768, 3071] };
        for &place in some {
            let mut n = 0;
            let mut code = |bad| {
                n += 1;
                if n - 1 == bad { 3 } else { (n % 3) as u8 }
            };
            let (m, _) = pack(dtype, 4, 768, &mut || code(place));
            let error = validate(&pool, &m).unwrap_err();
            assert_eq!(error.status, Status::BadModel);
            assert!(error.message.contains(&format!("row {}", place / 768)), "{}", error.message);
        }
        let (m, _) = pack(dtype, 4, 768, &mut || 2);
        validate(&pool, &m).unwrap();
        let mut data = m.data.to_vec();
        match dtype {
            DType::I2S | DType::Ternary => data[768..772].copy_from_slice(&f32::NAN.to_le_bytes()),
            DType::TQ1_0 => data[52..54].copy_from_slice(&f16::INFINITY.to_le_bytes()),
            _ => data[64..66].copy_from_slice(&f16::INFINITY.to_le_bytes()),
        }
        let m = Matrix::new(Bytes::new(data), dtype, 4, 768).unwrap();
        assert!(validate(&pool, &m).unwrap_err().message.contains("scale"));
        if dtype == DType::TQ1_0 {
            continue;
        }
        // The only bad row among many tasks is found.
        let mut n = 0;
        let mut code = || {
            n += 1;
            if n == 411 * 768 { 3 } else { (n % 3) as u8 }
        };
        let (m, _) = pack(dtype, 500, 768, &mut code);
        assert!(validate(&pool, &m).unwrap_err().message.contains("row 410"));
    }
}

/// Any number of rows and tokens, on a model of tiles, and on tiles if the machine has them.
#[test]
fn tiles_are_the_reference() {
    let mut random = Random(11);
    for dtype in TYPES {
        for (cols, counts) in [
            (256, 1..=40),
            (128, 15..=17),
            (384, 1..=3),
            (640, 33..=34),
            (2560, 17..=17),
            (1536, 49..=49),
            (65, 5..=5),
        ] {
            if dtype.has_scaled_blocks() && cols % 256 != 0 || dtype == DType::I2S && cols % 128 != 0 {
                continue;
            }
            let mut code = || (random.next() % 3) as u8;
            let (a, _) = pack(dtype, 37, cols, &mut code);
            let (b, _) = pack(dtype, 16, cols, &mut code);
            let weights = [&a, &b];
            let values = activations(*counts.end(), cols, || random.next() as i8);
            let rows = quant_rows(&values, padded(cols));
            let all = product(1, Isa::Scalar, &values, &rows, &weights);
            for tokens in counts {
                let (values, rows) = (&values[..tokens * padded(cols)], &rows[..tokens]);
                let want = &all[..tokens * 53];
                for isa in &available()[1..] {
                    let model = tiles::modelling(*isa, || product(1, Isa::Amx, values, rows, &weights));
                    assert_eq!(model, want, "the model, {isa:?}, {dtype:?}, {cols}, {tokens}");
                }
                if available().contains(&Isa::Amx) {
                    let got = product(2, Isa::Amx, values, rows, &weights);
                    assert_eq!(got, want, "{dtype:?}, {cols}, {tokens}");
                }
            }
        }
    }
}

#[test]
fn gates_that_are_shut_change_no_product_that_counts() {
    let mut random = Random(78);
    let (rows, cols) = (1500, 512);
    for (likely, dtype) in
        [1, 2, 9].into_iter().flat_map(|n| [DType::I2S, DType::TQ1_0].map(|dtype| (n, dtype)))
    {
        // Values of one sign, and gates with more -1 than +1: most are shut.
        let mut gates = || if random.next() % 10 < likely { 2 } else { (random.next() % 2) as u8 };
        let (gate, _) = pack(dtype, rows, cols, &mut gates);
        let (up, _) = pack(dtype, rows, cols, &mut || (random.next() % 3) as u8);
        let values = activations(7, cols, || (random.next() % 90) as i8);
        let quants = quant_rows(&values, cols);
        for (tokens, isa) in (1..=FEW).flat_map(|n| tested().into_iter().map(move |isa| (n, isa))) {
            let x = Activations { values: &values[..tokens * cols], rows: &quants[..tokens], cols };
            let want = product(1, Isa::Scalar, x.values, x.rows, &[&gate, &up]);
            let mut out = vec![f32::NAN; tokens * 2 * rows];
            let parts = [Part { matrix: &gate, column: 0 }, Part { matrix: &up, column: rows }];
            let values = (0..tokens * rows).map(|n| f32::from_bits(want[2 * (n / rows) * rows + n % rows]));
            let shut = values.filter(|gate| *gate <= 0.0).count();
            let (pool, gates) = (Pool::new(2).unwrap(), Gates::default());
            gate_up(&pool, isa, &x, parts, 2 * rows, &gates, &mut out);
            assert_eq!(gates.counts(), [tokens * rows, shut].map(|n| n as u64));
            // Again, now that the product knows how many rows it may leave out.
            gate_up(&pool, isa, &x, parts, 2 * rows, &gates, &mut out);
            for (t, row) in (0..tokens).flat_map(|t| (0..rows).map(move |row| (t, row))) {
                let at = 2 * t * rows + row;
                assert_eq!(out[at].to_bits(), want[at], "gate {row} of {t}, {isa:?}");
                let product = f32::from_bits(want[at]).max(0.0).powi(2) * f32::from_bits(want[at + rows]);
                assert_eq!(out[at].max(0.0).powi(2) * out[at + rows], product, "{row} of {t}, {isa:?}");
            }
        }
    }
}

#[test]
fn products_by_columns_are_the_reference() {
    let mut random = Random(79);
    for (dtype, rows, cols) in [
        (DType::I2S, 300, 768),
        (DType::Ternary, 257, 384),
        (DType::I2S, 31, 128),
        (DType::Ternary, 600, 4864),
    ] {
        let (m, _) = pack(dtype, rows, cols, &mut || (random.next() % 3) as u8);
        let columns = Columns::new(&Pool::new(2).unwrap(), &m).unwrap();
        for (tokens, share) in (1..=MOST_TOKENS).flat_map(|n| [0, 3, 40, 100].map(|share| (n, share))) {
            let mut next = || if random.next() % 100 < share { random.next() as i8 } else { 0 };
            let values = activations(tokens, cols, &mut next);
            let rows_of = quant_rows(&values, cols);
            let want = product(1, Isa::Scalar, &values, &rows_of, &[&m]);
            for (threads, isa) in
                [1, 3].into_iter().flat_map(|n| tested().into_iter().map(move |isa| (n, isa)))
            {
                let x = Activations { values: &values, rows: &rows_of, cols: padded(cols) };
                let mut out = vec![f32::NAN; tokens * rows];
                matmul_columns(&Pool::new(threads).unwrap(), isa, &x, &columns, &mut out);
                let got: Vec<_> = out.iter().map(|v| v.to_bits()).collect();
                assert_eq!(got, want, "{dtype:?} {isa:?}, {tokens} tokens, {share}%");
            }
        }
    }
}
