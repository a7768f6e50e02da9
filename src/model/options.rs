//! What a caller may change about a model as it is loaded.

use crate::base::{Error, Result};

/// What the weights of a part become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// As the file has them.
    #[default]
    Keep,
    /// Blocks of 32: int8 and a half-precision scale.
    Q8_0,
    /// Blocks of 32: 4 bits and a half-precision scale.
    Q4_0,
    /// BitNet's: -1, 0, 1 and a scale; the projections of BitNet models only.
    Ternary,
    /// int8 with a scale for each row, multiplied with int8 activations with a scale for each token.
    Int8,
}

/// All of a file's own by default. Only F32, F16 and BF16 weights become something else; those in blocks of 4 bits or more
/// may become `Int8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The projections of attention and feed-forward, in every layer.
    pub weights: WeightType,
    pub embedding: WeightType,
    /// Where it is the embedding's own table, that table becomes what either says.
    pub head: WeightType,
    /// The `kernel_config.ini` that says how a GGUF file's TL1 and TL2 tensors are tiled; None: the one beside it.
    pub kernel_config: Option<String>,
    /// Loading is given up where the weights take more bytes; 0: no limit.
    pub max_weight_bytes: u64,
}

impl LoadOptions {
    /// Some weights become something else.
    pub fn requantizes(&self) -> bool {
        [self.weights, self.embedding, self.head] != [WeightType::Keep; 3]
    }

    /// Refuses what no model can become: quantizing the inputs of an embedding or a head to int8 is nothing that one was
    /// trained for.
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
