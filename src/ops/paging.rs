//! Where a step's rows lie in the KV cache: checked and divided once for all layers.

use super::support::ours;
use super::{AttentionShape, KvCache, RaggedBatch, SeqRows};
use crate::base::Result;
use crate::kernels::attention::{KvType, Paged, QUERIES, TILE};
use std::ops::Range;

/// Some rows of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Index in the batch's `seqs`.
    pub seq: usize,
    pub rows: Range<usize>,
}

/// A batch and the KV cache that it was checked against.
pub struct Paging<'a> {
    pub batch: &'a RaggedBatch,
    pub(super) shape: &'a AttentionShape,
    kind: KvType,
    blocks: usize,
    block_size: usize,
    /// The batch's rows in their order, as many at a time as share a pass over K and V.
    pub(super) spans: Vec<Span>,
    /// The same, all rows of one tile of a sequence at a time.
    pub(super) tiles: Vec<Span>,
}

impl<'a> Paging<'a> {
    /// Refuses spans outside of the batch, positions outside of their block table or not consecutive, blocks that are
    /// not there, and two sequences that write to one tile.
    pub fn new(batch: &'a RaggedBatch, kv: &KvCache, shape: &'a AttentionShape) -> Result<Self> {
        ours("paging", Self::checked(batch, kv, shape))
    }

    fn checked(batch: &'a RaggedBatch, kv: &KvCache, shape: &'a AttentionShape) -> candle_core::Result<Self> {
        let (rows, tables) = (batch.tokens.len(), batch.block_tables.len());
        if batch.positions.len() != rows || batch.seqs.iter().map(|s| s.rows as usize).sum::<usize>() != rows
        {
            candle_core::bail!("the batch's spans do not cover its rows");
        }
        if let Some(block) = batch.block_tables.iter().find(|block| **block as usize >= kv.blocks) {
            candle_core::bail!("block {block} is out of range: the KV cache has {}", kv.blocks);
        }
        if kv.block_size == 0 || !kv.block_size.is_multiple_of(TILE) {
            candle_core::bail!("KV blocks of {} tokens: a multiple of {TILE} is needed", kv.block_size);
        }
        if shape.kv_heads == 0 || shape.heads < shape.kv_heads || shape.head_dim == 0 {
            candle_core::bail!("{} heads of {} cannot share {}", shape.heads, shape.head_dim, shape.kv_heads);
        }
        if !shape.heads.is_multiple_of(shape.kv_heads) {
            candle_core::bail!("{} heads cannot share {} KV heads", shape.heads, shape.kv_heads);
        }
        let mut next = 0;
        for seq in &batch.seqs {
            let span = seq.row as usize..seq.row as usize + seq.rows as usize;
            let table = seq.table as usize + seq.table_len as usize;
            if span.start != next || table > tables {
                candle_core::bail!("a sequence's rows or block table lie outside of the batch");
            }
            next = span.end;
            let room = seq.table_len as usize * kv.block_size;
            let positions = &batch.positions[span];
            if positions.iter().any(|position| *position as usize >= room) {
                candle_core::bail!("a position lies outside of its block table");
            }
            if positions.windows(2).any(|pair| pair[1] != pair[0] + 1) {
                candle_core::bail!("a sequence's rows are not consecutive positions");
            }
        }
        let KvCache { kind, blocks, block_size, .. } = *kv;
        let (spans, tiles) = (Vec::new(), Vec::new());
        let mut paging = Self { batch, shape, kind, blocks, block_size, spans, tiles };
        paging.divide();
        paging.check_tiles()?;
        Ok(paging)
    }

    fn divide(&mut self) {
        let most = (QUERIES / (self.shape.heads / self.shape.kv_heads)).max(1);
        let batch = self.batch;
        self.spans.reserve_exact(batch.tokens.len() / most + batch.seqs.len());
        self.tiles.reserve_exact(batch.tokens.len() / TILE + 2 * batch.seqs.len());
        for (seq, &SeqRows { row, rows, .. }) in batch.seqs.iter().enumerate() {
            let (mut from, end) = (row as usize, (row + rows) as usize);
            self.spans
                .extend((from..end).step_by(most).map(|from| Span { seq, rows: from..end.min(from + most) }));
            while from < end {
                let to = end.min(from + TILE - batch.positions[from] as usize % TILE);
                self.tiles.push(Span { seq, rows: from..to });
                from = to;
            }
        }
    }

    /// Tasks that write share no tile.
    fn check_tiles(&self) -> candle_core::Result<()> {
        let tile = |span: &Span| {
            let position = self.batch.positions[span.rows.start] as usize;
            (self.table(span.seq)[position / self.block_size], position % self.block_size / TILE)
        };
        let mut written: Vec<_> = self.tiles.iter().map(tile).collect();
        written.sort_unstable();
        if written.windows(2).any(|pair| pair[0] == pair[1]) {
            candle_core::bail!("two sequences write to one KV block");
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> usize {
        self.batch.tokens.len()
    }

    pub(super) fn table(&self, seq: usize) -> &'a [u32] {
        let seq = &self.batch.seqs[seq];
        &self.batch.block_tables[seq.table as usize..][..seq.table_len as usize]
    }

    /// Bytes of K, and of V, in a layer's tensor.
    pub(super) fn half(&self) -> usize {
        let tiles = self.blocks * self.shape.kv_heads * (self.block_size / TILE);
        tiles * self.kind.tile_bytes(self.shape.head_dim)
    }

    /// K or V of a layer.
    pub(super) fn paged<'b>(&self, data: &'b [u8]) -> Paged<'b> {
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        Paged { data, kind: self.kind, kv_heads, block_size: self.block_size, head_dim }
    }

    /// Bytes that it takes for a row, at most.
    pub const ROW_BYTES: usize = 3 * (2 * size_of::<Span>() + size_of::<(u32, usize)>());
}
