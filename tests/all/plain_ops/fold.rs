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
