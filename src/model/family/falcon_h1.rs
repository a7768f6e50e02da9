//! Falcon-H1 (arXiv 2507.22448): Mamba-2 beside attention in every layer, and factors on many parts, which GGUF files
//! have in their weights.

use super::llama::LLAMA;
use super::{BASE, Defaults, Factor, Family, ONE, Scales};
use crate::model::layers::mamba::MambaDefaults;

pub(super) const FALCON_H1: Family = Family {
    gguf: &["falcon-h1"],
    hf: Some("falcon_h1"),
    norms: &[("input_layernorm", "attn_norm"), ("pre_ff_layernorm", "ffn_norm")],
    final_norm: ("final_layernorm", "output_norm"),
    products: &[
        ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.down_proj", "ffn_down"),
    ],
    scales: Scales {
        embedding: Factor { keys: Some(("embedding_multiplier", "embedding_scale")), ..ONE },
        logits: Factor {
            keys: Some(("lm_head_multiplier", "logit_scale")),
            of: |multiplier, _| 1.0 / multiplier,
            ..ONE
        },
        ..BASE.scales
    },
    biases: LLAMA.biases,
    recurrent: Some(&MambaDefaults { beside: true, norm: None }),
    multipliers: true,
    defaults: Defaults { rms_eps: 1e-5, ..BASE.defaults },
    ..BASE
};
