//! The families of vision towers as data. Which biases and norms a layer has, and whether q, k and v are one matrix, is
//! read off a file's tensors.

use crate::ops::Activation;

mod gemma;
mod pixtral;
mod qwen;
mod siglip;

/// The differences between families.
#[derive(Debug)]
pub(crate) struct TowerFamily {
    /// `clip.projector_type` in GGUF.
    pub gguf: &'static str,
    /// `model_type` in the `config.json` of the whole model.
    pub hf: &'static [&'static str],
    /// The keys in folders of the token of soft tokens.
    pub token_keys: &'static [&'static str],
    /// RMSNorm in place of LayerNorm.
    pub rms_norms: bool,
    /// Of feed-forwards, if files do not say.
    pub activation: Activation,
    /// The order of the patches that a picture is given as.
    pub order: Order,
    /// Elements of a patch are by row, column and color, instead of color, frame, row and column.
    pub colors_last: bool,
    /// What patches become before the first product: `by * x + plus`.
    pub input: [f32; 2],
    pub positions: Positions,
    pub rotation: Option<Rotation>,
    /// The eps of norms, where files do not say.
    pub eps: f32,
    /// Scores are not divided by the square root of the head's size, q and k are normed, and so is v, without weights.
    pub normed_heads: bool,
    /// The norm of patches after the last layer.
    pub last_norm: Option<&'static str>,
    /// Patches that become a soft token: one after the other in its row, or their average.
    pub merge: Merge,
    pub projector: Projector,
    pub folder: Names,
    pub sizes: Sizes,
}

/// An order of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By rows of the picture.
    Rows,
    /// Those that become a soft token after each other, by rows of soft tokens.
    Tokens,
}

/// How patches are told apart before the first layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Positions {
    None,
    /// A square table, whose corners are the picture's, with linear weights between its rows.
    Corners,
    /// A square table: each patch has the row below its place.
    Nearest,
    /// A square table, resized as a picture is: with triangles as wide as the coarser of both grids.
    Resized,
    /// Two tables, of columns and then of rows.
    Sides,
}

/// How q and k are rotated by a patch's row and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// The first half of the pairs by the row, the other by the column, both with the same frequencies.
    Halves,
    /// The same, with every other frequency for each.
    Alternating,
    /// The first half of a head by the column, the other by the row, each a head of its own.
    Apart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    Beside,
    Average,
}

/// What makes soft tokens of merged patches.
#[derive(Debug)]
pub(crate) struct Projector {
    /// The norm of merged patches. `None`: there is none.
    pub norm: Option<ProjectorNorm>,
    /// Factor on them before that.
    pub root_of_width: bool,
    /// Products by GGUF's names, with the activation between the last two.
    pub products: &'static [(&'static str, Width)],
    pub activation: Activation,
    /// The columns of the first are in the order of the elements of patches, and of the patches within that.
    pub by_element: bool,
    /// In folders and in GGUF, the last has a column for each of its outputs.
    pub transposed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProjectorNorm {
    /// By GGUF's name. In folders this is added to its weights.
    Rms(&'static str, f32),
    /// RMSNorm without weights.
    Bare,
    /// LayerNorm with an eps of its own, which files may lack.
    Layer(&'static str, f32),
}

/// Rows of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// As wide as its input.
    Same,
    /// The tower's.
    Hidden,
    /// `TowerConfig::inner`.
    Inner,
    /// The language model's.
    Model,
}

/// Names of tensors in folders, with GGUF's.
#[derive(Debug)]
pub(crate) struct Names {
    /// How names of the tower begin, the longest first.
    pub tower: &'static [&'static str],
    /// How those of its layers go on.
    pub layer: &'static str,
    pub in_layer: &'static [(&'static str, &'static str)],
    pub outside: &'static [(&'static str, &'static str)],
    /// How names of the projector begin.
    pub projector: &'static [&'static str],
    pub in_projector: &'static [(&'static str, &'static str)],
    /// Beginnings of names, behind the tower's, that belong to other tasks or are no weights.
    pub ignored: &'static [&'static str],
}

/// The keys of a folder's sizes, and their defaults: those of transformers' classes.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub patch: usize,
    pub image: usize,
    pub act_key: &'static str,
    pub eps_key: &'static str,
    /// Older names of keys in `vision_config`.
    pub older_keys: &'static [(&'static str, &'static str)],
    /// The key of the number of frames in a patch. `None`: one.
    pub frames: Option<&'static str>,
    pub merge: MergeKey,
    pub positions: PositionKey,
    pub rope_base: f32,
    /// The key of `Width::Inner`, in the file outside of `vision_config`.
    pub inner: Option<(&'static str, usize)>,
    /// The key of the projector's activation there.
    pub projector_act: Option<&'static str>,
    /// The eps of the projector's norm is the language model's.
    pub model_eps: bool,
}

/// Where a folder says how many patches, in a row, become a soft token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MergeKey {
    /// In `vision_config`.
    Vision(&'static str, usize),
    /// Outside of it.
    Model(&'static str, usize),
    /// By the number of soft tokens of a picture, which is outside.
    Tokens(&'static str, usize),
}

/// Where a folder says how long the table of positions is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PositionKey {
    None,
    /// A key of `vision_config`.
    Key(&'static str, usize),
    /// By the sizes of the picture and of a patch.
    Image,
}

pub(crate) static TOWERS: &[&TowerFamily] =
    &[&qwen::QWEN35, &gemma::GEMMA3, &gemma::GEMMA4, &siglip::IDEFICS3, &siglip::LFM2, &pixtral::PIXTRAL];

impl TowerFamily {
    pub(crate) fn of_gguf(projector: &str) -> Option<&'static Self> {
        TOWERS.iter().find(|family| family.gguf == projector).copied()
    }

    pub(crate) fn of_hf(model_type: &str) -> Option<&'static Self> {
        TOWERS.iter().find(|family| family.hf.contains(&model_type)).copied()
    }
}

impl Names {
    /// GGUF's name of a folder's tensor. `None` if it is not part of the tower or of its projector.
    pub(crate) fn canonical(&self, name: &str) -> Option<String> {
        let behind = |starts: &[&str]| starts.iter().find_map(|start| name.strip_prefix(start));
        if let Some(part) = behind(self.projector) {
            return find(self.in_projector, part);
        }
        let name = behind(self.tower)?;
        match name.strip_prefix(self.layer).and_then(|rest| rest.split_once('.')) {
            Some((index, part)) if index.parse::<u32>().is_ok_and(|n| n.to_string() == index) => {
                Some(format!("v.blk.{index}.{}", find(self.in_layer, part)?))
            }
            _ => find(self.outside, name),
        }
    }

    /// Whether the tensor belongs to the tower or its projector.
    pub(crate) fn has(&self, name: &str) -> bool {
        let behind = self.tower.iter().find_map(|start| name.strip_prefix(start));
        let ignored = |name: &str| self.ignored.iter().any(|start| name.starts_with(start));
        behind.is_some_and(|name| !ignored(name))
            || self.projector.iter().any(|start| name.starts_with(start))
    }
}

/// The GGUF name of a whole one, or of one without its kind.
fn find(table: &[(&str, &str)], name: &str) -> Option<String> {
    let of = |part: &str| table.iter().find(|(own, _)| *own == part).map(|(_, gguf)| *gguf);
    of(name).map(str::to_owned).or_else(|| {
        let (part, kind) = name.rsplit_once('.')?;
        Some(format!("{}.{kind}", of(part)?))
    })
}
