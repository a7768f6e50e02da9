//! One decoder for all families: what differs between them is in its configuration and its tensors.

use super::config::DecoderConfig;
use super::{Facts, KvShape, Model};
use crate::base::{Error, Result, Status};
use crate::kernels::Matrix;
use crate::ops::{AttentionShape, KvCache, Norm, OpSet, RaggedBatch, Rope};
use candle_core::{Storage, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Layer {
    pub attn_norm: Norm,
    /// q `[heads * head_dim, hidden]`, k and v `[kv_heads * head_dim, hidden]`.
    pub qkv: [Matrix; 3],
    pub attn_sub_norm: Option<Norm>,
    pub attn_output: Matrix,
    pub ffn_norm: Norm,
    /// Each `[ffn, hidden]`.
    pub gate_up: [Matrix; 2],
    pub ffn_sub_norm: Option<Norm>,
    pub down: Matrix,
}

pub struct Decoder {
    pub facts: Facts,
    pub config: DecoderConfig,
    pub ops: Arc<dyn OpSet>,
    /// `[vocab, hidden]`; also the head where that is tied.
    pub embedding: Matrix,
    pub head: Option<Matrix>,
    pub norm: Norm,
    pub layers: Vec<Layer>,
    pub rope: Rope,
}

impl Decoder {
    fn shape(&self) -> AttentionShape {
        let DecoderConfig { heads, kv_heads, head_dim, .. } = self.config;
        AttentionShape { heads, kv_heads, head_dim }
    }

    /// `x + attention(x)`, then `x + ffn(x)`; `x` is `[T, hidden]`.
    fn layer(&self, index: usize, x: Tensor, batch: &Arc<RaggedBatch>, kv: &KvCache) -> Result<Tensor> {
        let (layer, ops) = (&self.layers[index], &self.ops);
        let qkv = ops.linear(&x, Some(&layer.attn_norm), &layer.qkv)?;
        let heads = ops.attention(&qkv, batch, kv, index, &self.shape(), &self.rope)?;
        let attended =
            ops.linear(&heads, layer.attn_sub_norm.as_ref(), std::slice::from_ref(&layer.attn_output))?;
        let x = ops.add(x, &attended)?;
        let gate_up = ops.linear(&x, Some(&layer.ffn_norm), &layer.gate_up)?;
        let wide = ops.gated(&gate_up, self.config.family.activation)?;
        let narrow = ops.linear(&wide, layer.ffn_sub_norm.as_ref(), std::slice::from_ref(&layer.down))?;
        ops.add(x, &narrow)
    }
}

impl Model for Decoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        let DecoderConfig { layers, kv_heads, head_dim, .. } = self.config;
        KvShape { layers, kv_heads, head_dim }
    }

    /// At the widest point of a layer: the residual, the wider of qkv + heads and gate_up + wide + narrow, and
    /// the quantized rows (a byte an element) beside a normed copy; then the head's rows and logits.
    fn workspace_bytes(&self, rows: usize, logits_rows: usize) -> usize {
        let c = &self.config;
        let attention = (c.heads + 2 * c.kv_heads) * c.head_dim + c.heads * c.head_dim + c.hidden;
        let ffn = 3 * c.ffn + c.hidden;
        let widest = c.hidden.max(c.ffn).max(c.heads * c.head_dim);
        let row = 4 * (2 * c.hidden + attention.max(ffn) + widest) + widest + 64;
        let logits_row = 4 * (2 * c.hidden + c.vocab_size);
        rows.saturating_mul(row)
            .saturating_add(logits_rows.saturating_mul(logits_row))
            .saturating_add(1 << 20)
    }

    fn forward(
        &mut self,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        stop: &AtomicBool,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        let mut x = self.ops.embed(batch, &self.embedding)?;
        for index in 0..self.layers.len() {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::new(Status::Cancelled, "the engine is shutting down"));
            }
            x = self.layer(index, x, batch, kv)?;
        }
        logits.clear();
        if batch.logits_rows.is_empty() {
            return Ok(());
        }
        let last = self.ops.rows(&x, &batch.logits_rows)?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let out = self.ops.linear(&last, Some(&self.norm), std::slice::from_ref(head))?;
        copy_out(&out, logits).map_err(|error| Error::internal(format!("reading logits: {error}")))
    }
}

/// Appends the contiguous f32 tensor `from`.
fn copy_out(from: &Tensor, to: &mut Vec<f32>) -> candle_core::Result<()> {
    let (storage, layout) = from.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { candle_core::bail!("not on the CPU") };
    let Some((start, end)) = layout.contiguous_offsets() else { candle_core::bail!("not contiguous") };
    to.extend_from_slice(&storage.as_slice::<f32>()?[start..end]);
    Ok(())
}
