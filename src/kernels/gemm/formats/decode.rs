//! Decoding of blocks into integer codes and scales: the meaning of each type of blocks.
//!
//! Blocks of 32 to 128 columns with one scale are ggml's Q4_0 to Q8_0, Q1_0, Q2_0, IQ4_NL and MXFP4; super-blocks are
//! its K-quants, IQ2, IQ3 and IQ4_XS (github.com/ggml-org/ggml, ggml-quants.c).

use super::f16_at;
use super::short_blocks::{Short, column, with_short};
use super::super_blocks::{Super, column as first_column, scales, with_super};
use crate::kernels::simd::bytes::Portable;
use crate::kernels::{Arithmetic, DType};

/// A block's weights as integers. In a super-block, weight i is
/// `values[i] * scales[i / 16] * d - mins[i / 16] * min`. Short blocks, of 32 to 128 columns, have scales of 1, and
/// their minimum is added: `values[i] * d + min`.
pub(in crate::kernels) struct Codes {
    /// Codes with the type's offset already subtracted. A shorter block uses only the first ones.
    pub values: [i8; 256],
    pub scales: [i8; 16],
    pub mins: [u8; 16],
    pub d: f32,
    /// None if the type has no minimums.
    pub min: Option<f32>,
}

/// Decodes a block of `dtype`, as its file packs it. Panics for types without such blocks.
pub(in crate::kernels) fn decode(dtype: DType, block: &[u8]) -> Codes {
    match dtype.arithmetic() {
        Arithmetic::Blocks256 => with_super!(dtype, K => decode_super::<K>(block)),
        _ => with_short!(dtype, F => decode_short::<F>(block)),
    }
}

fn decode_short<F: Short>(block: &[u8]) -> Codes {
    assert_eq!(block.len(), F::BYTES, "a whole block");
    let mut values = [0; 256];
    // SAFETY: a whole block.
    let words = unsafe { F::words(&[block.as_ptr()], 0) };
    for (n, values) in values.as_chunks_mut::<32>().0[..F::COUNT].iter_mut().enumerate() {
        // SAFETY: any processor has the instructions.
        for (k, Portable(codes)) in unsafe { F::codes(&words, n) }.into_iter().enumerate() {
            for (i, code) in codes.to_le_bytes().into_iter().enumerate() {
                values[column(F::BITS, 4 * k + i)] = code as i8 - F::OFFSET as i8;
            }
        }
    }
    let min = F::MINIMUMS.then(|| f16_at(&block[2..]));
    Codes { values, scales: [1; 16], mins: [0; 16], d: F::scale(block), min }
}

fn decode_super<K: Super>(block: &[u8]) -> Codes {
    let [scales, mins] = scales::<K>(block);
    let mut values = [0; 256];
    for (side, j) in (0..8).map(|n| (n / 4, n % 4)) {
        // SAFETY (of both): a whole block, as `scales` has seen; any processor has the instructions.
        let packed = unsafe { K::packed::<Portable>(&[block.as_ptr()], 0, side) };
        for (k, Portable(codes)) in unsafe { K::codes(&packed, j) }.into_iter().enumerate() {
            for (i, code) in codes.to_le_bytes().into_iter().enumerate() {
                values[first_column::<K>(k, side) + 4 * j + i] = code as i8 - K::OFFSET as i8;
            }
        }
    }
    Codes {
        values,
        scales: scales.map(|scale| scale as i8),
        mins,
        d: f16_at(&block[K::D..]) * K::UNIT,
        min: K::MINIMA.then(|| f16_at(&block[K::MIN..])),
    }
}

/// Decodes a row of blocks to f32. Float operations are in the order of ggml's reference, so that every bit agrees.
pub(crate) fn dequantize(dtype: DType, source: &[u8], out: &mut [f32]) {
    let (elements, bytes) = dtype.block();
    for (out, block) in out.chunks_exact_mut(elements).zip(source.chunks_exact(bytes)) {
        let codes = decode(dtype, block);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = codes.d * codes.scales[group % 16] as f32;
            let low = match codes.min {
                None => 0.0,
                Some(min) if elements == 256 => -(min * codes.mins[group] as f32),
                Some(min) => min,
            };
            for (out, code) in out.iter_mut().zip(&codes.values[16 * group..]) {
                *out = scale * *code as f32;
                if codes.min.is_some() {
                    *out += low;
                }
            }
        }
    }
}
