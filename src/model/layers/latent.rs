//! Latent attention: K and V are products of one vector of a position (`ops::Latent`).

use super::read::LayerReader;
use super::source::Source;
use super::{Mixed, Residual};
use crate::base::{Bytes, Result, reserve};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{DType, Matrix, isa};
use crate::model::config::LatentConfig;
use crate::ops::pass::{Attend, Op, Pass, Reg};
use crate::ops::{Latent, LatentShape, Norm, Projections, Slot};
use half::{bf16, f16};
use std::sync::Arc;

pub(super) fn mix(from: &mut LayerReader, pass: &mut Pass, l: &LatentConfig, of: &Residual) -> Result<Mixed> {
    let (c, index, s) = (from.c, from.index, l.shape);
    let [keys, values] = heads(from, &s)?;
    // The latent, and the rotated part of the key
    let kv = [("attn_kv_a_mqa", s.compressed())];
    let kv = of.linear(pass, from.product(Slot::Enter, &kv, c.hidden, false)?);
    let q = queries(from, pass, l, of)?;
    let norm = norm(from, "attn_kv_a_norm.weight", s.rank, l)?;
    let latent = Arc::new(Latent { shape: s, norm, keys, values });
    let qkv = pass.make(|to| Op::Absorb { q, kv, latent: latent.clone(), to });
    let place = c.place(index);
    let how = Arc::new(Attend { place, ..Attend::plain(c.attention.clone(), c.blocks[index].rope) });
    let x = pass.make(|to| Op::Attention { qkv, how, to });
    let rows = pass.make(|to| Op::Expand { x, latent, to });
    Ok(Mixed { rows, output: "attn_output", width: s.values() })
}

/// The queries: a product of the layer's inputs, or of their own latent.
fn queries(from: &mut LayerReader, pass: &mut Pass, l: &LatentConfig, of: &Residual) -> Result<Reg> {
    let (hidden, count) = (from.c.hidden, l.shape.queries());
    let Some(rank) = l.query_rank else {
        return Ok(of.linear(pass, from.product(Slot::Gate, &[("attn_q", count)], hidden, false)?));
    };
    let latent = of.linear(pass, from.product(Slot::Latent, &[("attn_q_a", rank)], hidden, false)?);
    let norm = norm(from, "attn_q_a_norm.weight", rank, l)?;
    Ok(pass.linear(latent, Some(norm), from.product(Slot::Gate, &[("attn_q_b", count)], rank, false)?))
}

fn norm(from: &mut LayerReader, part: &str, len: usize, l: &LatentConfig) -> Result<Norm> {
    Ok(Norm { weight: from.vector(part, len)?, bias: None, eps: l.eps })
}

/// The K and the V weights of each head. Files have them apart, K transposed, or as one product of the latent.
fn heads(from: &mut LayerReader, s: &LatentShape) -> Result<[Vec<Projections>; 2]> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    reserve(&mut keys, s.heads, "heads")?;
    reserve(&mut values, s.heads, "heads")?;
    let whole = "attn_kv_b.weight";
    if !from.has(whole) && from.has("attn_k_b.weight") {
        for head in 0..s.heads {
            keys.push([from.matrix(&format!("attn_k_b.{head}.weight"), s.rank, s.nope)?].into());
            values.push([from.matrix(&format!("attn_v_b.{head}.weight"), s.value, s.rank)?].into());
        }
        return Ok([keys, values]);
    }
    let each = s.nope + s.value;
    let both = from.matrix(whole, s.heads * each, s.rank)?;
    for head in 0..s.heads {
        let of = |start: usize, count: usize| both.some_rows(head * each + start, count);
        let key = of(0, s.nope).and_then(|k| transposed(&k));
        // Else it would keep the buffer of the K weights too.
        let alone = |v: Matrix| if v.data.is_mapped() { Ok(v) } else { v.copied() };
        let value = of(s.nope, s.value).and_then(alone);
        keys.push([key.map_err(|e| from.at(whole, e))?].into());
        values.push([value.map_err(|e| from.at(whole, e))?].into());
    }
    Ok([keys, values])
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
