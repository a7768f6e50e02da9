//! One encoder for all families: a text's rows see each other in both directions, in one step, and nothing is kept
//! after it. The tensors of a file say which of the norms a layer has.

mod config;
pub mod family;
mod head;

use super::check::check_batch;
use super::{Facts, KvShape, Model, Outputs, check_stop};
use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::ops::{Attention, KvCache, Norm, OpSet, Owned, Projections, RaggedBatch, Rope, Weight};

pub use config::EncoderConfig;
pub use head::{Dense, HeadActivation, ScoreHead};

/// A loaded encoder.
pub struct Encoder {
    config: EncoderConfig,
    weights: EncoderWeights,
    facts: Facts,
}

pub struct EncoderWeights {
    pub embedding: Matrix,
    /// A row for each position.
    pub positions: Option<Matrix>,
    /// A row for each type of token.
    pub types: Option<Matrix>,
    pub embedding_norm: Option<Norm>,
    pub layers: Vec<EncoderLayer>,
    pub final_norm: Option<Norm>,
    pub ropes: Vec<Rope>,
    pub score: Option<ScoreHead>,
    /// Products after pooling that make the embedding.
    pub dense: Vec<Dense>,
}

/// Attention and feed-forward of one layer, each with up to three norms: of its input, of its update, and of the sum.
pub struct EncoderLayer {
    pub attention: Norms,
    pub qkv: Projections,
    pub qk_norms: Option<[Norm; 2]>,
    pub output: Projections,
    pub feed_forward: Norms,
    pub gate_up: Projections,
    pub down: Projections,
}

#[derive(Default)]
pub struct Norms {
    pub input: Option<Norm>,
    pub update: Option<Norm>,
    pub sum: Option<Norm>,
}

impl Norms {
    fn iter(&self) -> impl Iterator<Item = &Norm> {
        [&self.input, &self.update, &self.sum].into_iter().flatten()
    }
}

impl EncoderLayer {
    fn products(&self) -> [&Projections; 4] {
        [&self.qkv, &self.output, &self.gate_up, &self.down]
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.attention.iter().chain(self.feed_forward.iter()).chain(self.qk_norms.iter().flatten())
    }
}

impl EncoderWeights {
    fn products(&self) -> impl Iterator<Item = &Projections> {
        let layers = self.layers.iter().flat_map(EncoderLayer::products);
        let score = self.score.iter().flat_map(ScoreHead::products);
        layers.chain(score).chain(self.dense.iter().map(|dense| &dense.weights))
    }

    fn tables(&self) -> impl Iterator<Item = &Matrix> {
        [Some(&self.embedding), self.positions.as_ref(), self.types.as_ref()].into_iter().flatten()
    }

    fn norms(&self) -> impl Iterator<Item = &Norm> {
        let own = [&self.embedding_norm, &self.final_norm].into_iter().flatten();
        let score = self.score.iter().filter_map(|score| score.norm.as_ref());
        own.chain(self.layers.iter().flat_map(EncoderLayer::norms)).chain(score)
    }
}

impl Encoder {
    /// `weights` must have the shapes that `config` gives. `other_bytes` is the number of other bytes in their files.
    pub fn new(config: EncoderConfig, weights: EncoderWeights, other_bytes: u64) -> Self {
        let facts = facts(&config, &weights, other_bytes);
        Self { config, weights, facts }
    }

    /// The sum of the embeddings of tokens, types and positions.
    fn embed(&self, ops: &dyn OpSet, batch: &RaggedBatch) -> Result<Owned> {
        let w = &self.weights;
        let mut x = ops.embed(batch, &w.embedding, self.config.embedding_scale)?;
        let mut add = |ids: Vec<u32>, table: &Matrix| {
            let ids = RaggedBatch { tokens: ids, ..RaggedBatch::default() };
            ops.add(&mut x, &ops.embed(&ids, table, 1.0)?, None)
        };
        if let Some(table) = &w.types {
            let types =
                if batch.types.is_empty() { vec![0; batch.tokens.len()] } else { batch.types.clone() };
            add(types, table)?;
        }
        if let Some(table) = &w.positions {
            let offset = self.config.position_offset as u32;
            add(batch.positions.iter().map(|position| position + offset).collect(), table)?;
        }
        norm(ops, &mut x, w.embedding_norm.as_ref())?;
        Ok(x)
    }

    /// The output of attention in layer `index`: `[T, heads * head_dim]`.
    fn attention(&self, ops: &dyn OpSet, batch: &RaggedBatch, index: usize, x: &Owned) -> Result<Owned> {
        let (layer, block) = (&self.weights.layers[index], self.config.blocks[index]);
        let mut qkv = ops.linear(x, layer.attention.input.as_ref(), &layer.qkv)?;
        let rope = &self.weights.ropes[block.rope];
        let how = Attention {
            window: block.window,
            norms: layer.qk_norms.as_ref(),
            ..Attention::plain(&self.config.attention, rope)
        };
        ops.encode(&mut qkv, batch, &how)
    }

