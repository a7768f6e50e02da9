//! GLM-4 and GLM-Z1 of 2025, dense (9B-0414, 32B-0414): half of a head rotates, its pairs side by side, and norms stand
//! on both sides of attention and feed-forward.

use super::{BASE, Bias, Biases, Defaults, Family, Fused, NO_BIASES};
use crate::ops::RopeStyle;

pub(super) const GLM4: Family = Family {
    gguf: &["glm4"],
    hf: Some("glm4"),
    norms: &[
        ("input_layernorm", "attn_norm"),
        ("post_self_attn_layernorm", "post_attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("post_mlp_layernorm", "post_ffw_norm"),
    ],
    fused: Fused { gate_up: true, ..BASE.fused },
    biases: Biases { qkv: Bias::Key { key: "attention_bias", default: true }, ..NO_BIASES },
    rotated: Some(0.5),
    hf_rope: RopeStyle::Interleaved,
    gguf_rope: RopeStyle::Interleaved,
    defaults: Defaults { head_dim: Some(128), rms_eps: 1.5625e-7, ..BASE.defaults },
    ..BASE
};
