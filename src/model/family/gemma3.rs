//! Gemma 3, text alone (arXiv 2503.19786): windowed layers with a rotation of their own, and norms on both sides of
//! attention and feed-forward.

use super::{BASE, Biases, Defaults, EmbeddingScale, Family, K_NORM, Q_NORM, QueryScale, Windows};
use crate::ops::Activation;

pub const GEMMA3: Family = Family {
    gguf: &["gemma3"],
    hf: Some("gemma3_text"),
    activation: Activation::GeGlu,
    norms: &[
        ("input_layernorm", "attn_norm"),
        Q_NORM,
        K_NORM,
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    windows: Windows::AllBut { every: 6, default: 4096, local_base: 10_000.0 },
    embedding_scale: EmbeddingScale::SqrtHidden,
    // GGUF files do not have the number. It is head_dim except for the 27B, which is recognized by its depth.
    query_scale: Some(QueryScale {
        key: "query_pre_attn_scalar",
        default: 256.0,
        gguf: |s| if s.layers == 62 { s.hidden / s.heads } else { s.head_dim },
    }),
    biases: Biases::ByKey { mlp: false },
    norm_offset: 1.0,
    defaults: Defaults {
        head_dim: Some(256),
        activation_key: "hidden_activation",
        rope_theta: 1_000_000.0,
        tied: true,
        ..BASE.defaults
    },
    ..BASE
};
