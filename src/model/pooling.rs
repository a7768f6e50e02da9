//! Pooling of a text's hidden states into one vector.

/// Which of a prompt's hidden states, after the final norm, make its embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Pooling {
    /// The last token's; for text generators.
    #[default]
    Last = 1,
    /// The mean over the tokens.
    Mean = 2,
    /// The first token's.
    First = 3,
}
