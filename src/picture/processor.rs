//! What a model wants of a picture, as data, and the plan for a picture of some size.

use super::Filter;
use crate::base::{Error, Result};

/// A model's picture processor: transformers' image processor and the part of its processor that writes text.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    pub family: Family,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Side of a soft token in patches.
    pub merge: u32,
    pub filter: Filter,
    /// A channel's byte times this is its value; published models have 1/255.
    pub rescale: f64,
    pub normalize: Option<Normalize>,
}

/// Subtracted from values, then divided by, for red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

/// How sizes are chosen, and what stands in the prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// Qwen 2 VL to 3.5: sides are multiples of a soft token's, and pixels are between two bounds.
    Qwen {
        min_pixels: u64,
        max_pixels: u64,
        /// Frames of a patch; a picture is repeated for each.
        frames: u32,
    },
    /// Gemma 3, without pan and scan: one size for all.
    Gemma3 {
        width: u32,
        height: u32,
    },
    /// Idefics 3 and SmolVLM: tiles, and the whole picture in the size of a tile.
    Idefics3 {
        /// The longer side before it is rounded up to tiles.
        longest: u32,
        /// Side of a tile in pixels.
        tile: u32,
        /// False: only the whole picture.
        split: bool,
    },
    /// Pixtral and Mistral 3: smaller than a square, sides are multiples of a soft token's.
    Pixtral {
        width: u32,
        height: u32,
    },
    Lfm2(Lfm2),
    /// Gemma 4: as many soft tokens as the bound allows.
    Gemma4 {
        max_tokens: u32,
    },
}

/// LFM2-VL: one part, or for large pictures tiles and the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lfm2 {
    /// Bounds of the soft tokens of a picture that is not split, and of the whole beside tiles.
    pub min_tokens: u32,
    pub max_tokens: u32,
    /// A picture with more than `max_tokens` times this is split.
    pub tolerance: f64,
    /// Side of a tile in pixels.
    pub tile: u32,
    /// Bounds of the number of tiles; both 1: pictures are never split.
    pub min_tiles: u32,
    pub max_tiles: u32,
    /// The whole stands after the tiles.
    pub thumbnail: bool,
    /// Tokens mark beginning, tiles, whole and end.
    pub marked: bool,
}

/// Rows and columns of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub rows: u32,
    pub cols: u32,
}

impl Grid {
    pub fn patches(&self) -> usize {
        self.rows as usize * self.cols as usize
    }
}

/// A part of what takes a placeholder's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// The next `rows * cols` vectors of the tower for this picture, row by row.
    Vectors {
        rows: u32,
        cols: u32,
    },
}

/// What becomes of a picture with a certain size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What takes the placeholder's place.
    pub pieces: Vec<Piece>,
    /// The patches of each part that the tower sees, in the order of `pieces`.
    pub grids: Vec<Grid>,
    /// Width and height of the picture.
    pub(super) source: (u32, u32),
    pub(super) images: Vec<Resized>,
    /// For each grid: the number of its image (0 is the picture, n is `images[n - 1]`), and its left and top in it.
    pub(super) parts: Vec<(usize, u32, u32)>,
}

/// An image that is made by resizing another: 0 is the picture, n is `images[n - 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resized {
    pub of: usize,
    pub width: u32,
    pub height: u32,
}

impl Plan {
    /// Number of patches.
    pub fn patches(&self) -> usize {
        self.grids.iter().map(Grid::patches).sum()
    }

    /// Width and height of an image: 0 is the picture, n is `images[n - 1]`.
    pub(super) fn size(&self, image: usize) -> (u32, u32) {
        match image.checked_sub(1).map(|n| &self.images[n]) {
            Some(image) => (image.width, image.height),
            None => self.source,
        }
    }

    /// Number of soft tokens.
    pub fn vectors(&self) -> usize {
        let of = |piece: &Piece| match piece {
            Piece::Text(_) => 0,
            Piece::Vectors { rows, cols } => *rows as usize * *cols as usize,
        };
        self.pieces.iter().map(of).sum()
    }
}

impl Processor {
    /// Number of values of a patch.
    pub fn patch_len(&self) -> usize {
        let frames = match self.family {
            Family::Qwen { frames, .. } => frames as usize,
            _ => 1,
        };
        3 * frames * (self.patch as usize).pow(2)
    }

