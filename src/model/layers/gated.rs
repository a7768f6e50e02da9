//! Dense feed-forwards, with a gate or without.

use super::inventory::{Inventory, Product};
use super::kind::FeedForward;
use super::products::{Products, Update};
use super::read::LayerReader;
use crate::base::Result;
use crate::kernels::gemm::ternary::Columns;
use crate::model::family::Named;
use crate::ops::{Activation, Norm, OpSet, Owned, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF: of products, and of gate and up in one matrix.
pub const PRODUCTS: &[Named] =
    &[("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")];
pub const FUSED: Named = ("mlp.gate_up_proj", "ffn_up");

pub struct Gated {
    /// gate, up: `[ffn, hidden]`.
    gate_up: Product,
    sub_norm: Option<Norm>,
    /// `[hidden, ffn]`.
    down: Product,
    activation: Activation,
}

impl Gated {
    pub fn read(from: &mut LayerReader) -> Result<Self> {
        let c = from.c;
        let (ffn, bias) = (c.ffn_of(from.index), c.parts.ffn_bias);
        Ok(Self {
            gate_up: from.product(Slot::GateUp, &c.gate_up_products(ffn), c.hidden, bias)?,
            sub_norm: from.norm("ffn_sub_norm")?,
            down: from.product(Slot::Down, &[("ffn_down", c.hidden)], ffn, bias)?,
            activation: c.activation,
        })
    }
}

impl FeedForward for Gated {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.gate_up);
        to.product(&self.down);
        to.norms(&self.sub_norm);
    }

    fn run(
        &self,
        _: &dyn OpSet,
        products: &Products,
        x: &mut Owned,
        update: Update,
        norm: Option<&Norm>,
    ) -> Result<Owned> {
        let gate_up = products.add_gate_up(x, update, norm, &self.gate_up, self.activation)?;
        products.gated_linear(&gate_up, self.activation, self.sub_norm.as_ref(), &self.down)
    }

    fn copy_columns(&mut self, from: &mut LayerReader) -> Result<()> {
        if self.activation != Activation::Relu2 {
            return Err(from.no_relu2());
        }
        let [matrix] = &self.down.weights.matrices[..] else { return Ok(()) };
        if !Columns::takes(matrix.dtype) {
            return Err(from.no_zeros(&format!("its weights are {:?}", matrix.dtype)));
        }
        from.reader.hold(Columns::bytes(matrix.rows, matrix.cols))?;
        self.down.weights.columns = Some(Arc::new(Columns::new(from.reader.pool(), matrix)?));
        Ok(())
    }
}
