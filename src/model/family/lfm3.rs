//! LFM3 (Liquid AI): LFM2's short convolutions, with windows in half of the layers of attention, a gate of each head,
//! and norms on both sides of each part.

use super::lfm2::LFM2;
use super::{Defaults, Family, K_NORM, Q_NORM, Rotation, Windows};
use crate::model::layers::short_conv::ConvDefaults;

pub(super) const LFM3: Family = Family {
    gguf: &["lfm3"],
    hf: Some("lfm3"),
    norms: &[
        ("operator_norm", "attn_norm"),
        Q_NORM,
        K_NORM,
        ("post_operator_norm", "post_attention_norm"),
        ("ffn_norm", "ffn_norm"),
        ("post_ffn_norm", "post_ffw_norm"),
    ],
    final_norm: ("embedding_norm", "output_norm"),
    products: &[
        ("self_attn.gate_proj", "attn_gate"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
    ],
    windows: Windows::AllBut {
        every: 2,
        default: 256,
        rotation: Rotation::Local { base: Some(10_000.0) },
        own_beside: false,
        gguf_default: None,
    },
    recurrent: Some(&ConvDefaults { kernel: 7, rounds_width: false }),
    head_gates: true,
    defaults: Defaults { head_dim: Some(128), ..LFM2.defaults },
    ..LFM2
};
