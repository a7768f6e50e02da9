//! A layer: a mixer and a feed-forward, with their norms and residuals.

use super::inputs;
use super::read::LayerReader;
use super::source::Source;
use super::tensors::{Add, Kind};
use super::{Mixed, Residual, attention, experts, gated, latent};
use crate::base::{Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::family::Family;
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::pass::{Op, Pass, Reg};
use crate::ops::{Norm, Slot};

/// Reads layer `index` and pushes its operations, which update the residual `x`. `inputs` are those of all layers, if
/// the layers have any. Behind the last layer's mixer the wanted rows alone go on.
pub(crate) fn read(
    reader: &mut Reader,
    c: &DecoderConfig,
    index: usize,
    options: &LoadOptions,
    pass: &mut Pass,
    x: Reg,
    inputs: Option<Reg>,
) -> Result<()> {
    let mut from = LayerReader { reader, c, index, options };
    let from = &mut from;
    pass.push(Op::Check);
    let of = Residual { x, norm: from.norm("attn_norm")? };
    let mixed = mixer(from, pass, &of)?;
    let beside = c.recurrent.as_ref().filter(|_| c.blocks[index].beside);
    let beside = beside.map(|second| second.push(from, pass, Slot::Beside, &of)).transpose()?;
    if index + 1 == c.layers {
        let wanted = [Some(mixed.rows), beside.as_ref().map(|second| second.rows), Some(x), inputs];
        wanted.into_iter().flatten().for_each(|x| pass.push(Op::Want { x }));
    }
    let update = output(from, pass, &mixed, beside)?;
    let ffn_norm = c.family.ffn_norm;
    let post_norm = Some("post_attention_norm").filter(|name| *name != ffn_norm);
    let post_norm = post_norm.map_or(Ok(None), |name| from.norm(name))?;
    pass.add(x, update, post_norm);
    let norm = from.norm(ffn_norm)?;
    let mut update = feed_forward(from, pass, x, norm)?;
    let mut post_norm = from.norm("post_ffw_norm")?;
    if let (Some(width), Some(inputs)) = (c.layer_inputs, inputs) {
        pass.add(x, update, post_norm);
        let (rows, norm) = inputs::of_layer(from, pass, width, x, inputs)?;
        (update, post_norm) = (rows, Some(norm));
    }
    let post_norm = scaled(from, pass, x, post_norm)?;
    pass.add(x, update, post_norm);
    Ok(())
}

/// Scales the residual by the layer's factor, if the files have one, and returns the norm of its last update with it.
fn scaled(from: &mut LayerReader, pass: &mut Pass, x: Reg, norm: Option<Norm>) -> Result<Option<Norm>> {
    let Some(by) = from.scale()? else { return Ok(norm) };
    if by != 1.0 {
        pass.push(Op::Scale { x, by });
    }
    let norm = norm.ok_or_else(|| Error::internal("the scale of a layer whose update has no norm"))?;
    Ok(Some(norm.times(by)))
}

fn mixer(from: &mut LayerReader, pass: &mut Pass, of: &Residual) -> Result<Mixed> {
    let c = from.c;
    match (&c.recurrent, &c.latent) {
        (Some(mixer), _) if c.blocks[from.index].recurrent => mixer.push(from, pass, Slot::Enter, of),
        (_, Some(latent)) => latent::mix(from, pass, latent, of),
        _ => attention::mix(from, pass, of),
    }
}

/// The update of the residual by the mixer, and by a second one of the same inputs.
pub(super) fn output(
    from: &mut LayerReader,
    pass: &mut Pass,
    mixed: &Mixed,
    beside: Option<Mixed>,
) -> Result<Reg> {
    let (c, hidden) = (from.c, from.c.hidden);
    // Outputs of recurrent layers never have a bias.
    let bias = c.parts.output_bias && !c.blocks[from.index].recurrent;
    let product = from.product(Slot::Output, &[(mixed.output, hidden)], mixed.width, bias)?;
    let update = pass.linear(mixed.rows, from.norm("attn_sub_norm")?, product);
    if let Some(second) = beside {
        let product = from.product(Slot::BesideOutput, &[(second.output, hidden)], second.width, false)?;
        let second = pass.linear(second.rows, None, product);
        pass.add(update, second, None);
    }
    Ok(update)
}

fn feed_forward(from: &mut LayerReader, pass: &mut Pass, x: Reg, norm: Option<Norm>) -> Result<Reg> {
    let c = from.c;
    let beside = c.family.experts.is_some_and(|experts| experts.beside);
    match c.experts.filter(|_| c.blocks[from.index].sparse) {
        None => gated::feed_forward(from, pass, x, norm),
        Some(e) if beside => experts::both(from, pass, &e, x, norm),
        Some(e) => experts::sparse(from, pass, &e, x, norm),
    }
}

/// Adds the tensors of layer `index` in files of `family`. `turn`: the rows of q and k are reordered.
pub(crate) fn tensors(c: &DecoderConfig, index: usize, family: &Family, turn: bool, add: &mut Add) {
    let norms = c.norms.iter().filter(|part| c.has_norm(index, part));
    for (part, len) in norms.filter_map(|part| Some((part, c.norm_width(part)?))) {
        add(format!("{part}.weight"), Kind::Norm { len, offset: c.norm_offset });
        if c.family.layer_norms {
            add(format!("{part}.bias"), Kind::Bias { len, heads: None });
        }
    }
    match c.recurrent.as_ref().filter(|_| c.blocks[index].recurrent) {
        Some(mixer) => mixer.write_tensors(c, family, add),
        None => attention::tensors(c, turn, add),
    }
    match c.experts.filter(|_| c.blocks[index].sparse) {
        Some(e) => experts::tensors(c, &e, add),
        None => gated::tensors(c, add),
    }
}
