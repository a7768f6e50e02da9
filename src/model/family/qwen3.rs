//! Qwen 3 (arXiv 2505.09388): norms of q and k instead of biases. Bonsai's dense models are of this family.

use super::{ATTENTION_BIASES, BASE, Defaults, Family, K_NORM, PRE_NORMS, Q_NORM, Windows};

pub(super) const QWEN3: Family = Family {
    gguf: &["qwen3"],
    hf: Some("qwen3"),
    norms: &[PRE_NORMS[0], Q_NORM, K_NORM, PRE_NORMS[1]],
    windows: Windows::Upper,
    biases: ATTENTION_BIASES,
    defaults: Defaults { head_dim: Some(128), ..BASE.defaults },
    ..BASE
};
