//! Behavior of transformers' classes that a `config.json` may leave out, as data.
//!
//! Defaults are those of `configuration_*.py` of transformers 5.23, for keys that `save_pretrained` may leave out.
//! Sizes have defaults there too, but no model uses them: here the file must give them.

use crate::ops::Activation;

pub struct Class {
    pub model_type: &'static str,
    /// `num_key_value_heads` if the key is absent.
    pub kv_heads: KvHeads,
    /// `head_dim` if the key is absent. `None`: hidden_size / num_attention_heads.
    pub head_dim: Option<usize>,
    /// The key that names the activation, and the activation if the key is absent.
    pub activation: (&'static str, Activation),
    pub rms_eps: f32,
    pub rope_theta: f32,
    pub tied: bool,
    pub biases: Biases,
    pub window: Windows,
    /// Norms before the output projections, with their names below a layer.
    pub sub_norms: Option<SubNorms>,
    pub qk_norms: bool,
    /// Gemma's peculiarities: norms after attention and feed-forward, embedding rows times sqrt(hidden), norm weights
    /// stored as w - 1, scores scaled by `query_pre_attn_scalar`, and a separate rope in windowed layers.
    pub gemma: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum KvHeads {
    /// As many as there are heads.
    Heads,
    Needed,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Biases {
    None,
    /// `attention_bias`: q, k, v and output. `mlp_bias`, of Llama's class only: gate, up and down.
    ByKey {
        mlp: bool,
    },
    /// Always q, k and v (Qwen2).
    Qkv,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Windows {
    Never,
    /// All layers, unless `sliding_window` is null; `default` if the key is absent (Mistral).
    All {
        default: usize,
    },
    /// `layer_types`, or with `use_sliding_window` the layers from `max_window_layers` on (Qwen2, Qwen3).
    Upper,
    /// `layer_types`, or all but each `sliding_window_pattern`th layer (Gemma 3).
    AllBut {
        every: usize,
        default: usize,
        local_theta: f32,
    },
}

/// Names below `model.layers.N.`.
#[derive(Clone, Copy, PartialEq)]
pub struct SubNorms {
    pub attention: &'static str,
    pub ffn: &'static str,
}

const LLAMA: Class = Class {
    model_type: "llama",
    kv_heads: KvHeads::Heads,
    head_dim: None,
    activation: ("hidden_act", Activation::SwiGlu),
    rms_eps: 1e-6,
    rope_theta: 10_000.0,
    tied: false,
    biases: Biases::ByKey { mlp: true },
    window: Windows::Never,
    sub_norms: None,
    qk_norms: false,
    gemma: false,
};

pub const CLASSES: &[Class] = &[
    LLAMA,
    Class {
        model_type: "mistral",
        kv_heads: KvHeads::Needed,
        biases: Biases::None,
        window: Windows::All { default: 4096 },
        ..LLAMA
    },
    Class {
        model_type: "qwen2",
        kv_heads: KvHeads::Needed,
        biases: Biases::Qkv,
        window: Windows::Upper,
        ..LLAMA
    },
    Class {
        model_type: "qwen3",
        kv_heads: KvHeads::Needed,
        head_dim: Some(128),
        biases: Biases::ByKey { mlp: false },
        window: Windows::Upper,
        qk_norms: true,
        ..LLAMA
    },
    Class {
        model_type: "bitnet",
        kv_heads: KvHeads::Needed,
        activation: ("hidden_act", Activation::Relu2),
        rms_eps: 1e-5,
        rope_theta: 500_000.0,
        biases: Biases::ByKey { mlp: false },
        sub_norms: Some(SubNorms { attention: "self_attn.attn_sub_norm", ffn: "mlp.ffn_sub_norm" }),
        ..LLAMA
    },
    Class {
        model_type: "gemma3_text",
        kv_heads: KvHeads::Needed,
        head_dim: Some(256),
        activation: ("hidden_activation", Activation::GeGlu),
        rope_theta: 1_000_000.0,
        tied: true,
        biases: Biases::ByKey { mlp: false },
        window: Windows::AllBut { every: 6, default: 4096, local_theta: 10_000.0 },
        qk_norms: true,
        gemma: true,
        ..LLAMA
    },
];

/// 1bitLLM's reproductions (bitnet_b1_58-large, -3B) come with a class of their own and call themselves `llama`:
/// their weights become ternary at every step by mean |w|, their sub-norms have older names (gguf's
/// tensor_mapping.py), and they use silu.
pub const ONE_BIT: Class = Class {
    model_type: "bitnet",
    biases: Biases::None,
    sub_norms: Some(SubNorms { attention: "self_attn.inner_attn_ln", ffn: "mlp.ffn_layernorm" }),
    ..LLAMA
};

/// Name of that class in `architectures`.
pub const ONE_BIT_CLASS: &str = "BitnetForCausalLM";

/// The activation that `hidden_act` names, if we know it.
pub fn activation(name: &str) -> Option<Activation> {
    match name {
        "silu" | "swish" => Some(Activation::SwiGlu),
        "relu2" => Some(Activation::Relu2),
        "gelu_pytorch_tanh" => Some(Activation::GeGlu),
        _ => None,
    }
}

pub const ACTIVATIONS: &str = "silu, relu2 and gelu_pytorch_tanh";
