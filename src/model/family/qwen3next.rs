//! Qwen3-Next: Qwen 3.5's mixtures of experts before them, with the products of Gated DeltaNet in other pieces.

use super::Family;
use super::qwen35::{DELTA, QWEN35};
use super::qwen35moe::EXPERTS;
use crate::model::layers::delta_net::DeltaDefaults;
use crate::ops::HeadOrder;

pub(super) const QWEN3NEXT: Family = Family {
    gguf: &["qwen3next"],
    hf: Some("qwen3_next"),
    hf_whole: &[],
    recurrent: Some(&DeltaDefaults { order: HeadOrder::Grouped, fused: true, ..DELTA }),
    rope_sections: false,
    experts: Some(EXPERTS),
    ..QWEN35
};
