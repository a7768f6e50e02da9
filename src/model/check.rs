//! A model's requirements on a step, besides those that `ops::Paging` checks: token ids, positions and wanted rows
//! within bounds.

use super::KvShape;
use crate::base::{Error, Result};
use crate::ops::{KvLayout, RaggedBatch};

/// Checks a batch against the model. Takes time linear in the batch, far below the cost of a row.
pub(super) fn check_batch(
    batch: &RaggedBatch,
    kv: &KvLayout,
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

fn check_kv(kv: &KvLayout, shape: KvShape) -> Result<()> {
    let want = shape.layout(kv.kind, kv.blocks, kv.block_size);
    match *kv == want {
        true => Ok(()),
        false => Err(Error::invalid(format!("a KV cache of {kv:?} where the model wants {want:?}"))),
    }
}
