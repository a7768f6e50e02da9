//! A decoder's shape, from any file format, and checked: later code does not have to distrust the file.

mod limits;
mod mixers;

pub(super) use limits::{CONTEXT, FACTOR, HEADS, HIDDEN, KERNEL, LAYERS};
pub(super) use mixers::LatentConfig;

use super::family::{Family, Mutual, QkNorm};
use super::keys::{LAYER_INPUTS, NEXTN, SHARED_KV};
use super::layers::recurrent::Mixer;
use super::names::Names;
use super::rotation::Rotations;
use super::score::ScoreRows;
use super::{Pooling, SamplingDefaults};
use crate::base::{Error, Result};
use crate::ops::{Activation, AttentionShape, Axes, Choice, RopeStyle, Temperature};
use limits::{EXPERTS, FFN, HEAD_DIM, MAX_ROPES, ROPE_FACTOR, VOCAB};
use mixers::check_groups;
use std::any::Any;
use std::sync::Arc;

/// Sizes are in elements and tokens. After [`DecoderConfig::check`], all products of two or three of them fit a
/// usize.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub family: &'static Family,
    /// The files' name for it.
    pub architecture: String,
    pub name: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    /// Number of blocks after the layers that predict further tokens, whether they are read or not.
    pub further: usize,
    pub hidden: usize,
    /// Width of the feed-forward of layers without experts.
    pub ffn: usize,
    /// `None` if no layer is sparse.
    pub experts: Option<ExpertsConfig>,
    pub attention: AttentionShape,
    /// The parts of `attention`, if it is latent.
    pub latent: Option<LatentConfig>,
    /// The attention of layers without a window, if theirs differs.
    pub global: Option<AttentionShape>,
    /// Elements of a row's input to each layer by itself. `None`: there is no such input.
    pub layer_inputs: Option<usize>,
    /// `None` if no layer keeps a state.
    pub(super) recurrent: Option<Arc<dyn Mixer>>,
    pub blocks: Vec<Block>,
    pub ropes: Vec<RopeConfig>,
    /// Which elements of a head are pairs in the file's q and k rows.
    pub rope_style: RopeStyle,
    /// The axes that pairs of all ropes turn by, in models that see pictures.
    pub axes: Option<Axes>,
    pub rms_eps: f32,
    /// The eps of the projections' own norms.
    pub projection_eps: f32,
    /// Added to all RMSNorm weights of the file except the projections' own.
    pub norm_offset: f32,
    pub activation: Activation,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Factor on a layer's two updates of the residual.
    pub residual_scale: f32,
    /// Logits are divided by it.
    pub logit_scale: f32,
    /// The soft cap of logits.
    pub logit_cap: Option<f32>,
    /// The norms of each layer, by GGUF's names without `.weight`.
    pub norms: Vec<&'static str>,
    pub parts: Parts,
    /// How hidden states become an embedding; `Last` for a text generator.
    pub pooling: Pooling,
    /// See `Facts`.
    pub raw_embeddings: bool,
    /// The rows that score pairs of texts, if there are any.
    pub score: Option<ScoreRows>,
    /// The rotations that weights are folded with.
    pub rotations: Option<Rotations>,
    pub sampling: SamplingDefaults,
}

/// How one layer differs from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of positions that a row sees, its own included (sliding window). `None`: all up to its own.
    pub window: Option<usize>,
    /// Rows of a picture see each other in both directions.
    pub mutual: bool,
    /// Index into `DecoderConfig::ropes`.
    pub rope: usize,
    /// It is of `DecoderConfig::recurrent` instead of attention.
    pub recurrent: bool,
    /// It has a recurrent mixer beside attention: both see the same inputs, and their outputs are added.
    pub beside: bool,
    /// The earlier layer whose K and V it attends to. `None`: its own.
    pub shares: Option<usize>,
    /// The width of its feed-forward, if it is not `DecoderConfig::ffn`.
    pub ffn: Option<usize>,
    /// Its feed-forward is the mixture `DecoderConfig::experts`, or has it beside a dense one.
    pub sparse: bool,
}

impl Block {
    /// Marks the layers in which rows of pictures see each other. `said`: see `Mutual::Windowed`.
    pub(super) fn mark_mutual(blocks: &mut [Self], mutual: Mutual, said: bool) {
        for block in blocks {
            block.mutual = match mutual {
                Mutual::Never => false,
                Mutual::All => true,
                Mutual::Windowed => said && block.window.is_some(),
            };
        }
    }

    /// Whether its past is a state.
    pub fn has_state(&self) -> bool {
        self.recurrent || self.beside
    }
}

