//! How hidden states become an embedding.

use super::config::choice;
use crate::base::Result;
use crate::engine::api::{EmbeddingParams, Pooling};

/// The model's own, `bn_model_info.pooling`.
pub const BN_POOLING_MODEL: u32 = 0;
/// The hidden state of the last prompt token, after the final norm.
pub const BN_POOLING_LAST: u32 = 1;
/// The mean of the hidden states of all prompt tokens.
pub const BN_POOLING_MEAN: u32 = 2;
/// The hidden state of the first prompt token.
pub const BN_POOLING_FIRST: u32 = 3;

/// As the model's folder says in its `modules.json`; without one as `BN_NORMALIZATION_UNIT`.
pub const BN_NORMALIZATION_MODEL: u32 = 0;
/// The vector as it is.
pub const BN_NORMALIZATION_NONE: u32 = 1;
/// The vector divided by its Euclidean length.
pub const BN_NORMALIZATION_UNIT: u32 = 2;

/// How a prompt becomes a vector.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_embedding_params {
    /// `BN_POOLING_*`.
    pub pooling: u32,
    /// `BN_NORMALIZATION_*`.
    pub normalization: u32,
    /// Room for later fields: 0.
    pub reserved: [u64; 2],
}

impl bn_embedding_params {
    pub(super) fn is_default(&self) -> bool {
        (self.pooling, self.normalization) == (BN_POOLING_MODEL, BN_NORMALIZATION_MODEL)
    }

    pub(super) fn as_engine(self) -> Result<EmbeddingParams> {
        let poolings = [
            (BN_POOLING_MODEL, None),
            (BN_POOLING_LAST, Some(Pooling::Last)),
            (BN_POOLING_MEAN, Some(Pooling::Mean)),
            (BN_POOLING_FIRST, Some(Pooling::First)),
        ];
        let normalizations = [
            (BN_NORMALIZATION_MODEL, None),
            (BN_NORMALIZATION_NONE, Some(false)),
            (BN_NORMALIZATION_UNIT, Some(true)),
        ];
        Ok(EmbeddingParams {
            pooling: choice("pooling", self.pooling, "BN_POOLING", &poolings)?,
            normalize: choice("normalization", self.normalization, "BN_NORMALIZATION", &normalizations)?,
            score: false,
        })
    }
}

const _: () = {
    assert!(BN_POOLING_LAST == Pooling::Last as u32);
    assert!(BN_POOLING_MEAN == Pooling::Mean as u32);
    assert!(BN_POOLING_FIRST == Pooling::First as u32);
};
