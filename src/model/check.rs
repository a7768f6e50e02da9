//! A model's requirements on a step, besides those that `ops::Paging` checks: token ids, positions, given vectors and
//! wanted rows within bounds.

use super::{Facts, KvShape};
use crate::base::{Error, Result};
use crate::ops::{KvLayout, RaggedBatch};

/// Checks a batch against the model. Takes time linear in the batch, far below the cost of a row.
pub(super) fn check_batch(batch: &RaggedBatch, kv: &KvLayout, shape: KvShape, facts: &Facts) -> Result<()> {
    check_kv(kv, shape)?;
    let (vocab, context, hidden) = (facts.vocab_size, facts.context_length, facts.hidden_size);
    if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab) {
        return Err(Error::invalid(format!("token id {token} is out of range; the vocabulary has {vocab}")));
    }
    if let Some(position) = batch.positions.iter().find(|&&p| p as usize >= context) {
        return Err(Error::invalid(format!("positions up to {position} in a context of {context}")));
    }
    let (rows, turned, vectors) = (batch.tokens.len(), batch.rotations.len(), &batch.vectors);
    check_rows("logits", &batch.logits_rows, rows)?;
    check_rows("hidden", &batch.hidden_rows, rows)?;
    check_rows("vector", &batch.vector_rows, rows)?;
    if vectors.len() != batch.vector_rows.len().saturating_mul(hidden) {
        let (len, count) = (vectors.len(), batch.vector_rows.len());
        return Err(Error::invalid(format!("{len} elements for {count} given vectors of {hidden}")));
    }
    if let Some(at) = vectors.iter().position(|x| !x.is_finite()) {
        return Err(Error::invalid(format!("a given vector has an element that is {}", vectors[at])));
    }
    match turned == 0 || turned == rows {
        true => Ok(()),
        false => Err(Error::invalid(format!("rotations of {turned} rows in a step of {rows}"))),
    }
}

/// Refuses a batch for a model that takes tokens alone.
pub(super) fn check_tokens_alone(batch: &RaggedBatch) -> Result<()> {
    let refused = |part| Err(Error::invalid(format!("{part} in a step of a model that takes tokens alone")));
    batch.beyond_tokens().map_or(Ok(()), refused)
}

fn check_rows(what: &str, list: &[u32], rows: usize) -> Result<()> {
    let ascending = list.windows(2).all(|w| w[0] < w[1]);
    if !ascending || list.last().is_some_and(|&r| r as usize >= rows) {
        return Err(Error::invalid(format!("{what} rows {list:?} of {rows} rows")));
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
