//! LFM2 (Liquid AI, arXiv 2511.23404): gated short convolutions, and layers of attention between them.

use super::{BASE, Defaults, Family};
use crate::model::layers::short_conv::ConvDefaults;

pub(super) const LFM2: Family = Family {
    gguf: &["lfm2"],
    hf: Some("lfm2"),
    hf_whole: &["lfm2_vl"],
    towers: &["model.vision_tower.", "model.multi_modal_projector."],
    norms: &[
        ("operator_norm", "attn_norm"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("ffn_norm", "ffn_norm"),
    ],
    final_norm: ("embedding_norm", "token_embd_norm"),
    products: &[
        ("self_attn.out_proj", "attn_output"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.w2", "ffn_down"),
    ],
    recurrent: Some(&ConvDefaults { kernel: 3, rounds_width: true }),
    defaults: Defaults {
        eps_key: "norm_eps",
        rms_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tied: true,
        ..BASE.defaults
    },
    ..BASE
};
