//! How the hidden states of a text become one vector.

/// Which of a prompt's hidden states, behind the final norm, make its embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Pooling {
    /// The last token's; a text generator's.
    #[default]
    Last = 1,
    /// The mean over the tokens.
    Mean = 2,
    /// The first token's.
    First = 3,
}
