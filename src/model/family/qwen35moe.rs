//! The mixtures of experts of Qwen 3.5 and 3.6: its layers, with experts in place of the feed-forward.

use super::qwen35::QWEN35;
use super::{ExpertDefaults, Family, SharedExpert};

/// The chosen experts' weights always add up to 1.
pub(super) const EXPERTS: ExpertDefaults =
    ExpertDefaults { shared: SharedExpert::Weighed, ..ExpertDefaults::SOFTMAX };

pub(super) const QWEN35MOE: Family = Family {
    gguf: &["qwen35moe"],
    hf: Some("qwen3_5_moe_text"),
    hf_whole: &["qwen3_5_moe"],
    experts: Some(EXPERTS),
    ..QWEN35
};
