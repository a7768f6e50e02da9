//! Operations on candle tensors by our kernels. Tensors are f32 and contiguous, with one row per token.

mod attention;
pub mod batch;
mod cuda;
mod delta;
mod embed;
mod encode;
mod experts;
mod fold;
mod fused;
mod kv;
mod latent;
mod linear;
pub mod lora;
mod mamba;
mod mixture;
mod owned;
mod paging;
mod prepare;
mod recurrence;
mod rows;
mod short_conv;
mod spans;
mod spare;
mod state;
mod tensors;
mod tiles;
mod weight;

pub use batch::{
    Draw, Draws, Edit, Head, MAX_EDITS, MAX_LISTED, MAX_TOPS, RaggedBatch, Report, Reported, SeqRows,
};
pub use cuda::CudaOps;
pub use delta::{DeltaNet, DeltaShape, HeadOrder, MAX_HEAD};
pub use experts::{Choice, Expert, Experts, Gate, Groups, Shared};
pub use fold::{Fold, Regrouped};
pub use fused::FusedOps;
pub use kv::{KvCache, KvLayers, KvLayout};
pub use latent::{Latent, LatentShape};
pub use lora::{Adapted, Lora, Site, Slot};
pub use mamba::{Mamba, MambaFactors, MambaNorm, MambaShape};
pub use mixture::FEW as FEW_ROWS;
pub use owned::Owned;
pub use paging::Paging;
pub use short_conv::{ConvShape, ShortConv};
pub use state::{Accepted, StateRows, StateShape, States};
pub use weight::{Recurrent, Weight};

use crate::base::{Error, Result};
use crate::kernels::Matrix;
use crate::kernels::gemm::ternary::Columns;
use std::collections::HashSet;
use std::sync::Arc;

/// How a feed-forward combines `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up` (Llama).
    SwiGlu,
    /// `silu(min(gate, limit)) * clamp(up, -limit, limit)` (DeepSeek-V4, Maple).
    ClampedSwiGlu { limit: f32 },
    /// `silu(by gate) * output up`, for the factors `by` and `output` (Falcon-H1).
    ScaledSwiGlu { by: f32, output: f32 },
    /// `g / (1 + e^-(alpha g)) * (u + 1)`, g = min(gate, limit), u = clamp(up, -limit, limit) (gpt-oss).
    SteepSwiGlu { alpha: f32, limit: f32 },
    /// `relu(gate)^2 * up` (BitNet b1.58 2B-4T).
    Relu2,
    /// `gelu(gate) * up`, GELU in its tanh form (Gemma).
    GeGlu,
    /// `gelu(up)` in the same form, without a gate (StarCoder 2).
    Gelu,
    /// `gelu(gate) * up`, GELU in its own form with erf (ModernBERT).
    GeGluErf,
    /// `gelu(up)` in that form, without a gate (BERT).
    GeluErf,
}

impl Activation {
    /// Whether there is a gate.
    pub fn gated(self) -> bool {
        !matches!(self, Self::Gelu | Self::GeluErf)
    }

    /// What it is called, if devices lack it.
    pub fn cpu_only(self) -> Option<&'static str> {
        match self {
            Self::SwiGlu | Self::Relu2 | Self::GeGlu => None,
            Self::ClampedSwiGlu { .. } | Self::SteepSwiGlu { .. } => Some("clamped gates"),
            Self::ScaledSwiGlu { .. } => Some("scaled gates"),
            Self::GeGluErf => Some("gates of GELU with erf"),
            Self::Gelu | Self::GeluErf => Some("feed-forwards without a gate"),
        }
    }
}

/// Which elements of a head are rotated as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (i, i + rot/2): NEOX, Hugging Face.
    Neox,
    /// (2i, 2i + 1): ERNIE, GLM-4, and GGUF files of the `llama` architecture, whose q and k rows are permuted for it.
    Interleaved,
}

/// The parameters of a model's attention. A row has the q heads, then the k heads, then the v heads.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// The norms of q and k heads come after their rotation.
    pub norms_last: bool,
    pub temperature: Option<Temperature>,
    /// Scores s become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// The eps of the norm of v heads, which has no weights. `None`: they have no norm.
    pub value_eps: Option<f32>,
    /// V is K before its norm and rotation: a row has no v heads.
    pub keys_are_values: bool,
    /// V is K after its rotation, and stored once. A row has no v heads either.
    pub joint: bool,
}

/// Queries grow with their position: times `1 + scale * ln(1 + floor(position / length))` (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub length: usize,
}

impl Temperature {
    pub fn at(&self, position: usize) -> f32 {
        (1.0 + f64::from(self.scale) * ((position / self.length) as f64).ln_1p()) as f32
    }
}

impl AttentionShape {
    /// Scores scaled by 1/sqrt(head_dim), as in nearly every model.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            norms_last: false,
            temperature: None,
            cap: None,
            value_eps: None,
            keys_are_values: false,
            joint: false,
        }
    }

    /// The factor on the scores of a row at `position`.
    pub fn scale_at(&self, position: usize) -> f32 {
        self.scale * self.temperature.map_or(1.0, |temperature| temperature.at(position))
    }

    /// The part of it that devices lack, if it has one.
    fn cpu_only(&self) -> Option<&'static str> {
        let parts = [
            (self.norms_last, "norms of rotated heads"),
            (self.temperature.is_some(), "queries that grow with their position"),
            (self.cap.is_some(), "capped scores"),
            (self.value_eps.is_some(), "normed values"),
            (self.keys_are_values || self.joint, "values that are keys"),
        ];
        parts.into_iter().find_map(|(has, part)| has.then_some(part))
    }
}

