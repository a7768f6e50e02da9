//! Mistral 7B (arXiv 2310.06825): Llama with a sliding window. Its GGUF files call themselves `llama`.

use super::llama::LLAMA;
use super::{BASE, Family, Windows};

pub(super) const MISTRAL: Family = Family {
    gguf: LLAMA.gguf,
    hf: Some("mistral"),
    windows: Windows::All { default: Some(4096) },
    gguf_rope: LLAMA.gguf_rope,
    ..BASE
};
