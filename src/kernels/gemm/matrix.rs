//! Weight matrices, in the layouts of their files.

use super::formats::panels;
use crate::base::{Bytes, Error, Result, reserve};

/// The layout of a weight matrix. The numbers are GGUF's type ids, except for the last four (`file_id`).
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
    /// Super-blocks with numbers of entries in codebooks, of eight columns (IQ2) or four (IQ3).
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ3_S = 21,
    IQ2_S = 22,
    /// Four-bit codes for sixteen uneven numbers; one scale per 32.
    IQ4_NL = 20,
    /// The same codes in super-blocks of 256.
    IQ4_XS = 23,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    /// BitNet's 2-bit ternary: the flattened tensor in blocks of 128, and one f32 scale after the codes.
    I2S = 36,
    /// The look-up-table types of bitnet.cpp (layout in `tl`). In ggml the number of TL2 stands for MXFP4.
    TL1 = 38,
    TL2 = 39,
    /// Plus or minus a scale; one scale per 128.
    Q1_0 = 41,
    /// Four values, -1 to 2; one scale per 64.
    Q2_0 = 42,
    /// The ternary types of ik_llama.cpp; one scale per row.
    IQ1_BN = 134,
    IQ2_BN = 135,
    /// PrismML's PQ2_0: as Q2_0, with one scale per 128. Older files use Q2_0's number for it.
    Q2_0_128 = 142,
    /// PrismML's dense form of that for ternary weights: as TQ1_0, with one scale per 128.
    PTQ1_0 = 143,
    /// TQ2_0 in a model that was not trained with one scale of activations for each token: they have one per 256
    /// columns, as in ggml.
    TQ2_0_256 = u32::MAX - 3,
    /// Floats of four bits; one power of two per 32.
    MXFP4 = u32::MAX - 2,
    /// Our own: signed bytes, one scale per row (layout in `formats::panels`). No file has it.
    Int8 = u32::MAX - 1,
    /// Our own: rows of whole 128-blocks in I2_S's bit order, padded with code 1, which is zero; one f32 scale per
    /// row after all codes. No file has it.
    Ternary = u32::MAX,
}

/// The arithmetic of a product. A weight type has the same one for every number of rows and on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Int8 activations with one scale per token (`ternary`).
    Ternary,
    /// The same activations, and int8 weights with one scale per row (`int8`).
    Int8,
    /// Int8 activations with one scale per 32 columns (`quantized`).
    Blocks32,
    /// Int8 activations with one scale per 256 columns (`quantized`).
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
    /// All types that files may have. Of two with one number, the first is the usual one.
    pub const IN_FILES: [DType; 32] = {
        use DType::*;
        [
            F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ2_S,
            IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, BF16, TQ1_0, TQ2_0, I2S, TL1, TL2, MXFP4, Q1_0, Q2_0, IQ1_BN,
            IQ2_BN, Q2_0_128, PTQ1_0,
        ]
    };

    /// The type's number in a GGUF file; `Ternary` and `Int8` have no valid one.
    pub fn file_id(self) -> u32 {
        match self {
            DType::MXFP4 => DType::TL2 as u32,
            DType::TQ2_0_256 => DType::TQ2_0 as u32,
            other => other as u32,
        }
    }

    /// (elements per block, bytes per block). A row is `row_prefix` bytes and a whole number of blocks, with three
    /// exceptions. The last block of a `Ternary` row may be padded; an I2_S row may end within a block; `Int8`
    /// interleaves several rows.
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
            DType::IQ2_XXS => (256, 66),
            DType::IQ2_XS => (256, 74),
            DType::IQ2_S => (256, 82),
            DType::IQ3_XXS => (256, 98),
            DType::IQ3_S => (256, 110),
            DType::IQ4_NL => (32, 18),
            DType::IQ4_XS => (256, 136),
            DType::TQ1_0 => (256, 54),
            DType::TQ2_0 | DType::TQ2_0_256 => (256, 66),
            DType::I2S | DType::Ternary => (128, 32),
            DType::Q1_0 => (128, 18),
            DType::Q2_0 => (64, 18),
            DType::Q2_0_128 => (128, 34),
            DType::PTQ1_0 => (128, 28),
            DType::MXFP4 => (32, 17),
            DType::IQ1_BN => (64, 13),
            DType::IQ2_BN => (64, 16),
            DType::TL1 | DType::TL2 => (4, 1),
        }
    }

    /// Bytes of each row's own scale, which precedes its blocks.
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

    /// The arithmetic of products with weights of this type.
    pub fn arithmetic(self) -> Arithmetic {
        use DType::*;
        match self {
            I2S | TQ2_0 | Ternary => Arithmetic::Ternary,
            Int8 => Arithmetic::Int8,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q1_0 | Q2_0 | Q2_0_128 | IQ4_NL | MXFP4 => {
                Arithmetic::Blocks32
            }
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS
            | TQ2_0_256 => Arithmetic::Blocks256,
            // The last six are converted to other types before they are multiplied.
            F32 | F16 | BF16 | TQ1_0 | PTQ1_0 | TL1 | TL2 | IQ1_BN | IQ2_BN => Arithmetic::Float,
        }
    }

    /// Bytes of an `[rows, cols]` tensor; None on overflow, or if the type cannot hold that shape.
    pub fn byte_len(self, rows: usize, cols: usize) -> Option<usize> {
        let n = rows.checked_mul(cols)?;
        let (elements, bytes) = self.block();
        match self {
            // The file flattens the tensor before it cuts it into blocks.
            DType::I2S if n.is_multiple_of(elements) => (n / elements).checked_mul(bytes)?.checked_add(32),
            DType::I2S => None,
            DType::Ternary => (cols.div_ceil(elements) * bytes).checked_add(4)?.checked_mul(rows),
            DType::Int8 => {
                let lines = cols.checked_next_multiple_of(panels::WIDTH)? / 4 + 1;
                rows.div_ceil(panels::SIDE).checked_mul(lines)?.checked_mul(64)
            }
            DType::TL1 if n.is_multiple_of(64) => Some(n / 4),
            // The same expression as in bitnet.cpp: all but 256 columns take 5 bits per three, those 256 take 4 bits
            // per two.
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
    /// Refuses data whose length is not exactly that of the type and shape.
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

    /// `count` rows from row `from` on, not copied. `Unsupported` for types whose rows are not apart.
    pub fn some_rows(&self, from: usize, count: usize) -> Result<Self> {
        let bytes = self.dtype.byte_len(1, self.cols).filter(|bytes| bytes * self.rows == self.data.len());
        let data = bytes.and_then(|bytes| self.data.slice(from * bytes..(from + count) * bytes));
        match data {
            Some(data) if !self.dtype.is_ternary() => Self::new(data, self.dtype, count, self.cols),
            _ => Err(Error::unsupported(format!("{:?} rows cannot be taken apart", self.dtype))),
        }
    }

    /// The same in memory of its own, which keeps nothing else.
    pub fn copied(&self) -> Result<Self> {
        let mut data = Vec::new();
        reserve(&mut data, self.data.len(), "a matrix")?;
        data.extend_from_slice(&self.data);
        Self::new(Bytes::new(data), self.dtype, self.rows, self.cols)
    }
}
