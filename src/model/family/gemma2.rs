//! Gemma 2 (arXiv 2408.00118): soft caps on scores and logits, windows in every other layer, and norms on both sides of
//! attention and feed-forward.

use super::gemma3::GEMMA3;
use super::{BASE, Defaults, Factor, Family, ONE, Rotation, ScaleSizes, Scales, Windows};

/// The number whose square root divides scores, in GGUF files, which do not have it. It is head_dim except for the 27B,
/// which is recognized by its depth.
fn number(sizes: &ScaleSizes) -> usize {
    if sizes.layers == 46 { sizes.hidden / sizes.heads } else { sizes.head_dim }
}

pub(super) const GEMMA2: Family = Family {
    gguf: &["gemma2"],
    hf: Some("gemma2"),
    hf_whole: BASE.hf_whole,
    towers: BASE.towers,
    mutual: BASE.mutual,
    norms: &[
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    windows: Windows::AllBut {
        every: 2,
        default: 4096,
        rotation: Rotation::Same,
        own_beside: false,
        gguf_default: Some(4096),
    },
    scales: Scales {
        scores: Factor { gguf: |sizes| 1.0 / (number(sizes) as f32).sqrt(), ..GEMMA3.scales.scores },
        score_cap: Factor {
            keys: Some(("attn_logit_softcapping", "attn_logit_softcapping")),
            default: 50.0,
            gguf: |_| 50.0,
            ..ONE
        },
        logit_cap: Factor {
            keys: Some(("final_logit_softcapping", "final_logit_softcapping")),
            default: 30.0,
            gguf: |_| 30.0,
            ..ONE
        },
        ..GEMMA3.scales
    },
    defaults: Defaults { sizes: &[], rope_theta: BASE.defaults.rope_theta, ..GEMMA3.defaults },
    ..GEMMA3
};
