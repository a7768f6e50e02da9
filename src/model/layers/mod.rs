//! The kinds of layers. Each file has one kind: the tensors that it reads, and the operations that it pushes to a pass.

pub(super) mod attention;
pub(super) mod delta_net;
pub(super) mod eagle;
pub(super) mod ends;
pub(super) mod experts;
pub(super) mod gated;
pub(super) mod heads;
pub(super) mod inputs;
mod latent;
pub(super) mod layer;
pub(super) mod mamba;
pub(super) mod mtp;
mod read;
pub(super) mod recurrent;
pub(super) mod ropes;
pub(super) mod short_conv;
mod source;
pub(super) mod tensors;

use crate::ops::Norm;
use crate::ops::pass::{Pass, Product, Reg};

/// The residual, as a mixer takes it.
pub(crate) struct Residual {
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
pub(crate) struct Mixed {
    rows: Reg,
    /// GGUF's name of the product that makes an update of them, without its layer, and its columns.
    output: &'static str,
    width: usize,
}
