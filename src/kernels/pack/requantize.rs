//! Conversion of weights to another type at load: bit for bit the output of ggml's reference quantizers
//! (github.com/ggml-org/ggml, ggml-quants.c; the Python package `gguf`), and BitNet's ternary weights.

use super::{filled, flattened_i2s, for_rows, pack_rows, pack_ternary, tq2_0_block, zeroed};
use crate::base::{Bytes, Error, Result};
use crate::kernels::gemm::formats::{dequantize_row, row_scale};
use crate::kernels::gemm::int8;
use crate::kernels::rows::hadamard::rotate;
use crate::kernels::rows::quantize::{absmax, round_row};
use crate::kernels::{DType, Matrix, Pool, isa};
use half::f16;

/// Returns `source` converted to the type `to`:
///
/// - Q8_0, Q4_0, TQ2_0: each block by itself, as ggml does. TQ2_0's scale is the largest magnitude of a block, so the
///   source should already be ternary;
/// - `Int8`: each row is rotated (`rows::hadamard::rotate`), then its largest magnitude becomes 127; values round to
///   nearest, halves to even;
/// - `Ternary`, I2_S: F32, F16 or BF16 weights of BitNet b1.58 in training are rounded to ternary ones, with the mean
///   magnitude of the whole tensor as scale; a matrix that is already ternary keeps its codes and scales, of which
///   I2_S holds only one.
///
/// `Unsupported` for other types and for shapes that `to` cannot hold; `BadModel` if a weight is not finite.
pub fn quantize(pool: &Pool, source: &Matrix, to: DType) -> Result<Matrix> {
    let Matrix { rows, cols, dtype, .. } = *source;
    if to.byte_len(rows, cols).is_none() {
        return Err(Error::unsupported(format!("a {rows}x{cols} matrix cannot be stored as {to:?}")));
    }
    match to {
        DType::Q8_0 => by_blocks::<32, 34>(pool, source, to, q8_0),
        DType::Q4_0 => by_blocks::<32, 18>(pool, source, to, q4_0),
        DType::TQ2_0 => by_blocks::<256, 66>(pool, source, to, tq2_0),
        DType::Int8 => int8(pool, source),
        DType::Ternary => ternary(pool, source),
        DType::I2S => i2s(pool, &ternary(pool, source)?),
        _ => Err(Error::unsupported(format!("{dtype:?} weights cannot be turned into {to:?}"))),
    }
}

/// Converts the rows of `source` to blocks of N elements and B bytes.
fn by_blocks<const N: usize, const B: usize>(
    pool: &Pool,
    source: &Matrix,
    to: DType,
    block: fn(&[f32; N], &mut [u8; B]),
) -> Result<Matrix> {
    pack_rows(pool, to, (source.rows, source.cols), source.cols, &|row, scratch: &mut [f32], out| {
        finite_row(source, row, scratch)?;
        for (x, out) in scratch.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<B>().0) {
            block(x, out);
        }
        Ok(())
    })
}

fn int8(pool: &Pool, source: &Matrix) -> Result<Matrix> {
    int8::pack(pool, source.rows, source.cols, &|row, out| {
        let mut weights: Vec<f32> = zeroed(source.cols)?;
        dequantize_row(isa(), source, row, &mut weights);
        rotate(isa(), &mut weights);
        // Values that were not finite are still not finite, and sums of the largest numbers overflow.
        finite(source, row, &weights)?;
        let most = absmax(isa(), &weights);
        // The scale may overflow to infinity. Its product with a zero is a NaN, which becomes 0.
        round_row(isa(), &weights, 127.0 * inverse(most), out);
        Ok(most / 127.0)
    })
}

/// Reads a row's weights; an error if one is not finite.
fn finite_row(source: &Matrix, row: usize, out: &mut [f32]) -> Result<()> {
    dequantize_row(isa(), source, row, out);
    finite(source, row, out)
}

fn finite(source: &Matrix, row: usize, weights: &[f32]) -> Result<()> {
    if weights.iter().fold(true, |all, x| all & x.is_finite()) {
        return Ok(()); // no early exit, which would prevent vectorization
    }
    match weights.iter().find(|x| !x.is_finite()) {
        None => Ok(()),
        Some(x) => Err(Error::bad_model(format!("a {:?} weight in row {row} is {x}", source.dtype))),
    }
}

/// The first element with the largest magnitude.
pub(super) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max: f32, x| if x.abs() > max.abs() { *x } else { max })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