/// A mixture of experts, each a gated feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsConfig {
    pub count: usize,
    /// Elements between gate and down of each expert.
    pub width: usize,
    /// As `width`, of an expert that every row passes through. `None`: there is none.
    pub shared: Option<usize>,
    pub choice: Choice,
    /// Each expert has a bias that the choice adds to its probability.
    pub bias: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub base: f32,
    /// Number of rotated elements of a head; even, at most head_dim. 0: it does not rotate.
    pub dims: usize,
    pub scaling: RopeScaling,
}

/// Scaling of trained frequencies for a longer context; lengths are in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions divided by `factor` (Chen et al. 2023).
    Linear {
        factor: f32,
    },
    /// Pairs after the first `pairs` do not rotate. Positions are divided by `factor`.
    Proportional {
        pairs: usize,
        factor: f32,
    },
    /// Llama 3.1's scaling, which depends on the wavelength.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_context: usize,
    },
    /// YaRN (Peng et al. 2023). `attention_factor` is a factor on cos and sin. `truncate` rounds the ramp's ends to
    /// whole pairs.
    Yarn {
        factor: f32,
        original_context: usize,
        beta_fast: f32,
        beta_slow: f32,
        attention_factor: f32,
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024): divisors of the frequencies, `dims / 2` each. `long` ones belong to contexts of
    /// more than `original_context`. `attention_factor` is a factor on cos and sin of both.
    Long {
        short: Vec<f32>,
        long: Vec<f32>,
        original_context: usize,
        attention_factor: f32,
    },
}

/// Optional parts of the projections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// A norm for each projection's input (`use_rms_norm` of BitNet's quantization_config).
    pub projection_norms: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub ffn_bias: bool,
}

