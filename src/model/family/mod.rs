//! The families of decoders, one file each, as data: how their files name things, what those files leave out, and
//! where a layer's norms stand.
//!
//! A new family is a file here and its line in `FAMILIES`. It is written as its differences from [`BASE`].

mod bitnet;
mod bitnet_1bitllm;
mod deepseek;
#[cfg(test)]
mod docs_tests;
mod ernie4_5;
mod exaone4;
mod falcon_h1;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod hunyuan_dense;
mod lfm2;
mod lfm2moe;
mod lfm3;
mod llama;
mod maple;
mod minicpm;
mod ministral3;
mod mistral;
mod mutual;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod seed_oss;
mod smollm3;
mod starcoder2;

use super::layers::recurrent::Recurrent;
use crate::ops::{Activation, AttentionShape, Gate, RopeStyle};
use std::any::Any;

pub(super) use bitnet_1bitllm::{BITNET_1BITLLM, CLASS as BITNET_1BITLLM_CLASS};
pub(crate) use mutual::Mutual;
/// All families. If several have a GGUF architecture, its files belong to the first.
pub(super) const FAMILIES: &[&Family] = &[
    &bitnet::BITNET,
    &BITNET_1BITLLM,
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3moe::QWEN3MOE,
    &qwen3next::QWEN3NEXT,
    &qwen35::QWEN35,
    &qwen35moe::QWEN35MOE,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gemma4::GEMMA4,
    &olmo3::OLMO3,
    &olmo2::OLMO2,
    &granite::GRANITE,
    &minicpm::MINICPM,
    &maple::MAPLE,
    &seed_oss::SEED_OSS,
    &ernie4_5::ERNIE4_5,
    &smollm3::SMOLLM3,
    &exaone4::EXAONE4,
    &glm4::GLM4,
    &phi3::PHI3,
    &ministral3::MINISTRAL3,
    &hunyuan_dense::HUNYUAN_DENSE,
    &starcoder2::STARCODER2,
    &lfm2::LFM2,
    &lfm2moe::LFM2MOE,
    &lfm3::LFM3,
    &granitemoehybrid::GRANITEMOEHYBRID,
    &granitemoe::GRANITEMOE,
    &granitemoe::GRANITEMOESHARED,
    &falcon_h1::FALCON_H1,
    &gpt_oss::GPT_OSS,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &deepseek::GLM4_MOE_LITE,
];

/// `general.architecture` of related models that look as if they could run, and the reasons why they cannot.
pub(super) const REFUSED: &[(&str, &str)] =
    &[("gemma-embedding", "its tokens see later ones, and attention here is causal")];

