//! Rotation, the KV write, and paged attention: three operations on `qkv` `[T, (heads + 2 kv_heads) * head_dim]`.

use super::support::{f32s, f32s_mut, output, rows};
use super::{AttentionShape, KvCache, RaggedBatch};
use crate::kernels::attention::{Paged, attend};
use crate::kernels::blocks::SharedOut;
use crate::kernels::{Isa, Pool, rope};
use candle_core::{CpuStorage, CustomOp2, InplaceOp1, InplaceOp2, Layout, Shape};
use std::sync::Arc;

impl AttentionShape {
    /// Width of a row of qkv.
    pub fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Rotates q and k in place; `table` is `kernels::rope::table`'s for the batch's positions.
pub struct RopeInPlace<'a> {
    pub shape: &'a AttentionShape,
    pub table: &'a [f32],
    /// Floats of `table` per row.
    pub width: usize,
    pub interleaved: bool,
}

impl InplaceOp1 for RopeInPlace<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, qkv: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (s, rows) = (self.shape, rows(layout, self.shape.qkv())?);
        if self.table.len() != rows * self.width || self.width > s.head_dim {
            candle_core::bail!("a rotation is needed for each of {rows} rows");
        }
        let turning = (s.heads + s.kv_heads) * s.head_dim;
        for (row, qkv) in f32s_mut(qkv, layout)?.chunks_exact_mut(s.qkv()).enumerate() {
            let angles = &self.table[row * self.width..][..self.width];
            for head in qkv[..turning].chunks_exact_mut(s.head_dim) {
                rope::rotate(head, angles, self.interleaved);
            }
        }
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

/// Copies the rows' k and v into a layer's `[2, blocks, kv_heads, block_size, head_dim]`.
pub struct KvWrite<'a>(pub &'a Paging<'a>);

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
        let (paging, s) = (self.0, self.0.shape);
        rows(layout, s.qkv())?;
        let qkv = f32s(qkv, layout)?;
        let kv = f32s_mut(kv, kv_layout)?;
        if kv.len() != 2 * paging.half() {
            candle_core::bail!("the KV cache has another shape");
        }
        let shape = paging.paged(&[]);
        let (keys, values) = kv.split_at_mut(paging.half());
        for (index, seq) in paging.batch.seqs.iter().enumerate() {
            for row in seq.row as usize..(seq.row + seq.rows) as usize {
                let position = paging.batch.positions[row] as usize;
                let (k, v) =
                    qkv[row * s.qkv()..][..s.qkv()][s.heads * s.head_dim..].split_at(s.kv_heads * s.head_dim);
                for head in 0..s.kv_heads {
                    let (from, to) = (head * s.head_dim, shape.offset(paging.table(index), head, position));
                    keys[to..to + s.head_dim].copy_from_slice(&k[from..from + s.head_dim]);
                    values[to..to + s.head_dim].copy_from_slice(&v[from..from + s.head_dim]);
                }
            }
        }
        Ok(())
    }
}

/// Attention of the q heads of `qkv` over the layer's K and V: `[T, heads * head_dim]`.
pub struct Attend<'a> {
    pub pool: &'a Arc<Pool>,
    pub isa: Isa,
    pub paging: &'a Paging<'a>,
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
        let mut out = vec![0.0; rows * width];
        let shared = SharedOut::new(&mut out);
        // A task for each row and KV head; the last rows of a prompt see the most, and go out one by one.
        let group = width / s.kv_heads;
        self.pool.run(rows * s.kv_heads, &|task| {
            let (row, kv_head) = (task / s.kv_heads, task % s.kv_heads);
            let seq = paging.batch.seqs.partition_point(|seq| seq.row as usize <= row) - 1;
            let q = &qkv[row * s.qkv() + kv_head * group..][..group];
            let start = row * width + kv_head * group;
            // SAFETY: each task has the heads of one row and KV head to itself.
            let out = unsafe { shared.slice(start..start + group) };
            let position = paging.batch.positions[row] as usize;
            attend(self.isa, q, keys, values, paging.table(seq), kv_head, position, out);
        });
        Ok(output(out, rows, width))
    }
}
