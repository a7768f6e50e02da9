//! Functions of single rows of activations: norms, gates, rope, rounding to int8.

pub mod cap;
pub mod elementwise;
pub mod exp;
pub mod hadamard;
pub mod logits;
pub mod norm;
pub mod places;
pub mod quantize;
pub mod quantize_blocks;
pub mod rope;
pub mod softmax;
pub mod softplus;
