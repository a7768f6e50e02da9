//! A layer: a mixer and a feed-forward, with what stands around them.

use super::attention::SelfAttention;
use super::delta_net::GatedDelta;
use super::experts::{Both, Sparse};
use super::gated::Gated;
use super::inputs::LayerInput;
use super::inventory::{Inventory, Product};
use super::kind::{FeedForward, Mixer};
use super::latent::LatentAttention;
use super::mamba::{Beside, StateSpace};
use super::products::Update;
use super::read::LayerReader;
use super::short_conv::Convolution;
use super::step::{Residual, Step};
use crate::base::{Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::{Norm, Owned, Recurrent, Slot};

pub struct Layer {
    attn_norm: Option<Norm>,
    mixer: Box<dyn Mixer>,
    attn_sub_norm: Option<Norm>,
    /// `[hidden, width of the mixer]`.
    output: Product,
    /// A second mixer of the same inputs, whose output is added.
    beside: Option<Beside>,
    attn_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    feed_forward: Box<dyn FeedForward>,
    ffn_post_norm: Option<Norm>,
    /// The layer's own input, which is added last.
    input: Option<LayerInput>,
    /// The residual behind the layer is multiplied by it. The norm of the layer's last update holds it already.
    scale: Option<f32>,
}

impl Layer {
    /// Reads layer `index`.
    pub fn read(reader: &mut Reader, c: &DecoderConfig, index: usize, options: &LoadOptions) -> Result<Self> {
        let mut from = LayerReader { reader, c, index };
        let attn_norm = from.norm("attn_norm")?;
        let (mixer, output) = mixer(&mut from)?;
        let beside = match c.mamba.filter(|_| c.blocks[index].beside) {
            Some(mamba) => Some(Beside::read(&mut from, &mamba)?),
            None => None,
        };
        let ffn_norm = c.family.ffn_norm;
        let post_norm = Some("post_attention_norm").filter(|name| *name != ffn_norm);
        let layer = Self {
            attn_norm,
            mixer,
            attn_sub_norm: from.norm("attn_sub_norm")?,
            output,
            beside,
            attn_post_norm: post_norm.map_or(Ok(None), |name| from.norm(name))?,
            ffn_norm: from.norm(ffn_norm)?,
            feed_forward: feed_forward(&mut from, options)?,
            ffn_post_norm: from.norm("post_ffw_norm")?,
            input: c.layer_inputs.map(|width| LayerInput::read(&mut from, width)).transpose()?,
            scale: None,
        };
        layer.scaled(&mut from)
    }

    /// Adds the layer's scale, if the files have one, to the residual and to the norm of the last update.
    fn scaled(mut self, from: &mut LayerReader) -> Result<Self> {
        let Some(by) = from.scale()? else { return Ok(self) };
        let norm = self.input.as_mut().map(|input| &mut input.post_norm).or(self.ffn_post_norm.as_mut());
        let norm = norm.ok_or_else(|| Error::internal("the scale of a layer whose update has no norm"))?;
        *norm = norm.times(by);
        self.scale = Some(by).filter(|by| *by != 1.0);
        Ok(self)
    }

    pub fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        self.mixer.list(to);
        to.product(&self.output);
        self.beside.iter().for_each(|beside| beside.list(to));
        self.feed_forward.list(to);
        self.input.iter().for_each(|input| input.list(to));
        if let Some((_, net)) = self.state() {
            to.recurrent(net);
        }
        let Self { attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm, .. } = self;
        to.norms([attn_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_post_norm].into_iter().flatten());
    }

    /// The part with a state, and its index among the layers with one.
    pub fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        self.mixer.state().or(self.beside.as_ref().and_then(Beside::state))
    }

    /// Writes K and V, or the state, of the residual `x`, to which `update` is still to be added.
    pub fn append(&self, step: &Step, x: &mut Owned, update: Option<Update>) -> Result<()> {
        let mut residual = Residual { x, update, norm: self.attn_norm.as_ref() };
        self.mixer.append(step, &mut residual)?;
        self.beside.as_ref().map_or(Ok(()), |beside| beside.run(step, &mut residual).map(drop))
    }

    /// Runs the layer on `x`, to which `update` is still to be added, and returns its own update. With `wanted`, only
    /// those rows continue after the mixer. `inputs` are those of all layers, if the layers have any.
    pub fn run(
        &self,
        step: &Step,
        x: &mut Owned,
        update: Option<Update>,
        inputs: Option<&Owned>,
        wanted: Option<&[u32]>,
    ) -> Result<Update<'_>> {
        let mut residual = Residual { x, update, norm: self.attn_norm.as_ref() };
        let mut mixed = self.mixer.run(step, &mut residual)?;
        let beside = self.beside.as_ref();
        let mut second = beside.map(|beside| beside.run(step, &mut residual)).transpose()?;
        let (ops, mut products, mut own) = (step.ops, &step.all, None);
        if let Some(rows) = wanted {
            products = &step.wanted;
            mixed = ops.rows(&mixed, rows)?;
            second = second.map(|second| ops.rows(&second, rows)).transpose()?;
            *x = ops.rows(x, rows)?;
            own = inputs.map(|inputs| ops.rows(inputs, rows)).transpose()?;
        }
        let mut output = products.linear(&mixed, self.attn_sub_norm.as_ref(), &self.output)?;
        drop(mixed);
        if let (Some(second), Some(beside)) = (second, beside) {
            ops.add(&mut output, &beside.output(products, second)?, None)?;
        }
        let update = Update { rows: output, norm: self.attn_post_norm.as_ref() };
        let rows = self.feed_forward.run(ops, products, x, update, self.ffn_norm.as_ref())?;
        let mut update = Update { rows, norm: self.ffn_post_norm.as_ref() };
        if let (Some(input), Some(inputs)) = (&self.input, own.as_ref().or(inputs)) {
            update = input.run(ops, products, x, update, inputs)?;
        }
        self.scale.map_or(Ok(()), |by| ops.scale(x, by))?;
        Ok(update)
    }
}

