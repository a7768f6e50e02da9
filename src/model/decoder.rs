//! One decoder for every family: the configuration says which norms, rotation and activation it has, the
//! weights' types which arithmetic.

use super::check::check_batch;
use super::config::DecoderConfig;
use super::{Facts, KvShape, Model, Outputs, check_stop};
use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::ops::{Attention, KvCache, Norm, OpSet, Paging, Projections, RaggedBatch, Rope, into_vec};
use candle_core::{CpuStorage, Storage, Tensor};

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
    facts: Facts,
}

impl Decoder {
    /// `weights` must have the shapes that `config` says; the loader has checked them.
    /// `other_bytes` is what their files hold besides.
    pub fn new(config: DecoderConfig, weights: Weights, other_bytes: u64) -> Self {
        let facts = facts(&config, &weights, other_bytes);
        Self { config, weights, facts }
    }

    /// A layer's first half on the residual `x`, to which the last layer's `output` is still to be added: `x`, and
    /// attention's output.
    fn attend(
        &self,
        ops: &dyn OpSet,
        x: Tensor,
        last: Option<Tensor>,
        index: usize,
        paging: &Paging,
        kv: &KvCache,
    ) -> Result<(Tensor, Tensor)> {
        let (layer, span) = (&self.weights.layers[index], self.config.spans[index]);
        let how = Attention {
            shape: &self.config.attention,
            rope: &self.weights.ropes[span.rope],
            window: span.window,
            norms: layer.qk_norms.as_ref(),
        };
        let norm = Some(&layer.attn_norm);
        let (x, qkv) = match last {
            Some(last) => {
                let sum = ops.add_linear(x, &last, self.post_norm(index - 1), norm, &layer.qkv)?;
                ops.recycle(last)?;
                sum
            }
            None => {
                let qkv = ops.linear(&x, norm, &layer.qkv)?;
                (x, qkv)
            }
        };
        let attended = ops.attention(&qkv, paging, kv, index, &how)?;
        ops.recycle(qkv)?;
        Ok((x, attended))
    }

    /// The other half: `x`, and what is to be added to it.
    fn feed_forward(
        &self,
        ops: &dyn OpSet,
        x: Tensor,
        attended: Tensor,
        index: usize,
    ) -> Result<(Tensor, Tensor)> {
        let layer = &self.weights.layers[index];
        let output = ops.linear(&attended, layer.attn_sub_norm.as_ref(), &layer.output)?;
        ops.recycle(attended)?;
        let (post_norm, norm) = (layer.attn_post_norm.as_ref(), Some(&layer.ffn_norm));
        let (x, gate_up) = ops.add_linear(x, &output, post_norm, norm, &layer.gate_up)?;
        ops.recycle(output)?;
        let (activation, norm) = (self.config.activation, layer.ffn_sub_norm.as_ref());
        let down = ops.gated_linear(&gate_up, activation, norm, &layer.down)?;
        ops.recycle(gate_up)?;
        Ok((x, down))
    }

    /// Of what layer `index` adds to the residual.
    fn post_norm(&self, index: usize) -> Option<&Norm> {
        self.weights.layers[index].ffn_post_norm.as_ref()
    }

    /// The residual behind the last layer of the rows `wanted`, or of all. What no row is wanted of ends with its K
    /// and V: None.
    fn residual(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        kv: &KvCache,
        stop: &mut dyn FnMut() -> bool,
        wanted: Option<&[u32]>,
    ) -> Result<Option<Tensor>> {
        let layers = self.config.layers;
        let mut x = ops.embed(batch, &self.weights.embedding, self.config.embedding_scale)?;
        let paging = Paging::new(batch, kv, &self.config.attention)?;
        let mut last = None;
        for index in 0..layers {
            check_stop(stop)?;
            let mut attended;
            (x, attended) = self.attend(ops, x, last, index, &paging, kv)?;
            if let Some(rows) = wanted.filter(|_| index + 1 == layers) {
                if rows.is_empty() {
                    ops.recycle(attended)?;
                    ops.recycle(x)?;
                    return Ok(None);
                }
                attended = only(ops, attended, rows)?;
                x = only(ops, x, rows)?;
            }
            let down;
            (x, down) = self.feed_forward(ops, x, attended, index)?;
            last = Some(down);
        }
        if let Some(last) = last {
            x = ops.add(x, &last, self.post_norm(layers - 1))?;
            ops.recycle(last)?;
        }
        Ok(Some(x))
    }
}

