//! A weight matrix as its file holds it.

use crate::base::{Bytes, Error, Result};

/// How a weight's bytes are laid out; the numbers are GGUF's type ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q8_0 = 8,
    BF16 = 30,
    TQ2_0 = 35,
    /// BitNet's 2-bit ternary: the flattened tensor in blocks of 128, one f32 scale behind the codes.
    I2S = 36,
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
    /// (elements per block, bytes per block); a row is a whole number of blocks.
    pub fn block(self) -> (usize, usize) {
        match self {
            DType::F32 => (1, 4),
            DType::F16 | DType::BF16 => (1, 2),
            DType::Q8_0 => (32, 34),
            DType::TQ2_0 => (256, 66),
            DType::I2S => (128, 32),
        }
    }

    pub fn is_ternary(self) -> bool {
        matches!(self, DType::I2S | DType::TQ2_0)
    }

    /// Bytes of an `[rows, cols]` tensor, or None on overflow or where `cols` is no whole number of blocks.
    pub fn byte_len(self, rows: usize, cols: usize) -> Option<usize> {
        let (elements, bytes) = self.block();
        if !cols.is_multiple_of(elements) {
            return None;
        }
        let trailer = if self == DType::I2S { 32 } else { 0 };
        (cols / elements).checked_mul(bytes)?.checked_mul(rows)?.checked_add(trailer)
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
                "a {rows}x{cols} {dtype:?} matrix needs rows of a multiple of {} elements",
                dtype.block().0
            ))),
        }
    }
}
