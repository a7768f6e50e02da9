//! gpt-oss (OpenAI, arXiv 2508.10925): attention with sinks, in every second layer all of the context; experts with
//! biases and a gate of their own. The weights of the chosen experts are the softmax of their logits, which is their
//! part of that of all.

use super::{ATTENTION_BIASES, BASE, Bias, Biases, Defaults, ExpertDefaults, Family, Rotation, Windows};
use crate::ops::Activation;

const BIAS: Bias = Bias::Key { key: "attention_bias", default: true };

pub(super) const GPT_OSS: Family = Family {
    gguf: &["gpt-oss"],
    hf: Some("gpt_oss"),
    activation: Activation::SteepSwiGlu { alpha: 1.702, limit: 7.0 },
    norms: &[("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm")],
    ffn_norm: "post_attention_norm",
    windows: Windows::AllBut {
        every: 2,
        default: 128,
        rotation: Rotation::Same,
        own_beside: false,
        gguf_default: None,
    },
    sinks: true,
    rounds_yarn: false,
    biases: Biases { qkv: BIAS, output: BIAS, ..ATTENTION_BIASES },
    experts: Some(ExpertDefaults {
        biases: true,
        width: ("intermediate_size", "expert_feed_forward_length"),
        interleaved: true,
        router: "router",
        ..ExpertDefaults::SOFTMAX
    }),
    defaults: Defaults { head_dim: Some(64), rms_eps: 1e-5, rope_theta: 150_000.0, ..BASE.defaults },
    ..BASE
};
