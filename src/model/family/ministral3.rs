//! Ministral 3, text alone: Mistral with YaRN and queries that grow with their position.

use super::llama::LLAMA;
use super::{BASE, Defaults, Family, Windows};

pub(super) const MINISTRAL3: Family = Family {
    gguf: &["mistral3"],
    hf: Some("ministral3"),
    hf_whole: &["mistral3"],
    towers: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
    windows: Windows::All { default: None },
    temperature: true,
    gguf_rope: LLAMA.gguf_rope,
    defaults: Defaults { head_dim: Some(128), rms_eps: 1e-5, rope_theta: 1_000_000.0, ..BASE.defaults },
    ..BASE
};