#[derive(Debug)]
pub struct Family {
    /// `general.architecture` of GGUF files, which is also the prefix of their keys. bn-convert writes the first.
    pub gguf: &'static [&'static str],
    /// `model_type` of `config.json`. `None`: recognized otherwise.
    pub hf: Option<&'static str>,
    /// Values of `model_type` in a `config.json` with this family in its `text_config`, beside parts for pictures and
    /// sounds.
    pub hf_whole: &'static [&'static str],
    /// How the names of those parts' tensors begin.
    pub towers: &'static [&'static str],
    /// The layers in which rows of a picture see each other in both directions.
    pub mutual: Mutual,
    /// Trained with ternary weights, in whatever type a file has them.
    pub ternary: bool,
    /// Used if the files do not name it; GGUF files never do.
    pub activation: Activation,
    /// The norms of a layer, by their names in Hugging Face's and in GGUF files, without the layer's prefix and
    /// without `.weight`.
    pub norms: &'static [Named],
    /// Products that are one matrix in the files.
    pub fused: Fused,
    /// Tensors of Hugging Face's files that have several of GGUF's one after the other, by whole names in a layer.
    pub joined: &'static [Joined],
    /// Norms subtract the mean and have biases (LayerNorm).
    pub layer_norms: bool,
    /// The name of the norm before the head.
    pub final_norm: Named,
    /// The names of products that differ from most families'.
    pub products: &'static [Named],
    /// GGUF names of norms that some files of the architecture have, and others do not.
    pub optional_norms: &'static [&'static str],
    /// The GGUF name of the norm before the feed-forward.
    pub ffn_norm: &'static str,
    /// The rows that the norms of q and k, if there are any, normalize.
    pub qk_norm: QkNorm,
    pub windows: Windows,
    pub scales: Scales,
    /// Files may have queries grow with their position (`ops::Temperature`).
    pub temperature: bool,
    pub biases: Biases,
    /// `None`: no layer keeps a state.
    pub(crate) recurrent: Option<&'static dyn Recurrent>,
    /// Hugging Face's files may have factors on many parts. GGUF's converter multiplies the weights by them.
    pub multipliers: bool,
    /// Layers without a window have heads of their own, and the last layers may share K and V; rows may have an input
    /// for each layer. V heads are normed without weights.
    pub global_heads: bool,
    /// Files may have a factor for the residual after each layer.
    pub layer_scales: bool,
    /// Tensors of a layer, and of the model, that are neither products nor norms by Hugging Face's names: whole names.
    pub tensors: &'static [Named],
    /// Attention's output is multiplied by the logistic function of a gate, which stands beside each query.
    pub attention_gate: bool,
    /// Each head of attention's output is multiplied by the logistic function of a product of the layer's inputs.
    pub head_gates: bool,
    /// Attention has sinks (`ops::Attention`).
    pub sinks: bool,
    /// Attention is latent (`ops::Latent`).
    pub latent: bool,
    /// The part of a head that is rotated, without `partial_rotary_factor`. `None`: whole heads always.
    pub rotated: Option<f32>,
    /// Rotations of kind `dynamic` may have `alpha`, which stretches the base.
    pub rope_alpha: bool,
    /// The ends of YaRN's ramp are whole pairs in GGUF files, which do not say it.
    pub rounds_yarn: bool,
    /// GGUF files have the sections of a rotation by time, height and width, which are equal for text.
    pub rope_sections: bool,
    /// The family of folders that have no experts, if their tensors have other names.
    pub dense: Option<&'static Family>,
    /// The family under whose architecture models without recurrent layers are written as GGUF files.
    pub stateless: Option<&'static Family>,
    /// `None`: no layer has experts.
    pub experts: Option<ExpertDefaults>,
    /// Files may have a block of multi-token prediction after the layers.
    pub mtp: bool,
    /// Added to norm weights of safetensors (Gemma stores w - 1). GGUF's converters add it themselves.
    pub norm_offset: f32,
    /// Layout of q and k rows in Hugging Face's files, and in GGUF files.
    pub hf_rope: RopeStyle,
    pub gguf_rope: RopeStyle,
    /// Every `n`th layer does not rotate, unless a `config.json` lists those that do (`no_rope_layers`).
    pub still: Option<usize>,
    /// GGUF files say whether any layer rotates, by `rope.scaling.finetuned`; folders of a family with recurrent layers
    /// by `position_embedding_type`.
    pub may_stand_still: bool,
    pub defaults: Defaults,
}

/// A decoder as most are: RMSNorm before attention and feed-forward, SwiGLU, no biases, no windows.
const BASE: Family = Family {
    gguf: &[],
    hf: None,
    hf_whole: &[],
    towers: &[],
    mutual: Mutual::Never,
    ternary: false,
    activation: Activation::SwiGlu,
    norms: &PRE_NORMS,
    fused: Fused { qkv: false, gate_up: false },
    joined: &[],
    layer_norms: false,
    final_norm: ("norm", "output_norm"),
    products: &[],
    optional_norms: &[],
    ffn_norm: "ffn_norm",
    qk_norm: QkNorm::Head,
    windows: Windows::Never,
    scales: Scales {
        embedding: ONE,
        residual: ONE,
        logits: ONE,
        scores: Factor {
            of: |_, sizes| 1.0 / (sizes.head_dim as f32).sqrt(),
            gguf: |sizes| 1.0 / (sizes.head_dim as f32).sqrt(),
            ..ONE
        },
        score_cap: NO_CAP,
        logit_cap: NO_CAP,
    },
    temperature: false,
    biases: NO_BIASES,
    recurrent: None,
    multipliers: false,
    global_heads: false,
    layer_scales: false,
    tensors: &[],
    attention_gate: false,
    head_gates: false,
    sinks: false,
    latent: false,
    rotated: None,
    rope_alpha: false,
    rounds_yarn: true,
    rope_sections: false,
    dense: None,
    stateless: None,
    experts: None,
    mtp: false,
    norm_offset: 0.0,
    hf_rope: RopeStyle::Neox,
    gguf_rope: RopeStyle::Neox,
    still: None,
    may_stand_still: false,
    defaults: Defaults {
        sizes: &[],
        kv_heads: KvHeads::Needed,
        head_dim: None,
        activation_key: "hidden_act",
        ffn_key: "intermediate_size",
        eps_key: "rms_norm_eps",
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        tied: false,
    },
};

