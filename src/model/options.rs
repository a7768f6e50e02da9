//! Changes to a model that a caller may ask for at load.

use crate::base::{Error, Result};

/// Type that the weights of a part are converted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// The file's type.
    #[default]
    Keep,
    /// Blocks of 32: int8 and a half-precision scale.
    Q8_0,
    /// Blocks of 32: 4 bits and a half-precision scale.
    Q4_0,
    /// BitNet's: -1, 0, 1 and a scale; only for the projections of BitNet models.
    Ternary,
    /// int8 with one scale per row, multiplied with int8 activations with one scale per token.
    Int8,
}

/// By default, everything stays as in the file. Only F32, F16 and BF16 weights can be converted; weights in blocks of
/// 4 bits or more can become `Int8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The projections of attention and feed-forward, in every layer.
    pub weights: WeightType,
    pub embedding: WeightType,
    /// If the head is the embedding's own table, that table gets the type that either field gives.
    pub head: WeightType,
    /// Path of the `kernel_config.ini` with the tilings of a GGUF file's TL1 and TL2 tensors. `None`: the one beside
    /// the file.
    pub kernel_config: Option<String>,
    /// Reads the block of multi-token prediction, which drafts tokens. `Unsupported` if the files have none.
    pub mtp: bool,
    /// Path of a GGUF file of a drafter alone, which predicts tokens from the model's hidden states. Its kind is read
    /// from the file. `InvalidArgument` with `mtp`, `Unsupported` for files of other kinds.
    pub drafter: Option<String>,
    /// Path of a GGUF file of the tower that sees pictures, for a model in a GGUF file.
    pub pictures: Option<String>,
    /// Copies down projections by columns, of which those that meet zeros are not read. `Unsupported` for models other
    /// than ternary ones with ReLU².
    pub skip_zeros: bool,
    /// Maximum bytes of weights, above which loading fails; 0: no limit.
    pub max_weight_bytes: u64,
}

impl LoadOptions {
    /// Whether some weights are converted.
    pub fn requantizes(&self) -> bool {
        [self.weights, self.embedding, self.head] != [WeightType::Keep; 3]
    }

    /// Refuses a ternary embedding or head: no model that we know was trained with one.
    pub fn check(&self) -> Result<()> {
        for (field, ty) in [("embedding_type", self.embedding), ("head_type", self.head)] {
            if ty == WeightType::Ternary {
                let message =
                    format!("{field} is ternary; only the weights of layers (weight_type) may become that");
                return Err(Error::invalid(message));
            }
        }
        Ok(())
    }
}
