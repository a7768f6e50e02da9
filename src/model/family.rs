//! The families of decoders that we know: data, not code.

use crate::ops::{Activation, RopeStyle};

/// What tells one family from another where its files do not say it.
#[derive(Debug)]
pub struct Family {
    /// `general.architecture` of GGUF files, and the prefix of their keys.
    pub gguf: &'static [&'static str],
    /// How GGUF files lay out q and k rows; Hugging Face's are always NEOX.
    pub gguf_rope: RopeStyle,
    /// Where the files do not name it.
    pub activation: Activation,
    pub sub_norms: SubNorms,
    pub qk_norms: bool,
    pub window: Window,
    /// Gemma's ways: norms behind attention and feed-forward, embedding rows times sqrt(hidden), norm weights that
    /// safetensors store as w - 1.
    pub gemma: bool,
}

/// Norms in front of the attention's and the feed-forward's output projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubNorms {
    Required,
    /// Where the file has them: ternary models in Llama's clothes come in both kinds.
    WherePresent,
    Never,
}

/// Which layers keep to a file's sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// All of them (Mistral).
    All,
    /// All but each `every`th, which sees everything; the others rotate by `local_base`, without scaling (Gemma 3).
    AllBut { every: usize, local_base: f32 },
    /// The family has none: a file that asks for one is refused.
    Never,
}

/// A decoder in Llama's clothes, which most are.
const LLAMA: Family = Family {
    gguf: &["llama"],
    gguf_rope: RopeStyle::Interleaved,
    activation: Activation::SwiGlu,
    sub_norms: SubNorms::WherePresent,
    qk_norms: false,
    window: Window::All,
    gemma: false,
};

pub const FAMILIES: &[Family] = &[
    Family {
        gguf: &["bitnet-b1.58", "bitnet-25"],
        gguf_rope: RopeStyle::Neox,
        activation: Activation::Relu2,
        sub_norms: SubNorms::Required,
        window: Window::Never,
        ..LLAMA
    },
    // 1bitLLM's reproductions (bitnet_b1_58-large, -3B): their configuration says silu where the 2B-4T has relu2.
    Family {
        gguf: &["bitnet"],
        gguf_rope: RopeStyle::Neox,
        sub_norms: SubNorms::Required,
        window: Window::Never,
        ..LLAMA
    },
    LLAMA,
    Family {
        gguf: &["qwen2"],
        gguf_rope: RopeStyle::Neox,
        sub_norms: SubNorms::Never,
        window: Window::Never,
        ..LLAMA
    },
    Family {
        gguf: &["qwen3"],
        gguf_rope: RopeStyle::Neox,
        sub_norms: SubNorms::Never,
        qk_norms: true,
        window: Window::Never,
        ..LLAMA
    },
    Family {
        gguf: &["gemma3"],
        gguf_rope: RopeStyle::Neox,
        activation: Activation::GeGlu,
        sub_norms: SubNorms::Never,
        qk_norms: true,
        window: Window::AllBut { every: 6, local_base: 10_000.0 },
        gemma: true,
    },
];

/// `general.architecture` of relatives that look as if they could run, and why they cannot.
pub const REFUSED: &[(&str, &str)] = &[
    ("gemma-embedding", "its tokens see the ones behind them, and attention here is causal"),
    ("gemma2", "it caps attention scores and logits by a tanh"),
    ("mistral3", "its queries are scaled by their position"),
];

impl Family {
    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.gguf.contains(&architecture))
    }
}
