//! A tower's shape, from any file format, and checked.

use super::family::{Merge, Positions, Rotation, TowerFamily};
use crate::base::Result;
use crate::model::config::{HEADS, HIDDEN, LAYERS};
use crate::model::names::Names;
use crate::ops::{Activation, AttentionShape, Axes, Rope, RopeStyle};
use std::ops::RangeInclusive;

/// Sizes are in elements, pixels and patches.
#[derive(Clone, Debug)]
pub(crate) struct TowerConfig {
    pub family: &'static TowerFamily,
    pub name: String,
    pub layers: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    pub eps: f32,
    pub activation: Activation,
    /// The side of a patch, and its frames.
    pub patch: usize,
    pub frames: usize,
    /// The sides, in patches, of a soft token.
    pub merge: usize,
    /// Rows of the table of positions; with `Positions::Sides`, of each of both.
    pub positions: usize,
    pub rope_base: f32,
    pub rope_style: RopeStyle,
    /// The dimensions of the tensor that makes hidden states of patches.
    pub embedding: Embedding,
    /// The width between the products of a projector that files choose.
    pub inner: usize,
    /// The width of a soft token.
    pub width: usize,
    /// The activation and the norm of the projector.
    pub projector_activation: Activation,
    pub projector_eps: f32,
    pub projector_offset: f32,
    /// The token of soft tokens, where files say it.
    pub token: Option<u32>,
    /// The names of up and down are swapped, as old converters to GGUF wrote them.
    pub swapped: bool,
}

/// How a file has the product of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Embedding {
    /// As a convolution: by color, frame, row and column.
    Convolution,
    /// In a tensor for each of two frames, by color, row and column.
    Frames,
    /// As a matrix, by row, column and color.
    Matrix,
}

const FFN: RangeInclusive<usize> = 1..=1 << 19;
const PATCH: RangeInclusive<usize> = 1..=1 << 8;
const FRAMES: RangeInclusive<usize> = 1..=16;
const MERGE: RangeInclusive<usize> = 1..=16;
const POSITIONS: RangeInclusive<usize> = 1..=1 << 20;

impl TowerConfig {
    /// Elements of a patch.
    pub(crate) fn patch_len(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// Patches of a soft token.
    pub(crate) fn group(&self) -> usize {
        self.merge * self.merge
    }

    /// Elements of the row that makes a soft token.
    pub(crate) fn merged(&self) -> usize {
        match self.family.merge {
            Merge::Beside => self.group() * self.hidden,
            Merge::Average => self.hidden,
        }
    }

    /// Rows of the table of positions on a side.
    pub(crate) fn side(&self) -> usize {
        self.positions.isqrt()
    }

    /// `BadModel` for an impossible value, with the file's own `names`.
    pub(crate) fn check(&self, names: &Names) -> Result<()> {
        names.within("block_count", self.layers, LAYERS)?;
        names.within("embedding_length", self.hidden, HIDDEN)?;
        names.within("feed_forward_length", self.ffn, FFN)?;
        names.within("patch_size", self.patch, PATCH)?;
        names.within("temporal_patch_size", self.frames, FRAMES)?;
        names.within("spatial_merge_size", self.merge, MERGE)?;
        names.within("projection_dim", self.width, HIDDEN)?;
        names.within("inner_size", self.inner, 0..=*HIDDEN.end())?;
        names.float("attention.layer_norm_epsilon", self.eps, 1e-13..=1e-1)?;
        names.float("rope.freq_base", self.rope_base, 1.0..=1e12)?;
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        names.within("attention.head_count", heads, HEADS)?;
        names.within("attention.head_count_kv", kv_heads, 1..=heads)?;
        names.within("attention.key_length", head_dim, 1..=1 << 10)?;
        if !heads.is_multiple_of(kv_heads) {
            let why = format!("it must divide the number of heads, {heads}");
            return Err(names.bad("attention.head_count_kv", kv_heads, &why));
        }
        if self.family.rotation.is_some() && !head_dim.is_multiple_of(4) {
            return Err(names.bad(
                "attention.key_length",
                head_dim,
                "rotations by rows and columns need fours",
            ));
        }
        match self.family.positions {
            Positions::None => Ok(()),
            Positions::Sides => names.within("position_count", self.positions, POSITIONS),
            _ => {
                names.within("position_count", self.positions, POSITIONS)?;
                match self.side().pow(2) == self.positions {
                    true => Ok(()),
                    false => Err(names.bad("position_count", self.positions, "it must be a square")),
                }
            }
        }
    }

    /// The rotation of q and k. Axis 1 is a patch's row, 2 its column.
    pub(crate) fn rope(&self) -> Rope {
        let dim = self.attention.head_dim;
        let (quarter, half) = (dim / 4, dim / 2);
        // As transformers computes it, in f32.
        let power = |pair: usize, dims: usize| 1.0 / self.rope_base.powf((2 * pair) as f32 / dims as f32);
        let (inv_freq, sections): (Vec<f32>, _) = match self.family.rotation {
            None => (Vec::new(), [0; 3]),
            Some(Rotation::Halves) => {
                ((0..half).map(|pair| power(pair % quarter, half)).collect(), [0, quarter, quarter])
            }
            Some(Rotation::Alternating) => {
                let turn = |pair: usize| power(2 * (pair % quarter) + pair / quarter, dim);
                ((0..half).map(turn).collect(), [0, quarter, quarter])
            }
            Some(Rotation::Apart) => {
                ((0..half).map(|pair| power(pair % quarter, half)).collect(), [0, quarter, quarter])
            }
        };
        let axes = self.family.rotation.map(|_| Axes::new(sections, false));
        Rope { inv_freq: inv_freq.into(), style: self.rope_style, factor: 1.0, axes }
    }
}
