//! candle operations over our kernels: one op, one file. Tensors are f32, contiguous, rows = tokens.

mod attention;
pub mod batch;
mod elementwise;
mod embed;
mod fused;
mod kv;
mod linear;
mod norm;
mod support;

pub use batch::{KvCache, RaggedBatch, SeqRows};
pub use fused::FusedOps;

use crate::base::Result;
use crate::kernels::Matrix;
use candle_core::Tensor;
use std::sync::Arc;

/// How a gated feed-forward combines `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) * up` (Llama).
    SwiGlu,
    /// `relu(gate)^2 * up` (BitNet b1.58 2B-4T).
    Relu2,
}

/// Which elements of a head a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (i, i + rot/2): NEOX, Hugging Face.
    Neox,
    /// (2i, 2i + 1): GGUF files of the `llama` architecture, whose q and k rows are permuted for it.
    Interleaved,
}

/// What attention needs to know of a model; heads lie as q heads, then k heads, then v heads in a row.
#[derive(Clone, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// RMSNorm (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Clone)]
pub struct Norm {
    pub weight: Arc<[f32]>,
    pub eps: f32,
}

/// Rotary embedding (Su et al. 2021); `inv_freq[i]` for pair i, `inv_freq.len() * 2 <= head_dim`.
#[derive(Clone)]
pub struct Rope {
    pub inv_freq: Arc<[f32]>,
    pub style: RopeStyle,
}

/// Every heavy step of a decoder. `FusedOps` runs our kernels; tests run the same model on plain candle.
pub trait OpSet: Send + Sync {
    /// Rows of `table` for `batch.tokens`: `[T, hidden]`.
    fn embed(&self, batch: &Arc<RaggedBatch>, table: &Matrix) -> Result<Tensor>;
    /// `norm` (where given), then, for ternary weights, int8 per-token quantization
    /// (scale 127 / max(absmax, 1e-5), half to even), then `x · Wᵀ` for each of `weights`, outputs side by
    /// side: `[T, sum of rows]`. All `weights` share `cols` and are either all ternary or all dense.
    fn linear(&self, x: &Tensor, norm: Option<&Norm>, weights: &[Matrix]) -> Result<Tensor>;
    /// `norm` of each row of `x`.
    fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor>;
    /// Rotates the q and k heads of `qkv` `[T, (heads + 2 kv_heads) * head_dim]` at `batch.positions`, writes
    /// k and v into layer `layer` of `kv`, and attends causally over the block tables: `[T, heads * head_dim]`.
    fn attention(
        &self,
        qkv: &Tensor,
        batch: &Arc<RaggedBatch>,
        kv: &KvCache,
        layer: usize,
        shape: &AttentionShape,
        rope: &Rope,
    ) -> Result<Tensor>;
    /// `gate_up` `[T, 2 ffn]`, gate first: `[T, ffn]`.
    fn gated(&self, gate_up: &Tensor, activation: Activation) -> Result<Tensor>;
    /// `x + y`; may reuse x's storage.
    fn add(&self, x: Tensor, y: &Tensor) -> Result<Tensor>;
    /// Rows `rows` of `x`.
    fn rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor>;
}
