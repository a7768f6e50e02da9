//! Qwen 3.5, 3.6 and 3.8, and Bonsai 27B: three layers of Gated DeltaNet, then one of attention with a gate on its
//! output. The text part alone.

use super::{ATTENTION_BIASES, BASE, Defaults, Family, K_NORM, PRE_NORMS, Q_NORM};
use crate::model::layers::delta_net::DeltaDefaults;
use crate::ops::HeadOrder;

pub(super) const DELTA: DeltaDefaults = DeltaDefaults {
    every: 4,
    key_heads: 16,
    value_heads: 32,
    dim: 128,
    kernel: 4,
    order: HeadOrder::Tiled,
    fused: false,
};

pub(super) const QWEN35: Family = Family {
    gguf: &["qwen35"],
    hf: Some("qwen3_5_text"),
    hf_whole: &["qwen3_5"],
    towers: &["model.visual."],
    norms: &[PRE_NORMS[0], Q_NORM, K_NORM, ("post_attention_layernorm", "post_attention_norm")],
    ffn_norm: "post_attention_norm",
    biases: ATTENTION_BIASES,
    recurrent: Some(&DELTA),
    attention_gate: true,
    rotated: Some(0.25),
    rope_sections: true,
    mtp: true,
    norm_offset: 1.0,
    defaults: Defaults { head_dim: Some(256), ..BASE.defaults },
    ..BASE
};
