//! One decoder for every family: the configuration says which norms, rotation and activation it has, the
//! weights' types which arithmetic.

use super::check::check_batch;
use super::config::DecoderConfig;
use super::{Facts, KvShape, Model, Outputs, Pooling};
use crate::base::{Error, Result, Status};
use crate::kernels::Matrix;
use crate::ops::{KvCache, Norm, OpSet, RaggedBatch, Rope};
use candle_core::{CpuStorage, Storage, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Layer {
    pub attn_norm: Norm,
    /// q, k, v: `[heads * head_dim, hidden]` and twice `[kv_heads * head_dim, hidden]`.
    pub qkv: [Matrix; 3],
    pub attn_sub_norm: Option<Norm>,
    /// `[hidden, heads * head_dim]`.
    pub output: [Matrix; 1],
    pub ffn_norm: Norm,
    /// gate, up: `[ffn, hidden]`.
    pub gate_up: [Matrix; 2],
    pub ffn_sub_norm: Option<Norm>,
    /// `[hidden, ffn]`.
    pub down: [Matrix; 1],
}

pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub final_norm: Norm,
    /// `[vocab, hidden]`; the embedding again where the two are tied.
    pub head: [Matrix; 1],
    pub rope: Rope,
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
    /// `weight_bytes` is what they and their file hold.
    pub fn new(config: DecoderConfig, weights: Weights, weight_bytes: u64, ops: Arc<dyn OpSet>) -> Self {
        let facts = facts(&config, &weights, weight_bytes);
        Self { config, weights, ops, facts }
    }

    fn layer(&self, x: Tensor, index: usize, batch: &Arc<RaggedBatch>, kv: &KvCache) -> Result<Tensor> {
        let (ops, layer) = (&*self.ops, &self.weights.layers[index]);
        let qkv = ops.linear(&x, Some(&layer.attn_norm), &layer.qkv)?;
        let attended = ops.attention(&qkv, batch, kv, index, &self.config.attention, &self.weights.rope)?;
        drop(qkv);
        let output = ops.linear(&attended, layer.attn_sub_norm.as_ref(), &layer.output)?;
        drop(attended);
        let x = ops.add(x, &output)?;
        drop(output);
        let gate_up = ops.linear(&x, Some(&layer.ffn_norm), &layer.gate_up)?;
        let inner = ops.gated(&gate_up, self.config.activation)?;
        drop(gate_up);
        let down = ops.linear(&inner, layer.ffn_sub_norm.as_ref(), &layer.down)?;
        ops.add(x, &down)
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
    /// activation normalised in f32 and quantized to int8 with its scale and sum. That is more than a wanted hidden
    /// state takes: the residual, the row, its norm. A logits row: its hidden state and the head's output (the
    /// caller's own buffers are not counted). A MiB for the threads' tiles.
    fn workspace_bytes(&self, rows: usize, logits_rows: usize) -> usize {
        let c = &self.config;
        let (attention, widest) = (c.attention_width(), c.hidden.max(c.ffn).max(c.attention_width()));
        let floats = 2 * c.hidden + (c.qkv_width() + attention).max(3 * c.ffn) + c.rope_dims + widest;
        let row = 4 * floats + widest + 64;
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
        let mut x = self.ops.embed(batch, &self.weights.embedding)?;
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

fn facts(config: &DecoderConfig, weights: &Weights, weight_bytes: u64) -> Facts {
    let elements = |m: &Matrix| m.rows as u64 * m.cols as u64;
    let mut parameters = elements(&weights.embedding) + weights.final_norm.weight.len() as u64;
    // A tied head is the embedding's very bytes.
    if weights.head[0].data.as_ptr() != weights.embedding.data.as_ptr() {
        parameters += elements(&weights.head[0]);
    }
    for layer in &weights.layers {
        let matrices = layer.qkv.iter().chain(&layer.output).chain(&layer.gate_up).chain(&layer.down);
        let sub_norms = layer.attn_sub_norm.iter().chain(&layer.ffn_sub_norm);
        let norms = sub_norms.chain([&layer.attn_norm, &layer.ffn_norm]);
        parameters += matrices.map(elements).sum::<u64>() + norms.map(|n| n.weight.len() as u64).sum::<u64>();
    }
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
        pooling: Pooling::default(),
    }
}
