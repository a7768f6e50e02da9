//! A weight matrix as its file holds it.

use super::formats::panels;
use crate::base::{Bytes, Error, Result};

/// How a weight's bytes are laid out; the numbers are GGUF's type ids, but for the last three (`file_id`).
#[allow(non_camel_case_types)] // the names that files and their users know
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    /// BitNet's 2-bit ternary: the flattened tensor in blocks of 128, one f32 scale behind the codes.
    I2S = 36,
    /// bitnet.cpp's look-up-table types (layout in `tl`); the number 39 is MXFP4 in ggml.
    TL1 = 38,
    TL2 = 39,
    /// Plus or minus a scale for each 128.
    Q1_0 = 41,
    /// Four values, -1 to 2, a scale for each 64.
    Q2_0 = 42,
    /// ik_llama.cpp's ternary types, a scale for each row.
    IQ1_BN = 134,
    IQ2_BN = 135,
    /// Our own: signed bytes, a scale for each row (layout in `formats::panels`). No file has it.
    Int8 = u32::MAX - 2,
    /// As Q2_0, a scale for each 128: an older fork's, whose files give it the same number.
    Q2_0_128 = u32::MAX - 1,
    /// Our own: rows of whole 128-blocks in I2_S's bit order, padded with code 1, which is zero; behind all codes an
    /// f32 scale for each row. No file has it.
    Ternary = u32::MAX,
}

/// The arithmetic of a product: one for each weight type, at every number of rows, on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Int8 activations with a scale for each token (`ternary`).
    Ternary,
    /// The same activations, and int8 weights with a scale for each row (`int8`).
    Int8,
    /// Int8 activations with a scale for each 32 columns (`quantized`).
    Blocks32,
    /// Int8 activations with a scale for each 256 columns (`quantized`).
    Blocks256,
    /// Activations and weights in f32 (`dense`).
    Float,
}

/// `[rows, cols]` row-major weights (`rows` outputs, `cols` inputs), still in file layout.
#[derive(Clone)]
pub struct Matrix {
    pub data: Bytes,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

impl DType {
    /// Every type that has a number of its own in files.
    pub const IN_FILES: [DType; 22] = {
        use DType::*;
        [
            F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, BF16, TQ1_0, TQ2_0, I2S,
            TL1, TL2, Q1_0, Q2_0, IQ1_BN, IQ2_BN,
        ]
    };

    /// The type's number in a GGUF file; those of `Ternary` and `Int8` are none.
    pub fn file_id(self) -> u32 {
        match self {
            DType::Q2_0_128 => DType::Q2_0 as u32,
            other => other as u32,
        }
    }

    /// (elements per block, bytes per block); a row is a whole number of blocks, with what `row_prefix` says before
    /// them. Of `Ternary` the last block of a row may be partly padding, of I2_S a row may end within a block; of `Int8`
    /// several rows lie together.
    pub fn block(self) -> (usize, usize) {
        match self {
            DType::F32 => (1, 4),
            DType::Int8 => (1, 1),
            DType::F16 | DType::BF16 => (1, 2),
            DType::Q4_0 => (32, 18),
            DType::Q4_1 => (32, 20),
            DType::Q5_0 => (32, 22),
            DType::Q5_1 => (32, 24),
            DType::Q8_0 => (32, 34),
            DType::Q2_K => (256, 84),
            DType::Q3_K => (256, 110),
            DType::Q4_K => (256, 144),
            DType::Q5_K => (256, 176),
            DType::Q6_K => (256, 210),
            DType::TQ1_0 => (256, 54),
            DType::TQ2_0 => (256, 66),
            DType::I2S | DType::Ternary => (128, 32),
            DType::Q1_0 => (128, 18),
            DType::Q2_0 => (64, 18),
            DType::Q2_0_128 => (128, 34),
            DType::IQ1_BN => (64, 13),
            DType::IQ2_BN => (64, 16),
            DType::TL1 | DType::TL2 => (4, 1),
        }
    }

    /// Bytes of each row's own scale before its blocks.
    pub fn row_prefix(self) -> usize {
        match self {
            DType::IQ1_BN => 2,
            DType::IQ2_BN => 4,
            _ => 0,
        }
    }

    pub fn is_ternary(self) -> bool {
        self.arithmetic() == Arithmetic::Ternary
    }

    /// What a product with such weights computes with.
    pub fn arithmetic(self) -> Arithmetic {
        use DType::*;
        match self {
            I2S | TQ2_0 | Ternary => Arithmetic::Ternary,
            Int8 => Arithmetic::Int8,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q1_0 | Q2_0 | Q2_0_128 => Arithmetic::Blocks32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K => Arithmetic::Blocks256,
            // The last five become others before they are multiplied.
            F32 | F16 | BF16 | TQ1_0 | TL1 | TL2 | IQ1_BN | IQ2_BN => Arithmetic::Float,
        }
    }

    /// Bytes of an `[rows, cols]` tensor, or None on overflow or where the type cannot hold that shape.
    pub fn byte_len(self, rows: usize, cols: usize) -> Option<usize> {
        let n = rows.checked_mul(cols)?;
        let (elements, bytes) = self.block();
        match self {
            // Flattened before it is cut into blocks.
            DType::I2S if n.is_multiple_of(elements) => (n / elements).checked_mul(bytes)?.checked_add(32),
            DType::I2S => None,
            DType::Ternary => (cols.div_ceil(elements) * bytes).checked_add(4)?.checked_mul(rows),
            DType::Int8 => {
                let lines = cols.checked_next_multiple_of(panels::WIDTH)? / 4 + 1;
                rows.div_ceil(panels::SIDE).checked_mul(lines)?.checked_mul(64)
            }
            DType::TL1 if n.is_multiple_of(64) => Some(n / 4),
            // bitnet.cpp's own expression: all but 256 columns as 5 bits for three, those as 4 bits for two.
            DType::TL2 if n.is_multiple_of(64) && cols >= 256 => {
                let threes = (cols - 256).checked_mul(rows)? / 3;
                (threes.checked_mul(5)? / 8).checked_add(rows.checked_mul(64)?)
            }
            DType::TL1 | DType::TL2 => None,
            _ if cols.is_multiple_of(elements) => {
                (cols / elements).checked_mul(bytes)?.checked_add(self.row_prefix())?.checked_mul(rows)
            }
            _ => None,
        }
    }
}

impl Matrix {
    /// Refuses data whose length is not exactly what the type and shape say.
    pub fn new(data: Bytes, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        match dtype.byte_len(rows, cols) {
            Some(n) if n == data.len() => Ok(Self { data, dtype, rows, cols }),
            Some(n) => Err(Error::bad_model(format!(
                "a {rows}x{cols} {dtype:?} matrix has {} bytes where {n} belong",
                data.len()
            ))),
            None => Err(Error::bad_model(format!(
                "a {rows}x{cols} {dtype:?} matrix is not possible; the type stores multiples of {} elements",
                dtype.block().0
            ))),
        }
    }
}
