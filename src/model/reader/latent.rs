//! Reads layers of latent attention.

use super::Reader;
use crate::base::{Bytes, Error, Result, reserve};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{DType, Matrix, isa};
use crate::model::config::{DecoderConfig, LatentConfig};
use crate::model::decoder::LatentAttention;
use crate::ops::{Latent, LatentShape, Norm, Projections};
use half::{bf16, f16};

impl Reader<'_> {
    pub(super) fn latent(
        &mut self,
        index: usize,
        l: &LatentConfig,
        c: &DecoderConfig,
    ) -> Result<LatentAttention> {
        let (name, s) = (|part: &str| format!("blk.{index}.{part}"), l.shape);
        let (down, q, from) = match l.query_rank {
            Some(rank) => {
                let down = self.projections(&[(name("attn_q_a"), rank)], c.hidden, false, c)?;
                (Some((down, self.latent_norm(&name("attn_q_a_norm"), rank, l)?)), name("attn_q_b"), rank)
            }
            None => (None, name("attn_q"), c.hidden),
        };
        let [keys, values] = self.heads(index, &s)?;
        Ok(LatentAttention {
            down,
            q: self.projections(&[(q, s.queries())], from, false, c)?,
            kv: self.projections(&[(name("attn_kv_a_mqa"), s.compressed())], c.hidden, false, c)?,
            latent: Latent {
                shape: s,
                norm: self.latent_norm(&name("attn_kv_a_norm"), s.rank, l)?,
                keys,
                values,
            },
        })
    }

    fn latent_norm(&mut self, name: &str, len: usize, l: &LatentConfig) -> Result<Norm> {
        Ok(Norm { weight: self.vector(&format!("{name}.weight"), len)?, bias: None, eps: l.eps })
    }

    /// The K and the V weights of each head. Files have them apart, K transposed, or as one product of the latent.
    fn heads(&mut self, index: usize, s: &LatentShape) -> Result<[Vec<Projections>; 2]> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        reserve(&mut keys, s.heads, "heads")?;
        reserve(&mut values, s.heads, "heads")?;
        let whole = name("attn_kv_b.weight");
        if !self.files.has(&whole) && self.files.has(&name("attn_k_b.weight")) {
            for head in 0..s.heads {
                keys.push([self.matrix(&name(&format!("attn_k_b.{head}.weight")), s.rank, s.nope)?].into());
                values
                    .push([self.matrix(&name(&format!("attn_v_b.{head}.weight")), s.value, s.rank)?].into());
            }
            return Ok([keys, values]);
        }
        let each = s.nope + s.value;
        let both = self.matrix(&whole, s.heads * each, s.rank)?;
        let at = |e: Error| {
            Error::new(e.status, format!("{}: tensor '{whole}': {}", self.files.what(), e.message))
        };
        for head in 0..s.heads {
            let of = |from: usize, count: usize| both.some_rows(head * each + from, count);
            keys.push([of(0, s.nope).and_then(|k| transposed(&k)).map_err(at)?].into());
            // Else it would keep the buffer of the K weights too.
            let alone = |v: Matrix| if v.data.is_mapped() { Ok(v) } else { v.copied() };
            values.push([of(s.nope, s.value).and_then(alone).map_err(at)?].into());
        }
        Ok([keys, values])
    }
}

/// The transposed matrix: floats as they are, other types as F16, since blocks of a row become columns.
fn transposed(of: &Matrix) -> Result<Matrix> {
    let dtype = if matches!(of.dtype, DType::F32 | DType::BF16) { of.dtype } else { DType::F16 };
    let (rows, cols) = (of.rows, of.cols);
    let size = if dtype == DType::F32 { 4 } else { 2 };
    let (mut data, mut row): (Vec<u8>, Vec<f32>) = (Vec::new(), Vec::new());
    reserve(&mut data, rows * cols * size, "the weights of a head")?;
    reserve(&mut row, cols, "a row of weights")?;
    data.resize(rows * cols * size, 0);
    row.resize(cols, 0.0);
    for n in 0..rows {
        dequantize_row(isa(), of, n, &mut row);
        for (column, value) in row.iter().enumerate() {
            let to = &mut data[(column * rows + n) * size..][..size];
            match dtype {
                DType::F32 => to.copy_from_slice(&value.to_le_bytes()),
                DType::BF16 => to.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
                _ => to.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            }
        }
    }
    Matrix::new(Bytes::new(data), dtype, cols, rows)
}
