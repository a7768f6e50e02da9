//! Compares tensors of every type, bit for bit, with the result of the package `gguf` or of the type's public layout
//! (tools/golden/quants.py).

use super::{dense, tokens};
use crate::base::{Bytes, Result};
use crate::kernels::gemm::blocks::Part;
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::pack::{self, requantize, tl};
use crate::kernels::{Arithmetic, DType, Isa, Matrix, Pool, available, isa};
use std::path::Path;

/// One tensor: its bytes in a file, and its elements.
pub struct Case {
    pub name: String,
    pub type_id: u32,
    pub rows: usize,
    pub cols: usize,
    pub packed: Vec<u8>,
    pub values: Vec<f32>,
    pub scale: Option<f32>,
    /// The tiling: BM, BK and bm.
    pub tiling: Option<[usize; 3]>,
}

pub fn cases() -> Vec<Case> {
    // The crate's folder, or a folder within it (tests/kernels).
    let mut above =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|at| at.join("tests/golden/quants"));
    let folder = above.find(|folder| folder.is_dir()).expect("tests/golden/quants");
    let text = std::fs::read_to_string(folder.join("quants.json")).expect("quants.json");
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list");
    let case = |case: &serde_json::Value| {
        let number = |key: &str| case[key].as_u64().expect("a number") as usize;
        let name = case["name"].as_str().expect("a name").to_owned();
        let data = std::fs::read(folder.join(format!("{name}.bin"))).expect("the tensor");
        let (packed, values) = data.split_at(number("bytes"));
        let scale = case["scale"].as_f64().map(|scale| scale as f32);
        let values: Vec<f32> = match scale {
            Some(scale) => values.iter().map(|v| *v as i8 as f32 * scale).collect(),
            None => values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        };
        let (rows, cols) = (number("rows"), number("cols"));
        assert_eq!(values.len(), rows * cols, "{name}");
        let tiling =
            case["tiling"].as_array().map(|t| [0, 1, 2].map(|i| t[i].as_u64().expect("a number") as usize));
        Case {
            name,
            type_id: number("type") as u32,
            rows,
            cols,
            packed: packed.to_vec(),
            values,
            scale,
            tiling,
        }
    };
    list.iter().map(case).collect()
}

pub fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect(name)
}

impl Case {
    pub fn dtype(&self) -> DType {
        let mut types = DType::IN_FILES.into_iter().filter(|t| t.file_id() == self.type_id);
        types.find(|t| *t != DType::TL2 || self.tiling.is_some()).expect("a type")
    }

    pub fn matrix(&self) -> Matrix {
        Matrix::new(Bytes::new(self.packed.clone()), self.dtype(), self.rows, self.cols).expect(&self.name)
    }

    pub fn tiling(&self) -> tl::TlTiling {
        let [bm, bk, lanes] = self.tiling.expect("a tiling");
        tl::TlTiling { rows: self.rows, cols: self.cols, bm, bk, lanes }
    }

    /// The tensor as the kernels read it.
    pub fn load(&self, pool: &Pool) -> Result<Matrix> {
        match self.type_id {
            24 => {
                let scales = vec![self.scale.expect("a scale"); self.rows];
                pack::pack_uint8(pool, &self.packed, self.rows, self.cols, &scales)
            }
            38 | 39 if self.tiling.is_some() => {
                tl::unpack(pool, &self.matrix(), self.tiling(), self.scale.expect("a scale"))
            }
            _ => pack::prepare(pool, self.matrix()),
        }
    }
}

#[track_caller]
pub fn same_bits(m: &Matrix, values: &[f32], what: &str) {
    let mut row = vec![f32::NAN; m.cols];
    for &isa in available() {
        for (i, want) in values.chunks_exact(m.cols).enumerate() {
            dequantize_row(isa, m, i, &mut row);
            for (k, (got, want)) in row.iter().zip(want).enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "{what}, row {i}, element {k}: {got} for {want}");
            }
        }
    }
}

#[test]
fn every_type_reads_as_its_reference_does() {
    let mut seen = Vec::new();
    for case in cases().iter().filter(|case| !case.name.starts_with("to_")) {
        for threads in [1, 3] {
            let m = case.load(&Pool::new(threads).unwrap()).expect(&case.name);
            assert_eq!((m.rows, m.cols), (case.rows, case.cols));
            same_bits(&m, &case.values, &case.name);
            assert_eq!(
                m.dtype.is_ternary(),
                case.scale.is_some() || [34, 35, 134, 135].contains(&case.type_id)
            );
        }
        seen.extend((case.type_id != 24).then(|| case.dtype()));
    }
    for dtype in DType::IN_FILES.iter().filter(|t| !matches!(t, DType::F32 | DType::F16 | DType::BF16)) {
        assert!(seen.contains(dtype), "no reference for {dtype:?}");
    }
}

