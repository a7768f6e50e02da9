//! compressed-tensors and FP8: weights by rows, with a grid of scales over them.

use super::{Product, SCALES, Tensor};
use crate::base::{Error, Result};
use crate::formats::safetensors::ElementType;
use crate::kernels::pack::codes::{self, Codes, E4M3, Groups};
use crate::kernels::{Matrix, Pool};

/// Scales of `rows` times `cols` weights each, `across` of them side by side.
struct Grid {
    values: Vec<f32>,
    shape: [usize; 2],
    rows: usize,
    cols: usize,
}

impl Grid {
    fn at(&self, row: usize, group: usize) -> usize {
        row / self.rows * self.shape[1] + group
    }
}

impl Product<'_> {
    fn grid(&self, block: Option<[usize; 2]>) -> Result<Grid> {
        let scales = self.first(&SCALES)?.ok_or_else(|| self.without(SCALES[0]))?;
        let shape = match *scales.info.shape {
            [] => [1, 1],
            [n] => [n, 1],
            [rows, cols] => [rows, cols],
            _ => return Err(self.no_grid(&scales)),
        };
        // A block's own size first: the last block of a row or column may be smaller.
        let of_block = |size: usize, count: usize, block: Option<usize>| {
            block.filter(|block| size.div_ceil(*block) == count)
        };
        let rows = match shape[0] {
            1 => Some(self.rows),
            n if n == self.rows => Some(1),
            n => of_block(self.rows, n, block.map(|block| block[0])),
        };
        let cols = of_block(self.cols, shape[1], block.map(|block| block[1]))
            .or_else(|| (shape[1] > 0 && self.cols.is_multiple_of(shape[1])).then(|| self.cols / shape[1]));
        let (Some(rows), Some(cols)) = (rows, cols) else { return Err(self.no_grid(&scales)) };
        Ok(Grid { values: scales.floats()?, shape, rows, cols })
    }

    fn no_grid(&self, scales: &Tensor) -> Error {
        let (shape, [rows, cols]) = (&scales.info.shape, [self.rows, self.cols]);
        scales.at.bad(&format!(
            "has the shape {shape:?}, which does not fit weights of the shape [{rows}, {cols}]"
        ))
    }

    /// Added to `middle` if zeros are int8.
    fn zeros(&self, grid: &Grid, needed: bool) -> Result<Option<Tensor<'_>>> {
        let zeros = self.get("weight_zero_point")?;
        match &zeros {
            None if needed => return Err(self.without("weight_zero_point")),
            Some(zeros) if zeros.info.ty == ElementType::I8 && zeros.info.elements() != grid.values.len() => {
                return Err(self.no_grid(zeros));
            }
            _ => {}
        }
        Ok(zeros)
    }
}

/// F8_E4M3.
pub(super) fn floats(pool: &Pool, product: &Product, block: Option<[usize; 2]>) -> Result<Matrix> {
    let Product { weights, rows, cols, .. } = product;
    weights.at.shape(weights.info, &[*rows, *cols])?;
    let grid = product.grid(block)?;
    let fill = |row: usize, out: &mut [f32]| {
        let source = weights.data[row * cols..][..*cols].chunks(grid.cols);
        for (group, (out, bytes)) in out.chunks_mut(grid.cols).zip(source).enumerate() {
            let scale = grid.values[grid.at(row, group)];
            out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = E4M3[*byte as usize] * scale);
        }
        Ok(())
    };
    codes::floats(pool, *rows, *cols, &fill).map_err(|e| weights.at.of(e))
}

