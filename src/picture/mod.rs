//! Pictures, before a model sees them.

/// The patches of a picture, or of a part of one that a tower sees by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub rows: u32,
    pub cols: u32,
}
