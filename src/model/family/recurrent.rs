//! Defaults of families with recurrent layers, which their files leave out.

use crate::model::config::GateNorm;
use crate::ops::HeadOrder;

/// Layers of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaDefaults {
    /// They stand beside attention, in every layer.
    pub beside: bool,
    /// The norm in Hugging Face's files. `None`: keys say it.
    pub norm: Option<GateNorm>,
    /// Hugging Face's files may have factors on many parts. GGUF's converter multiplies the weights by them.
    pub multipliers: bool,
}

/// Layers of short convolutions, in files that do not give their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvDefaults {
    pub kernel: usize,
    /// A `config.json` gives 3/2 of the feed-forward's width, unrounded.
    pub rounds_width: bool,
}

/// Layers of Gated DeltaNet, in files that do not give their sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaDefaults {
    /// Each `every`th layer is of attention (`full_attention_interval`).
    pub every: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    /// Elements of a key, and of a value.
    pub dim: usize,
    pub kernel: usize,
    /// In GGUF files. Hugging Face's are always grouped.
    pub order: HeadOrder,
    /// Files have the rows of each key head's products side by side (`fused`).
    pub fused: bool,
}
