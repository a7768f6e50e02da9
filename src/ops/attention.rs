//! Rotation, the KV write, and paged attention: three operations on `qkv` `[T, (heads + 2 kv_heads) * head_dim]`.

use super::spare::Spare;
use super::support::{f32s, f32s_mut, output, rows};
use super::{Attention, AttentionShape, KvCache, RaggedBatch, RopeStyle, SeqRows};
use crate::kernels::attention::{Context, Paged, Query, ROWS, TILE, attend};
use crate::kernels::blocks::SharedOut;
use crate::kernels::{Isa, Pool, norm, rope};
use candle_core::{CpuStorage, CustomOp2, InplaceOp1, InplaceOp2, Layout, Shape};
use std::ops::Range;

impl AttentionShape {
    /// Width of a row of qkv.
    pub fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Norms each head of q and k where the layer has norms for them, and rotates it, in place; `table` is
/// `kernels::rope::table`'s for the batch's positions.
pub struct RopeInPlace<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub how: &'a Attention<'a>,
    pub table: &'a [f32],
}

impl InplaceOp1 for RopeInPlace<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Attention { shape: s, rope, norms, .. } = *self.how;
        let (rows, width) = (rows(layout, s.qkv())?, 2 * rope.inv_freq.len());
        if self.table.len() != rows * width || width > s.head_dim {
            candle_core::bail!("a rotation is needed for each of {rows} rows");
        }
        if norms.is_some_and(|norms| norms.iter().any(|norm| norm.weight.len() != s.head_dim)) {
            candle_core::bail!("the norms of q and k are not as wide as a head");
        }
        let interleaved = rope.style == RopeStyle::Interleaved;
        let turning = (s.heads + s.kv_heads) * s.head_dim;
        let shared = SharedOut::new(f32s_mut(qkv, layout)?);
        self.pool.run_if_worth(self.table.len() * (s.heads + s.kv_heads), rows, &|row| {
            // SAFETY: each task has a row of its own.
            let heads = unsafe { shared.slice(row * s.qkv()..row * s.qkv() + turning) };
            let angles = &self.table[row * width..][..width];
            for (i, head) in heads.chunks_exact_mut(s.head_dim).enumerate() {
                if let Some(norms) = norms {
                    let norm = &norms[(i >= s.heads) as usize];
                    norm::rms_norm_in_place(self.isa, head, &norm.weight, norm.eps);
                }
                rope::rotate(head, angles, interleaved);
            }
        });
        Ok(())
    }
}

/// Where a batch's rows lie in a KV cache, checked once for writing and reading.
pub struct Paging<'a> {
    batch: &'a RaggedBatch,
    shape: &'a AttentionShape,
    blocks: usize,
    block_size: usize,
}

impl<'a> Paging<'a> {
    /// Refuses spans outside of the batch, positions outside of their block table, and blocks that are not there.
    pub fn new(batch: &'a RaggedBatch, kv: &KvCache, shape: &'a AttentionShape) -> candle_core::Result<Self> {
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
        if shape.kv_heads == 0 || shape.head_dim == 0 || !shape.heads.is_multiple_of(shape.kv_heads) {
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
            if batch.positions[span].iter().any(|position| *position as usize >= room) {
                candle_core::bail!("a position lies outside of its block table");
            }
        }
        Ok(Self { batch, shape, blocks: kv.blocks, block_size: kv.block_size })
    }

    /// The batch's rows, a few of one sequence at a time, in their order.
    fn spans(&self) -> Vec<Span> {
        let split = |(seq, s): (usize, &SeqRows)| {
            let (start, end) = (s.row as usize, (s.row + s.rows) as usize);
            (start..end).step_by(ROWS).map(move |row| Span { seq, rows: row..end.min(row + ROWS) })
        };
        self.batch.seqs.iter().enumerate().flat_map(split).collect()
    }

    fn table(&self, seq: usize) -> &[u32] {
        let seq = &self.batch.seqs[seq];
        &self.batch.block_tables[seq.table as usize..][..seq.table_len as usize]
    }

    /// Elements of K, and of V, in a layer's tensor.
    fn half(&self) -> usize {
        self.blocks * self.shape.kv_heads * self.block_size * self.shape.head_dim
    }

    fn paged<'b>(&self, data: &'b [f32]) -> Paged<'b> {
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        Paged { data, kv_heads, block_size: self.block_size, head_dim }
    }
}

