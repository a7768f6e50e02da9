//! Weight matrices, in the layouts of their files.

use super::formats::panels;
use crate::base::{Bytes, Error, Result, reserve};

/// Defines `DType`: for each type its number, (elements per block, bytes per block), and its arithmetic.
macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $number:expr, $block:expr, $arithmetic:ident;)*) => {
        /// The layout of a weight matrix. The numbers are GGUF's type ids, except for the last five (`file_id`).
        #[allow(non_camel_case_types)] // the names that files and their users know
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum DType {
            $($(#[$doc])* $name = $number,)*
        }

        impl DType {
            /// (elements per block, bytes per block). A row is `row_prefix` bytes and a whole number of blocks, with
            /// three exceptions. The last block of a `Ternary` row may be padded; an I2_S row may end within a block;
            /// `Int8` interleaves several rows.
            pub fn block(self) -> (usize, usize) {
                match self {
                    $(Self::$name => $block,)*
                }
            }

            /// The arithmetic of products with weights of this type.
            pub fn arithmetic(self) -> Arithmetic {
                match self {
                    $(Self::$name => Arithmetic::$arithmetic,)*
                }
            }
        }
    };
}

types! {
    F32 = 0, (1, 4), Float;
    F16 = 1, (1, 2), Float;
    Q4_0 = 2, (32, 18), Blocks32;
    Q4_1 = 3, (32, 20), Blocks32;
    Q5_0 = 6, (32, 22), Blocks32;
    Q5_1 = 7, (32, 24), Blocks32;
    Q8_0 = 8, (32, 34), Blocks32;
    Q2_K = 10, (256, 84), Blocks256;
    Q3_K = 11, (256, 110), Blocks256;
    Q4_K = 12, (256, 144), Blocks256;
    Q5_K = 13, (256, 176), Blocks256;
    Q6_K = 14, (256, 210), Blocks256;
    /// Super-blocks with numbers of entries in codebooks, of eight columns (IQ2) or four (IQ3).
    IQ2_XXS = 16, (256, 66), Blocks256;
    IQ2_XS = 17, (256, 74), Blocks256;
    IQ3_XXS = 18, (256, 98), Blocks256;
    IQ3_S = 21, (256, 110), Blocks256;
    IQ2_S = 22, (256, 82), Blocks256;
    /// Four-bit codes for sixteen uneven numbers; one scale per 32.
    IQ4_NL = 20, (32, 18), Blocks32;
    /// The same codes in super-blocks of 256.
    IQ4_XS = 23, (256, 136), Blocks256;
    BF16 = 30, (1, 2), Float;
    TQ1_0 = 34, (256, 54), Ternary;
    TQ2_0 = 35, (256, 66), Ternary;
    /// BitNet's 2-bit ternary: the flattened tensor in blocks of 128, and one f32 scale after the codes.
    I2S = 36, (128, 32), Ternary;
    /// The look-up-table types of bitnet.cpp (layout in `tl`). In ggml the number of TL2 stands for MXFP4. These and
    /// the other ternary types whose arithmetic is `Float` are converted before they are multiplied.
    TL1 = 38, (4, 1), Float;
    TL2 = 39, (4, 1), Float;
    /// Plus or minus a scale; one scale per 128.
    Q1_0 = 41, (128, 18), Blocks32;
    /// Four values, -1 to 2; one scale per 64.
    Q2_0 = 42, (64, 18), Blocks32;
    /// The ternary types of ik_llama.cpp; one scale per row.
    IQ1_BN = 134, (64, 13), Float;
    IQ2_BN = 135, (64, 16), Float;
    /// PrismML's PQ2_0: as Q2_0, with one scale per 128. Older files use Q2_0's number for it.
    Q2_0_128 = 142, (128, 34), Blocks32;
    /// PrismML's dense form of it for ternary weights: as TQ1_0, with one scale per 128.
    PTQ1_0 = 143, (128, 28), Blocks32;
    /// TQ1_0 and TQ2_0 in a model that was not trained with one scale of activations per token. Activations have one
    /// scale per 256 columns, as in ggml.
    TQ1_0_256 = u32::MAX - 4, (256, 54), Blocks256;
    TQ2_0_256 = u32::MAX - 3, (256, 66), Blocks256;
    /// Floats of four bits; one power of two per 32.
    MXFP4 = u32::MAX - 2, (32, 17), Blocks32;
    /// Our own: signed bytes, one scale per row (layout in `formats::panels`), of rows that are rotated as the
    /// activations that they are multiplied with (`rows::hadamard::rotate`). No file has it.
    Int8 = u32::MAX - 1, (1, 1), Int8;
    /// Our own: rows of whole 128-blocks in I2_S's bit order, padded with code 1, which is zero; one f32 scale per
    /// row after all codes. No file has it.
    Ternary = u32::MAX, (128, 32), Ternary;
}

/// The arithmetic of a product. A weight type has the same one for every number of rows and on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Int8 activations with one scale per token (`ternary`).
    Ternary,
    /// Rotated int8 activations with one scale per token, and int8 weights with one scale per row (`int8`).
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
    /// All types that files may have. If two have the same number, the first is the usual one.
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
            DType::TQ1_0_256 => DType::TQ1_0 as u32,
            DType::TQ2_0_256 => DType::TQ2_0 as u32,
            other => other as u32,
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

    /// Whether each 256 columns of a ternary type end with an f16 scale. The other ternary types have one scale for
    /// each row, or for all.
    pub fn has_scaled_blocks(self) -> bool {
        matches!(self, Self::TQ1_0 | Self::TQ2_0)
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
            // As in bitnet.cpp: 256 columns take 4 bits per two weights, all others 5 bits per three.
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

    /// A copy in memory of its own, which keeps no other bytes alive.
    pub fn copied(&self) -> Result<Self> {
        let mut data = Vec::new();
        reserve(&mut data, self.data.len(), "a matrix")?;
        data.extend_from_slice(&self.data);
        Self::new(Bytes::new(data), self.dtype, self.rows, self.cols)
    }
}
