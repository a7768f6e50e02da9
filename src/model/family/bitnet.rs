//! BitNet b1.58 2B-4T (arXiv 2504.12285): ternary weights, relu², and norms before the output projections.

use super::{ATTENTION_BIASES, BASE, Defaults, Family, PRE_NORMS};
use crate::ops::Activation;

pub(super) const BITNET: Family = Family {
    gguf: &["bitnet-b1.58", "bitnet-25"],
    hf: Some("bitnet"),
    ternary: true,
    activation: Activation::Relu2,
    norms: &[
        PRE_NORMS[0],
        ("self_attn.attn_sub_norm", "attn_sub_norm"),
        PRE_NORMS[1],
        ("mlp.ffn_sub_norm", "ffn_sub_norm"),
    ],
    biases: ATTENTION_BIASES,
    defaults: Defaults { rms_eps: 1e-5, rope_theta: 500_000.0, ..BASE.defaults },
    ..BASE
};