/// At most `ROWS` rows of one sequence.
struct Span {
    seq: usize,
    rows: Range<usize>,
}

/// Copies the rows' k and v into a layer's `[2, blocks, kv_heads, block_size, head_dim]`.
pub struct KvWrite<'a> {
    pub pool: &'a Pool,
    pub paging: &'a Paging<'a>,
}

impl InplaceOp2 for KvWrite<'_> {
    fn name(&self) -> &'static str {
        "kv-write"
    }

    fn cpu_fwd(
        &self,
        kv: &mut CpuStorage,
        kv_layout: &Layout,
        qkv: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<()> {
        let (paging, s) = (self.paging, self.paging.shape);
        if rows(layout, s.qkv())? != paging.batch.tokens.len() {
            candle_core::bail!("the batch has {} rows, qkv others", paging.batch.tokens.len());
        }
        let qkv = f32s(qkv, layout)?;
        let kv = f32s_mut(kv, kv_layout)?;
        if kv.len() != 2 * paging.half() {
            candle_core::bail!("the KV cache has another shape");
        }
        let (slots, batch) = (paging.paged(&[]), paging.batch);
        let shared = SharedOut::new(kv);
        // A task for each head of K and of V: heads share no element, whatever blocks the tables name.
        self.pool.run_if_worth(qkv.len(), 2 * s.kv_heads, &|task| {
            let (half, head) = (task / s.kv_heads, task % s.kv_heads);
            let from = (s.heads + task) * s.head_dim;
            for (index, seq) in batch.seqs.iter().enumerate() {
                for row in seq.row as usize..(seq.row + seq.rows) as usize {
                    let position = batch.positions[row] as usize;
                    let to = half * paging.half() + slots.offset(paging.table(index), head, position);
                    // SAFETY: the slots of this half's head are this task's.
                    let slot = unsafe { shared.slice(to..to + s.head_dim) };
                    slot.copy_from_slice(&qkv[row * s.qkv() + from..][..s.head_dim]);
                }
            }
        });
        Ok(())
    }
}

/// Attention of the q heads of `qkv` over the layer's K and V: `[T, heads * head_dim]`.
pub struct Attend<'a> {
    pub pool: &'a Pool,
    pub spare: &'a Spare,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
    pub how: &'a Attention<'a>,
}

impl CustomOp2 for Attend<'_> {
    fn name(&self) -> &'static str {
        "paged-attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        layout: &Layout,
        kv: &CpuStorage,
        kv_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (paging, s) = (self.paging, self.paging.shape);
        let rows = rows(layout, s.qkv())?;
        let (qkv, kv) = (f32s(qkv, layout)?, f32s(kv, kv_layout)?);
        let (keys, values) = kv.split_at(paging.half());
        let (keys, values) = (paging.paged(keys), paging.paged(values));
        let width = s.heads * s.head_dim;
        let mut out = self.spare.take(rows * width)?;
        let shared = SharedOut::new(&mut out);
        // A task for a few rows of a sequence and a KV head; the last rows of a prompt see the most and go first.
        let group = width / s.kv_heads;
        let spans = paging.spans();
        let seen = |position: &u32| *position as usize + 1 - self.how.first(*position as usize);
        let keys_seen: usize = paging.batch.positions.iter().map(seen).sum();
        self.pool.run_if_worth(keys_seen * width, spans.len() * s.kv_heads, &|task| {
            let (span, kv_head) = (&spans[spans.len() - 1 - task / s.kv_heads], task % s.kv_heads);
            let mut queries: [Query; ROWS] = Default::default();
            for (query, row) in queries.iter_mut().zip(span.rows.clone()) {
                let start = row * width + kv_head * group;
                query.q = &qkv[row * s.qkv() + kv_head * group..][..group];
                // SAFETY: spans share no row, so each task has these heads of its rows to itself.
                query.out = unsafe { shared.slice(start..start + group) };
                query.position = paging.batch.positions[row] as usize;
                query.first = self.how.first(query.position);
            }
            let queries = &mut queries[..span.rows.len()];
            let table = paging.table(span.seq);
            attend(self.isa, queries, &Context { k: keys, v: values, table, kv_head, scale: s.scale });
        });
        Ok(output(out, rows, width))
    }
}