/// Signed bytes.
pub(super) fn bytes(
    pool: &Pool,
    product: &Product,
    block: Option<[usize; 2]>,
    zeros: bool,
) -> Result<Matrix> {
    let Product { weights, rows, cols, .. } = product;
    weights.at.shape(weights.info, &[*rows, *cols])?;
    let grid = product.grid(block)?;
    let zeros = product.zeros(&grid, zeros)?;
    if let Some(zeros) = zeros.as_ref().filter(|zeros| zeros.info.ty != ElementType::I8) {
        return Err(zeros.at.unsupported(&format!("is {}; I8 is read here", zeros.info.type_name)));
    }
    let codes = Codes {
        bits: 8,
        groups: Groups::Of(grid.cols),
        count: cols.div_ceil(grid.cols),
        row: &|row, out| {
            let source = &weights.data[row * cols..][..*cols];
            out.iter_mut().zip(source).for_each(|(out, code)| *out = code ^ 0x80);
        },
        scale: &|row, group| {
            let at = grid.at(row, group);
            let zero = zeros.as_ref().map_or(0, |zeros| zeros.data[at] as i8 as i32);
            (grid.values[at], 128 + zero)
        },
    };
    codes::pack(pool, *rows, *cols, &codes).map_err(|e| weights.at.of(e))
}

/// Integers of 4 or 8 bits in words, from the low bits up.
pub(super) fn packed(pool: &Pool, product: &Product, zeros: bool) -> Result<Matrix> {
    let Product { weights, rows, cols, .. } = product;
    let (rows, cols) = (*rows, *cols);
    if let Some(shape) = product.get("weight_shape")? {
        let wanted = [rows, cols].map(|n| n as u64);
        if numbers(&shape).as_deref() != Some(&wanted) {
            return Err(shape
                .at
                .bad(&format!("is not the shape [{rows}, {cols}] that config.json asks for")));
        }
    }
    let width = weights.info.shape.get(1).copied().unwrap_or(0);
    let Some(bits) = super::bits(cols, width) else {
        let shape = &weights.info.shape;
        let why =
            format!("has the shape {shape:?}, which is not that of [{rows}, {cols}] integers of 4 or 8 bits");
        return Err(weights.at.unsupported(&why));
    };
    weights.words(&[rows, width])?;
    let grid = product.grid(None)?;
    let zeros = product.zeros(&grid, zeros)?;
    let each = 32 / bits;
    if let Some(zeros) = zeros.as_ref().filter(|zeros| zeros.info.ty != ElementType::I8) {
        if grid.rows != 1 {
            return Err(product.no_grid(zeros));
        }
        zeros.words(&[rows.div_ceil(each), grid.shape[1]])?;
    }
    let (mask, middle) = ((1 << bits) - 1, 1 << (bits - 1));
    let zero = |row: usize, group: usize| match &zeros {
        None => middle,
        Some(zeros) if zeros.info.ty == ElementType::I8 => {
            middle + zeros.data[grid.at(row, group)] as i8 as i32
        }
        // Packed along the rows.
        Some(zeros) => (zeros.word(row / each * grid.shape[1] + group) >> (row % each * bits) & mask) as i32,
    };
    let list = product.get("weight_g_idx")?;
    let codes = Codes {
        bits: bits as u32,
        groups: product.groups(list.as_ref(), grid.shape[1])?,
        count: grid.shape[1],
        row: &|row, out| {
            for (at, out) in out.chunks_mut(each).enumerate() {
                let word = weights.word(row * width + at);
                out.iter_mut().enumerate().for_each(|(i, out)| *out = (word >> (i * bits) & mask) as u8);
            }
        },
        scale: &|row, group| (grid.values[grid.at(row, group)], zero(row, group)),
    };
    codes::pack(pool, rows, cols, &codes).map_err(|e| weights.at.of(e))
}

/// The numbers of a list of sizes.
fn numbers(list: &Tensor) -> Option<Vec<u64>> {
    let bytes = &list.data;
    match list.info.ty {
        ElementType::I64 => {
            Some(bytes.as_chunks::<8>().0.iter().take(3).map(|n| u64::from_le_bytes(*n)).collect())
        }
        ElementType::I32 => {
            Some(bytes.as_chunks::<4>().0.iter().take(3).map(|n| u32::from_le_bytes(*n) as u64).collect())
        }
        _ => None,
    }
}
