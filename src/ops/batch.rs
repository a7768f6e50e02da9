//! One step's ragged batch and the paged KV storage that it reads and writes.

use super::lora::Adapted;
use crate::base::{Result, reserve};
use crate::kernels::attention::KvType;
use candle_core::Tensor;

/// One sequence's rows in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRows {
    /// First row of this sequence in `tokens`.
    pub row: u32,
    /// Rows of this sequence: 1 for decode, a chunk's length for prefill.
    pub rows: u32,
    /// Its block table is `block_tables[table..table + table_len]`.
    pub table: u32,
    pub table_len: u32,
}

/// Everything a forward pass reads besides weights and KV; no padding anywhere.
///
/// Row r of sequence s has position `positions[r]`; a sequence's rows are consecutive positions and attend to
/// positions `0..=positions[r]`, the current chunk's included. Position p of a sequence lives in block
/// `block_tables[table + p / block_size]`, slot `p % block_size`.
#[derive(Clone, Default)]
pub struct RaggedBatch {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub seqs: Vec<SeqRows>,
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub logits_rows: Vec<u32>,
    /// Rows whose hidden state behind the final norm is wanted, ascending.
    pub hidden_rows: Vec<u32>,
    /// Rows that run with adapters (`adapt`).
    pub adapted: Vec<Adapted>,
}

/// Paged K and V: for each layer one tensor `[2, blocks, kv_heads, block_size, head_dim]`, K then V, in the tiles of
/// `kernels::attention::kv`; of bytes where they are int8, `head_dim + 4` of them for the values and their scale.
pub struct KvCache {
    pub kind: KvType,
    pub layers: Vec<Tensor>,
    pub blocks: usize,
    /// Tokens per block; a multiple of the attention tile (16).
    pub block_size: usize,
}

impl RaggedBatch {
    /// Room for `rows` of `seqs` sequences, `logits` of which give logits. `OutOfMemory`.
    pub fn reserve(&mut self, rows: usize, seqs: usize, logits: usize) -> Result<()> {
        reserve(&mut self.tokens, rows, "a step's tokens")?;
        reserve(&mut self.positions, rows, "a step's positions")?;
        reserve(&mut self.seqs, seqs, "a step's sequences")?;
        reserve(&mut self.logits_rows, logits, "a step's rows")
    }

    /// Adds `rows` rows of a sequence with this block table, from position `start` on, and returns the first one's number.
    /// Their tokens are the caller's to add. `OutOfMemory`.
    pub fn push_seq(&mut self, table: &[u32], start: u32, rows: u32) -> Result<u32> {
        reserve(&mut self.block_tables, table.len(), "a step's block tables")?;
        let row = self.tokens.len() as u32;
        let (first, table_len) = (self.block_tables.len() as u32, table.len() as u32);
        self.seqs.push(SeqRows { row, rows, table: first, table_len });
        self.block_tables.extend_from_slice(table);
        self.positions.extend(start..start + rows);
        Ok(row)
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.logits_rows.clear();
        self.hidden_rows.clear();
        self.adapted.clear();
    }
}