/// A name in Hugging Face's files, and GGUF's.
pub(super) type Named = (&'static str, &'static str);

/// A tensor in Hugging Face's files, and the tensors in GGUF's that it holds.
pub(super) type Joined = (&'static str, &'static [&'static str]);

/// Values of keys that a `config.json` may leave out: those of `configuration_*.py` of transformers 5.23.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Sizes that have a default there too, if published models use it. Elsewhere the file must give them.
    pub sizes: &'static [(&'static str, usize)],
    pub kv_heads: KvHeads,
    /// `None`: hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    /// The key that names the activation.
    pub activation_key: &'static str,
    /// The key of the width of dense feed-forwards.
    pub ffn_key: &'static str,
    /// The key of the norms' eps.
    pub eps_key: &'static str,
    pub rms_eps: f32,
    pub rope_theta: f32,
    pub tied: bool,
}

/// `num_key_value_heads` if the key is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvHeads {
    /// As many as there are heads.
    Heads,
    Needed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// Each head by itself.
    Head,
    /// All heads of a row together.
    Row,
    /// Each head by itself, after its rotation.
    Turned,
}

/// The layers that use a file's sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Windows {
    /// None. A GGUF file that asks for a window is refused; transformers ignores the key.
    Never,
    /// In GGUF files all layers, as they include Mistral's; none in a `config.json`.
    AllInGguf,
    /// All layers, unless `sliding_window` is null; `default` if the key is absent.
    All { default: Option<usize> },
    /// `layer_types`, or with `use_sliding_window` the layers from `max_window_layers` on. A GGUF file that asks for a
    /// window is refused.
    Upper,
    /// As `Upper`, but only `layer_types` says which layers.
    Listed,
    /// As `Upper`, but in all layers; `default` if the key is absent.
    AllIfUsed { default: usize },
    /// `layer_types`, or all but each `every`th layer, which sees everything.
    AllBut {
        every: usize,
        default: usize,
        rotation: Rotation,
        /// A file's number does not count a row's own position.
        own_beside: bool,
        /// The window of GGUF files without the key. `None`: they have none.
        gguf_default: Option<u64>,
    },
}

/// The rotations of a model with windowed layers and others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rotation {
    /// Windowed layers rotate without scaling by `base`, or by the base of the others.
    Local { base: Option<f32> },
    /// All layers rotate alike.
    Same,
    /// Only windowed layers rotate.
    WindowedOnly,
    /// As `WindowedOnly`, but in a model without windows all layers rotate.
    WindowedIfAny,
}

/// Products whose matrices stand one after the other in one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fused {
    pub qkv: bool,
    pub gate_up: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// On embedding rows.
    pub embedding: Factor,
    /// On each of a layer's two updates of the residual.
    pub residual: Factor,
    /// Logits are divided by it.
    pub logits: Factor,
    /// On attention scores. GGUF files of all families may have it as `attention.scale`.
    pub scores: Factor,
    /// The soft caps of scores and of logits; 0: none.
    pub score_cap: Factor,
    pub logit_cap: Factor,
}

