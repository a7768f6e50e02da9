//! Gemma 3 (arXiv 2503.19786): windowed layers with a rotation of their own, and norms on both sides of
//! attention and feed-forward.

use super::ministral3::MINISTRAL3;
use super::{
    ATTENTION_BIASES, BASE, Defaults, Factor, Family, K_NORM, Mutual, ONE, Q_NORM, Rotation, ScaleSizes,
    Scales, Windows,
};
use crate::ops::Activation;

/// Scores are divided by the square root of a number.
fn scores(number: f32) -> f32 {
    f64::from(number).powf(-0.5) as f32
}

/// The number in GGUF files, which do not have it. It is head_dim except for the 27B, which is recognized by its depth.
fn number(sizes: &ScaleSizes) -> usize {
    if sizes.layers == 62 { sizes.hidden / sizes.heads } else { sizes.head_dim }
}

pub(super) const GEMMA3: Family = Family {
    gguf: &["gemma3"],
    hf: Some("gemma3_text"),
    hf_whole: &["gemma3"],
    towers: MINISTRAL3.towers,
    mutual: Mutual::All,
    activation: Activation::GeGlu,
    norms: &[
        ("input_layernorm", "attn_norm"),
        Q_NORM,
        K_NORM,
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    windows: Windows::AllBut {
        every: 6,
        default: 4096,
        rotation: Rotation::Local { base: Some(10_000.0) },
        own_beside: false,
        gguf_default: None,
    },
    scales: Scales {
        embedding: Factor {
            of: |_, sizes| (sizes.hidden as f32).sqrt(),
            gguf: |sizes| (sizes.hidden as f32).sqrt(),
            ..ONE
        },
        scores: Factor {
            keys: Some(("query_pre_attn_scalar", "attention.scale")),
            of: |number, _| scores(number),
            default: 256.0,
            gguf: |sizes| 1.0 / (number(sizes) as f32).sqrt(),
        },
        ..BASE.scales
    },
    biases: ATTENTION_BIASES,
    norm_offset: 1.0,
    defaults: Defaults {
        sizes: &[
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("max_position_embeddings", 131_072),
        ],
        head_dim: Some(256),
        activation_key: "hidden_activation",
        rope_theta: 1_000_000.0,
        tied: true,
        ..BASE.defaults
    },
    ..BASE
};
