//! Reads a decoder from a checkpoint, which must have all necessary tensors and no others.

use super::{Decoder, facts_of, states};
use crate::base::Result;
use crate::model::Facts;
use crate::model::config::{Block, DecoderConfig};
use crate::model::layers::mtp::Mtp;
use crate::model::layers::{inputs, layer, ropes};
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::pass::{Ids, Op, Pass, Product, Program, Reg};
use crate::ops::{Norm, Projections, Site};
use std::sync::Arc;

impl Decoder {
    /// Reads a decoder, with `LoadOptions::mtp` its block of multi-token prediction too.
    pub(crate) fn read(mut from: Reader, mut c: DecoderConfig, options: &LoadOptions) -> Result<Self> {
        let (hidden, vocab) = (c.hidden, c.vocab_size);
        let embedding = from.dense("token_embd.weight", vocab, hidden)?;
        let tied = !from.has("output.weight");
        let head = if tied { embedding.clone() } else { from.dense("output.weight", vocab, hidden)? };
        let final_norm = from.norm(c.family.final_norm.1, hidden, &c)?;
        let (mut fold, mut unfold) = (None, None);
        if let Some(rotations) = &c.rotations {
            let name = if tied { "token_embd.weight" } else { "output.weight" };
            fold = rotations.of([name].into_iter(), hidden, None, from.what())?;
            if rotations.embedding {
                unfold = Some(Arc::new(rotations.fold("token_embd.weight", hidden, None, from.what())?));
            }
        }
        let (scale, given) = (c.embedding_scale / c.residual_scale, 1.0 / c.residual_scale);
        let embed = |pass: &mut Pass| {
            let x = pass.make(|to| Op::Embed { ids: Ids::Tokens, table: embedding.clone(), scale, to });
            unfold.iter().for_each(|fold| pass.push(Op::Unfold { x, fold: fold.clone() }));
            pass.push(Op::Replace { x, scale: given });
            x
        };
        let mut pass = Pass::default();
        let x = embed(&mut pass);
        let width = c.layer_inputs;
        let inputs = width.map(|width| inputs::of_all(&mut from, &c, width, &mut pass, x)).transpose()?;
        for index in 0..c.layers {
            layer::read(&mut from, &c, index, options, &mut pass, x, inputs)?;
        }
        let mut block = None;
        if options.mtp {
            c.blocks.push(Block { sparse: c.experts.is_some(), ..Block::default() });
            let made = Mtp::read(&mut from, &c, &final_norm, options, &embed)?;
            follow(&mut pass, x, &final_norm, &made);
            block = Some(made);
        }
        let ropes = ropes::read(&mut from, &c)?;
        let score = from.score_of(&c, &head)?;
        from.nothing_left(&c)?;
        let head = Arc::new(Product {
            weights: Projections { fold: fold.map(Arc::new), ..[head].into() },
            site: Some(Site::Head),
            names: vec!["output".into()],
        });
        results(&mut pass, &c, x, &final_norm, &head);
        let draft = block.map(|Mtp { mut pass, before, output, norm }| {
            results(&mut pass, &c, output, &norm, &head);
            Program::new(&pass, &[before], true)
        });
        let (forward, append) = (Program::new(&pass, &[], true)?, Program::new(&pass, &[], false)?);
        let draft = draft.transpose()?;
        let states = states(&forward, if draft.is_some() { hidden } else { 0 });
        let facts = Facts::default();
        let mut decoder = Self { forward, append, draft, ropes, score, states, facts, config: c };
        decoder.facts = facts_of(&decoder, from.other_bytes())?;
        Ok(decoder)
    }
}

/// Pushes what makes the results of a pass, after which the residual is `x`.
fn results(pass: &mut Pass, c: &DecoderConfig, x: Reg, norm: &Norm, head: &Arc<Product>) {
    pass.push(Op::Check);
    pass.push(Op::Hidden { x, norm: Some(norm.clone()) });
    let (scaled, product, cap) = (norm.times(1.0 / c.logit_scale), head.clone(), c.logit_cap);
    pass.make(|rows| Op::Head { x, rows, norm: Some(scaled), product, cap });
}

/// Pushes what writes a block's K and V of the batch's rows, after which the residual is `x`.
fn follow(pass: &mut Pass, x: Reg, final_norm: &Norm, block: &Mtp) {
    pass.push(Op::Check);
    let hidden = pass.make(|to| Op::Norm { x, norm: final_norm.clone(), to });
    let before = pass.make(|to| Op::Shift { x: hidden, to });
    pass.append(&block.pass, [block.before, before]);
}