impl DecoderConfig {
    /// `BadModel` for an impossible value, with the file's own `names`.
    pub fn check(&self, names: &Names) -> Result<()> {
        names.within("vocab_size", self.vocab_size, VOCAB)?;
        names.within("context_length", self.context_length, CONTEXT)?;
        names.within("block_count", self.layers, LAYERS)?;
        names.within(NEXTN, self.further, 0..=*LAYERS.end())?;
        names.within("embedding_length", self.hidden, HIDDEN)?;
        names.within("feed_forward_length", self.ffn, FFN)?;
        if let Some(ExpertsConfig { count, width, shared, choice, .. }) = self.experts {
            names.within("expert_count", count, EXPERTS)?;
            names.within("expert_used_count", choice.used, 1..=count)?;
            names.float("expert_weights_scale", choice.scale, 1e-3..=1e3)?;
            names.within("expert_feed_forward_length", width, FFN)?;
            shared.map_or(Ok(()), |width| names.within("expert_shared_feed_forward_length", width, FFN))?;
            choice.groups.map_or(Ok(()), |groups| check_groups(&groups, count, choice.used, names))?;
        }
        self.latent.map_or(Ok(()), |latent| latent.check(names))?;
        names.float(self.family.eps_key(), self.rms_eps, 1e-12..=1e-1)?;
        names.float("projection_epsilon", self.projection_eps, 1e-12..=1e-1)?;
        names.float("embedding_scale", self.embedding_scale, 1e-6..=1e6)?;
        names.float("residual_scale", self.residual_scale, 1e-3..=1e3)?;
        names.float("logit_scale", self.logit_scale, 1e-6..=1e6)?;
        self.check_activation(names)?;
        self.shapes().try_for_each(|shape| self.check_attention(shape, names))?;
        self.layer_inputs.map_or(Ok(()), |width| names.within(LAYER_INPUTS, width, 1..=1 << 12))?;
        for ffn in self.blocks.iter().filter_map(|block| block.ffn) {
            names.within("feed_forward_length", ffn, FFN)?;
        }
        if self.norm_offset != 0.0 && self.norm_offset != 1.0 {
            return Err(Error::internal(format!("a norm offset of {}", self.norm_offset)));
        }
        if self.ropes.is_empty() || self.ropes.len() > MAX_ROPES {
            return Err(Error::internal(format!("{} ropes; 1 to {MAX_ROPES} are kept", self.ropes.len())));
        }
        let still = self.family.has_still_layers();
        for (index, rope) in self.ropes.iter().enumerate() {
            let shape = self.global.as_ref().filter(|_| index == 0).unwrap_or(&self.attention);
            rope.check(shape.head_dim, still, names)?;
        }
        if self.blocks.len() != self.layers || self.blocks.iter().any(|s| s.rope >= self.ropes.len()) {
            return Err(Error::internal("each layer needs a block and a rope of the model"));
        }
        if self.blocks.iter().any(|block| block.sparse) != self.experts.is_some() {
            return Err(Error::internal("sparse layers and their experts"));
        }
        if self.blocks.iter().any(Block::has_state) != self.recurrent.is_some() {
            return Err(Error::internal("recurrent layers and their shape"));
        }
        self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.check(names))?;
        if self.attention_layers() == 0 {
            // Positions are counted in KV blocks.
            let what = names.what;
            return Err(Error::unsupported(format!(
                "{what}: all layers are recurrent, and one of attention is needed"
            )));
        }
        for window in self.blocks.iter().filter_map(|span| span.window) {
            names.within("attention.sliding_window", window, CONTEXT)?;
        }
        Ok(())
    }

    fn check_activation(&self, names: &Names) -> Result<()> {
        match self.activation {
            Activation::ClampedSwiGlu { limit } => names.float("swiglu_clamp_exp", limit, 1e-3..=1e6),
            Activation::SteepSwiGlu { alpha, limit } => {
                names.float("swiglu_alpha", alpha, 1e-3..=1e3)?;
                names.float("swiglu_clamp_exp", limit, 1e-3..=1e6)
            }
            Activation::ScaledSwiGlu { by, output } => {
                [by, output].iter().try_for_each(|factor| names.float("mlp_multipliers", *factor, FACTOR))
            }
            _ => Ok(()),
        }
    }

    fn check_attention(&self, shape: &AttentionShape, names: &Names) -> Result<()> {
        let AttentionShape { heads, kv_heads, head_dim, scale, temperature, cap, .. } = *shape;
        names.within("attention.head_count", heads, HEADS)?;
        names.within("attention.head_count_kv", kv_heads, 1..=heads)?;
        if heads % kv_heads != 0 {
            let why = format!("it must divide the number of heads, {heads}");
            return Err(names.bad("attention.head_count_kv", kv_heads, &why));
        }
        names.within("attention.key_length", head_dim, HEAD_DIM)?;
        if head_dim % 2 != 0 {
            let why = "a head must have an even number of elements";
            return Err(names.bad("attention.key_length", head_dim, why));
        }
        if let Some(Temperature { scale, length }) = temperature {
            names.float("attention.temperature_scale", scale, 0.0..=1e3)?;
            names.within("rope.scaling.original_context_length", length, CONTEXT)?;
        }
        for (key, cap) in [("attn_logit_softcapping", cap), ("final_logit_softcapping", self.logit_cap)] {
            cap.map_or(Ok(()), |cap| names.float(key, cap, 1e-3..=1e6))?;
        }
        names.float("attention.scale", scale, 1e-6..=1e3)
    }

    /// The recurrent layers, if they are of this kind.
    pub(super) fn recurrent_as<M: Mixer>(&self) -> Option<&M> {
        let recurrent: &dyn Any = self.recurrent.as_deref()?;
        recurrent.downcast_ref()
    }

    /// The eps of a norm. The residual is kept divided by `residual_scale`, so that its updates need no factor. Its
    /// norms give the same results if eps is divided by the square of the scale.
    pub fn norm_eps(&self, name: &str) -> f32 {
        match ["attn_norm", self.family.ffn_norm, self.family.final_norm.1].contains(&name) {
            true => self.rms_eps / (self.residual_scale * self.residual_scale),
            false => self.rms_eps,
        }
    }

    /// The rotation that files describe: of several the first that rotates.
    pub fn described(&self) -> &RopeConfig {
        self.ropes.iter().find(|rope| rope.dims > 0).unwrap_or(&self.ropes[0])
    }

    /// Number of layers of attention.
    pub fn attention_layers(&self) -> usize {
        self.blocks.iter().filter(|block| !block.recurrent).count()
    }

    /// The shapes of attention.
    pub fn shapes(&self) -> impl Iterator<Item = &AttentionShape> {
        [&self.attention].into_iter().chain(&self.global)
    }

    /// Whether a layer attends as `global` says.
    pub fn is_global(&self, layer: usize) -> bool {
        self.global.is_some() && self.blocks[layer].window.is_none()
    }

    /// How layer `layer` attends.
    pub fn attention_of(&self, layer: usize) -> &AttentionShape {
        self.global.as_ref().filter(|_| self.is_global(layer)).unwrap_or(&self.attention)
    }

    /// Numbers of layers with a KV cache of their own: of those like `attention`, and of those like `global`.
    pub fn kv_layers(&self) -> [usize; 2] {
        let own = |index: &usize| !self.blocks[*index].recurrent && self.blocks[*index].shares.is_none();
        let global = (0..self.blocks.len()).filter(own).filter(|index| self.is_global(*index)).count();
        [(0..self.blocks.len()).filter(own).count() - global, global]
    }

    /// The index of a layer's KV cache, or of its state. Caches of `global` layers stand after the others.
    pub fn place(&self, layer: usize) -> usize {
        let layer = self.blocks[layer].shares.unwrap_or(layer);
        let kind = |index: usize| (self.blocks[index].recurrent, self.is_global(index));
        let alike = |index: &usize| kind(*index) == kind(layer) && self.blocks[*index].shares.is_none();
        let before = if self.is_global(layer) { self.kv_layers()[0] } else { 0 };
        before + (0..layer).filter(alike).count()
    }

    /// The last layer that writes K and V or a state.
    pub fn last_written(&self) -> usize {
        self.blocks[..self.layers].iter().rposition(|block| block.shares.is_none()).unwrap_or(0)
    }

    /// The width of a layer's feed-forward without experts.
    pub fn ffn_of(&self, layer: usize) -> usize {
        self.blocks[layer].ffn.unwrap_or(self.ffn)
    }

    /// Whether a layer has the norm `name`.
    pub fn has_norm(&self, layer: usize, name: &str) -> bool {
        let block = &self.blocks[layer];
        self.norms.contains(&name)
            && !(block.recurrent && ["attn_q_norm", "attn_k_norm"].contains(&name))
            && !(block.shares.is_some() && name == "attn_k_norm")
    }

    /// The width of layer `layer`'s norm `name`, `None` if it has no such norm.
    pub fn norm_width_of(&self, layer: usize, name: &str) -> Option<usize> {
        let width = self.norm_width(name).filter(|_| self.has_norm(layer, name))?;
        let of_head = ["attn_q_norm", "attn_k_norm"].contains(&name) && self.is_global(layer);
        Some(if of_head { self.attention_of(layer).head_dim } else { width })
    }

    /// The width of a layer's norm `name`, `None` if no layer has such a norm; of heads' norms without those of
    /// `global`.
    pub fn norm_width(&self, name: &str) -> Option<usize> {
        if !self.norms.contains(&name) {
            return None;
        }
        Some(match (name, self.family.qk_norm) {
            ("attn_sub_norm", _) => self.attention_width(),
            ("ffn_sub_norm", _) => self.ffn,
            ("attn_q_norm" | "attn_k_norm", QkNorm::Head | QkNorm::Turned) => self.attention.head_dim,
            ("attn_q_norm", QkNorm::Row) => self.attention_width(),
            ("attn_k_norm", QkNorm::Row) => self.kv_width(),
            _ => self.hidden,
        })
    }

    /// The matrices of q, k and v, by GGUF's names in a layer, and their rows.
    pub fn qkv_products_of(&self, layer: usize) -> Vec<(&'static str, usize)> {
        let AttentionShape { heads, kv_heads, head_dim, keys_are_values, .. } = *self.attention_of(layer);
        if self.global.is_none() {
            return self.qkv_products();
        }
        let (q, k, v) =
            (("attn_q", heads * head_dim), ("attn_k", kv_heads * head_dim), ("attn_v", kv_heads * head_dim));
        match (self.blocks[layer].shares, keys_are_values) {
            (Some(_), _) => vec![q],
            (None, true) => vec![q, k],
            (None, false) => vec![q, k, v],
        }
    }

    /// As `qkv_products_of`, where all layers are alike.
    pub fn qkv_products(&self) -> Vec<(&'static str, usize)> {
        let (q, kv) = (self.query_rows(), self.kv_width());
        match self.family.fused.qkv {
            true => vec![("attn_qkv", q + 2 * kv)],
            false => vec![("attn_q", q), ("attn_k", kv), ("attn_v", kv)],
        }
    }

    /// As `qkv_products`, of gate and up of a feed-forward of this width.
    pub fn gate_up_products(&self, ffn: usize) -> Vec<(&'static str, usize)> {
        match self.family.fused.gate_up {
            true => vec![("ffn_up", 2 * ffn)],
            false if !self.activation.gated() => vec![("ffn_up", ffn)],
            false => vec![("ffn_gate", ffn), ("ffn_up", ffn)],
        }
    }

    /// Elements of a row of q, k and v side by side.
    pub fn qkv_width(&self) -> usize {
        self.attention.qkv()
    }

    /// Rows of the queries' matrix: with an output gate, twice as many as there are elements.
    pub fn query_rows(&self) -> usize {
        self.attention_width() * if self.family.attention_gate { 2 } else { 1 }
    }

    /// Elements of a row of attention output.
    pub fn attention_width(&self) -> usize {
        self.attention.heads * self.attention.head_dim
    }

    pub fn kv_width(&self) -> usize {
        self.attention.kv_heads * self.attention.head_dim
    }
}

