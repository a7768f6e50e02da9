//! GPTQ and AWQ: integers in words of 32 bits, `[columns, rows]`, with a scale and a zero for groups of columns.

use super::{Product, Tensor};
use crate::base::Result;
use crate::kernels::pack::codes::{self, Codes};
use crate::kernels::{Matrix, Pool};

/// The scales and zeros of a product, after their shapes are checked.
struct Scales<'a> {
    /// `[groups, rows]`.
    scales: Vec<f32>,
    count: usize,
    /// `[groups, rows / each]`, those of `each` rows in a word.
    zeros: Tensor<'a>,
    rows: usize,
    each: usize,
}

impl<'a> Scales<'a> {
    fn read(product: &Product<'a>, each: usize) -> Result<Self> {
        let rows = product.rows;
        let (scales, zeros) = (product.need("scales")?, product.need("qzeros")?);
        let count = scales.info.shape.first().copied().unwrap_or(0);
        scales.at.shape(scales.info, &[count, rows])?;
        if !rows.is_multiple_of(each) {
            let why = format!("has {rows} rows, which are not packed by {each}");
            return Err(product.weights.at.unsupported(&why));
        }
        zeros.words(&[count, rows / each])?;
        Ok(Self { scales: scales.floats()?, count, zeros, rows, each })
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.rows + row]
    }

    /// The word with the zero of a row's group.
    fn zeros(&self, row: usize, group: usize) -> u32 {
        self.zeros.word(group * (self.rows / self.each) + row / self.each)
    }
}

/// GPTQ: a word has the codes of successive columns, from the low bits up; a word of zeros those of successive rows.
pub(super) fn gptq(pool: &Pool, product: &Product, more: i32) -> Result<Matrix> {
    let Product { weights, rows, cols, .. } = product;
    let height = weights.info.shape.first().copied().unwrap_or(0);
    let Some(bits) = super::bits(*cols, height) else {
        let shape = &weights.info.shape;
        let why =
            format!("has the shape {shape:?}, which is not that of [{cols}, {rows}] integers of 4 or 8 bits");
        return Err(weights.at.unsupported(&why));
    };
    weights.words(&[height, *rows])?;
    let (each, mask) = (32 / bits, (1 << bits) - 1);
    let scales = Scales::read(product, each)?;
    let list = product.get("g_idx")?;
    let codes = Codes {
        bits: bits as u32,
        groups: product.groups(list.as_ref(), scales.count)?,
        count: scales.count,
        row: &|row, out| {
            for (at, out) in out.chunks_mut(each).enumerate() {
                let word = weights.word(at * rows + row);
                out.iter_mut().enumerate().for_each(|(i, out)| *out = (word >> (i * bits) & mask) as u8);
            }
        },
        scale: &|row, group| {
            let zero = scales.zeros(row, group) >> (row % each * bits) & mask;
            (scales.scale(row, group), zero as i32 + more)
        },
    };
    codes::pack(pool, *rows, *cols, &codes).map_err(|e| weights.at.of(e))
}

/// AWQ: a word has the codes of eight rows, from the low bits up rows 0, 2, 4, 6, 1, 3, 5 and 7; zeros alike.
pub(super) fn awq(pool: &Pool, product: &Product) -> Result<Matrix> {
    let Product { weights, rows, cols, .. } = product;
    let scales = Scales::read(product, 8)?;
    weights.words(&[*cols, rows / 8])?;
    let shift = |row: usize| 4 * (row % 8 / 2 + row % 2 * 4);
    let codes = Codes {
        bits: 4,
        groups: product.groups(None, scales.count)?,
        count: scales.count,
        row: &|row, out| {
            let code = |col: usize| (weights.word(col * (rows / 8) + row / 8) >> shift(row) & 15) as u8;
            out.iter_mut().enumerate().for_each(|(col, out)| *out = code(col));
        },
        scale: &|row, group| (scales.scale(row, group), (scales.zeros(row, group) >> shift(row) & 15) as i32),
    };
    codes::pack(pool, *rows, *cols, &codes).map_err(|e| weights.at.of(e))
}
