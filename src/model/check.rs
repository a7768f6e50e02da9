//! What a model asks of a step before it touches memory: ids, spans and block tables within bounds.

use super::KvShape;
use crate::base::{Error, Result};
use crate::ops::{KvCache, RaggedBatch};

/// Refuses a batch that would read or write outside of `kv` or of the model's tables. Linear in the batch, far
/// below the cost of a row.
pub fn check_batch(
    batch: &RaggedBatch,
    kv: &KvCache,
    shape: KvShape,
    vocab: usize,
    context: usize,
) -> Result<()> {
    check_kv(kv, shape)?;
    let rows = batch.tokens.len();
    if rows == 0 || batch.positions.len() != rows {
        return Err(Error::invalid(format!(
            "a step has {rows} tokens and {} positions",
            batch.positions.len()
        )));
    }
    if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab) {
        return Err(Error::invalid(format!("token id {token} is out of range; the vocabulary has {vocab}")));
    }
    if let Some(block) = batch.block_tables.iter().find(|&&b| b as usize >= kv.blocks) {
        return Err(Error::invalid(format!("KV block {block} is out of range; there are {}", kv.blocks)));
    }
    let mut next = 0usize;
    for seq in &batch.seqs {
        let (row, n) = (seq.row as usize, seq.rows as usize);
        if row != next || n == 0 || n > rows - row {
            return Err(Error::invalid(format!(
                "a sequence has rows {row}..+{n} where row {next} of {rows} is next"
            )));
        }
        next = row + n;
        let first = batch.positions[row] as usize;
        let consecutive = batch.positions[row..next].iter().zip(first..).all(|(&p, want)| p as usize == want);
        if !consecutive || first + n > context {
            return Err(Error::invalid(format!(
                "a sequence has positions {:?} of a context of {context}",
                &batch.positions[row..next]
            )));
        }
        let (table, len) = (seq.table as usize, seq.table_len as usize);
        if table + len > batch.block_tables.len() || len.saturating_mul(kv.block_size) < first + n {
            return Err(Error::invalid(format!(
                "a block table of {len} blocks at {table} does not hold positions up to {}",
                first + n - 1
            )));
        }
    }
    if next != rows {
        return Err(Error::invalid(format!("{} of a step's {rows} rows belong to no sequence", rows - next)));
    }
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
    let want = kv.layer_shape(shape.kv_heads, shape.head_dim).unwrap_or_default();
    if kv.layers.len() != shape.layers || kv.block_size == 0 {
        return Err(Error::invalid(format!(
            "a KV cache of {} layers for a model of {}",
            kv.layers.len(),
            shape.layers
        )));
    }
    if shape.kind.is_some_and(|kind| kind != kv.kind) {
        return Err(Error::invalid(format!("a KV cache of {:?} for a model of {:?}", kv.kind, shape.kind)));
    }
    match kv.layers.iter().find(|t| t.dims() != want) {
        Some(t) => {
            Err(Error::invalid(format!("a KV cache layer is {:?} where the model wants {want:?}", t.dims())))
        }
        None => Ok(()),
    }
}