/// The mixer of a layer, and the product of its output.
fn mixer(from: &mut LayerReader) -> Result<(Box<dyn Mixer>, Product)> {
    let (c, index) = (from.c, from.index);
    let recurrent = c.blocks[index].recurrent;
    let (mixer, name, width): (Box<dyn Mixer>, _, _) = match (c.delta, c.conv, &c.mamba, &c.latent) {
        (Some(shape), ..) if recurrent => {
            (Box::new(GatedDelta::read(from, shape)?), "ssm_out", shape.values())
        }
        (_, Some(shape), ..) if recurrent => {
            (Box::new(Convolution::read(from, shape)?), "shortconv.out_proj", shape.channels)
        }
        (.., Some(mamba), _) if recurrent => {
            (Box::new(StateSpace::read(from, mamba, Slot::Enter)?), "ssm_out", mamba.shape.inner())
        }
        (.., Some(latent)) => {
            (Box::new(LatentAttention::read(from, latent)?), "attn_output", latent.shape.values())
        }
        _ => {
            let shape = c.attention_of(index);
            (Box::new(SelfAttention::read(from)?), "attn_output", shape.heads * shape.head_dim)
        }
    };
    // Those of recurrent layers never have a bias.
    let bias = c.parts.output_bias && !recurrent;
    Ok((mixer, from.product(Slot::Output, &[(name, c.hidden)], width, bias)?))
}

fn feed_forward(from: &mut LayerReader, options: &LoadOptions) -> Result<Box<dyn FeedForward>> {
    let (c, index) = (from.c, from.index);
    let beside = c.family.experts.is_some_and(|experts| experts.beside);
    let mut made: Box<dyn FeedForward> = match c.experts.filter(|_| c.blocks[index].sparse) {
        None => Box::new(Gated::read(from)?),
        Some(experts) if beside => Box::new(Both::read(from, &experts)?),
        Some(experts) => Box::new(Sparse::read(from, &experts)?),
    };
    if options.skip_zeros {
        made.copy_columns(from)?;
    }
    Ok(made)
}
