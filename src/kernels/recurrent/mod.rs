//! Kernels of layers whose past is a state of fixed size: the gated delta rule, Mamba-2's recurrence, and the short
//! convolution before them.

pub mod conv;
pub mod delta;
pub mod mamba;
#[cfg(test)]
mod tests;
pub mod tile;
