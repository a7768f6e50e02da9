//! The ranges of sizes and factors.

use std::ops::RangeInclusive;

pub(crate) const CONTEXT: RangeInclusive<usize> = 1..=1 << 24;
pub(crate) const LAYERS: RangeInclusive<usize> = 1..=1 << 10;
pub(crate) const HIDDEN: RangeInclusive<usize> = 1..=1 << 17;
pub(crate) const FFN: RangeInclusive<usize> = 1..=1 << 19;
pub(crate) const HEADS: RangeInclusive<usize> = 1..=1 << 10;
pub(crate) const HEAD_DIM: RangeInclusive<usize> = 2..=1 << 10;
pub(crate) const VOCAB: RangeInclusive<usize> = 1..=1 << 22;
pub(crate) const EXPERTS: RangeInclusive<usize> = 1..=1 << 12;
/// Tokens that a short convolution sees.
pub(crate) const KERNEL: RangeInclusive<usize> = 2..=16;
/// Factors on parts of a layer.
pub(crate) const FACTOR: RangeInclusive<f32> = -1e6..=1e6;
/// Maximum number of ropes of a model. Each has a table of its own in a step.
pub(crate) const MAX_ROPES: usize = 8;
/// A rope that shrinks angles by more makes all positions alike, and one that stretches them more has no use.
pub(crate) const ROPE_FACTOR: RangeInclusive<f32> = 1e-3..=1e6;
