//! Weights that other tools have quantized: integers with a scale and a zero for each group of columns, and floats of
//! one byte. They become blocks of 32 columns with an f16 scale.

use super::requantize::{largest, q8_0};
use super::{pack_rows, zeroed};
use crate::base::{Error, Result};
use crate::kernels::{DType, Matrix, Pool};
use half::f16;

/// The largest scale of a block.
const MOST: f32 = 65504.0;

/// The columns of a row that have one scale and one zero.
pub enum Groups {
    /// This many consecutive columns; the last group of a row may have fewer.
    Of(usize),
    /// The group of each column.
    Listed(Vec<u32>),
}

/// Quantized weights `(code - zero) * scale`.
pub struct Codes<'a> {
    /// Bits per code: 4 or 8.
    pub bits: u32,
    pub groups: Groups,
    /// Number of groups of a row.
    pub count: usize,
    /// Writes a row's codes, which are below two to the power of `bits`.
    pub row: &'a (dyn Fn(usize, &mut [u8]) + Sync),
    /// The scale and the zero of a row's group.
    pub scale: &'a (dyn Fn(usize, usize) -> (f32, i32) + Sync),
}

impl Codes<'_> {
    /// The type that represents these weights exactly, with scales in f16. `None` if there is none.
    fn exact(&self, rows: usize) -> Option<DType> {
        let Groups::Of(group) = self.groups else { return None };
        if !group.is_multiple_of(32) {
            return None;
        }
        let middle = 1 << (self.bits - 1);
        let symmetric =
            || (0..rows).all(|row| (0..self.count).all(|group| (self.scale)(row, group).1 == middle));
        match self.bits {
            4 if symmetric() => Some(DType::Q4_0),
            4 => Some(DType::Q4_1),
            8 if symmetric() => Some(DType::Q8_0),
            _ => None,
        }
    }

    fn group(&self, col: usize) -> usize {
        match &self.groups {
            Groups::Of(group) => col / group,
            Groups::Listed(groups) => groups[col] as usize,
        }
    }
}

/// Packs integers in the type that represents them without loss, except that scales are rounded to f16:
///
/// - 4 bits become Q4_0 if each zero is 8, otherwise Q4_1, whose minimum `-zero * scale` is rounded to f16 too;
/// - 8 bits become Q8_0 if each zero is 128.
///
/// Others are rounded to Q8_0: groups that do not consist of whole blocks, and 8 bits with other zeros. `Unsupported`
/// if the rows are no multiple of 32 columns; `BadModel` for a scale that is not finite, or too large.
pub fn pack(pool: &Pool, rows: usize, cols: usize, codes: &Codes) -> Result<Matrix> {
    let size = if let Groups::Of(group) = codes.groups { cols.div_ceil(group.max(1)) } else { codes.count };
    assert!(
        matches!(codes.bits, 4 | 8) && size == codes.count,
        "codes of a known size, a scale for each group"
    );
    match codes.exact(rows) {
        Some(DType::Q4_0) => blocks::<18>(pool, rows, cols, DType::Q4_0, codes, q4_0),
        Some(DType::Q4_1) => blocks::<20>(pool, rows, cols, DType::Q4_1, codes, q4_1),
        Some(to) => blocks::<34>(pool, rows, cols, to, codes, q8_0_of),
        None => floats(pool, rows, cols, &|row, out| {
            let mut of_row: Vec<u8> = zeroed(cols)?;
            (codes.row)(row, &mut of_row);
            for (col, (out, code)) in out.iter_mut().zip(&of_row).enumerate() {
                let (scale, zero) = (codes.scale)(row, codes.group(col));
                *out = (*code as i32 - zero) as f32 * scale;
            }
            Ok(())
        }),
    }
}

/// Writes a row's weights.
pub type Row<'a> = dyn Fn(usize, &mut [f32]) -> Result<()> + Sync + 'a;

/// Rounds floats to Q8_0. Errors as for `pack`.
pub fn floats(pool: &Pool, rows: usize, cols: usize, fill: &Row) -> Result<Matrix> {
    pack_rows(pool, DType::Q8_0, (rows, cols), cols, &|row, weights: &mut [f32], out| {
        fill(row, weights)?;
        if let Some(odd) = weights.iter().find(|w| !w.is_finite()) {
            return Err(Error::bad_model(format!("a weight in row {row} is {odd}")));
        }
        for (x, out) in weights.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<34>().0) {
            let scale = largest(x).abs() / 127.0;
            q8_0(x, out);
            fits(row, scale)?;
        }
        Ok(())
    })
}

/// Packs blocks of B bytes, each from its codes, scale and zero.
fn blocks<const B: usize>(
    pool: &Pool,
    rows: usize,
    cols: usize,
    to: DType,
    codes: &Codes,
    block: fn(&[u8; 32], f32, i32, &mut [u8; B]),
) -> Result<Matrix> {
    pack_rows(pool, to, (rows, cols), cols, &|row, of_row: &mut [u8], out| {
        (codes.row)(row, of_row);
        let all = of_row.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<B>().0);
        for (at, (of_block, out)) in all.enumerate() {
            let (scale, zero) = (codes.scale)(row, codes.group(32 * at));
            fits(row, scale)?;
            fits(row, zero as f32 * scale)?;
            block(of_block, scale, zero, out);
        }
        Ok(())
    })
}

fn fits(row: usize, scale: f32) -> Result<()> {
    match scale.abs() <= MOST {
        true => Ok(()),
        false => Err(Error::bad_model(format!(
            "row {row} has a scale of {scale}, and half precision ends at {MOST}"
        ))),
    }
}

fn q4_0(codes: &[u8; 32], scale: f32, _: i32, out: &mut [u8; 18]) {
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    nibbles(codes, &mut out[2..]);
}

fn q4_1(codes: &[u8; 32], scale: f32, zero: i32, out: &mut [u8; 20]) {
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(-zero as f32 * scale).to_le_bytes());
    nibbles(codes, &mut out[4..]);
}

fn nibbles(codes: &[u8; 32], out: &mut [u8]) {
    out.iter_mut().enumerate().for_each(|(j, out)| *out = codes[j] & 15 | codes[j + 16] << 4);
}

fn q8_0_of(codes: &[u8; 32], scale: f32, _: i32, out: &mut [u8; 34]) {
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    // The code minus the zero, 128, as int8.
    out[2..].iter_mut().zip(codes).for_each(|(out, code)| *out = code ^ 0x80);
}

/// The values of bytes in F8_E4M3: a sign, four bits of exponent, three of mantissa. Two are NaN.
pub const E4M3: [f32; 256] = {
    let (mut all, mut byte) = ([0.0; 256], 0);
    while byte < 256 {
        let (exponent, mantissa) = (byte as u32 >> 3 & 15, byte as u32 & 7);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.0,
            // The bits of an f32, whose exponent has a bias of 127 instead of 7.
            _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
        };
        all[byte] = if byte < 128 { magnitude } else { -magnitude };
        byte += 1;
    }
    all
};

#[cfg(test)]
mod tests;
