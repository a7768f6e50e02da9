//! How hidden states become an embedding.

use crate::engine::api::Pooling;

/// The model's own, `bn_model_info.pooling`.
pub const BN_POOLING_MODEL: i32 = 0;
/// The hidden state of the last prompt token, after the final norm.
pub const BN_POOLING_LAST: i32 = 1;
/// The mean of the hidden states of all prompt tokens.
pub const BN_POOLING_MEAN: i32 = 2;
/// The hidden state of the first prompt token.
pub const BN_POOLING_FIRST: i32 = 3;

const _: () = {
    assert!(BN_POOLING_LAST == Pooling::Last as i32);
    assert!(BN_POOLING_MEAN == Pooling::Mean as i32);
    assert!(BN_POOLING_FIRST == Pooling::First as i32);
};
