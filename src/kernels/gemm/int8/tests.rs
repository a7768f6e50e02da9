use super::{MAX_COLS, pack};
use crate::base::{Bytes, Status};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::formats::panels::{SIDE, padded};
use crate::kernels::gemm::tiles;
use crate::kernels::gemm::tokens::{Activations, matmul};
use crate::kernels::pack::requantize::quantize;
use crate::kernels::rows::hadamard::rotate;
use crate::kernels::rows::quantize::QuantRow;
use crate::kernels::simd::isa::tested;
use crate::kernels::{DType, Isa, Matrix, Pool, available};

struct Random(u64);

impl Random {
    /// A random value from -127 to 127.
    fn next(&mut self) -> i8 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as i8).max(-127)
    }

    /// A matrix and its values, `[rows, cols]`.
    fn matrix(&mut self, rows: usize, cols: usize) -> (Matrix, Vec<i8>) {
        let values: Vec<i8> = (0..rows * cols).map(|_| self.next()).collect();
        (made(&values, rows, cols), values)
    }
}

fn made(values: &[i8], rows: usize, cols: usize) -> Matrix {
    let fill = |row: usize, out: &mut [i8]| {
        out.copy_from_slice(&values[row * cols..(row + 1) * cols]);
        Ok(scale(row))
    };
    pack(&Pool::new(2).unwrap(), rows, cols, &fill).unwrap()
}

fn scale(row: usize) -> f32 {
    0.0371 + row as f32 * 0.003
}

/// `tokens` rows, as wide as weights of `cols` columns need them, with their scales and sums.
fn activations(tokens: usize, cols: usize, mut value: impl FnMut() -> i8) -> (Vec<i8>, Vec<QuantRow>) {
    let mut values = vec![0; tokens * padded(cols)];
    let rows = values.chunks_exact_mut(padded(cols)).enumerate().map(|(n, row)| {
        row[..cols].iter_mut().for_each(|v| *v = value());
        QuantRow { scale: 3.0 + n as f32 * 0.77, sum: row.iter().map(|v| *v as i32).sum() }
    });
    let rows = rows.collect();
    (values, rows)
}

