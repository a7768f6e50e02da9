//! A decoder's shape, as any file may say it; checked: nothing behind this trusts the file.

use super::Pooling;
use crate::base::{Error, Result};
use crate::ops::{Activation, AttentionShape, RopeStyle};

/// Sizes in elements and tokens. Every product of two or three of these fits a usize: see [`DecoderConfig::check`].
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    /// For each layer: how far it looks back and which of `ropes` turns it.
    pub spans: Vec<LayerSpan>,
    pub ropes: Vec<RopeConfig>,
    pub rope_style: RopeStyle,
    pub rms_eps: f32,
    /// Added to every RMSNorm weight of the file (Gemma's safetensors store w - 1).
    pub norm_offset: f32,
    pub activation: Activation,
    /// Embedding rows are multiplied by it (Gemma: sqrt(hidden), else 1).
    pub embedding_scale: f32,
    pub parts: Parts,
    /// How an embedding is made of hidden states; a text generator's is `Last`.
    pub pooling: Pooling,
}

/// What a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpan {
    /// Positions seen, the row's own included (sliding window); None: all before it.
    pub window: Option<usize>,
    /// Index into `DecoderConfig::ropes`.
    pub rope: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub base: f32,
    /// Rotated elements of a head; even, at most head_dim.
    pub dims: usize,
    pub scaling: RopeScaling,
}

/// How trained frequencies are stretched to a longer context; lengths in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by `factor` (Chen et al. 2023).
    Linear { factor: f32 },
    /// Llama 3.1's, by wavelength.
    Llama3 { factor: f32, low_freq_factor: f32, high_freq_factor: f32, original_context: usize },
    /// YaRN (Peng et al. 2023). `attention_factor` multiplies cos and sin.
    Yarn { factor: f32, original_context: usize, beta_fast: f32, beta_slow: f32, attention_factor: f32 },
}

/// Parts that a family may or may not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Norms before the attention's and the feed-forward's output projections (BitNet).
    pub sub_norms: bool,
    /// RMSNorm of each head of q and k (Qwen3, Gemma 3).
    pub qk_norms: bool,
    /// Norms behind attention and feed-forward, before the residual sum (Gemma).
    pub post_norms: bool,
    /// A norm of its own for each projection's input (`use_rms_norm` of BitNet's quantization_config).
    pub projection_norms: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub ffn_bias: bool,
}