fn only(ops: &dyn OpSet, x: Tensor, rows: &[u32]) -> Result<Tensor> {
    let chosen = ops.rows(&x, rows)?;
    ops.recycle(x)?;
    Ok(chosen)
}

impl Model for Decoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn kv_shape(&self) -> KvShape {
        let a = &self.config.attention;
        KvShape { layers: self.config.layers, kv_heads: a.kv_heads, head_dim: a.head_dim, kind: None }
    }

    /// A row in f32, of everything whose memory stays from step to step: the residual, what is added to it or q, k and
    /// v, attention's output, gate and up, the rotation's angles; besides, the widest activation normalised in
    /// f32 and quantized to int8, twice in different orders or once and as 16 bits, with its scale and sum, or those of its
    /// blocks (for 32 columns, 4 bytes and 4 more for the other order, 2 for 16, at most); where projections have norms of their own, the input normed
    /// once more and the widest product by itself. That is more than a wanted hidden state takes: the residual, the row,
    /// its norm. A logits row: its hidden state (the logits lie in the caller's own memory, which is not
    /// counted). Where the rows lie in the KV cache, and what attention keeps. A MiB for the threads.
    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, logits_rows: usize) -> usize {
        let c = &self.config;
        let (attention, widest) = (c.attention_width(), c.hidden.max(c.ffn).max(c.attention_width()));
        let angles = c.ropes.iter().map(|rope| rope.dims).sum::<usize>();
        let own = if c.parts.projection_norms { 2 * widest } else { 0 };
        let floats = c.hidden + c.qkv_width().max(c.hidden) + attention + 2 * c.ffn + angles + widest + own;
        let row = 4 * floats + 3 * widest.next_multiple_of(256) + widest * 3 / 8 + 64 + Paging::ROW_BYTES;
        let logits_row = 4 * c.hidden;
        rows.saturating_mul(row)
            .saturating_add(logits_rows.saturating_mul(logits_row))
            .saturating_add(ops.attention_bytes(&c.attention, c.context_length))
            .saturating_add(1 << 20)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        kv: &KvCache,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        check_batch(batch, kv, self.kv_shape(), self.config.vocab_size, self.config.context_length)?;
        let norm = &self.weights.final_norm;
        let wanted = Wanted::of(batch);
        let x = self.residual(ops, batch, kv, stop, wanted.rows())?;
        check_stop(stop)?;
        out.hidden.clear();
        let Some(x) = x else {
            out.logits.clear();
            return Ok(());
        };
        if !batch.hidden_rows.is_empty() {
            let rows = ops.rows(&x, &wanted.places(&batch.hidden_rows))?;
            let states = ops.norm(&rows, norm)?;
            copy_out(&states, batch.hidden_rows.len() * self.config.hidden, &mut out.hidden)?;
            ops.recycle(rows)?;
            ops.recycle(states)?;
        }
        if batch.logits_rows.is_empty() {
            out.logits.clear();
        } else {
            let all = batch.logits_rows.len() == x.dims()[0];
            let rows = if all { None } else { Some(ops.rows(&x, &wanted.places(&batch.logits_rows))?) };
            // Not cleared: what is written over needs no zeros first.
            let memory = std::mem::take(&mut out.logits);
            let logits =
                ops.linear_into(memory, rows.as_ref().unwrap_or(&x), Some(norm), &self.weights.head)?;
            out.logits = into_vec(logits)?;
            let expected = batch.logits_rows.len() * self.config.vocab_size;
            if out.logits.len() != expected {
                let found = out.logits.len();
                return Err(Error::internal(format!("a step gave {found} logits where {expected} belong")));
            }
            rows.map_or(Ok(()), |rows| ops.recycle(rows))?;
        }
        ops.recycle(x)
    }
}

/// Rows of a batch that anything is wanted of, ascending; None: all.
struct Wanted(Option<Vec<u32>>);

impl Wanted {
    fn of(batch: &RaggedBatch) -> Self {
        let (logits, hidden) = (&batch.logits_rows, &batch.hidden_rows);
        let all = batch.tokens.len();
        if logits.len() == all || hidden.len() == all {
            return Self(None);
        }
        let mut rows: Vec<u32> = logits.iter().chain(hidden).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        Self((rows.len() < all).then_some(rows))
    }

    fn rows(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }

    /// Where these of the batch's rows stand among those that are wanted.
    fn places(&self, rows: &[u32]) -> Vec<u32> {
        match &self.0 {
            Some(wanted) => rows.iter().map(|row| wanted.partition_point(|w| w < row) as u32).collect(),
            None => rows.to_vec(),
        }
    }
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
