//! SmolLM3: Llama in which each fourth layer does not rotate.

use super::llama::LLAMA;
use super::{BASE, Defaults, Family, Windows};

pub(super) const SMOLLM3: Family = Family {
    gguf: &["smollm3"],
    hf: Some("smollm3"),
    windows: Windows::Listed,
    biases: LLAMA.biases,
    gguf_rope: LLAMA.gguf_rope,
    still: Some(4),
    defaults: Defaults { rope_theta: 2_000_000.0, tied: true, ..BASE.defaults },
    ..BASE
};
