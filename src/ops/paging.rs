//! The places of a step's rows in the KV cache, checked and divided once for all layers.

use super::{AttentionShape, KvLayout, RaggedBatch, SeqRows};
use crate::base::{Error, Result, reserve};
use crate::kernels::attention::{KvType, Paged, QUERIES, TILE, TOGETHER};
use std::ops::Range;

/// Number of tasks of `TOGETHER` query heads from which on threads do not wait for the last of them.
const LONG: usize = 32;

/// Some rows of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Index in the batch's `seqs`.
    pub seq: usize,
    pub rows: Range<usize>,
}

/// A batch and the KV cache that it was checked against.
#[derive(Clone)]
pub struct Paging<'a> {
    pub batch: &'a RaggedBatch,
    pub(super) shape: &'a AttentionShape,
    kind: KvType,
    blocks: usize,
    block_size: usize,
    /// The batch's rows in order, grouped so that the rows of a span share one pass over K and V.
    pub(super) spans: Vec<Span>,
    /// The batch's rows in order, grouped by tile: each span has all rows of one tile of a sequence.
    pub(super) tiles: Vec<Span>,
}

impl<'a> Paging<'a> {
    /// `InvalidArgument` for rows that belong to no sequence or to several, positions that are not consecutive or not
    /// in their block table, blocks that do not exist, two sequences that write to one tile, and rows that see each
    /// other in several sequences. Kernels do not check again.
    pub fn new(batch: &'a RaggedBatch, kv: &KvLayout, shape: &'a AttentionShape) -> Result<Self> {
        check_shape(shape, kv)?;
        check_batch(batch, kv)?;
        let KvLayout { kind, blocks, block_size, .. } = *kv;
        let (spans, tiles) = (Vec::new(), Vec::new());
        let mut paging = Self { batch, shape, kind, blocks, block_size, spans, tiles };
        paging.divide()?;
        paging.check_tiles()?;
        Ok(paging)
    }

    fn divide(&mut self) -> Result<()> {
        let [few, many] = [QUERIES, TOGETHER].map(|queries| (queries / self.shape.each()).max(1));
        let batch = self.batch;
        reserve(&mut self.spans, batch.tokens.len() / few + batch.seqs.len(), "a step's spans")?;
        reserve(&mut self.tiles, batch.tokens.len() / TILE + 2 * batch.seqs.len(), "a step's tiles")?;
        for (seq, &SeqRows { row, rows, .. }) in batch.seqs.iter().enumerate() {
            let (mut from, end) = (row as usize, (row + rows) as usize);
            let most = if rows as usize * self.shape.tasks() >= LONG * many { many } else { few };
            self.spans
                .extend((from..end).step_by(most).map(|from| Span { seq, rows: from..end.min(from + most) }));
            while from < end {
                let to = end.min(from + TILE - batch.positions[from] as usize % TILE);
                self.tiles.push(Span { seq, rows: from..to });
                from = to;
            }
        }
        Ok(())
    }

    /// Checks that no two writing tasks share a tile.
    fn check_tiles(&self) -> Result<()> {
        let tile = |span: &Span| {
            let position = self.batch.positions[span.rows.start] as usize;
            (self.table(span.seq)[position / self.block_size], position % self.block_size / TILE)
        };
        let mut written = Vec::new();
        reserve(&mut written, self.tiles.len(), "a step's tiles")?;
        // A padding row repeats another row, and its K and V are not kept.
        let padding = self.batch.padding.min(self.tiles.len());
        written.extend(self.tiles[..self.tiles.len() - padding].iter().map(tile));
        written.sort_unstable();
        if written.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("two sequences of a step write to one KV block"));
        }
        Ok(())
    }

    /// Refuses a cache other than the one that it was checked against.
    pub(super) fn check_cache(&self, kv: &KvLayout) -> Result<()> {
        let own = (self.kind, self.shape.kv_heads, self.shape.head_dim, self.blocks, self.block_size);
        match own == (kv.kind, kv.kv_heads, kv.head_dim, kv.blocks, kv.block_size) {
            true => Ok(()),
            false => Err(Error::internal(format!("the KV cache {kv:?}, and a step for another"))),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.batch.tokens.len()
    }

    pub(super) fn table(&self, seq: usize) -> &'a [u32] {
        let seq = &self.batch.seqs[seq];
        &self.batch.block_tables[seq.table as usize..][..seq.table_len as usize]
    }

    /// 2 where K and V are stored, 1 where they are the same.
    pub(super) fn halves(&self) -> usize {
        if self.shape.joint { 1 } else { 2 }
    }

    /// Bytes of K in a layer's tensor; V has as many.
    pub(super) fn half(&self) -> usize {
        let tiles = self.blocks * self.shape.kv_heads * (self.block_size / TILE);
        tiles * self.kind.tile_bytes(self.shape.head_dim)
    }

    /// K or V of a layer, in pages.
    pub(super) fn paged<'b>(&self, data: &'b [u8]) -> Paged<'b> {
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        Paged { data, kind: self.kind, kv_heads, block_size: self.block_size, head_dim }
    }

    /// Maximum bytes that a `Paging` takes per row.
    pub const ROW_BYTES: usize = 3 * (2 * size_of::<Span>() + size_of::<(u32, usize)>());
}

fn check_shape(shape: &AttentionShape, kv: &KvLayout) -> Result<()> {
    let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
    if heads == 0 || kv_heads == 0 || head_dim == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(Error::invalid(format!("{heads} heads of {head_dim} cannot share {kv_heads} KV heads")));
    }
    if shape.joint != kv.joint {
        return Err(Error::invalid("attention and its KV cache differ in whether V is K"));
    }
    if kv.block_size == 0 || !kv.block_size.is_multiple_of(TILE) {
        return Err(Error::invalid(format!(
            "KV blocks of {} tokens: a multiple of {TILE} is needed",
            kv.block_size
        )));
    }
    Ok(())
}

fn check_batch(batch: &RaggedBatch, kv: &KvLayout) -> Result<()> {
    let rows = batch.tokens.len();
    if rows == 0 || batch.positions.len() != rows {
        let positions = batch.positions.len();
        return Err(Error::invalid(format!("a step has {rows} tokens and {positions} positions")));
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
        let positions = &batch.positions[row..next];
        if positions.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            return Err(Error::invalid(format!("a sequence's positions are not consecutive: {positions:?}")));
        }
        let (table, len) = (seq.table as usize, seq.table_len as usize);
        let last = positions[n - 1] as usize;
        if table.saturating_add(len) > batch.block_tables.len() || len.saturating_mul(kv.block_size) <= last {
            return Err(Error::invalid(format!(
                "a block table of {len} blocks at {table} does not hold positions up to {last}"
            )));
        }
    }
    match next == rows {
        true => check_mutual(batch),
        false => {
            Err(Error::invalid(format!("{} of a step's {rows} rows belong to no sequence", rows - next)))
        }
    }
}

/// Checks rows that see each other against the batch's sequences, which have been checked.
fn check_mutual(batch: &RaggedBatch) -> Result<()> {
    let mut next = 0;
    for rows in &batch.mutual {
        let end = |seq: &SeqRows| seq.row + seq.rows;
        let seq = batch.seqs.get(batch.seqs.partition_point(|seq| end(seq) <= rows.start));
        if rows.start < next || rows.is_empty() || seq.is_none_or(|seq| end(seq) < rows.end) {
            return Err(Error::invalid(format!("rows {rows:?} see each other, and are not of one sequence")));
        }
        next = rows.end;
    }
    Ok(())
}
