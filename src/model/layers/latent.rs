//! Latent attention.

use super::inventory::{Inventory, Product};
use super::kind::Mixer;
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::{Bytes, Result, reserve};
use crate::kernels::gemm::formats::dequantize_row;
use crate::kernels::{DType, Matrix, isa};
use crate::model::config::LatentConfig;
use crate::ops::{Attention, AttentionShape, Latent, LatentShape, Norm, Owned, Projections, Slot};
use half::{bf16, f16};

/// Attention whose K and V are products of one vector of a position (`ops::Latent`).
pub struct LatentAttention {
    /// The queries' own latent, `[rank, hidden]`, and its norm. `None`: queries are products of the layer's inputs.
    down: Option<(Product, Norm)>,
    /// `[heads * (nope + rope), rank or hidden]`.
    q: Product,
    /// The latent, and the rotated part of the key: `[rank + rope, hidden]`.
    kv: Product,
    latent: Latent,
    shape: AttentionShape,
    /// Index into `DecoderConfig::ropes`.
    rope: usize,
    /// Index of its KV cache.
    place: usize,
}

impl LatentAttention {
    pub fn read(from: &mut LayerReader, l: &LatentConfig) -> Result<Self> {
        let (c, index, s) = (from.c, from.index, l.shape);
        let (down, q, width) = match l.query_rank {
            Some(rank) => {
                let down = from.product(Slot::Latent, &[("attn_q_a", rank)], c.hidden, false)?;
                (Some((down, norm(from, "attn_q_a_norm.weight", rank, l)?)), "attn_q_b", rank)
            }
            None => (None, "attn_q", c.hidden),
        };
        let [keys, values] = heads(from, &s)?;
        Ok(Self {
            down,
            q: from.product(Slot::Gate, &[(q, s.queries())], width, false)?,
            kv: from.product(Slot::Enter, &[("attn_kv_a_mqa", s.compressed())], c.hidden, false)?,
            latent: Latent { shape: s, norm: norm(from, "attn_kv_a_norm.weight", s.rank, l)?, keys, values },
            shape: c.attention.clone(),
            rope: c.blocks[index].rope,
            place: c.place(index),
        })
    }

    /// The rows of attention.
    fn absorbed(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let kv = residual.linear(step, &self.kv)?;
        let q = match &self.down {
            Some((down, norm)) => {
                let latent = residual.linear(step, down)?;
                step.all.linear(&latent, Some(norm), &self.q)?
            }
            None => residual.linear(step, &self.q)?,
        };
        step.ops.absorb(&q, &kv, &self.latent)
    }

    fn how<'a>(&'a self, step: &'a Step) -> Attention<'a> {
        Attention::plain(&self.shape, step.rope(self.rope))
    }
}

impl Mixer for LatentAttention {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.kv);
        to.product(&self.q);
        if let Some((down, norm)) = &self.down {
            to.product(down);
            to.norms([norm]);
        }
        self.latent.products().for_each(|product| to.fixed(product));
        to.norms([&self.latent.norm]);
    }

    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let rows = self.absorbed(step, residual)?;
        let out = step.ops.attention(&rows, &step.paging, step.kv, self.place, &self.how(step))?;
        drop(rows);
        step.ops.expand(&out, &self.latent)
    }

    fn append(&self, step: &Step, residual: &mut Residual) -> Result<()> {
        let rows = self.absorbed(step, residual)?;
        step.ops.append(&rows, &step.paging, step.kv, self.place, &self.how(step))
    }
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
