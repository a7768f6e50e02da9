use super::*;
use crate::base::Status;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::gemm::golden_tests::{case, same_bits};
use crate::kernels::isa;

fn pool() -> std::sync::Arc<Pool> {
    Pool::new(2).unwrap()
}

#[test]
fn q2_0_is_ternary_only_with_one_scale_a_row_and_no_value_two() {
    let (rows, blocks) = (3, 2);
    let mut data = Vec::new();
    let mut values = Vec::new();
    for row in 0..rows {
        let d = half::f16::from_f32(0.5 + row as f32);
        for block in 0..blocks {
            data.extend(d.to_le_bytes());
            for i in 0..16usize {
                let codes = [0, 1, 2, 3].map(|k| ((i * 5 + k * 7 + block + row) % 3) as u8);
                data.push(codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6);
                values.extend(codes.map(|code| (code as f32 - 1.0) * d.to_f32()));
            }
        }
    }
    let make = |data: Vec<u8>| Matrix::new(Bytes::new(data), DType::Q2_0, rows, 64 * blocks).unwrap();
    let m = make(data.clone());
    same_bits(&m, &values, "dense");
    let ternary = as_ternary(&pool(), &m).unwrap().expect("it is ternary");
    assert_eq!(ternary.dtype, DType::Ternary);
    same_bits(&ternary, &values, "ternary");
    // A block whose scale is 0 holds zeros, whatever its codes are.
    let mut zeros = data.clone();
    zeros[18 * 3..18 * 3 + 2].fill(0);
    let ternary = as_ternary(&pool(), &make(zeros)).unwrap().expect("it is ternary");
    let mut row = vec![9.0; 128];
    dequantize_row(isa(), &ternary, 1, &mut row);
    assert_eq!(row[..64], values[128..192]);
    assert_eq!(row[64..], [0.0; 64]);
    let mut two = data.clone();
    two[18 + 9] |= 0b1100;
    assert!(as_ternary(&pool(), &make(two)).unwrap().is_none());
    data[18] ^= 1;
    assert!(as_ternary(&pool(), &make(data)).unwrap().is_none());
    assert!(as_ternary(&pool(), &case("q8_0").matrix()).unwrap().is_none());
}

#[test]
fn ptq1_0_is_ternary_only_with_one_scale_a_row() {
    let mut case = case("ptq1_0");
    let half = half::f16::from_f32(0.5).to_le_bytes();
    case.packed.chunks_exact_mut(28).for_each(|block| block[26..].copy_from_slice(&half));
    let m = case.matrix();
    let mut values = vec![0.0; m.rows * m.cols];
    values.chunks_exact_mut(m.cols).enumerate().for_each(|(row, out)| dequantize_row(isa(), &m, row, out));
    let ternary = as_ternary(&pool(), &m).unwrap().expect("it is ternary");
    assert_eq!(ternary.dtype, DType::Ternary);
    same_bits(&ternary, &values, "ternary");
    case.packed[26] ^= 1;
    assert!(as_ternary(&pool(), &case.matrix()).unwrap().is_none());
}

#[test]
fn tq2_0_keeps_its_weights_in_blocks() {
    for name in ["tq2_0", "tq1_0"] {
        let case = case(name);
        let loaded = case.load(&pool()).unwrap();
        let dtype = if loaded.dtype == DType::TQ1_0 { DType::TQ1_0_256 } else { DType::TQ2_0_256 };
        let made = Matrix { dtype, ..loaded };
        same_bits(&made, &case.values, name);
    }
}

#[test]
fn codes_that_are_no_weights_and_odd_scales_are_refused() {
    let refused = |result: Result<Matrix>, words: &[&str]| {
        let error = result.err().expect("refused");
        assert_eq!(error.status, Status::BadModel);
        words.iter().for_each(|word| assert!(error.message.contains(word), "{error}"));
    };
    let mut bad = case("iq2_bn");
    bad.packed[52 * 3 + 4 + 17] |= 0b11;
    refused(bad.load(&pool()), &["row 3"]);
    let mut bad = case("iq2_bn");
    bad.packed[52..56].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(bad.load(&pool()), &["row 1", "NaN"]);
    let mut bad = case("iq1_bn");
    bad.packed[41..43].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    refused(bad.load(&pool()), &["row 1", "inf"]);
    let mut bad = case("tq1_0");
    let last = bad.packed.len() - 2;
    bad.packed[last..].copy_from_slice(&half::f16::NAN.to_le_bytes());
    let read = bad.load(&pool()).unwrap();
    refused(crate::kernels::gemm::ternary::validate(&pool(), &read).map(|_| read), &["row 2", "NaN"]);
    let mut bad = case("i2_s_within");
    bad.packed[479] |= 0b11;
    refused(bad.load(&pool()), &["row 5"]);
    let mut bad = case("uint8");
    bad.packed[5] |= 0b11 << 4;
    refused(bad.load(&pool()), &["row 6"]);
    refused(pack_uint8(&pool(), &[0; 99], 4, 100, &[1.0; 4]), &["99 bytes"]);
    refused(pack_uint8(&pool(), &[0; 99], 3, 132, &[1.0; 3]), &["3x132"]);
}

#[test]
fn matrices_without_rows_or_columns() {
    for (rows, cols) in [(0, 128), (0, 5), (3, 0)] {
        let m = pack_ternary(&pool(), rows, cols, &vec![1.0; rows], &|_, _| Ok(())).unwrap();
        assert_eq!((m.rows, m.cols, m.data.len()), (rows, cols, rows * (cols.div_ceil(128) * 32 + 4)));
    }
    let m = Matrix::new(Bytes::new(vec![0u8; 0]), DType::IQ2_BN, 0, 64).unwrap();
    assert_eq!(prepare(&pool(), m).unwrap().rows, 0);
}

#[test]
fn look_up_tables_need_their_tiling() {
    let error = prepare(&pool(), case("tl1_0").matrix()).err().expect("refused");
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("kernel_config.ini"), "{error}");
}

#[test]
fn narrow_flattened_rows_are_refused() {
    let m = Matrix::new(Bytes::new(vec![0u8; 64 * 2 / 4 * 16 + 32]), DType::I2S, 2048, 1).unwrap();
    let error = prepare(&pool(), m).err().expect("refused");
    assert!(error.status == Status::Unsupported && error.message.contains("1 columns"), "{error}");
}