pub(super) fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) {
    let d = largest(x).abs() / 127.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    out[2..].iter_mut().zip(x).for_each(|(q, x)| *q = (x * id).round() as i8 as u8);
}

fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) {
    let d = largest(x) / -8.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let q = |x: f32| ((x * id + 8.5) as u8).min(15);
    for (j, out) in out[2..].iter_mut().enumerate() {
        *out = q(x[j]) | q(x[j + 16]) << 4;
    }
}

fn tq2_0(x: &[f32; 256], out: &mut [u8; 66]) {
    let d = largest(x).abs();
    let id = inverse(d);
    let codes = x.map(|x| ((x * id).round() as i8 + 1) as u8);
    tq2_0_block(&codes, out);
    out[64..].copy_from_slice(&f16::from_f32(d).to_le_bytes());
}

/// The weights of BitNet b1.58 ("The Era of 1-bit LLMs", 2024; transformers, integrations/bitnet.py): w becomes
/// `clamp(round_half_even(w * s), -1, 1) / s` with s = 1 / max(mean |w|, 1e-5).
fn ternary(pool: &Pool, source: &Matrix) -> Result<Matrix> {
    let Matrix { rows, cols, .. } = *source;
    match source.dtype {
        DType::Ternary => return Ok(source.clone()),
        DType::I2S => return flattened_i2s(pool, source),
        DType::F32 | DType::F16 | DType::BF16 => {}
        other => {
            return Err(Error::unsupported(format!(
                "{other:?} weights cannot be made ternary; F32, F16 and BF16 ones can"
            )));
        }
    }
    // Sums each row in f64, then the rows in order: the same result for any number of threads.
    let mut sums: Vec<f64> = zeroed(rows)?;
    for_rows(pool, rows, 1, cols, &mut sums, &|row, scratch: &mut [f32], sum| {
        finite_row(source, row, scratch)?;
        sum[0] = scratch.iter().map(|x| x.abs() as f64).sum();
        Ok(())
    })?;
    let mean = (sums.iter().sum::<f64>() / (rows as f64 * cols as f64)) as f32;
    let scale = 1.0 / mean.max(1e-5);
    pack_ternary(pool, rows, cols, &filled(rows, 1.0 / scale)?, &|row, codes| {
        let mut weights: Vec<f32> = zeroed(cols)?;
        dequantize_row(isa(), source, row, &mut weights);
        for (code, w) in codes.iter_mut().zip(&weights) {
            *code = ((w * scale).round_ties_even().clamp(-1.0, 1.0) + 1.0) as u8;
        }
        Ok(())
    })
}

/// Element `i` of codes that are in I2_S's bit order.
fn code_at(data: &[u8], i: usize) -> u8 {
    let within = i % 128;
    data[i / 128 * 32 + within % 32] >> (6 - 2 * (within / 32)) & 3
}

/// Writes the flattened tensor in blocks of 128, then its only scale, padded to 32 bytes.
fn i2s(pool: &Pool, source: &Matrix) -> Result<Matrix> {
    let Matrix { rows, cols, .. } = *source;
    let scale = if rows == 0 { 0.0 } else { row_scale(source, 0) };
    if let Some(row) = (0..rows).find(|row| row_scale(source, *row).to_bits() != scale.to_bits()) {
        return Err(Error::unsupported(format!(
            "I2_S has one scale; row 0 has {scale} and row {row} {}",
            row_scale(source, row)
        )));
    }
    let (blocks, stride) = (rows * cols / 128, cols.div_ceil(128) * 32);
    let mut data = zeroed(blocks * 32 + 32)?;
    let (packed, behind) = data.split_at_mut(blocks * 32);
    behind[..4].copy_from_slice(&scale.to_le_bytes());
    if cols.is_multiple_of(128) {
        packed.copy_from_slice(&source.data[..packed.len()]);
    } else {
        for_rows(pool, blocks, 32, 0, packed, &|block, _: &mut [u8], out| {
            for (i, out) in out.iter_mut().enumerate() {
                *out = [0, 32, 64, 96].into_iter().fold(0, |byte, k| {
                    let at = 128 * block + k + i;
                    byte << 2 | code_at(&source.data[at / cols * stride..], at % cols)
                });
            }
            Ok(())
        })?;
    }
    Matrix::new(Bytes::new(data), DType::I2S, rows, cols)
}

#[cfg(test)]
mod tests;