/// Bits of the product. Before the columns of each matrix there is one that must not change.
fn product(threads: usize, isa: Isa, values: &[i8], rows: &[QuantRow], weights: &[&Matrix]) -> Vec<u32> {
    let pool = Pool::new(threads).unwrap();
    let (mut stride, mut parts) = (0, Vec::new());
    for matrix in weights {
        parts.push(Part { matrix, column: stride + 1 });
        stride += 1 + matrix.rows;
    }
    let mut out = vec![777.0; rows.len() * stride];
    let x = Activations { values, rows, cols: padded(weights[0].cols) };
    matmul(&pool, isa, &x, &parts, stride, &mut out);
    for (row, part) in out.chunks_exact(stride).flat_map(|row| parts.iter().map(move |part| (row, part))) {
        assert_eq!(row[part.column - 1], 777.0);
    }
    out.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn the_reference_is_exact() {
    let mut random = Random(3);
    let (m, weights) = random.matrix(37, 200);
    let (values, rows) = activations(5, 200, || random.next());
    let got = product(1, Isa::Scalar, &values, &rows, &[&m]);
    for (t, i) in (0..5).flat_map(|t| (0..37).map(move |i| (t, i))) {
        let x = &values[t * padded(200)..][..200];
        let dot: i32 = x.iter().zip(&weights[i * 200..]).map(|(x, w)| *x as i32 * *w as i32).sum();
        let want = dot as f32 * (scale(i) * (1.0 / rows[t].scale));
        assert_eq!(got[t * 38 + 1 + i], want.to_bits(), "{t} {i}");
    }
}

#[test]
fn instruction_sets_threads_and_company_change_no_bit() {
    let mut random = Random(5);
    for (cols, rows_a, rows_b) in
        [(256, 37, 3), (768, 5, 64), (2560, 33, 1), (1920, 16, 32), (65, 9, 2), (1, 1, 48)]
    {
        let weights = [random.matrix(rows_a, cols).0, random.matrix(rows_b, cols).0];
        let weights = [&weights[0], &weights[1]];
        let (values, rows) = activations(19, cols, || random.next());
        let stride = 2 + rows_a + rows_b;
        let all = product(1, Isa::Scalar, &values, &rows, &weights);
        for isa in tested() {
            for threads in 1..=3 {
                let got = product(threads, isa, &values, &rows, &weights);
                assert_eq!(all, got, "{cols}, {threads}, {isa:?}");
            }
            for (start, count) in [(0, 1), (4, 1), (2, 2), (3, 3), (5, 4), (1, 5), (7, 6), (9, 7), (2, 17)] {
                let part = &values[start * padded(cols)..(start + count) * padded(cols)];
                let some = product(2, isa, part, &rows[start..start + count], &weights);
                assert_eq!(some, all[start * stride..(start + count) * stride], "{cols}, {count}, {isa:?}");
            }
        }
    }
}

/// Any number of rows and tokens, on a model of tiles, and on tiles if the machine has them.
#[test]
fn tiles_are_the_reference() {
    let mut random = Random(11);
    for (cols, counts) in
        [(256, 1..=40), (128, 15..=17), (384, 1..=3), (640, 33..=34), (2560, 65..=65), (65, 5..=5)]
    {
        let weights = [random.matrix(37, cols).0, random.matrix(16, cols).0, random.matrix(33, cols).0];
        let weights = [&weights[0], &weights[1], &weights[2]];
        let (values, rows) = activations(*counts.end(), cols, || random.next());
        let all = product(1, Isa::Scalar, &values, &rows, &weights);
        for tokens in counts {
            let (values, rows) = (&values[..tokens * padded(cols)], &rows[..tokens]);
            let want = &all[..tokens * 89];
            for isa in &available()[1..] {
                let model = tiles::modelling(*isa, || product(1, Isa::Amx, values, rows, &weights));
                assert_eq!(model, want, "the model, {isa:?}, {cols}, {tokens}");
            }
            if available().contains(&Isa::Amx) {
                assert_eq!(product(2, Isa::Amx, values, rows, &weights), want, "{cols}, {tokens}");
            }
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    for cols in [4096, MAX_COLS] {
        for (w, x) in [(127, 127), (-127, 127), (127, -127), (-127, -127)] {
            let m = made(&vec![w; 17 * cols], 17, cols);
            let (values, rows) = activations(9, cols, || x);
            let want = product(1, Isa::Scalar, &values, &rows, &[&m]);
            let dot = w as i64 * x as i64 * cols as i64;
            assert_eq!(want[1], (dot as f32 * (scale(0) * (1.0 / rows[0].scale))).to_bits());
            for isa in tested() {
                assert_eq!(want, product(1, isa, &values, &rows, &[&m]), "{cols} {w} {x} {isa:?}");
                let one = product(1, isa, &values[..padded(cols)], &rows[..1], &[&m]);
                assert_eq!(want[..18], one, "{cols} {w} {x} {isa:?}");
            }
        }
    }
    let pool = Pool::new(1).unwrap();
    let error = pack(&pool, 1, MAX_COLS + 1, &|_, _: &mut [i8]| Ok(1.0)).err().unwrap();
    assert_eq!(error.status, Status::Unsupported);
}

fn floats(values: &[f32], cols: usize) -> Matrix {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Matrix::new(Bytes::new(data), DType::F32, values.len() / cols, cols).unwrap()
}

#[test]
fn weights_are_rounded_by_the_largest_of_their_row() {
    let pool = Pool::new(2).unwrap();
    let rows = [
        [127.0, 0.5, 1.5, -0.5, -2.5, 126.4, -127.0],
        [0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [-254.0, 1.0, 3.0, -1.0, 5.1, 0.9, 253.1],
        [1e-45, -1e-45, 0.0, 0.0, 0.0, 0.0, 0.0],
        [1e38, -1e38, 1.0, 0.0, 0.0, 0.0, 0.0],
    ];
    let made = quantize(&pool, &floats(rows.as_flattened(), 7), DType::Int8).unwrap();
    let mut row = [f32::NAN; 7];
    let mut of = |n: usize| {
        dequantize_row(Isa::Scalar, &made, n, &mut row);
        row
    };
    assert_eq!(of(0), [127.0, 0.0, 2.0, -0.0, -2.0, 126.0, -127.0]);
    assert_eq!(of(1), [0.0; 7]);
    assert_eq!(of(2), [-254.0, 0.0, 4.0, -0.0, 6.0, 0.0, 254.0]);
    assert!(of(3).iter().all(|w| w.abs() <= 1e-44));
    assert!((of(4)[0] / 1e38 - 1.0).abs() < 1e-6 && of(4)[1] == -of(4)[0] && of(4)[2] == 0.0);
    let bad = quantize(&pool, &floats(&[1.0, f32::INFINITY], 2), DType::Int8).err().unwrap();
    assert_eq!(bad.status, Status::BadModel);
}

/// No weight of a rotated row is off by more than half a step; a step is the row's largest magnitude over 127.
#[test]
fn weights_stay_within_half_a_step() {
    let (mut random, rows, cols) = (Random(8), 3 * SIDE + 5, 300);
    let source: Vec<f32> =
        (0..rows * cols).map(|i| random.next() as f32 * (0.01 + (i / cols) as f32)).collect();
    let pool = Pool::new(3).unwrap();
    let made = quantize(&pool, &floats(&source, cols), DType::Int8).unwrap();
    let mut got = vec![f32::NAN; cols];
    for (n, row) in source.chunks_exact(cols).enumerate() {
        dequantize_row(Isa::Scalar, &made, n, &mut got);
        let mut row = row.to_vec();
        [&mut row, &mut got].into_iter().for_each(|row| rotate(Isa::Scalar, row));
        let most = row.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        for (w, got) in row.iter().zip(&got) {
            assert!((w - got).abs() <= most / 127.0 * 0.500_1, "row {n}: {got} for {w}");
        }
    }
}
