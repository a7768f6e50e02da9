//! ERNIE 4.5, the dense 0.3B: Llama whose pairs stand side by side in Hugging Face's files too.

use super::{BASE, Bias, Biases, Defaults, Family};
use crate::ops::RopeStyle;

/// One key for all products.
const BIAS: Bias = Bias::key("use_bias");

pub(super) const ERNIE4_5: Family = Family {
    gguf: &["ernie4_5"],
    hf: Some("ernie4_5"),
    biases: Biases { qkv: BIAS, output: BIAS, ffn: BIAS },
    hf_rope: RopeStyle::Interleaved,
    gguf_rope: RopeStyle::Interleaved,
    defaults: Defaults {
        head_dim: Some(128),
        rms_eps: 1e-5,
        rope_theta: 500_000.0,
        tied: true,
        ..BASE.defaults
    },
    ..BASE
};
