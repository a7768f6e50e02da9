//! One decoder for every family: the configuration says which norms, rotation and activation it has, the
//! weights' types which arithmetic.

use super::check::check_batch;
use super::config::DecoderConfig;
use super::{Facts, KvShape, Model, Outputs};
use crate::base::{Error, Result, Status};
use crate::kernels::Matrix;
use crate::ops::{Attention, KvCache, Norm, OpSet, Projections, RaggedBatch, Rope};
use candle_core::{CpuStorage, Storage, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Layer {
    pub attn_norm: Norm,
    /// q, k, v: `[heads * head_dim, hidden]` and twice `[kv_heads * head_dim, hidden]`.
    pub qkv: Projections,
    /// Of each q head and of each k head.
    pub qk_norms: Option<[Norm; 2]>,
    pub attn_sub_norm: Option<Norm>,
    /// `[hidden, heads * head_dim]`.
    pub output: Projections,
    pub attn_post_norm: Option<Norm>,
    pub ffn_norm: Norm,
    /// gate, up: `[ffn, hidden]`.
    pub gate_up: Projections,
    pub ffn_sub_norm: Option<Norm>,
    /// `[hidden, ffn]`.
    pub down: Projections,
    pub ffn_post_norm: Option<Norm>,
}

impl Layer {
    fn projections(&self) -> [&Projections; 4] {
        [&self.qkv, &self.output, &self.gate_up, &self.down]
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        let sub_norms = self.attn_sub_norm.iter().chain(&self.ffn_sub_norm);
        let post_norms = self.attn_post_norm.iter().chain(&self.ffn_post_norm);
        let own = self.projections().into_iter().flat_map(|p| &p.norms);
        let norms = sub_norms.chain(post_norms).chain(self.qk_norms.iter().flatten()).chain(own);
        norms.chain([&self.attn_norm, &self.ffn_norm])
    }
}

pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub final_norm: Norm,
    /// `[vocab, hidden]`; the embedding again where the two are tied.
    pub head: Projections,
    /// As `DecoderConfig::ropes`.
    pub ropes: Vec<Rope>,
}

impl Weights {
    /// Each once: a tied head is the embedding's very bytes.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let head = self.head.matrices.iter().filter(|m| m.data.as_ptr() != self.embedding.data.as_ptr());
        let layers = self.layers.iter().flat_map(Layer::projections).flat_map(|p| &p.matrices);
        [&self.embedding].into_iter().chain(head).chain(layers)
    }

    fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let norms = self.layers.iter().flat_map(Layer::norms).chain([&self.final_norm]);
        let biases = self.layers.iter().flat_map(Layer::projections).filter_map(|p| p.bias.as_deref());
        norms.map(|norm| &*norm.weight).chain(biases)
    }
}

/// A loaded decoder.
pub struct Decoder {
    config: DecoderConfig,
    weights: Weights,
    ops: Arc<dyn OpSet>,
    facts: Facts,
}

impl Decoder {
    /// `weights` must have the shapes that `config` says; the loader has checked them.
    /// `other_bytes` is what their files hold besides.
    pub fn new(config: DecoderConfig, weights: Weights, other_bytes: u64, ops: Arc<dyn OpSet>) -> Self {
        let facts = facts(&config, &weights, other_bytes);
        Self { config, weights, ops, facts }
    }

    fn layer(&self, x: Tensor, index: usize, batch: &Arc<RaggedBatch>, kv: &KvCache) -> Result<Tensor> {
        let (ops, layer, span) = (&*self.ops, &self.weights.layers[index], self.config.spans[index]);
        let how = Attention {
            shape: &self.config.attention,
            rope: &self.weights.ropes[span.rope],
            window: span.window,
            norms: layer.qk_norms.as_ref(),
        };
        let qkv = ops.linear(&x, Some(&layer.attn_norm), &layer.qkv)?;
        let attended = ops.attention(&qkv, batch, kv, index, &how)?;
        drop(qkv);
        let output = ops.linear(&attended, layer.attn_sub_norm.as_ref(), &layer.output)?;
        drop(attended);
        let x = ops.add(x, &output, layer.attn_post_norm.as_ref())?;
        drop(output);
        let gate_up = ops.linear(&x, Some(&layer.ffn_norm), &layer.gate_up)?;
        let inner = ops.gated(&gate_up, self.config.activation)?;
        drop(gate_up);
        let down = ops.linear(&inner, layer.ffn_sub_norm.as_ref(), &layer.down)?;
        ops.add(x, &down, layer.ffn_post_norm.as_ref())
    }
}