/// Lets the last `count` layers attend to K and V of the last layer before them of their kind, with or without a
/// window.
pub(super) fn share(blocks: &mut [Block], count: usize, names: &Names) -> Result<()> {
    names.within(SHARED_KV, count, 0..=blocks.len().saturating_sub(1))?;
    let first = blocks.len() - count;
    for index in first..blocks.len() {
        let alike = |block: &Block| block.window.is_some() == blocks[index].window.is_some();
        blocks[index].shares = blocks[..first].iter().rposition(alike);
        if blocks[index].shares.is_none() {
            let why =
                format!("before them there is no layer like layer {index} whose K and V it could share");
            return Err(names.bad(SHARED_KV, count, &why));
        }
    }
    Ok(())
}

impl RopeConfig {
    /// The rotation of layers that do not rotate.
    pub fn still(&self) -> Self {
        Self { base: self.base, dims: 0, scaling: RopeScaling::None }
    }

    /// The rotations and blocks of layers without windows. `rotates`: whether each rotates.
    pub fn of_layers(self, rotates: &[bool]) -> (Vec<Self>, Vec<Block>) {
        if !rotates.contains(&false) {
            return (vec![self], vec![Block::default(); rotates.len()]);
        }
        let block = |rotates: &bool| Block { rope: usize::from(*rotates), ..Block::default() };
        (vec![self.still(), self], rotates.iter().map(block).collect())
    }

