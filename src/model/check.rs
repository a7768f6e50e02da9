//! What a model asks of a step besides what `ops::Paging` checks: token ids, positions and wanted rows within bounds.

use super::KvShape;
use crate::base::{Error, Result};
use crate::ops::{KvCache, RaggedBatch};

/// Linear in the batch, far below the cost of a row.
pub fn check_batch(
    batch: &RaggedBatch,
    kv: &KvCache,
    shape: KvShape,
    vocab: usize,
    context: usize,
) -> Result<()> {
    check_kv(kv, shape)?;
    if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab) {
        return Err(Error::invalid(format!("token id {token} is out of range; the vocabulary has {vocab}")));
    }
    if let Some(position) = batch.positions.iter().find(|&&p| p as usize >= context) {
        return Err(Error::invalid(format!("positions up to {position} in a context of {context}")));
    }
    let rows = batch.tokens.len();
    check_wanted("logits", &batch.logits_rows, rows)?;
    check_wanted("hidden", &batch.hidden_rows, rows)
}

fn check_wanted(what: &str, wanted: &[u32], rows: usize) -> Result<()> {
    let ascending = wanted.windows(2).all(|w| w[0] < w[1]);
    if !ascending || wanted.last().is_some_and(|&r| r as usize >= rows) {
        return Err(Error::invalid(format!("{what} rows {wanted:?} of {rows} rows")));
    }
    Ok(())
}

fn check_kv(kv: &KvCache, shape: KvShape) -> Result<()> {
    if kv.layers.len() != shape.layers {
        let layers = kv.layers.len();
        return Err(Error::invalid(format!("a KV cache of {layers} layers for a model of {}", shape.layers)));
    }
    if shape.kind.is_some_and(|kind| kind != kv.kind) {
        return Err(Error::invalid(format!("a KV cache of {:?} for a model of {:?}", kv.kind, shape.kind)));
    }
    let want = KvCache::layer_shape(kv.kind, shape.kv_heads, shape.head_dim, kv.blocks, kv.block_size)
        .unwrap_or_default();
    match kv.layers.iter().find(|t| t.dims() != want) {
        Some(t) => {
            Err(Error::invalid(format!("a KV cache layer is {:?} where the model wants {want:?}", t.dims())))
        }
        None => Ok(()),
    }
}