impl Model for Decoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        let a = &self.config.attention;
        KvShape { layers: self.config.layers, kv_heads: a.kv_heads, head_dim: a.head_dim }
    }

    /// A row at a layer's widest point, in f32: the residual and a linear's output beside it, the wider of
    /// (q, k, v, attention's output) and (gate, up, their product), the rotation's angles; besides, the widest
    /// activation normalised in f32 and quantized to int8 with its scale and sum, or those of its blocks (4 bytes for 32
    /// columns, 2 for 16, at most); where projections have norms of their
    /// own, the input normed once more and the widest product by itself. That is more than a wanted hidden state
    /// takes: the residual, the row, its norm. A logits row: its hidden state and the head's output (the caller's
    /// own buffers are not counted). A MiB for the threads' tiles.
    fn workspace_bytes(&self, rows: usize, logits_rows: usize) -> usize {
        let c = &self.config;
        let (attention, widest) = (c.attention_width(), c.hidden.max(c.ffn).max(c.attention_width()));
        let angles = c.ropes.iter().map(|rope| rope.dims).sum::<usize>();
        let own = if c.parts.projection_norms { 2 * widest } else { 0 };
        let floats = 2 * c.hidden + (c.qkv_width() + attention).max(3 * c.ffn) + angles + widest + own;
        let row = 4 * floats + widest.next_multiple_of(128) + widest / 4 + 64;
        let logits_row = 4 * (c.hidden + c.vocab_size);
        rows.saturating_mul(row)
            .saturating_add(logits_rows.saturating_mul(logits_row))
            .saturating_add(1 << 20)
    }

    fn forward(
        &mut self,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        stop: &AtomicBool,
        out: &mut Outputs,
    ) -> Result<()> {
        check_batch(batch, kv, self.kv_shape(), self.config.vocab_size, self.config.context_length)?;
        let mut x = self.ops.embed(batch, &self.weights.embedding, self.config.embedding_scale)?;
        for index in 0..self.config.layers {
            check_stop(stop)?;
            x = self.layer(x, index, batch, kv)?;
        }
        check_stop(stop)?;
        out.logits.clear();
        out.hidden.clear();
        let norm = &self.weights.final_norm;
        if !batch.hidden_rows.is_empty() {
            let wanted = self.ops.rows(&x, &batch.hidden_rows)?;
            let states = self.ops.norm(&wanted, norm)?;
            copy_out(&states, batch.hidden_rows.len() * self.config.hidden, &mut out.hidden)?;
        }
        if !batch.logits_rows.is_empty() {
            let wanted = self.ops.rows(&x, &batch.logits_rows)?;
            let logits = self.ops.linear(&wanted, Some(norm), &self.weights.head)?;
            copy_out(&logits, batch.logits_rows.len() * self.config.vocab_size, &mut out.logits)?;
        }
        Ok(())
    }
}

fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Err(Error::new(Status::Cancelled, "the step was stopped"));
    }
    Ok(())
}

/// Copies a contiguous f32 tensor of `len` elements; reallocates only when `out` never was that long.
fn copy_out(tensor: &Tensor, len: usize, out: &mut Vec<f32>) -> Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let data = match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) if end - start == len => &data[start..end],
        _ => return Err(Error::internal(format!("a step gave {layout:?} where {len} f32 belong"))),
    };
    out.clear();
    out.try_reserve(len).map_err(|_| Error::out_of_memory("a step's outputs", len * 4))?;
    out.extend_from_slice(data);
    Ok(())
}

fn facts(config: &DecoderConfig, weights: &Weights, other_bytes: u64) -> Facts {
    let (mut parameters, mut weight_bytes) = (0, other_bytes);
    weights.matrices().for_each(|m| {
        parameters += m.rows as u64 * m.cols as u64;
        weight_bytes += m.data.len() as u64;
    });
    weights.vectors().for_each(|v| {
        parameters += v.len() as u64;
        weight_bytes += 4 * v.len() as u64;
    });
    Facts {
        architecture: config.architecture.clone(),
        name: config.name.clone(),
        vocab_size: config.vocab_size,
        context_length: config.context_length,
        layers: config.layers,
        hidden_size: config.hidden,
        heads: config.attention.heads,
        kv_heads: config.attention.kv_heads,
        head_dim: config.attention.head_dim,
        ffn_size: config.ffn,
        parameters,
        weight_bytes,
        pooling: config.pooling,
    }
}
