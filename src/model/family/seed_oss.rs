//! Seed-OSS 36B: Llama with biases of q, k and v.

use super::{BASE, Bias, Biases, Defaults, Family, PRE_NORMS};

pub(super) const SEED_OSS: Family = Family {
    gguf: &["seed_oss"],
    hf: Some("seed_oss"),
    norms: &[PRE_NORMS[0], ("post_attention_layernorm", "post_attention_norm")],
    ffn_norm: "post_attention_norm",
    biases: Biases {
        qkv: Bias::Key { key: "attention_bias", default: true },
        output: Bias::key("attention_out_bias"),
        ffn: Bias::key("mlp_bias"),
    },
    defaults: Defaults { head_dim: Some(128), ..BASE.defaults },
    ..BASE
};
