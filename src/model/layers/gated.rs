//! Dense feed-forwards, with a gate or without.

use super::read::LayerReader;
use super::source::Source;
use super::tensors::{Add, products};
use crate::base::Result;
use crate::kernels::gemm::ternary::Columns;
use crate::model::config::DecoderConfig;
use crate::model::family::Named;
use crate::ops::pass::{Op, Pass, Product, Reg};
use crate::ops::{Activation, Norm, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF: of products, and of gate and up in one matrix.
pub(crate) const PRODUCTS: &[Named] =
    &[("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")];
pub(crate) const FUSED: Named = ("mlp.gate_up_proj", "ffn_up");

pub(crate) fn feed_forward(
    from: &mut LayerReader,
    pass: &mut Pass,
    x: Reg,
    norm: Option<Norm>,
) -> Result<Reg> {
    let (c, activation) = (from.c, from.c.activation);
    let (ffn, bias) = (c.ffn_of(from.index), c.parts.ffn_bias);
    let gate_up = from.product(Slot::GateUp, &c.gate_up_products(ffn), c.hidden, bias)?;
    let sub_norm = from.norm("ffn_sub_norm")?;
    let mut down = from.product(Slot::Down, &[("ffn_down", c.hidden)], ffn, bias)?;
    if from.options.skip_zeros {
        copy_columns(from, &mut down)?;
    }
    let gate_up = pass.linear(x, norm, gate_up);
    let gated = pass.make(|to| Op::Gated { x: gate_up, activation, to });
    Ok(pass.linear(gated, sub_norm, down))
}

/// Copies the last product by columns, for inputs with many zeros.
fn copy_columns(from: &mut LayerReader, down: &mut Product) -> Result<()> {
    if from.c.activation != Activation::Relu2 {
        return Err(from.no_relu2());
    }
    let [matrix] = &down.weights.matrices[..] else { return Ok(()) };
    if !Columns::takes(matrix.dtype) {
        return Err(from.no_zeros(&format!("its weights are {:?}", matrix.dtype)));
    }
    from.reader.hold(Columns::bytes(matrix.rows, matrix.cols))?;
    down.weights.columns = Some(Arc::new(Columns::new(from.reader.pool(), matrix)?));
    Ok(())
}

/// Adds the tensors of a layer.
pub(super) fn tensors(c: &DecoderConfig, add: &mut Add) {
    let bias = c.parts.ffn_bias;
    products(c, &c.gate_up_products(c.ffn), c.hidden, bias, &|_| None, add);
    products(c, &[("ffn_down", c.hidden)], c.ffn, bias, &|_| None, add);
}
