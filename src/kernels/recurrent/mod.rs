//! Kernels of layers whose past is a state of fixed size: the gated delta rule and the short convolution before it.

pub mod conv;
pub mod delta;
