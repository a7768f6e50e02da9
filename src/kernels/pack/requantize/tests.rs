use super::*;
use crate::base::Status;
use crate::kernels::gemm::golden_tests::{case, same_bits};
use crate::kernels::pack::prepare;

fn floats(rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> Matrix {
    let data: Vec<u8> = (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect();
    Matrix::new(Bytes::new(data), DType::F32, rows, cols).unwrap()
}

fn noise(i: usize) -> f32 {
    let bits = (i as u32).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b9);
    bits as f32 / (1u64 << 31) as f32 - 1.0
}

#[test]
fn weights_become_ternary_by_the_mean_magnitude_at_any_number_of_threads() {
    // Two thirds of the mean magnitude and less than half of it, on both sides, and exact halves.
    let (rows, cols) = (70, 320);
    let m = floats(rows, cols, |i| noise(i) * 0.02);
    let weights: Vec<f32> = (0..rows * cols).map(|i| noise(i) * 0.02).collect();
    let mean = weights.iter().map(|w| w.abs() as f64).sum::<f64>() / weights.len() as f64;
    let scale = 1.0 / mean as f32;
    let want: Vec<f32> =
        weights.iter().map(|w| (w * scale).round_ties_even().clamp(-1.0, 1.0) * (1.0 / scale)).collect();
    assert!([-1.0, 0.0, 1.0].iter().all(|code| want.contains(&(code * (1.0 / scale)))));
    for threads in [1, 2, 3] {
        let made = quantize(&Pool::new(threads).unwrap(), &m, DType::Ternary).unwrap();
        assert_eq!(made.dtype, DType::Ternary);
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            dequantize_row(isa(), &made, r, &mut row);
            for (got, want) in row.iter().zip(&want[r * cols..]) {
                assert_eq!(got, want, "row {r}, {threads} threads");
            }
        }
    }
}

#[test]
fn halves_of_the_scale_become_zero_and_tiny_weights_do_not_divide_by_zero() {
    let pool = Pool::new(1).unwrap();
    // The mean magnitude is 1: half of it rounds to even, to 0; one and a half rounds to 2, which is clamped to 1.
    let m = floats(1, 128, |i| [0.5, -0.5, 1.5, -1.5][i % 4]);
    let made = quantize(&pool, &m, DType::I2S).unwrap();
    same_bits(&made, &[0.0, 0.0, 1.0, -1.0].repeat(32), "halves");
    let zeros = quantize(&pool, &floats(2, 128, |_| 0.0), DType::I2S).unwrap();
    same_bits(&zeros, &[0.0; 256], "zeros");
    assert!((row_scale(&zeros, 0) - 1e-5).abs() < 1e-11);
}

#[test]
fn i2s_and_back() {
    let pool = Pool::new(2).unwrap();
    for name in ["i2_s", "i2_s_within"] {
        let case = case(name);
        let ternary = quantize(&pool, &case.matrix(), DType::Ternary).unwrap();
        same_bits(&ternary, &case.values, name);
        let again = quantize(&pool, &ternary, DType::I2S).unwrap();
        assert_eq!(again.data[..], case.packed[..], "{name}");
    }
    // 200 columns: rows begin and end within blocks, and within the 32-code planes of the blocks.
    let m = floats(16, 200, |i| (i % 3) as f32 - 1.0);
    let ternary = quantize(&pool, &m, DType::Ternary).unwrap();
    let flat = quantize(&pool, &m, DType::I2S).unwrap();
    let mut want = vec![0.0; 200];
    let prepared = prepare(&pool, flat).unwrap();
    for row in 0..16 {
        dequantize_row(isa(), &ternary, row, &mut want);
        let mut got = vec![1e9; 200];
        dequantize_row(isa(), &prepared, row, &mut got);
        assert_eq!(got, want, "row {row}");
    }
}

#[test]
fn ternary_matrices_keep_codes_and_scale_as_tq2_0() {
    let pool = Pool::new(1).unwrap();
    let codes = |i: usize| (i * i % 3) as f32 - 1.0;
    let m = floats(4, 512, |i| codes(i) * 0.25);
    let ternary = quantize(&pool, &m, DType::TQ2_0).unwrap();
    let want: Vec<f32> = (0..4 * 512).map(|i| codes(i) * 0.25).collect();
    same_bits(&ternary, &want, "TQ2_0");
}

#[test]
fn what_cannot_be_is_refused() {
    let pool = Pool::new(1).unwrap();
    let says = |source: &Matrix, to, status, words: &[&str]| {
        let error = quantize(&pool, source, to).err().expect("refused");
        assert_eq!(error.status, status, "{error}");
        words.iter().for_each(|word| assert!(error.message.contains(word), "{error}"));
    };
    let m = floats(2, 64, noise);
    says(&m, DType::TQ2_0, Status::Unsupported, &["2x64", "TQ2_0"]);
    says(&m, DType::Q4_K, Status::Unsupported, &["2x64"]);
    says(&m, DType::F16, Status::Unsupported, &["F16"]);
    says(&case("q8_0").matrix(), DType::Ternary, Status::Unsupported, &["Q8_0"]);
    let bad = floats(2, 64, |i| if i == 70 { f32::NAN } else { 1.0 });
    for to in [DType::Q8_0, DType::Q4_0, DType::Ternary, DType::I2S] {
        says(&bad, to, Status::BadModel, &["row 1", "NaN"]);
    }
    let two_scales = pack_ternary(&pool, 2, 128, &[1.0, 2.0], &|_, codes: &mut [u8]| {
        codes.fill(0);
        Ok(())
    })
    .unwrap();
    says(&two_scales, DType::I2S, Status::Unsupported, &["row 1", "2"]);
}