    /// `still`: it may rotate nothing.
    fn check(&self, head_dim: usize, still: bool, names: &Names) -> Result<()> {
        names.float("rope.freq_base", self.base, 1.0..=1e12)?;
        if still && self.dims == 0 && self.scaling == RopeScaling::None {
            return Ok(());
        }
        names.within("rope.dimension_count", self.dims, 2..=head_dim)?;
        if !self.dims.is_multiple_of(2) {
            return Err(names.bad("rope.dimension_count", self.dims, "it must be even"));
        }
        let original = |context| names.within("rope.scaling.original_context_length", context, CONTEXT);
        match self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
                names.float("rope.scaling.factor", factor, ROPE_FACTOR)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                names.float("rope.scaling.factor", factor, ROPE_FACTOR)?;
                names.float("rope.scaling.low_freq_factor", low_freq_factor, ROPE_FACTOR)?;
                names.float("rope.scaling.high_freq_factor", high_freq_factor, ROPE_FACTOR)?;
                if low_freq_factor >= high_freq_factor {
                    let why = format!("it must be above the low one, {low_freq_factor}");
                    return Err(names.bad("rope.scaling.high_freq_factor", high_freq_factor, &why));
                }
                original(original_context)
            }
            RopeScaling::Yarn {
                factor, original_context, beta_fast, beta_slow, attention_factor, ..
            } => {
                names.float("rope.scaling.factor", factor, ROPE_FACTOR)?;
                names.float("rope.scaling.yarn_beta_fast", beta_fast, ROPE_FACTOR)?;
                names.float("rope.scaling.yarn_beta_slow", beta_slow, ROPE_FACTOR)?;
                if beta_slow > beta_fast {
                    let why = format!("it must be at most the fast one, {beta_fast}");
                    return Err(names.bad("rope.scaling.yarn_beta_slow", beta_slow, &why));
                }
                names.float("rope.scaling.attn_factor", attention_factor, 1e-3..=1e3)?;
                original(original_context)
            }
            RopeScaling::Long { ref short, ref long, original_context, attention_factor } => {
                for (key, factors) in
                    [("rope.scaling.short_factor", short), ("rope.scaling.long_factor", long)]
                {
                    if factors.len() != self.dims / 2 {
                        let why = format!("{} belong to {} rotated elements", self.dims / 2, self.dims);
                        return Err(names.bad(key, format_args!("a list of {}", factors.len()), &why));
                    }
                    factors.iter().try_for_each(|factor| names.float(key, *factor, ROPE_FACTOR))?;
                }
                names.float("rope.scaling.attn_factor", attention_factor, 1e-3..=1e3)?;
                original(original_context)
            }
        }
    }
}