    /// The text that chat templates render for a picture.
    pub fn placeholder(&self) -> &'static str {
        match self.family {
            Family::Qwen { .. } => "<|image_pad|>",
            Family::Gemma3 { .. } => "<start_of_image>",
            Family::Idefics3 { .. } | Family::Lfm2(_) => "<image>",
            Family::Pixtral { .. } => "[IMG]",
            Family::Gemma4 { .. } => "<|image|>",
        }
    }

    /// The text that `Piece::Vectors` stand for where the model's own processor writes a text.
    pub fn soft_token(&self) -> &'static str {
        match self.family {
            Family::Gemma3 { .. } => "<image_soft_token>",
            _ => self.placeholder(),
        }
    }

    /// The most patches of a picture.
    pub fn most_patches(&self) -> usize {
        let cell = u64::from(self.patch) * u64::from(self.patch);
        let pixels = match self.family {
            Family::Qwen { max_pixels, .. } => max_pixels,
            Family::Gemma3 { width, height } => u64::from(width) * u64::from(height),
            Family::Pixtral { width, height } => {
                let whole = |side: u32| {
                    u64::from(side).next_multiple_of(u64::from(self.patch) * u64::from(self.merge))
                };
                whole(width) * whole(height)
            }
            // The tiles of the longest side, and the whole.
            Family::Idefics3 { longest, tile, .. } => {
                (u64::from(longest.div_ceil(tile)).pow(2) + 1) * u64::from(tile).pow(2)
            }
            Family::Lfm2(own) => {
                let tiles = u64::from(own.max_tiles) * u64::from(own.tile).pow(2);
                return (tiles / cell) as usize + own.max_tokens as usize * (self.merge as usize).pow(2);
            }
            Family::Gemma4 { max_tokens } => return max_tokens as usize * (self.merge as usize).pow(2),
        };
        (pixels / cell) as usize
    }

    /// The most soft tokens of a picture.
    pub fn most_tokens(&self) -> u32 {
        let group = (self.merge as usize).pow(2).max(1);
        u32::try_from(self.most_patches() / group).unwrap_or(u32::MAX)
    }

    /// The same for pictures of at most `tokens` soft tokens, where pictures may be made smaller.
    pub fn bounded(mut self, tokens: u32) -> Self {
        let tokens = tokens.max(1);
        match &mut self.family {
            Family::Qwen { min_pixels, max_pixels, .. } => {
                let side = u64::from(self.patch) * u64::from(self.merge);
                *max_pixels = (*max_pixels).min(u64::from(tokens) * side * side);
                *min_pixels = (*min_pixels).min(*max_pixels);
            }
            Family::Gemma4 { max_tokens } => *max_tokens = (*max_tokens).min(tokens),
            _ => {}
        }
        self
    }

    /// Checks that sizes are positive and fit each other. `InvalidArgument` names the field.
    pub fn check(&self) -> Result<()> {
        let positive = |name: &str, value: u32| match value {
            1..=65536 => Ok(()),
            _ => Err(Error::invalid(format!("{name} = {value} of a picture processor is out of range"))),
        };
        positive("patch", self.patch)?;
        positive("merge", self.merge)?;
        let cell = u64::from(self.patch) * u64::from(self.merge);
        let cells = |name: &str, side: u32| match u64::from(side) % cell {
            0 if side > 0 => positive(name, side),
            _ => Err(Error::invalid(format!(
                "{name} = {side} of a picture processor is no multiple of {cell}"
            ))),
        };
        match self.family {
            Family::Qwen { min_pixels, max_pixels, frames } => {
                positive("frames", frames)?;
                if min_pixels == 0
                    || max_pixels < min_pixels
                    || max_pixels < cell * cell
                    || max_pixels > 1 << 32
                {
                    let bounds = format!("{min_pixels} to {max_pixels}");
                    return Err(Error::invalid(format!(
                        "{bounds} pixels of a picture processor are no bounds"
                    )));
                }
                Ok(())
            }
            Family::Gemma3 { width, height } => cells("width", width).and(cells("height", height)),
            Family::Idefics3 { longest, tile, .. } => positive("longest", longest).and(cells("tile", tile)),
            Family::Pixtral { width, height } => positive("width", width).and(positive("height", height)),
            Family::Lfm2(lfm2) => lfm2.check().and(cells("tile", lfm2.tile)),
            Family::Gemma4 { max_tokens } => positive("max_tokens", max_tokens),
        }
    }
}

impl Lfm2 {
    fn check(&self) -> Result<()> {
        let ranges = [
            ("tokens", self.min_tokens, self.max_tokens, 1 << 16),
            ("tiles", self.min_tiles, self.max_tiles, 1 << 6),
        ];
        for (name, min, max, most) in ranges {
            if min == 0 || max < min || max > most {
                let bounds = format!("{min} to {max}");
                return Err(Error::invalid(format!("{bounds} {name} of a picture processor are no bounds")));
            }
        }
        if !(self.tolerance > 0.0 && self.tolerance.is_finite()) {
            let tolerance = self.tolerance;
            return Err(Error::invalid(format!(
                "tolerance = {tolerance} of a picture processor is out of range"
            )));
        }
        Ok(())
    }
}
