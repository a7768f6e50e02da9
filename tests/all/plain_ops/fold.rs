//! Rotations that weights are folded with.

use bn_engine::ops::{Fold, Regrouped};
use candle_core::{DType, Device, Result, Tensor};

/// `x` `[T, width]` times the block-diagonal matrix of H / sqrt(block), H[i, j] = (-1)^(ones in i & j).
pub fn walsh_hadamard(x: &Tensor, block: usize) -> Result<Tensor> {
    let by = 1.0 / (block as f64).sqrt();
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { by } else { -by };
    let h: Vec<f64> = (0..block * block).map(|at| sign(at / block, at % block)).collect();
    let (h, (rows, width)) = (Tensor::from_vec(h, (block, block), &Device::Cpu)?, x.dims2()?);
    let x = x.to_dtype(DType::F64)?.reshape((rows * width / block, block))?;
    x.matmul(&h)?.reshape((rows, width))?.to_dtype(DType::F32)
}

/// `H (s * x)` of int8 rows, in f32 in the order of the engine's sums, so that no value is rounded the other way.
pub fn rotated_int8(x: &Tensor) -> Result<Tensor> {
    butterflies(&x.broadcast_mul(&signs(x.dims2()?.1)?)?)
}

/// The inverse of `rotated_int8`.
pub fn unrotated_int8(x: &Tensor) -> Result<Tensor> {
    butterflies(x)?.broadcast_mul(&signs(x.dims2()?.1)?)
}

/// The largest power of two that divides the width of a row.
fn block(width: usize) -> usize {
    1 << width.trailing_zeros()
}

fn signs(width: usize) -> Result<Tensor> {
    // Neighboring ones of a number's binary digits, counted.
    let pairs = |i: usize| (0..32).filter(|bit| i >> bit & 3 == 3).count();
    let signs: Vec<f32> = (0..width).map(|i| [1.0, -1.0][pairs(i % block(width)) % 2]).collect();
    Tensor::from_vec(signs, (1, width), &Device::Cpu)
}

fn butterflies(x: &Tensor) -> Result<Tensor> {
    let ((rows, width), mut x) = (x.dims2()?, x.clone());
    let mut half = block(width) / 2;
    while half > 0 {
        let pairs = x.reshape((rows * width / (2 * half), 2, half))?;
        let (a, b) = (pairs.narrow(1, 0, 1)?, pairs.narrow(1, 1, 1)?);
        x = Tensor::cat(&[(&a + &b)?, (&a - &b)?], 1)?.reshape((rows, width))?;
        half /= 2;
    }
    let by = (1.0 / (block(width) as f64).sqrt()) as f32;
    x.broadcast_mul(&Tensor::from_slice(&[by], (1, 1), &Device::Cpu)?)
}

pub fn signed(x: &Tensor, fold: &Fold) -> Result<Tensor> {
    match &fold.signs {
        Some(signs) => x.broadcast_mul(&Tensor::from_slice(signs, signs.len(), &Device::Cpu)?),
        None => Ok(x.clone()),
    }
}

/// `H (s * x)`, of heads in grouped order.
pub fn rotated(x: &Tensor, fold: &Fold) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let x = match fold.heads {
        Some(Regrouped { key_heads, value_heads }) => {
            let each = value_heads / key_heads;
            let x = x.reshape((rows, each, key_heads, width / value_heads))?;
            x.transpose(1, 2)?.contiguous()?.reshape((rows, width))?
        }
        None => x.clone(),
    };
    walsh_hadamard(&signed(&x, fold)?, fold.block)
}
