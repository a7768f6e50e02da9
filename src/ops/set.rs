//! The operations of a backend.

use super::batch::{Head, RaggedBatch};
use super::experts::Experts;
use super::fold::Fold;
use super::kv::{KvCache, KvLayout};
use super::latent::Latent;
use super::lora::{Adapted, Site};
use super::owned::Owned;
use super::paging::Paging;
use super::state::Accepted;
use super::types::{Activation, Attention, AttentionShape, Norm, Projections, cpu_only};
use super::weight::{Recurrent, Weight};
use crate::base::Result;
use crate::kernels::Matrix;
use std::collections::HashSet;

/// All heavy steps of a decoder. `FusedOps` runs our kernels, `CudaOps` those for NVIDIA devices; tests run the same
/// model on plain candle.
pub trait OpSet: Send + Sync {
    /// Copies a weight to where these operations run, before the first pass needs it there. `Unsupported` if they do
    /// not take it, `OutOfMemory`.
    fn hold(&self, _: Weight) -> Result<()> {
        Ok(())
    }
    /// Bytes that `hold` will take for a weight's matrices. Matrices that are already there or whose host address is
    /// in `seen` do not count. Adds all host addresses to `seen`.
    fn lacks(&self, _: Weight, _seen: &mut HashSet<usize>) -> usize {
        0
    }
    /// Bytes of free memory where these operations run. `None` on the CPU.
    fn free_bytes(&self) -> Option<Result<usize>> {
        None
    }
    /// Creates a KV cache of zeros where these operations run. `OutOfMemory`.
    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache> {
        KvCache::new(layout)
    }
    /// Begins a pass of `batch`, which reads and writes `kv`. Any earlier pass is over.
    fn begin(&self, _batch: &RaggedBatch, _kv: &KvCache) -> Result<()> {
        Ok(())
    }
    /// Ends a pass that gives no result: waits until it is computed, as reading a result would.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
    /// Rows of `table` for `batch.tokens`, times `scale`: `[T, hidden]`.
    fn embed(&self, batch: &RaggedBatch, table: &Matrix, scale: f32) -> Result<Owned>;
    /// Undoes the rotation of rows of a folded table.
    fn unfold(&self, _x: &mut Owned, _fold: &Fold) -> Result<()> {
        Err(cpu_only("folded embeddings"))
    }
    /// Applies `norm` if given, then each matrix's own norm if it has one. Then quantizes the rows as the weights'
    /// type requires (`DType::arithmetic`): for ternary weights to int8 per token (scale 127 / max(absmax, 1e-5),
    /// half to even). Then computes `x · Wᵀ + bias` for each matrix, outputs side by side: `[T, sum of rows]`.
    fn linear(&self, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<Owned>;
    /// Like `linear`, but overwrites `out`, which grows if needed.
    fn linear_to(
        &self,
        out: &mut Vec<f32>,
        x: &Owned,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<()> {
        self.linear(x, norm, weights)?.copy_to(out)
    }
    /// Number of rows that a decode step of `rows` rows should be padded to (`RaggedBatch::pad`). Steps of fewer
    /// distinct shapes are launched faster.
    fn decode_rows(&self, rows: usize) -> usize {
        rows
    }
    /// Whether `head` draws tokens.
    fn draws(&self) -> bool {
        false
    }
    /// Like `linear_to`, for a step's logits. Also draws tokens from them if these operations can.
    fn head(&self, to: Head, x: &Owned, norm: Option<&Norm>, weights: &Projections) -> Result<()> {
        to.tokens.clear();
        self.linear_to(to.logits, x, norm, weights)
    }
    /// Logits x become `cap * tanh(x / cap)`.
    fn cap(&self, _logits: &mut [f32], _cap: f32) -> Result<()> {
        Err(cpu_only("capped logits"))
    }
    /// Bytes that `head` keeps for `rows` rows of a vocabulary of `vocab` tokens.
    fn head_bytes(&self, _rows: usize, _vocab: usize) -> usize {
        0
    }
    /// `norm` of each row of `x`.
    fn norm(&self, x: &Owned, norm: &Norm) -> Result<Owned>;
    /// `norm` of each part of a row of `x`, as wide as the norm, in place.
    fn norm_parts(&self, _x: &mut Owned, _norm: &Norm) -> Result<()> {
        Err(cpu_only("inputs of single layers"))
    }
    /// The activation of `gate` `[T, width]` times the columns of `inputs` from `from` on.
    fn gated_columns(
        &self,
        _gate: &Owned,
        _inputs: &Owned,
        _from: usize,
        _activation: Activation,
    ) -> Result<Owned> {
        Err(cpu_only("inputs of single layers"))
    }
    /// `x *= by`.
    fn scale(&self, _x: &mut Owned, _by: f32) -> Result<()> {
        Err(cpu_only("layers with a scale"))
    }
    /// `norm` of the columns of `x` that begin at `from`, in place.
    fn norm_columns(&self, x: &mut Owned, from: usize, norm: &Norm) -> Result<()>;
    /// Norms and rotates the q and k heads of `qkv` `[T, (heads + 2 kv_heads) * head_dim]` at the batch's positions,
    /// writes k and v to layer `layer` of `kv`, and attends causally over the block tables, within the window.
    /// Without v heads (`AttentionShape::keys_are_values`), or k heads either (`Attention::shared`), rows are narrower.
    /// Returns `[T, heads * head_dim]`. `paging` belongs to the step, and was made for `kv` and `how.shape`.
    fn attention(
        &self,
        qkv: &Owned,
        paging: &Paging,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<Owned>;
    /// A copy of rows of the caller: `[rows, columns]`.
    fn given(&self, _data: &[f32], _dims: [usize; 2]) -> Result<Owned> {
        Err(cpu_only("blocks of multi-token prediction"))
    }
    /// Like `attention`, but only writes k and v.
    fn append(
        &self,
        qkv: &Owned,
        paging: &Paging,
        kv: &KvCache,
        layer: usize,
        how: &Attention,
    ) -> Result<()> {
        self.attention(qkv, paging, kv, layer, how).map(drop)
    }
    /// The rows of two matrices, each normed by its norm, side by side: `[T, sum of widths]`.
    fn beside(&self, _x: [(&Owned, &Norm); 2]) -> Result<Owned> {
        Err(cpu_only("blocks of multi-token prediction"))
    }
    /// The hidden states of the tokens before the batch's, given the batch's own (`States::shift`): `[T, hidden]`.
    fn shift(&self, _h: &Owned, _batch: &RaggedBatch, _kv: &KvCache) -> Result<Owned> {
        Err(cpu_only("blocks of multi-token prediction"))
    }
    /// Parts rows of attention whose output has a gate. A row of `x` has query and gate of each head side by side, then
    /// the k heads and the v heads. Returns q, k and v as `attention` takes them, and the gates
    /// `[T, heads * head_dim]`.
    fn split_gate(&self, _x: &Owned, _shape: &AttentionShape) -> Result<[Owned; 2]> {
        Err(cpu_only("recurrent layers"))
    }
    /// `x` times the logistic function of `gate`, element by element. A gate with fewer columns has one for each part
    /// of a row: for each head.
    fn gate(&self, _x: &Owned, _gate: &Owned) -> Result<Owned> {
        Err(cpu_only("recurrent layers"))
    }
    /// Norms and rotates the q and k heads of `qkv` in place, and attends in both directions within each of the batch's
    /// sequences, which are whole texts: a row sees all rows of its text, or those at most `how.window` away. Returns
    /// `[T, heads * head_dim]`.
    fn encode(&self, _qkv: &mut Owned, _batch: &RaggedBatch, _how: &Attention) -> Result<Owned> {
        Err(cpu_only("encoders"))
    }
    /// Runs a layer with a state between its products, whose rows are `inputs`: of Gated DeltaNet one with q, k, v and the
    /// gate of the output, and one with the logits of each head's rate and then of its decay; of a short convolution one
    /// with B, C and x; of Mamba-2 one with the gate, then x, B and C, then the steps. Updates state `layer` of the batch's
    /// sequences. Returns `[T, values]`. The batch has passed `States::check`.
    fn recur(
        &self,
        _inputs: &[&Owned],
        _batch: &RaggedBatch,
        _kv: &KvCache,
        _layer: usize,
        _net: Recurrent,
    ) -> Result<Owned> {
        Err(cpu_only("recurrent layers"))
    }
    /// The rows of latent attention for `attention`, from its queries and its compressed rows.
    fn absorb(&self, _q: &Owned, _kv: &Owned, _latent: &Latent) -> Result<Owned> {
        Err(cpu_only("latent attention"))
    }
    /// The values of all heads, from what `attention` gave: `[T, values]`.
    fn expand(&self, _x: &Owned, _latent: &Latent) -> Result<Owned> {
        Err(cpu_only("latent attention"))
    }
    /// Advances state `layer` of sequences by drafted rows of the last pass.
    fn advance(&self, _kv: &KvCache, _layer: usize, _net: Recurrent, _accepted: &[Accepted]) -> Result<()> {
        Err(cpu_only("recurrent layers"))
    }
    /// Maximum bytes that `attention` keeps between calls, for steps of `rows` rows and contexts of `context`
    /// positions.
    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize;
    /// Number of gates of ReLU² so far that were looked at in passes with few tokens, and of those that were shut.
    fn gates(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Number of threads that operations run on.
    fn threads(&self) -> usize {
        1
    }
    /// Gated activation of `gate_up` `[T, 2 ffn]`, gate first, or activation of `up` `[T, ffn]`: `[T, ffn]`.
    fn gated(&self, gate_up: &Owned, activation: Activation) -> Result<Owned>;
    /// `x += y`, with `norm(y)` if there is a norm.
    fn add(&self, x: &mut Owned, y: &Owned, norm: Option<&Norm>) -> Result<()>;
    /// Returns the rows `rows` of `x`.
    fn rows(&self, x: &Owned, rows: &[u32]) -> Result<Owned>;

    /// The output of a mixture of experts for each row of `x`, after `norm` if given: `[T, hidden]`.
    fn experts(
        &self,
        _x: &Owned,
        _norm: Option<&Norm>,
        _experts: &Experts,
        _activation: Activation,
    ) -> Result<Owned> {
        Err(cpu_only("mixtures of experts"))
    }

    /// Adds the updates of the adapters of some rows to `y`, the product of `x` and `weights`. `x` has passed the
    /// norm that all matrices share, but not the norms of single matrices.
    fn adapt(
        &self,
        y: &mut Owned,
        x: &Owned,
        weights: &Projections,
        adapted: &[Adapted],
        site: Site,
    ) -> Result<()>;

    /// `add` of `x`, `y` and `y_norm`, then `linear` of the sum.
    fn add_linear(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        self.add(x, y, y_norm)?;
        self.linear(x, norm, weights)
    }

    /// `add_linear` of gate and up. Rows of up that `activation` multiplies by zero, whatever they are, may be 0.
    fn add_gate_up(
        &self,
        x: &mut Owned,
        y: &Owned,
        y_norm: Option<&Norm>,
        norm: Option<&Norm>,
        weights: &Projections,
        _activation: Activation,
    ) -> Result<Owned> {
        self.add_linear(x, y, y_norm, norm, weights)
    }

    /// `linear` of `gated`.
    fn gated_linear(
        &self,
        gate_up: &Owned,
        activation: Activation,
        norm: Option<&Norm>,
        weights: &Projections,
    ) -> Result<Owned> {
        self.linear(&self.gated(gate_up, activation)?, norm, weights)
    }
}
