//! Fits an adapter's parts to a decoder's products, as pairs of matrices.

use super::{Adapter, AdapterFile, Part};
use crate::base::{Bytes, Error, Result, reserve};
use crate::kernels::gemm::lora::Pair;
use crate::kernels::{DType, Matrix};
use crate::model::DecoderConfig;
use crate::model::export::source_row;
use crate::model::fused;
use crate::model::hf::names;
use crate::model::layers::recurrent::Mixer;
use crate::ops::lora::Pairs;
use crate::ops::pass::Product;
use crate::ops::{Lora, RopeStyle};
use std::collections::HashMap;
use std::sync::Arc;
use xxhash_rust::xxh64::Xxh64;

/// Maximum rank.
const MAX_RANK: usize = 1024;

/// Fits the adapter of `file` to a decoder. Fails with `BadModel` if its shapes are another model's or a number is not
/// finite, and with `Unsupported` for a part without a product that takes updates.
pub(crate) fn fit(
    file: &AdapterFile,
    config: &DecoderConfig,
    products: &mut dyn Iterator<Item = &Product>,
) -> Result<Adapter> {
    let Fit { lora, bytes, mut hash, left, .. } = {
        let mut fit = Fit::new(file, config)?;
        fit.take_all(products)?;
        fit
    };
    if let Some(name) = left.keys().min() {
        let why = "the model has no such product, or none that takes an adapter";
        return Err(Error::unsupported(format!("{}: it updates '{name}': {why}", file.what)));
    }
    if bytes == 0 {
        return Err(Error::bad_model(format!("{}: it updates nothing", file.what)));
    }
    let ranks = |pairs: &Pairs| pairs.iter().flatten().map(|pair| pair.a.rows).sum();
    let ranks = lora.all().map(ranks).max().unwrap_or(0);
    let cols = |pairs: &Pairs| pairs.iter().flatten().map(|pair| pair.a.cols).max();
    let widest = lora.all().filter_map(cols).max().unwrap_or(0);
    hash.update(&(bytes).to_le_bytes());
    Ok(Adapter { ranks, widest, fingerprint: hash.digest(), lora, bytes })
}

struct Fit<'a> {
    config: &'a DecoderConfig,
    file: &'a AdapterFile,
    /// By GGUF's names.
    left: HashMap<String, Part>,
    /// Whether the rows of q and k are reordered.
    turn: bool,
    lora: Lora,
    /// Copies of the first matrices, by where the file has them: products of one module share one.
    copies: HashMap<*const u8, Matrix>,
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
        // Which elements of latent attention are pairs is the folder's own matter, and that of adapters made with it.
        let own = if config.latent.is_some() { config.rope_style } else { config.family.hf_rope };
        let turn = file.rope.unwrap_or(own) != config.rope_style;
        if turn && config.described().dims != config.attention.head_dim {
            return Err(Error::unsupported(format!("{}: its q and k rows cannot be reordered", file.what)));
        }
        let mut left = HashMap::new();
        for part in &file.parts {
            for part in products(file, part, config)? {
                if let Some(twice) = left.insert(part.name.clone(), part) {
                    return Err(Error::bad_model(format!("{}: '{}' is there twice", file.what, twice.name)));
                }
            }
        }
        let lora = Lora::empty(config.layers);
        Ok(Self { config, file, left, turn, lora, copies: HashMap::new(), bytes: 0, hash: Xxh64::new(0) })
    }

    fn take_all(&mut self, products: &mut dyn Iterator<Item = &Product>) -> Result<()> {
        for product in products {
            let Some(site) = product.site else { continue };
            let mut pairs = Pairs::default();
            for ((pair, name), matrix) in pairs.iter_mut().zip(&product.names).zip(&product.weights.matrices)
            {
                *pair = self.pair(name, matrix.rows, matrix.cols)?;
            }
            *self.lora.pairs_mut(site) = pairs;
        }
        Ok(())
    }

    /// The pair of the matrix `name`, `[rows, cols]`; None if the adapter does not change it.
    fn pair(&mut self, name: &str, rows: usize, cols: usize) -> Result<Option<Pair>> {
        let Some(part) = self.left.remove(name) else { return Ok(None) };
        let Part { a, b, scale, .. } = &part;
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
        let known = self.copies.get(&a.data.as_ptr()).cloned();
        let shared = known.is_some();
        let (a, b) = (known.map_or_else(|| copied(a), Ok).map_err(at)?, transposed(b, &order).map_err(at)?);
        self.copies.insert(part.a.data.as_ptr(), a.clone());
        for matrix in [&a, &b] {
            if !finite(matrix) || !scale.is_finite() {
                return Err(bad("holds a number that is not finite".into()));
            }
            self.hash.update(&matrix.data);
        }
        self.bytes += (b.data.len() + if shared { 0 } else { a.data.len() }) as u64;
        self.hash.update(name.as_bytes());
        self.hash.update(&scale.to_le_bytes());
        Ok(Some(Pair { a, b, scale: *scale }))
    }
}

/// The updates of single products, by GGUF's names, that a part of a file is. A module of PEFT may be several products.
fn products(file: &AdapterFile, part: &Part, c: &DecoderConfig) -> Result<Vec<Part>> {
    let peft = file.architecture.is_none();
    let family = c.family.dense.filter(|_| c.experts.is_none()).unwrap_or(c.family);
    let names = if peft { names::products(family, &part.name) } else { vec![part.name.clone()] };
    let refused = |why: &str| Error::unsupported(format!("{}: it updates '{}': {why}", file.what, part.name));
    if names.is_empty() {
        return Err(refused("the model's family has no such product"));
    }
    let same_form = |recurrent: &Arc<dyn Mixer>| recurrent.check_update(c, &names[0], peft);
    c.recurrent.as_ref().map_or(Ok(()), same_form).map_err(refused)?;
    let pieces = fused::shape(c).filter(|_| peft);
    let piece = |(at, name): (usize, &String)| {
        let tensor = format!("{name}.weight");
        let b = match pieces.and_then(|shape| Some((shape, fused::rows(&tensor, shape)?))) {
            Some((shape, rows)) if names.len() > 1 && rows == part.b.rows => {
                fused::gather(&tensor, shape, &part.b)?
            }
            _ => some_rows(&part.b, at, names.len())?,
        };
        Ok(Part { name: name.clone(), a: part.a.clone(), b, scale: part.scale })
    };
    names.iter().enumerate().map(piece).collect()
}

/// Part `part` of a matrix that is cut into `of` parts of equal rows.
fn some_rows(m: &Matrix, part: usize, of: usize) -> Result<Matrix> {
    match m.rows.is_multiple_of(of) {
        _ if of == 1 => Ok(m.clone()),
        true => m.some_rows(part * (m.rows / of), m.rows / of),
        false => Err(Error::bad_model(format!("an update of {} rows has {of} parts", m.rows))),
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

/// Copied, so that the file can be released once the adapter is made.
fn copied(m: &Matrix) -> Result<Matrix> {
    element(m).and_then(|_| m.copied())
}

/// The inverse of `source_row`.
fn interleaved_row(row: usize, dim: usize) -> usize {
    let at = row % dim;
    row - at + at % (dim / 2) * 2 + at / (dim / 2)
}

/// Transposes `[rows, rank]` to `[rank, rows]`; `order` maps each place to its source row.
fn transposed(m: &Matrix, order: &dyn Fn(usize) -> usize) -> Result<Matrix> {
    let (bytes, mut data) = (element(m)?, Vec::new());
    reserve(&mut data, m.data.len(), "an adapter")?;
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
