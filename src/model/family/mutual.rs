//! How rows of pictures see each other.

/// Layers in which rows of a picture see each other in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutual {
    Never,
    All,
    /// Those with a window, if `use_bidirectional_attention` of a `config.json` says `vision`; in GGUF, which lacks it,
    /// if layers have no inputs of their own: published models have one or the other.
    Windowed,
}