#[test]
fn only_what_no_kernel_reads_is_copied() {
    let pool = Pool::new(1).unwrap();
    for case in cases().iter().filter(|case| case.scale.is_none() || case.type_id == 36) {
        let m = case.matrix();
        for isa in Isa::ALL {
            let packed = pack::prepare_for(isa, &pool, m.clone()).expect(&case.name);
            let dtype = match case.name.as_str() {
                "i2_s_within" | "iq1_bn" | "iq2_bn" => DType::Ternary,
                "tq1_0" if !isa.has_vbmi() => DType::TQ2_0,
                "ptq1_0" if !isa.has_vbmi() => DType::Q2_0_128,
                _ => m.dtype,
            };
            assert_eq!(packed.dtype, dtype, "{}", case.name);
            let copied = packed.data.as_ptr() != m.data.as_ptr();
            assert_eq!(copied, dtype != m.dtype, "{}", case.name);
            if !case.name.starts_with("to_") {
                same_bits(&packed, &case.values, &case.name);
            }
        }
    }
}

/// Compares the output of `quantize` with the package's output for the same weights.
#[test]
fn quantizers_write_what_their_reference_writes() {
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        for case in cases().iter().filter(|case| case.name.starts_with("to_")) {
            let data = case.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
            let source = Matrix::new(Bytes::new(data), DType::F32, case.rows, case.cols).unwrap();
            let made = requantize::quantize(&pool, &source, case.dtype()).expect(&case.name);
            assert_eq!(made.dtype, case.dtype());
            let differs = made.data.iter().zip(&case.packed).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{}", case.name);
            assert_eq!(made.data.len(), case.packed.len(), "{}", case.name);
        }
    }
}

/// A type that is multiplied in f32 gives, bit for bit, the product of the f32 weights that it stands for.
#[test]
fn dense_products_are_those_of_the_weights() {
    let pool = Pool::new(2).unwrap();
    let dense = |case: &Case| !case.name.starts_with("to_") && case.scale.is_none();
    for case in cases().iter().filter(|case| dense(case)) {
        let m = case.load(&pool).expect(&case.name);
        if m.dtype.arithmetic() != Arithmetic::Float {
            continue;
        }
        let data: Vec<u8> = case.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let same = Matrix::new(Bytes::new(data), DType::F32, m.rows, m.cols).unwrap();
        let x: Vec<f32> = (0..5 * m.cols).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let product = |m: &Matrix| {
            let mut out = vec![f32::NAN; 5 * m.rows];
            let parts = [Part { matrix: m, column: 0 }];
            dense::matmul(&pool, isa(), &x, m.cols, &parts, m.rows, &mut out);
            out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(product(&m), product(&same), "{}", case.name);
    }
}

/// The integer product of every ternary type that has one is the product of the weights that the type stands for.
#[test]
fn ternary_products_are_those_of_the_weights() {
    let pool = Pool::new(2).unwrap();
    for case in cases().iter().filter(|case| !case.name.starts_with("to_")) {
        let m = case.load(&pool).expect(&case.name);
        if !m.dtype.is_ternary() {
            continue;
        }
        let width = tokens::padded(m.cols);
        let mut values = vec![0i8; 5 * width];
        for (t, row) in values.chunks_exact_mut(width).enumerate() {
            row[..m.cols].iter_mut().enumerate().for_each(|(i, v)| *v = (i * (7 + t) % 255) as u8 as i8);
        }
        let sum = |row: &[i8]| row.iter().map(|v| *v as i32).sum();
        let rows: Vec<_> = values
            .chunks_exact(width)
            .map(|row| crate::kernels::rows::quantize::QuantRow { scale: 2.0, sum: sum(row) })
            .collect();
        let mut out = vec![f32::NAN; 5 * m.rows];
        let x = tokens::Activations { values: &values, rows: &rows, cols: width };
        let part = [Part { matrix: &m, column: 0 }];
        tokens::matmul(&pool, isa(), &x, &part, m.rows, &mut out);
        for (t, out) in out.chunks_exact(m.rows).enumerate() {
            for (w, got) in case.values.chunks_exact(m.cols).zip(out) {
                let x = &values[t * width..];
                let dot: f64 = w.iter().zip(x).map(|(w, x)| *w as f64 * *x as f64).sum::<f64>() / 2.0;
                assert!(
                    (*got as f64 - dot).abs() <= 2e-6 * dot.abs().max(1e3),
                    "{}: {got} for {dot}",
                    case.name
                );
            }
        }
    }
}
