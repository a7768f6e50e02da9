//! A block of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2; Qwen3-Next and Qwen3.5 have one):
//! from a token and the hidden state of the token before it, it predicts the token after it. It drafts; the layers of
//! the model verify.
//!
//! The block's K and V of a position depend on the tokens up to that position, so they are cached like any layer's. Position
//! 0 has none, as no token comes before it. Each pass of the model writes them; a draft pass computes the whole block.

use super::inventory::Inventory;
use super::layer::Layer;
use super::step::Step;
use crate::base::Result;
use crate::model::config::DecoderConfig;
use crate::model::family::Named;
use crate::model::options::LoadOptions;
use crate::model::reader::{Reader, join_of};
use crate::ops::{Norm, Owned, Projections};

/// Names of Hugging Face below `mtp.`, and of GGUF below `nextn.`, beside those of the block's layer.
pub const PARTS: &[Named] = &[
    ("fc", "eh_proj"),
    ("pre_fc_norm_embedding", "enorm"),
    ("pre_fc_norm_hidden", "hnorm"),
    ("norm", "shared_head_norm"),
];

pub struct Mtp {
    /// The norms of the token's embedding, and of the hidden state.
    norms: [Norm; 2],
    /// `[hidden, 2 hidden]`: the product of both side by side.
    join: Projections,
    layer: Layer,
    /// The norm of the block's hidden state, and the same before the head.
    pub norm: Norm,
    pub head_norm: Norm,
}

impl Mtp {
    /// `c` has a block for its layer behind those of the model.
    pub fn read(
        reader: &mut Reader,
        c: &DecoderConfig,
        final_norm: &Norm,
        options: &LoadOptions,
    ) -> Result<Self> {
        let name = |part: &str| format!("blk.{}.nextn.{part}", c.layers);
        let own_norm = name("shared_head_norm");
        let norm = match reader.has(&format!("{own_norm}.weight")) {
            true => reader.norm(&own_norm, c.hidden, c)?,
            false => final_norm.clone(),
        };
        Ok(Self {
            norms: [reader.norm(&name("enorm"), c.hidden, c)?, reader.norm(&name("hnorm"), c.hidden, c)?],
            join: [reader.matrix(&join_of(c), c.hidden, 2 * c.hidden)?].into(),
            layer: Layer::read(reader, c, c.layers, options)?,
            head_norm: norm.times(1.0 / c.logit_scale),
            norm,
        })
    }

    pub fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        self.layer.list(to);
        to.fixed(&self.join);
        to.norms(&self.norms);
        to.norms([&self.norm]);
    }

    /// The inputs of the block's layer for each row: its token's embedding, and the hidden state of the token before it.
    fn joined(&self, step: &Step, embedded: &Owned, before: &Owned) -> Result<Owned> {
        let [of_token, of_state] = &self.norms;
        let both = step.ops.beside([(embedded, of_token), (before, of_state)])?;
        step.ops.linear(&both, None, &self.join)
    }

    /// Writes the block's K and V of the batch's rows. `before` are the hidden states of the tokens before them.
    pub fn follow(&self, step: &Step, embedded: &Owned, before: &Owned) -> Result<()> {
        let mut x = self.joined(step, embedded, before)?;
        self.layer.append(step, &mut x, None)
    }

    /// The residual behind the block, which predicts the next token of each row.
    pub fn predict(&self, step: &Step, embedded: &Owned, before: &Owned) -> Result<Owned> {
        let mut x = self.joined(step, embedded, before)?;
        let update = self.layer.run(step, &mut x, None, None, None)?;
        step.ops.add(&mut x, &update.rows, update.norm)?;
        Ok(x)
    }
}
