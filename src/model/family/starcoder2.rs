//! StarCoder 2 (arXiv 2402.19173): LayerNorm, a feed-forward without gate, and biases everywhere.

use super::{BASE, Bias, Biases, Defaults, Family, Windows};
use crate::ops::Activation;

/// One key for all products.
const BIAS: Bias = Bias::Key { key: "use_bias", default: true };

pub(super) const STARCODER2: Family = Family {
    gguf: &["starcoder2"],
    hf: Some("starcoder2"),
    activation: Activation::Gelu,
    layer_norms: true,
    products: &[("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
    windows: Windows::All { default: None },
    biases: Biases { qkv: BIAS, output: BIAS, ffn: BIAS },
    defaults: Defaults { eps_key: "norm_epsilon", rms_eps: 1e-5, tied: true, ..BASE.defaults },
    ..BASE
};
