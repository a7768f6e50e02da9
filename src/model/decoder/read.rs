//! Reads a decoder from a checkpoint, which must have all necessary tensors and no others.

use super::{Decoder, Weights, facts};
use crate::base::{Result, reserve};
use crate::model::config::{Block, DecoderConfig};
use crate::model::layers::{Layer, LayerInputs, Mtp, Product, Ropes};
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::{Projections, Site};
use std::sync::Arc;

impl Decoder {
    /// Reads a decoder, with `LoadOptions::mtp` its block of multi-token prediction too.
    pub fn read(mut from: Reader, mut c: DecoderConfig, options: &LoadOptions) -> Result<Self> {
        let (hidden, vocab) = (c.hidden, c.vocab_size);
        let embedding = from.dense("token_embd.weight", vocab, hidden)?;
        let tied = !from.has("output.weight");
        let head = if tied { embedding.clone() } else { from.dense("output.weight", vocab, hidden)? };
        let final_norm = from.norm(c.family.final_norm.1, hidden, &c)?;
        let inputs = c.layer_inputs.map(|width| LayerInputs::read(&mut from, &c, width)).transpose()?;
        let mut layers = Vec::new();
        reserve(&mut layers, c.layers, "layers")?;
        for index in 0..c.layers {
            layers.push(Layer::read(&mut from, &c, index, options)?);
        }
        let mtp = match options.mtp {
            true => {
                c.blocks.push(Block { sparse: c.experts.is_some(), ..Block::default() });
                Some(Mtp::read(&mut from, &c, &final_norm, options)?)
            }
            false => None,
        };
        let ropes = Ropes::read(&mut from, &c)?;
        let score = from.score_of(&c, &head)?;
        from.nothing_left(&c)?;
        let (mut fold, mut unfold) = (None, None);
        if let Some(rotations) = &c.rotations {
            let name = if tied { "token_embd.weight" } else { "output.weight" };
            fold = rotations.of([name].into_iter(), hidden, None, from.what())?;
            if rotations.embedding {
                unfold = Some(rotations.fold("token_embd.weight", hidden, None, from.what())?);
            }
        }
        let head = Product {
            weights: Projections { fold: fold.map(Arc::new), ..[head].into() },
            site: Site::Head,
            names: vec!["output".into()],
        };
        let head_norm = final_norm.times(1.0 / c.logit_scale);
        let weights =
            Weights { embedding, unfold, inputs, layers, mtp, final_norm, head_norm, head, ropes, score };
        let facts = facts(&c, &weights, from.other_bytes());
        Ok(Self { config: c, weights, facts })
    }
}
