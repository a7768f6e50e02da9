//! Reads a decoder from a checkpoint, which must have all necessary tensors and no others.

use super::{Decoder, facts_of, states};
use crate::base::Result;
use crate::model::Facts;
use crate::model::config::DecoderConfig;
use crate::model::drafter::Drafter;
use crate::model::layers::ends::Ends;
use crate::model::layers::mtp::{self, Mtp};
use crate::model::layers::{inputs, layer, ropes};
use crate::model::options::LoadOptions;
use crate::model::reader::Reader;
use crate::ops::Norm;
use crate::ops::pass::{Op, Pass, Program, Reg};

impl Decoder {
    /// Reads a decoder, with `LoadOptions::mtp` its block of multi-token prediction too, or that of `drafter`.
    pub(crate) fn read(
        mut from: Reader,
        mut c: DecoderConfig,
        options: &LoadOptions,
        drafter: Option<&Drafter>,
    ) -> Result<Self> {
        from.expect(drafter.map_or(0, Drafter::tensor_bytes));
        let ends = Ends::read(&mut from, &c)?;
        let mut pass = Pass::default();
        let x = ends.embed(&mut pass);
        let width = c.layer_inputs;
        let inputs = width.map(|width| inputs::of_all(&mut from, &c, width, &mut pass, x)).transpose()?;
        for index in 0..c.layers {
            layer::read(&mut from, &c, index, options, &mut pass, x, inputs)?;
        }
        let (ropes, score) = (ropes::read(&mut from, &c)?, from.score_of(&c, ends.rows())?);
        let mut block = None;
        if options.mtp || drafter.is_some() {
            c.blocks.push(mtp::layer_of(&c));
            let made = match drafter {
                Some(drafter) => drafter.read(&mut from, &ends, options)?,
                None => Mtp::read(&mut from, &c, &ends, options)?,
            };
            follow(&mut pass, x, &ends.norm, &made);
            block = Some(made);
        }
        from.nothing_left(&c, options.mtp)?;
        results(&mut pass, &c, x, &ends);
        let draft = block.map(|Mtp { mut pass, before, output, ends }| {
            results(&mut pass, &c, output, &ends);
            Program::new(&pass, &[before], true)
        });
        let (forward, append) = (Program::new(&pass, &[], true)?, Program::new(&pass, &[], false)?);
        let draft = draft.transpose()?;
        let states = states(&forward, if draft.is_some() { c.hidden } else { 0 });
        let facts = Facts::default();
        let mut decoder = Self { forward, append, draft, ropes, score, states, facts, config: c };
        let other_bytes = from.other_bytes() + drafter.map_or(0, Drafter::other_bytes);
        decoder.facts = facts_of(&decoder, other_bytes)?;
        Ok(decoder)
    }
}

/// Pushes what makes the results of a pass, after which the residual is `x`.
fn results(pass: &mut Pass, c: &DecoderConfig, x: Reg, ends: &Ends) {
    let Ends { norm, head, .. } = ends;
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
