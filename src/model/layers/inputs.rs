//! Inputs of single layers (Gemma 3n's per-layer embeddings).

use super::inventory::{Inventory, Product};
use super::products::{Products, Update};
use super::read::LayerReader;
use super::step::Step;
use crate::base::Result;
use crate::kernels::Matrix;
use crate::model::config::DecoderConfig;
use crate::model::reader::Reader;
use crate::ops::{Activation, Norm, OpSet, Owned, Projections, Slot};

/// How a layer takes its own input: the activation of a product of the residual, times the input, goes through another
/// product and a norm.
pub struct LayerInput {
    /// `[width, hidden]`.
    gate: Product,
    /// `[hidden, width]`.
    output: Product,
    pub post_norm: Norm,
    activation: Activation,
    /// Its first column among those of all layers.
    first: usize,
}

/// The inputs of all layers: for each token, a row of a table, and a product of the token's embedding, of which each
/// layer's part is normed.
pub struct LayerInputs {
    /// `[vocab, layers * width]`.
    table: Matrix,
    scale: f32,
    /// `[layers * width, hidden]`.
    projection: Projections,
    /// As wide as a layer's input.
    norm: Norm,
}

impl LayerInput {
    pub fn read(from: &mut LayerReader, width: usize) -> Result<Self> {
        let hidden = from.c.hidden;
        Ok(Self {
            gate: from.product(Slot::InputGate, &[("inp_gate", width)], hidden, false)?,
            output: from.product(Slot::InputOutput, &[("proj", hidden)], width, false)?,
            post_norm: from.norm_of("post_norm", hidden)?,
            activation: from.c.activation,
            first: from.index * width,
        })
    }

    pub fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.gate);
        to.product(&self.output);
        to.norms([&self.post_norm]);
    }

    /// Adds `update` to the residual `x`, and returns the next one.
    pub fn run(
        &self,
        ops: &dyn OpSet,
        products: &Products,
        x: &mut Owned,
        update: Update,
        inputs: &Owned,
    ) -> Result<Update<'_>> {
        ops.add(x, &update.rows, update.norm)?;
        drop(update);
        let gate = products.linear(x, None, &self.gate)?;
        let gated = ops.gated_columns(&gate, inputs, self.first, self.activation)?;
        Ok(Update { rows: products.linear(&gated, None, &self.output)?, norm: Some(&self.post_norm) })
    }
}

impl LayerInputs {
    /// Both parts are halved in power, and the product is divided by the root of its width.
    pub fn read(reader: &mut Reader, c: &DecoderConfig, width: usize) -> Result<Self> {
        let all = c.layers * width;
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let norm = reader.norm("per_layer_proj_norm", width, c)?;
        // The root is left out before the norm, so its eps is that of larger rows.
        let norm = Norm { eps: norm.eps * c.hidden as f32, ..norm.times(half) };
        Ok(Self {
            table: reader.dense("per_layer_token_embd.weight", c.vocab_size, all)?,
            scale: (width as f32).sqrt() * half,
            projection: reader.projections(&[("per_layer_model_proj".into(), all)], c.hidden, false, c)?,
            norm,
        })
    }

    pub fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.table(&self.table);
        to.fixed(&self.projection);
        to.norms([&self.norm]);
    }

    /// The inputs side by side, `[T, layers * width]`, for tokens with the embeddings `x`.
    pub fn run(&self, step: &Step, x: &Owned) -> Result<Owned> {
        let mut inputs = step.ops.linear(x, None, &self.projection)?;
        step.ops.norm_parts(&mut inputs, &self.norm)?;
        let rows = step.ops.embed(step.paging.batch, &self.table, self.scale)?;
        step.ops.add(&mut inputs, &rows, None)?;
        Ok(inputs)
    }
}
