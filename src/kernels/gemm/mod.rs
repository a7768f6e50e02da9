//! Products of activations with weights in the layouts of their files.

pub mod blocks;
pub mod dense;
mod driver;
pub mod formats;
#[cfg(test)]
pub(super) mod golden_tests;
pub mod int8;
mod lookup;
pub mod lora;
pub mod matrix;
pub(super) mod outer;
pub mod quantized;
pub mod ternary;
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) mod tiles;
pub mod tokens;
