//! Facts about models.

use super::{Pooling, SamplingDefaults};
use crate::kernels::Matrix;

/// Facts about a loaded model that a host may ask for. Sizes are in elements, tokens and bytes.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub hidden_size: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn_size: usize,
    pub parameters: u64,
    /// Bytes of weights held, mapped or owned.
    pub weight_bytes: u64,
    /// How embeddings are made if a request does not say; they have `hidden_size` elements.
    pub pooling: Pooling,
    /// They are not divided by their length if a request does not say.
    pub raw_embeddings: bool,
    /// The files' advice for requests that do not say.
    pub sampling: SamplingDefaults,
    /// Its rows can be rotated by axes of time, height and width.
    pub axes: bool,
    /// Rows of a picture see each other in both directions in some layers, so they run in one step.
    pub mutual: bool,
    /// It generates nothing, and runs a whole prompt in one step, without a KV cache.
    pub encodes: bool,
    /// Some: it scores pairs of texts, from the hidden states that this pooling takes.
    pub scores: Option<Pooling>,
}

impl Facts {
    /// The numbers of parameters and bytes of a model with these weights and `other_bytes` of its files.
    pub(super) fn of_weights<'a>(
        matrices: impl Iterator<Item = &'a Matrix>,
        vectors: impl Iterator<Item = &'a [f32]>,
        other_bytes: u64,
    ) -> Self {
        let mut facts = Self { weight_bytes: other_bytes, ..Self::default() };
        matrices.for_each(|m| {
            facts.parameters += m.rows as u64 * m.cols as u64;
            facts.weight_bytes += m.data.len() as u64;
        });
        vectors.for_each(|v| {
            facts.parameters += v.len() as u64;
            facts.weight_bytes += 4 * v.len() as u64;
        });
        facts
    }
}
