//! Qwen 3's mixtures of experts (arXiv 2505.09388): a softmax router, and the best experts of each row.

use super::qwen3::QWEN3;
use super::{Defaults, ExpertDefaults, Family, Windows};

pub(super) const QWEN3MOE: Family = Family {
    gguf: &["qwen3moe"],
    hf: Some("qwen3_moe"),
    // GGUF has no key for it: llama.cpp renormalizes, as all published models do.
    experts: Some(ExpertDefaults { renormalize: false, ..ExpertDefaults::SOFTMAX }),
    windows: Windows::AllIfUsed { default: 4096 },
    defaults: Defaults { head_dim: None, ..QWEN3.defaults },
    ..QWEN3
};
