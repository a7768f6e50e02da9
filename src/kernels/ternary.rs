//! Products of int8 activations and ternary weights: integers are exact, so order never shows.

use super::blocks::{RowBlock, SharedOut, block_count, nth_block};
use super::quantize::QuantRow;
use super::rows::{f16_at, i2s_scale, packed_row};
use super::{DType, Isa, Matrix, Pool};
use crate::base::{Error, Result};
use std::cell::RefCell;

/// Weight rows of one task.
const TASK_ROWS: usize = 32;
/// Weight rows that are unpacked together and swept over the tokens.
pub(super) const GROUP: usize = 4;
/// From this many tokens on, unpacked codes pay for being written.
const SWEEP_TOKENS: usize = 4;
/// Bytes of activations that one sweep keeps in the second-level cache.
const TILE_BYTES: usize = 256 << 10;
/// Below this many multiplications waking others takes longer than the work.
const SMALL: usize = 1 << 18;

/// Tokens' int8 activations, `[rows.len(), cols]`, each row with its scale and sum.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    pub values: &'a [i8],
    pub rows: &'a [QuantRow],
    pub cols: usize,
}

impl Activations<'_> {
    fn row(&self, t: usize) -> &[i8] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }
}

/// Refuses a ternary matrix with a code 3, which means no weight, or a scale that is not finite, with `BadModel`;
/// the products rely on both. Other types pass.
pub fn validate(m: &Matrix) -> Result<()> {
    if !m.dtype.is_ternary() {
        return Ok(());
    }
    let finite = |scale: f32, row: usize| match scale.is_finite() {
        true => Ok(()),
        false => Err(Error::bad_model(format!("a {:?} scale in row {row} is {scale}", m.dtype))),
    };
    for row in 0..m.rows {
        let packed = packed_row(m, row);
        let invalid = match m.dtype {
            DType::I2S => has_three(packed),
            _ => packed.chunks_exact(66).any(|block| has_three(&block[..64])),
        };
        if invalid {
            return Err(Error::bad_model(format!("a {:?} matrix holds the invalid code 3 in row {row}", m.dtype)));
        }
        if m.dtype == DType::TQ2_0 {
            packed.chunks_exact(66).try_for_each(|block| finite(f16_at(&block[64..]), row))?;
        }
    }
    if m.dtype == DType::I2S { finite(i2s_scale(m), 0) } else { Ok(()) }
}

/// `bytes` is a multiple of 32 long.
fn has_three(bytes: &[u8]) -> bool {
    let low = 0x5555_5555_5555_5555u64;
    bytes.as_chunks::<8>().0.iter().any(|b| {
        let codes = u64::from_le_bytes(*b);
        codes & (codes >> 1) & low != 0
    })
}

/// `out[t, i] = x[t] · w[i] / scale(t)` for the rows `i` of all of `weights`, side by side in their order.
///
/// `out` is `[x.rows.len(), sum of rows]`, and each matrix a ternary one of `x.cols` columns. The integer dot products
/// are exact. I2_S gives `dot * (weight scale / activation scale)`; TQ2_0 adds `block dot * block scale` block by
/// block in f32 and divides by the activation scale.
pub fn matmul(pool: &Pool, isa: Isa, x: &Activations, weights: &[&Matrix], out: &mut [f32]) {
    let width: usize = weights.iter().map(|m| m.rows).sum();
    let shared = super::blocks::SharedOut::new(out);
    pool.run(super::blocks::block_count(weights, 16), &|n| {
        let b = super::blocks::nth_block(weights, 16, n);
        let m = weights[b.matrix];
        let mut w = vec![0.0f32; x.cols];
        let scale = f32::from_le_bytes(m.data[m.rows*m.cols/4..][..4].try_into().unwrap());
        for row in b.rows.clone() {
            super::rows::dequantize_row(isa, m, row, &mut w);
            for t in 0..x.rows.len() {
                let d: i32 = x.values[t*x.cols..][..x.cols].iter().zip(&w).map(|(a, w)| *a as i32 * if *w > 0.0 {1} else if *w < 0.0 {-1} else {0}).sum();
                let at = t * width + b.column + row;
                let cell = unsafe { shared.slice(at..at + 1) };
                cell[0] = d as f32 * (scale / x.rows[t].scale);
            }
        }
    });
}
