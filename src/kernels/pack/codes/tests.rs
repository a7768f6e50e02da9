use super::*;
use crate::base::Status;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::isa;

fn values(m: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; m.rows * m.cols];
    (0..m.rows).for_each(|row| dequantize_row(isa(), m, row, &mut out[row * m.cols..(row + 1) * m.cols]));
    out
}

fn noise(i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b9) >> 7
}

const ROWS: usize = 70;
const COLS: usize = 192;

/// The packed matrix of random codes, and their exact values.
fn packed(bits: u32, groups: Groups, count: usize, zero: impl Fn(usize) -> i32 + Sync) -> (Matrix, Vec<f32>) {
    let code = |row: usize, col: usize| (noise(row * COLS + col) & ((1 << bits) - 1)) as u8;
    let scale = |row: usize, group: usize| {
        (f16::from_f32(0.01 + noise(row * 9 + group) as f32 * 1e-9).to_f32(), zero(row + group))
    };
    let row =
        |row: usize, out: &mut [u8]| out.iter_mut().enumerate().for_each(|(col, out)| *out = code(row, col));
    let codes = Codes { bits, groups, count, row: &row, scale: &scale };
    let want = (0..ROWS * COLS).map(|i| {
        let (scale, zero) = scale(i / COLS, codes.group(i % COLS));
        (code(i / COLS, i % COLS) as i32 - zero) as f32 * scale
    });
    (pack(&Pool::new(2).unwrap(), ROWS, COLS, &codes).unwrap(), want.collect())
}

fn error(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let off: f64 = got.iter().zip(want).map(|(a, b)| square((a - b) as f64)).sum();
    (off / want.iter().map(|b| square(*b as f64)).sum::<f64>()).sqrt()
}

#[test]
fn integers_in_whole_blocks_are_kept() {
    for (bits, group, to) in
        [(4, 32, DType::Q4_0), (4, 192, DType::Q4_0), (8, 64, DType::Q8_0), (8, 192, DType::Q8_0)]
    {
        let (m, want) = packed(bits, Groups::Of(group), COLS / group, |_| 1 << (bits - 1));
        assert_eq!((m.dtype, values(&m)), (to, want), "{bits} bits, groups of {group}");
    }
    // Groups of 128; the last one has 64.
    let (m, want) = packed(4, Groups::Of(128), 2, |_| 8);
    assert_eq!((m.dtype, values(&m)), (DType::Q4_0, want));
}

#[test]
fn other_zeros_are_minimums_rounded_to_half_precision() {
    let (m, want) = packed(4, Groups::Of(64), 3, |i| (i % 17) as i32);
    assert_eq!(m.dtype, DType::Q4_1);
    let error = error(&values(&m), &want);
    assert!((1e-6..4e-4).contains(&error), "{error}");
}

#[test]
fn others_are_rounded_to_eight_bits() {
    let listed =
        |count: usize| Groups::Listed((0..COLS).map(|col| (noise(col) as usize % count) as u32).collect());
    for (bits, groups, count, zero) in [
        (4, listed(3), 3, 8),
        (4, Groups::Of(16), 12, 5),
        (8, Groups::Of(64), 3, 100),
        (8, listed(6), 6, 128),
    ] {
        let (m, want) = packed(bits, groups, count, |_| zero);
        assert_eq!(m.dtype, DType::Q8_0);
        let error = error(&values(&m), &want);
        assert!((1e-4..8e-3).contains(&error), "{bits} bits, zero {zero}: {error}");
    }
}

#[test]
fn bytes_as_floats() {
    for (byte, want) in
        [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x08, 2f32.powi(-6)), (0x38, 1.0), (0x7e, 448.0), (0xbc, -1.5)]
    {
        assert_eq!(E4M3[byte], want, "{byte:#x}");
    }
    assert!(E4M3[0x80].is_sign_negative() && E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
    assert_eq!(E4M3.iter().filter(|x| x.is_finite()).count(), 254);
}

#[test]
fn what_no_block_can_hold_is_refused() {
    let pool = Pool::new(1).unwrap();
    let with = |cols: usize, scale: f32, zero: i32| {
        let codes = Codes {
            bits: 4,
            groups: Groups::Of(cols),
            count: 1,
            row: &|_, out| out.fill(9),
            scale: &|_, _| (scale, zero),
        };
        let error = pack(&pool, 2, cols, &codes).err();
        error.map(|error| (error.status, error.message))
    };
    assert!(with(64, 1.0, 8).is_none() && with(64, 4000.0, 15).is_none());
    assert_eq!(with(60, 1.0, 8).unwrap().0, Status::Unsupported);
    for (scale, zero) in [(f32::NAN, 8), (f32::INFINITY, 8), (7e4, 8), (6e4, 16), (-f32::INFINITY, 0)] {
        let (status, message) = with(64, scale, zero).unwrap();
        assert!(status == Status::BadModel && message.contains("row 0"), "{message}");
    }
    for odd in [f32::NAN, f32::INFINITY, 1e7] {
        let error = floats(&pool, 2, 32, &|row, out| {
            out.fill(if row == 1 { odd } else { 1.0 });
            Ok(())
        });
        let error = error.err().unwrap();
        assert!(error.status == Status::BadModel && error.message.contains("row 1"), "{error}");
    }
}
