//! The families of decoders that we know, as data.

use crate::ops::{Activation, RopeStyle};

/// Properties that distinguish families and that their files do not give.
#[derive(Debug)]
pub struct Family {
    /// `general.architecture` of GGUF files, which is also the prefix of their keys.
    pub gguf: &'static [&'static str],
    /// Layout of q and k rows in GGUF files. Hugging Face's is always NEOX.
    pub gguf_rope: RopeStyle,
    /// Used if the files do not name it.
    pub activation: Activation,
    pub sub_norms: SubNorms,
    pub qk_norms: bool,
    pub window: Window,
    /// Gemma's peculiarities: norms after attention and feed-forward, embedding rows times sqrt(hidden), norm weights
    /// that safetensors store as w - 1.
    pub gemma: bool,
}

/// Norms before the attention's and the feed-forward's output projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubNorms {
    Required,
    /// Present if the file has them: of ternary models in Llama's format, some have them and some do not.
    WherePresent,
    Never,
}

/// Which layers use a file's sliding window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// All layers (Mistral).
    All,
    /// All but each `every`th layer, which sees everything. The others rotate by `local_base`, without scaling (Gemma
    /// 3).
    AllBut { every: usize, local_base: f32 },
    /// None: a file that asks for a window is refused.
    Never,
}

/// A decoder in Llama's format, like most.
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
    // 1bitLLM's reproductions (bitnet_b1_58-large, -3B): their configuration says silu, while the 2B-4T has relu2.
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

/// `general.architecture` of related models that look as if they could run, and the reasons why they cannot.
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