    /// The rows `wanted` after the last layer.
    fn rows(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        stop: &mut dyn FnMut() -> bool,
        wanted: &[u32],
    ) -> Result<Owned> {
        let (mut x, last) = (self.embed(ops, batch)?, self.weights.layers.len() - 1);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            check_stop(stop)?;
            let mut mixed = self.attention(ops, batch, index, &x)?;
            if index == last {
                (mixed, x) = (ops.rows(&mixed, wanted)?, ops.rows(&x, wanted)?);
            }
            let Norms { update, sum, .. } = &layer.attention;
            ops.add(&mut x, &ops.linear(&mixed, None, &layer.output)?, update.as_ref())?;
            drop(mixed);
            norm(ops, &mut x, sum.as_ref())?;
            let Norms { input, update, sum } = &layer.feed_forward;
            let gate_up = ops.linear(&x, input.as_ref(), &layer.gate_up)?;
            let output = ops.gated_linear(&gate_up, self.config.activation, None, &layer.down)?;
            ops.add(&mut x, &output, update.as_ref())?;
            norm(ops, &mut x, sum.as_ref())?;
        }
        norm(ops, &mut x, self.weights.final_norm.as_ref())?;
        Ok(x)
    }
}

fn norm(ops: &dyn OpSet, x: &mut Owned, norm: Option<&Norm>) -> Result<()> {
    norm.map_or(Ok(()), |norm| ops.norm_columns(x, 0, norm))
}

impl Model for Encoder {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Nothing is kept: a block takes no bytes.
    fn kv_shape(&self) -> KvShape {
        let a = &self.config.attention;
        KvShape { kv_heads: a.kv_heads, head_dim: a.head_dim, ..KvShape::default() }
    }

    fn weights(&self, each: &mut dyn FnMut(Weight) -> Result<()>) -> Result<()> {
        each(Weight::CpuOnly("encoders"))?;
        self.weights.tables().try_for_each(|table| each(Weight::Table(table)))?;
        self.weights.products().try_for_each(|weights| each(Weight::Product(weights)))?;
        self.weights.norms().try_for_each(|norm| each(Weight::Norm(norm)))
    }

    /// Sums up the following, and a MiB for the threads:
    /// - For each row, in f32: the residual and two further embeddings or updates; q, k and v; attention's output; gate
    ///   and up; the rotations; the widest activation, normed.
    /// - For each row, that activation quantized, with the scales and sums of its blocks.
    /// - For each thread, the keys and values of a head of the longest text, and a tile of scores.
    fn workspace_bytes(&self, ops: &dyn OpSet, rows: usize, _: usize) -> usize {
        let c = &self.config;
        let attention = c.attention.heads * c.attention.head_dim;
        let widest = c.hidden.max(c.ffn).max(attention);
        let angles = c.ropes.iter().map(|rope| rope.dims).sum::<usize>();
        let floats = 4 * c.hidden + c.attention.qkv() + 2 * attention + 2 * c.ffn + angles + widest;
        let row = 4 * floats + 3 * widest;
        let threads = c.attention.whole_bytes(ops.threads(), rows.min(c.context_length));
        rows.saturating_mul(row).saturating_add(threads).saturating_add(1 << 20)
    }

    fn forward(
        &self,
        ops: &dyn OpSet,
        batch: &RaggedBatch,
        kv: &KvCache,
        stop: &mut dyn FnMut() -> bool,
        out: &mut Outputs,
    ) -> Result<()> {
        let c = &self.config;
        check_batch(batch, &kv.layout, self.kv_shape(), c.vocab_size, c.context_length)?;
        let typed = batch.types.len();
        if !batch.logits_rows.is_empty() || typed != 0 && typed != batch.tokens.len() {
            return Err(Error::invalid("an encoder has no logits, and a type for each row or for none"));
        }
        // Tokenizers give types to models without a table of them too.
        if let Some(odd) = batch.types.iter().find(|kind| c.types > 0 && **kind as usize >= c.types) {
            return Err(Error::invalid(format!("token type {odd} of a model with {}", c.types)));
        }
        ops.begin(batch, kv)?;
        out.logits.clear();
        out.tokens.clear();
        if batch.hidden_rows.is_empty() {
            out.hidden.clear();
            return ops.finish();
        }
        self.rows(ops, batch, stop, &batch.hidden_rows)?.copy_to(&mut out.hidden)
    }

    fn after_pooling(&self, ops: &dyn OpSet, score: bool, pooled: &[f32]) -> Result<Option<Vec<f32>>> {
        if score {
            let head = self.weights.score.as_ref();
            let head = head.ok_or_else(|| Error::internal("a score of a model without a head for it"))?;
            return head.run(ops, pooled).map(Some);
        }
        if self.weights.dense.is_empty() {
            return Ok(None);
        }
        let mut x = pooled.to_vec();
        for dense in &self.weights.dense {
            x = dense.run(ops, &x)?;
        }
        Ok(Some(x))
    }
}

fn facts(c: &EncoderConfig, weights: &EncoderWeights, other_bytes: u64) -> Facts {
    let products = weights.products().flat_map(|product| &product.matrices);
    let biases = weights.products().filter_map(|product| product.bias.as_deref());
    let norms = weights.norms().flat_map(|norm| [Some(&*norm.weight), norm.bias.as_deref()]).flatten();
    Facts {
        architecture: c.architecture.clone(),
        name: c.name.clone(),
        vocab_size: c.vocab_size,
        context_length: c.context_length,
        layers: c.layers,
        hidden_size: c.hidden,
        heads: c.attention.heads,
        kv_heads: c.attention.kv_heads,
        head_dim: c.attention.head_dim,
        ffn_size: c.ffn,
        pooling: c.pooling,
        raw_embeddings: c.raw_embeddings,
        encodes: true,
        scores: weights.score.as_ref().map(|score| score.pooling),
        ..Facts::of_weights(weights.tables().chain(products), biases.chain(norms), other_bytes)
    }
}