/// A number that follows from a model's files.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// The number's key in `config.json`, and in GGUF; `None` if files do not give it.
    pub keys: Option<Named>,
    /// The value in `config.json`, by the number there; `default` if the key is absent.
    pub of: fn(f32, &ScaleSizes) -> f32,
    pub default: f32,
    /// The value in GGUF files without the key.
    pub gguf: fn(&ScaleSizes) -> f32,
}

/// Always 1.
pub(super) const ONE: Factor = Factor { keys: None, of: |number, _| number, default: 1.0, gguf: |_| 1.0 };

/// No cap.
const NO_CAP: Factor = Factor { default: 0.0, gguf: |_| 0.0, ..ONE };

/// Sizes that factors depend on.
#[derive(Clone, Copy)]
pub struct ScaleSizes {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub head_dim: usize,
}

/// Biases according to a `config.json`. A GGUF file's tensors show them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Biases {
    pub qkv: Bias,
    /// The product after attention.
    pub output: Bias,
    /// Gate, up and down.
    pub ffn: Bias,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bias {
    Never,
    Always,
    /// As a key says, or `default` if it is absent.
    Key {
        key: &'static str,
        default: bool,
    },
}

impl Bias {
    /// A key that is false if it is absent.
    pub const fn key(key: &'static str) -> Self {
        Self::Key { key, default: false }
    }
}

pub(super) const NO_BIASES: Biases = Biases { qkv: Bias::Never, output: Bias::Never, ffn: Bias::Never };
/// One key for all of attention.
pub(super) const ATTENTION_BIASES: Biases =
    Biases { qkv: Bias::key("attention_bias"), output: Bias::key("attention_bias"), ..NO_BIASES };

/// A mixture of experts: what files leave out, and names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertDefaults {
    /// Weights are divided by their sum if `norm_topk_prob` is absent.
    pub renormalize: bool,
    /// The same if `expert_weights_norm` is absent.
    pub renormalize_gguf: bool,
    pub shared: SharedExpert,
    /// The key of the number of experts in a `config.json`; `num_local_experts` may stand in its place.
    pub count: &'static str,
    /// Files may have a factor on the weights of a softmax too.
    pub scaled: bool,
    /// GGUF files have either gate, and say which, and have the experts' biases or not.
    pub by_file: bool,
    /// Files may have the experts in groups.
    pub groups: Option<GroupDefaults>,
    /// Some files have no experts.
    pub optional: bool,
    /// The key of an expert's width.
    pub width: Named,
    pub gate: Gate,
    /// Added to the sum that weights are divided by.
    pub more: f32,
    /// The name of the experts' biases in Hugging Face's files; in GGUF `exp_probs_b.bias`. `None`: there are none.
    pub bias: Option<&'static str>,
    /// The key of the number of dense layers before the sparse ones, and the number without it; in GGUF
    /// `leading_dense_block_count`. `None`: there are none.
    pub dense_first: Option<(&'static str, usize)>,
    /// A dense feed-forward stands beside the experts, each with norms of its own. Files may have no experts.
    pub beside: bool,
    /// The router and each product of an expert have a bias.
    pub biases: bool,
    /// Hugging Face's files have all experts of a layer in one tensor, its rows and columns exchanged, and gate and up
    /// in turns (`hf/interleaved.rs`).
    pub interleaved: bool,
    /// How the names of the experts begin in Hugging Face's files, and their gate, up and down.
    pub inside: &'static str,
    /// The router, below that.
    pub router: &'static str,
    /// Tensors below that of all experts: gate and up, and down.
    pub stacked: [&'static str; 2],
    pub parts: [&'static str; 3],
}

impl ExpertDefaults {
    /// Experts as most are, with Qwen's names.
    pub const SOFTMAX: Self = Self {
        renormalize: true,
        renormalize_gguf: true,
        shared: SharedExpert::Never,
        count: "num_experts",
        scaled: false,
        by_file: false,
        groups: None,
        optional: false,
        width: ("moe_intermediate_size", "expert_feed_forward_length"),
        gate: Gate::Softmax,
        more: 0.0,
        bias: None,
        dense_first: None,
        beside: false,
        biases: false,
        interleaved: false,
        inside: "mlp",
        router: "gate",
        stacked: ["experts.gate_up_proj", "experts.down_proj"],
        parts: ["gate_proj", "up_proj", "down_proj"],
    };
}

/// An expert that every row passes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharedExpert {
    Never,
    /// Each row weighs it.
    Weighed,
    /// Its output is added as it is. Files without its width have none.
    Added,
    /// As `Added`. Files give its width as a multiple of that of the others.
    Counted,
}

/// Groups of experts (`ops::Groups`), in a `config.json` that does not give their number, or that of used ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupDefaults {
    pub count: usize,
    pub used: usize,
    /// The value of `topk_method` with which they are used. `None`: always.
    pub method: Option<&'static str>,
}

