//! Inputs of single layers (Gemma 3n's per-layer embeddings).

use super::read::LayerReader;
use super::source::Source;
use crate::base::Result;
use crate::model::config::DecoderConfig;
use crate::model::reader::Reader;
use crate::ops::pass::{Ids, Op, Pass, Product, Reg};
use crate::ops::{Norm, Slot};

/// A layer's own input: the activation of a product of the residual `x`, times the input, goes through another product
/// and a norm. Returns the update of the residual before that norm.
pub(crate) fn of_layer(
    from: &mut LayerReader,
    pass: &mut Pass,
    width: usize,
    x: Reg,
    inputs: Reg,
) -> Result<(Reg, Norm)> {
    let (hidden, activation) = (from.c.hidden, from.c.activation);
    let gate = pass.linear(x, None, from.product(Slot::InputGate, &[("inp_gate", width)], hidden, false)?);
    let first = from.index * width;
    let gated = pass.make(|to| Op::GatedColumns { gate, inputs, from: first, activation, to });
    let rows = pass.linear(gated, None, from.product(Slot::InputOutput, &[("proj", hidden)], width, false)?);
    Ok((rows, from.norm_of("post_norm", hidden)?))
}

/// The inputs of all layers side by side, `[T, layers * width]`, for tokens with the embeddings `x`: for each token, a
/// row of a table, and a product of the embedding, of which each layer's part is normed. Both parts are halved in
/// power, and the product is divided by the root of its width.
pub(crate) fn of_all(
    reader: &mut Reader,
    c: &DecoderConfig,
    width: usize,
    pass: &mut Pass,
    x: Reg,
) -> Result<Reg> {
    let all = c.layers * width;
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let norm = reader.norm("per_layer_proj_norm", width, c)?;
    // The root is left out before the norm, so its eps is that of larger rows.
    let norm = Norm { eps: norm.eps * c.hidden as f32, ..norm.times(half) };
    let table = reader.dense("per_layer_token_embd.weight", c.vocab_size, all)?;
    let projection = reader.projections(&[("per_layer_model_proj".into(), all)], c.hidden, false, c)?;
    let inputs = pass.linear(x, None, Product::fixed(projection));
    pass.push(Op::NormParts { x: inputs, norm });
    let rows = pass.make(|to| Op::Embed { ids: Ids::Tokens, table, scale: (width as f32).sqrt() * half, to });
    pass.add(inputs, rows, None);
    Ok(inputs)
}
