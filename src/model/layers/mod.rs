//! The kinds of layers. Each file has one kind: the tensors that it reads, and the operations that it pushes to a pass.

pub mod attention;
pub mod delta_net;
pub mod experts;
pub mod gated;
pub mod inputs;
mod latent;
pub mod layer;
pub mod mamba;
pub mod mtp;
mod read;
pub mod ropes;
mod short_conv;

use crate::ops::Norm;
use crate::ops::pass::{Pass, Product, Reg};

/// The residual, as a mixer takes it.
struct Residual {
    x: Reg,
    norm: Option<Norm>,
}

impl Residual {
    /// A product of the normed residual.
    fn linear(&self, pass: &mut Pass, product: Product) -> Reg {
        pass.linear(self.x, self.norm.clone(), product)
    }
}

/// The output of a mixer.
struct Mixed {
    rows: Reg,
    /// GGUF's name of the product that makes an update of them, without its layer, and its columns.
    output: &'static str,
    width: usize,
}