/// Norms before attention and feed-forward.
pub(super) const PRE_NORMS: [Named; 2] =
    [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")];
/// Norms of q and k.
pub(super) const Q_NORM: Named = ("self_attn.q_norm", "attn_q_norm");
pub(super) const K_NORM: Named = ("self_attn.k_norm", "attn_k_norm");

impl Family {
    /// The name in a `config.json`.
    pub fn name(&self) -> &'static str {
        self.hf.unwrap_or(self.gguf[0])
    }

    /// The shape of attention, with the scale of most models.
    pub fn attention(&self, heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
        let norms_last = self.qk_norm == QkNorm::Turned;
        AttentionShape { norms_last, ..AttentionShape::new(heads, kv_heads, head_dim) }
    }

    /// Whether layers without a window never rotate.
    pub fn rotates_in_windows_only(&self) -> bool {
        matches!(self.windows, Windows::AllBut { rotation: Rotation::WindowedOnly, .. })
    }

    /// Whether some layers may not rotate.
    pub fn has_still_layers(&self) -> bool {
        let by_window = matches!(
            self.windows,
            Windows::AllBut { rotation: Rotation::WindowedOnly | Rotation::WindowedIfAny, .. }
        );
        by_window || self.still.is_some() || self.may_stand_still
    }

    /// GGUF's key of the norms' eps.
    pub fn eps_key(&self) -> &'static str {
        if self.layer_norms { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" }
    }

    /// Whether each layer rotates, if no file says which do.
    pub fn rotating(&self, layers: usize) -> Vec<bool> {
        let rotates = |layer: usize| self.still.is_none_or(|every| !layer.is_multiple_of(every));
        (1..=layers).map(rotates).collect()
    }

    /// The keys of the family's factors.
    pub fn factor_keys(&self) -> impl Iterator<Item = Named> {
        let Scales { embedding, residual, logits, scores, score_cap, logit_cap } = &self.scales;
        let all = [embedding, residual, logits, scores, score_cap, logit_cap];
        all.into_iter().filter_map(|factor| factor.keys)
    }

    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.gguf.contains(&architecture)).copied()
    }

    pub fn of_hf(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.hf == Some(model_type)).copied()
    }

    /// The family of the `text_config` in a file of this `model_type`.
    pub fn of_hf_whole(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.hf_whole.contains(&model_type)).copied()
    }

    /// The recurrent layers, if they are of this kind.
    pub(crate) fn recurrent_as<R: Recurrent>(&self) -> Option<&'static R> {
        let recurrent: &dyn Any = self.recurrent?;
        recurrent.downcast_ref()
    }

    /// The family under whose architecture a GGUF file says the same as one of this family with `activation`, which
    /// has no key in GGUF.
    pub fn in_gguf(&'static self, activation: Activation) -> Option<&'static Self> {
        let same = |other: &&Self| {
            let names = |family: &Self| family.norms.iter().map(|(_, gguf)| *gguf).collect::<Vec<_>>();
            let recurrent = |family: &Self| format!("{:?}", family.recurrent);
            let alike = (other.ternary, other.qk_norm, other.experts, other.fused)
                == (self.ternary, self.qk_norm, self.experts, self.fused)
                && recurrent(other) == recurrent(self);
            other.activation == activation && alike && names(other) == names(self)
        };
        let kind = std::mem::discriminant;
        if kind(&self.activation) == kind(&activation) {
            Some(self)
        } else {
            FAMILIES.iter().copied().find(same)
        }
    }
}