/// RMSNorm (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight`. With a bias LayerNorm (Ba et al. 2016),
/// which subtracts the mean first: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
#[derive(Clone)]
pub struct Norm {
    pub weight: Arc<[f32]>,
    pub bias: Option<Arc<[f32]>>,
    pub eps: f32,
}

impl Norm {
    /// The same with its results times `by`.
    pub fn times(&self, by: f32) -> Self {
        if by == 1.0 {
            return self.clone();
        }
        let all = |vector: &Arc<[f32]>| vector.iter().map(|w| w * by).collect();
        Self { weight: all(&self.weight), bias: self.bias.as_ref().map(all), eps: self.eps }
    }
}

/// Rotary embedding (Su et al. 2021); `inv_freq[i]` for pair i, `inv_freq.len() * 2 <= head_dim`.
#[derive(Clone)]
pub struct Rope {
    pub inv_freq: Arc<[f32]>,
    pub style: RopeStyle,
    /// Factor on cos and sin (YaRN; otherwise 1).
    pub factor: f32,
}

/// The weights of one product with their bias and norms: q, k and v; gate and up; or one matrix.
#[derive(Clone)]
pub struct Projections {
    /// All have the same `cols`; all are ternary, or none.
    pub matrices: Vec<Matrix>,
    /// Added to the product: `[sum of rows]`.
    pub bias: Option<Arc<[f32]>>,
    /// Each matrix's own norm of its input, applied after the shared one: none, or one per matrix.
    pub norms: Vec<Norm>,
    /// The rotation of the inputs that all matrices are folded with. It comes after the norms.
    pub fold: Option<Arc<Fold>>,
    /// A copy of the matrix, if there is one and it is ternary, for inputs with many zeros.
    pub columns: Option<Arc<Columns>>,
}

impl<M: Into<Vec<Matrix>>> From<M> for Projections {
    fn from(matrices: M) -> Self {
        Self { matrices: matrices.into(), bias: None, norms: Vec::new(), fold: None, columns: None }
    }
}

/// How one layer attends.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    pub shape: &'a AttentionShape,
    pub rope: &'a Rope,
    /// Number of positions that a row sees, including its own. `None`: all up to its own.
    pub window: Option<usize>,
    /// The first position that has a key; on the CPU only. Rows before it see their own.
    pub from: usize,
    /// Of each head, a score without a value: its weight is left out after the softmax (Xiao et al. 2023).
    pub sinks: Option<&'a [f32]>,
    /// RMSNorm of each q head and of each k head, before the rotation or after it (`AttentionShape::norms_last`).
    pub norms: Option<&'a [Norm; 2]>,
    /// The norm of each v head, for `AttentionShape::value_eps`.
    pub value_norm: Option<&'a Norm>,
    /// K and V are those of an earlier layer, which has written them: a row has q heads alone, and the norm of k is not
    /// used.
    pub shared: bool,
}

impl<'a> Attention<'a> {
    /// Over all positions, without norms.
    pub fn plain(shape: &'a AttentionShape, rope: &'a Rope) -> Self {
        Self { shape, rope, window: None, from: 0, norms: None, value_norm: None, shared: false, sinks: None }
    }

    /// Elements of a row.
    fn width(&self) -> usize {
        if self.shared { self.shape.heads * self.shape.head_dim } else { self.shape.qkv() }
    }
}

impl Attention<'_> {
    /// The first position that a row at `position` sees.
    pub fn first(&self, position: usize) -> usize {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)));
        first.max(self.from.min(position))
    }
}

/// The error of operations that devices lack.
fn cpu_only(what: &str) -> Error {
    Error::unsupported(format!("{what} run on the CPU only"))
}

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
    /// Runs a layer of Gated DeltaNet between its products. A row of `mixed` has q, k, v and the gate of the output; a
    /// row of `gates` has the logits of each head's rate and then of its decay. Updates state `layer` of the batch's
    /// sequences. Returns `[T, values]`. The batch has passed `States::check`.
    fn delta_net(
        &self,
        _mixed: &Owned,
        _gates: &Owned,
        _batch: &RaggedBatch,
        _kv: &KvCache,
        _layer: usize,
        _net: &DeltaNet,
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
    /// Runs a short convolution between its products. A row of `x` has B, C and x. Updates state `layer` of the batch's
    /// sequences. Returns `[T, channels]`. The batch has passed `States::check`.
    fn short_conv(
        &self,
        _x: &Owned,
        _batch: &RaggedBatch,
        _kv: &KvCache,
        _layer: usize,
        _net: &ShortConv,
    ) -> Result<Owned> {
        Err(cpu_only("recurrent layers"))
    }
    /// Runs a layer of Mamba-2 between its products. A row of `x` has the gate, then x, B and C, then the steps.
    /// Updates state `layer` of the batch's sequences. Returns `[T, inner]`. The batch has passed `States::check`.
    fn mamba(
        &self,
        _x: &Owned,
        _batch: &RaggedBatch,
        _kv: &KvCache,
        _layer: usize,
        _net: &Mamba,
    ) -> Result<Owned> {
        Err(cpu_only("recurrent layers"))
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
