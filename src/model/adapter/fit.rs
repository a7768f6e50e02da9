//! Fits an adapter's parts to a decoder's products, as pairs of matrices.

use super::{Adapter, AdapterFile, Part};
use crate::base::{Bytes, Error, Result};
use crate::kernels::gemm::lora::Pair;
use crate::kernels::{DType, Matrix};
use crate::model::DecoderConfig;
use crate::model::export::source_row;
use crate::ops::lora::Pairs;
use crate::ops::{Lora, RopeStyle};
use std::collections::HashMap;
use xxhash_rust::xxh64::Xxh64;

/// Maximum rank.
const MAX_RANK: usize = 1024;

/// Names and rows of the matrices of one product, and their columns.
type Product<'a> = (&'a [(&'a str, usize)], usize);

/// Fits the adapter of `file` to a decoder of `config`. Fails with `BadModel` if its shapes are another
/// model's or a number is not finite, and with `Unsupported` for a part without a product.
pub fn fit(file: &AdapterFile, config: &DecoderConfig) -> Result<Adapter> {
    let Fit { lora, bytes, mut hash, left, .. } = {
        let mut fit = Fit::new(file, config)?;
        fit.take_all()?;
        fit
    };
    if let Some(name) = left.keys().min() {
        return Err(Error::unsupported(format!("{}: it updates '{name}', which the model lacks", file.what)));
    }
    if bytes == 0 {
        return Err(Error::bad_model(format!("{}: it updates nothing", file.what)));
    }
    let ranks = |pairs: &Pairs| pairs.iter().flatten().map(|pair| pair.a.rows).sum();
    let ranks = lora.all().map(ranks).max().unwrap_or(0);
    hash.update(&(bytes).to_le_bytes());
    Ok(Adapter { ranks, fingerprint: hash.digest(), lora, bytes })
}

struct Fit<'a> {
    config: &'a DecoderConfig,
    file: &'a AdapterFile,
    left: HashMap<&'a str, &'a Part>,
    /// Whether the rows of q and k are reordered.
    turn: bool,
    lora: Lora,
    bytes: u64,
    hash: Xxh64,
}

impl<'a> Fit<'a> {
    fn new(file: &'a AdapterFile, config: &'a DecoderConfig) -> Result<Self> {
        let kin = |name: &'a str| if name.starts_with("bitnet") { "bitnet" } else { name };
        let model = config.family.gguf[0];
        if let Some(own) = file.architecture.as_deref().filter(|own| kin(own) != kin(model)) {
            let what = &file.what;
            return Err(Error::bad_model(format!(
                "{what}: an adapter for '{own}', and the model is '{model}'"
            )));
        }
        let turn = file.rope.unwrap_or(config.family.hf_rope) != config.rope_style;
        if turn && config.described().dims != config.attention.head_dim {
            return Err(Error::unsupported(format!("{}: its q and k rows cannot be reordered", file.what)));
        }
        let mut left = HashMap::new();
        for part in &file.parts {
            if left.insert(part.name.as_str(), part).is_some() {
                return Err(Error::bad_model(format!("{}: '{}' is there twice", file.what, part.name)));
            }
        }
        let lora = Lora { layers: Vec::new(), head: Pairs::default() };
        Ok(Self { config, file, left, turn, lora, bytes: 0, hash: Xxh64::new(0) })
    }

    fn take_all(&mut self) -> Result<()> {
        let c = self.config;
        let hidden = c.hidden;
        let products: [Product; 4] = [
            (&c.qkv_products(), hidden),
            (&[("attn_output", hidden)], c.attention_width()),
            (&c.gate_up_products(c.ffn), hidden),
            (&[("ffn_down", hidden)], c.ffn),
        ];
        for layer in 0..c.layers {
            let mut pairs: [Pairs; 4] = Default::default();
            // Experts have no adapters: what is for them stays in `left`.
            let products = if c.blocks[layer].sparse { &products[..2] } else { &products };
            for (pairs, &(matrices, cols)) in pairs.iter_mut().zip(products) {
                for (pair, (name, rows)) in pairs.iter_mut().zip(matrices) {
                    *pair = self.pair(&format!("blk.{layer}.{name}"), *rows, cols)?;
                }
            }
            self.lora.layers.push(pairs);
        }
        self.lora.head[0] = self.pair("output", c.vocab_size, hidden)?;
        Ok(())
    }

    /// The pair of the matrix `name`, `[rows, cols]`; None if the adapter does not change it.
    fn pair(&mut self, name: &str, rows: usize, cols: usize) -> Result<Option<Pair>> {
        let Some(part) = self.left.remove(name) else { return Ok(None) };
        let Part { a, b, scale, .. } = part;
        let rank = a.rows;
        let bad = |why: String| Error::bad_model(format!("{}: the update of '{name}' {why}", self.file.what));
        if (a.cols, b.rows, b.cols) != (cols, rows, rank) || rank == 0 || rank > MAX_RANK {
            return Err(bad(format!(
                "is [{}, {}] by [{rank}, {}], where the model has [{rows}, {cols}] (and a rank is at most {MAX_RANK})",
                b.rows, b.cols, a.cols
            )));
        }
        let heads = match name.rsplit('.').next() {
            Some("attn_q") if self.turn => Some(self.config.attention.heads),
            Some("attn_k") if self.turn => Some(self.config.attention.kv_heads),
            _ => None,
        };
        let to_interleaved = self.config.rope_style == RopeStyle::Interleaved;
        let order = |row| match heads {
            Some(heads) if !to_interleaved => interleaved_row(row, rows / heads),
            _ => source_row(row, rows, heads),
        };
        let at = |e: Error| {
            Error::new(e.status, format!("{}: the update of '{name}': {}", self.file.what, e.message))
        };
        let (a, b) = (copied(a).map_err(at)?, transposed(b, &order).map_err(at)?);
        for matrix in [&a, &b] {
            if !finite(matrix) || !scale.is_finite() {
                return Err(bad("holds a number that is not finite".into()));
            }
            self.bytes += matrix.data.len() as u64;
            self.hash.update(&matrix.data);
        }
        self.hash.update(name.as_bytes());
        self.hash.update(&scale.to_le_bytes());
        Ok(Some(Pair { a, b, scale: *scale }))
    }
}

/// Bytes of an element. Fails with `Unsupported` for types other than floats.
fn element(m: &Matrix) -> Result<usize> {
    match m.dtype {
        DType::F32 => Ok(4),
        DType::F16 | DType::BF16 => Ok(2),
        other => Err(Error::unsupported(format!("an adapter in {other:?}; F32, F16 and BF16 are read"))),
    }
}

fn empty(m: &Matrix) -> Result<Vec<u8>> {
    let (mut data, len) = (Vec::new(), m.data.len());
    data.try_reserve_exact(len).map_err(|_| Error::out_of_memory("an adapter", len))?;
    Ok(data)
}

/// Copied, so that the file can be released once the adapter is made.
fn copied(m: &Matrix) -> Result<Matrix> {
    element(m)?;
    let mut data = empty(m)?;
    data.extend_from_slice(&m.data);
    Matrix::new(Bytes::new(data), m.dtype, m.rows, m.cols)
}

/// The inverse of `source_row`.
fn interleaved_row(row: usize, dim: usize) -> usize {
    let at = row % dim;
    row - at + at % (dim / 2) * 2 + at / (dim / 2)
}

/// Transposes `[rows, rank]` to `[rank, rows]`; `order` maps each place to its source row.
fn transposed(m: &Matrix, order: &dyn Fn(usize) -> usize) -> Result<Matrix> {
    let bytes = element(m)?;
    let mut data = empty(m)?;
    for column in 0..m.cols {
        for row in (0..m.rows).map(order) {
            data.extend_from_slice(&m.data[(row * m.cols + column) * bytes..][..bytes]);
        }
    }
    Matrix::new(Bytes::new(data), m.dtype, m.cols, m.rows)
}

fn finite(m: &Matrix) -> bool {
    let halves = || m.data.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    match m.dtype {
        DType::F32 => m.data.as_chunks::<4>().0.iter().all(|b| f32::from_le_bytes(*b).is_finite()),
        DType::F16 => halves().all(|h| half::f16::from_bits(h).is_finite()),
        _ => halves().all(|h| half::bf16::from_bits(h).is_finite()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_rows_are_each_others_inverse() {
        for (rows, heads) in [(8, 1), (24, 3), (128, 2)] {
            for row in 0..rows {
                assert_eq!(interleaved_row(source_row(row, rows, Some(heads)), rows / heads), row);
            }
        }
    }
}
