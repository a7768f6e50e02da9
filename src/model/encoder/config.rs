//! An encoder's shape, from any file format, and checked.

use super::family::EncoderFamily;
use super::head::HeadActivation;
use crate::base::Result;
use crate::model::Pooling;
use crate::model::config::{Block, CONTEXT, HEADS, HIDDEN, LAYERS, RopeConfig};
use crate::model::names::Names;
use crate::ops::{Activation, AttentionShape};

/// Sizes are in elements and tokens.
#[derive(Clone, Debug)]
pub struct EncoderConfig {
    pub family: &'static EncoderFamily,
    /// The files' name for it.
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    pub eps: f32,
    pub activation: Activation,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Added to the weights of the file's norms.
    pub norm_offset: f32,
    /// Rows of the table of positions before that of a text's first token.
    pub position_offset: usize,
    /// Rows of the table of token types; 0: there is none.
    pub types: usize,
    /// At least one; without a rotation one that rotates nothing.
    pub ropes: Vec<RopeConfig>,
    /// One for each layer. A row sees others that are at most `window` away.
    pub blocks: Vec<Block>,
    pub pooling: Pooling,
    /// See `Facts`.
    pub raw_embeddings: bool,
    /// The head that makes a score: which states it takes, and its activation.
    pub score: Option<(Pooling, HeadActivation)>,
    /// Products that make an embedding of the pooled state, by their widths.
    pub dense: Vec<(usize, HeadActivation)>,
}

const FFN: std::ops::RangeInclusive<usize> = 1..=1 << 19;
const VOCAB: std::ops::RangeInclusive<usize> = 1..=1 << 22;
/// Types of tokens; real models have one or two.
const TYPES: std::ops::RangeInclusive<usize> = 0..=16;

impl EncoderConfig {
    /// `BadModel` for an impossible value, with the file's own `names`.
    pub fn check(&self, names: &Names) -> Result<()> {
        names.within("vocab_size", self.vocab_size, VOCAB)?;
        names.within("context_length", self.context_length, CONTEXT)?;
        names.within("block_count", self.layers, LAYERS)?;
        names.within("embedding_length", self.hidden, HIDDEN)?;
        names.within("feed_forward_length", self.ffn, FFN)?;
        names.within("token_type_count", self.types, TYPES)?;
        names.float("attention.layer_norm_epsilon", self.eps, 1e-13..=1e-1)?;
        let AttentionShape { heads, kv_heads, head_dim, scale, .. } = self.attention;
        names.within("attention.head_count", heads, HEADS)?;
        names.within("attention.head_count_kv", kv_heads, 1..=heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let why = format!("it must divide the number of heads, {heads}");
            return Err(names.bad("attention.head_count_kv", kv_heads, &why));
        }
        names.within("attention.key_length", head_dim, 1..=1 << 10)?;
        names.float("attention.scale", scale, 1e-6..=1e3)?;
        for rope in &self.ropes {
            names.float("rope.freq_base", rope.base, 1.0..=1e12)?;
            names.within("rope.dimension_count", rope.dims, 0..=head_dim)?;
            if !rope.dims.is_multiple_of(2) {
                return Err(names.bad("rope.dimension_count", rope.dims, "it must be even"));
            }
        }
        for window in self.blocks.iter().filter_map(|block| block.window) {
            names.within("attention.sliding_window", window, 0..=*CONTEXT.end())?;
        }
        Ok(())
    }

    /// The activation of this name, with a gate or without. `None` for one that is not known.
    pub fn activation(name: &str, gated: bool) -> Option<Activation> {
        Some(match (name, gated) {
            ("gelu", true) => Activation::GeGluErf,
            ("gelu", false) => Activation::GeluErf,
            ("gelu_new" | "gelu_pytorch_tanh", true) => Activation::GeGlu,
            ("gelu_new" | "gelu_pytorch_tanh", false) => Activation::Gelu,
            ("silu" | "swish" | "swiglu", true) => Activation::SwiGlu,
            _ => return None,
        })
    }

    /// The head dimension, where the file gives heads and width alone.
    pub fn head_dim(names: &Names, hidden: usize, heads: usize) -> Result<usize> {
        names.within("embedding_length", hidden, HIDDEN)?;
        names.within("attention.head_count", heads, HEADS)?;
        match hidden.is_multiple_of(heads) {
            true => Ok(hidden / heads),
            false => {
                let why = format!("it must divide the hidden size, {hidden}");
                Err(names.bad("attention.head_count", heads, &why))
            }
        }
    }
}
