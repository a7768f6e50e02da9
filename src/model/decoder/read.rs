//! Reads a decoder from a checkpoint, which must have all necessary tensors and no others.

use super::{Decoder, Head, facts_of, states};
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
    /// Reads a decoder, with `LoadOptions::mtp` its block of multi-token prediction too, or `drafter`.
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
        let taps = drafter.map_or(&[][..], Drafter::taps);
        let tapped = pass.register(taps.len() * c.hidden);
        for index in 0..c.layers {
            if let Some(at) = taps.iter().position(|tap| *tap == index) {
                pass.push(Op::Columns { x, from: at * c.hidden, to: tapped });
            }
            layer::read(&mut from, &c, index, options, &mut pass, x, inputs)?;
        }
        let (mut ropes, score) = (ropes::read(&mut from, &c)?, from.score_of(&c, ends.rows())?);
        let (mut draft, mut head) = (None, None);
        match drafter {
            Some(Drafter::Head(file)) => {
                let mut made = file.read(&mut from, &c, &ends)?;
                made.follow(&mut pass, tapped, c.residual_scale);
                results(&mut made.pass, made.output, &made.ends, None, (1.0, None));
                draft = Some(Program::new(&made.pass, &[made.before], true)?);
                ropes.append(&mut made.ropes);
                head = Some(Head { kv: made.kv, ids: made.ids });
            }
            None if !options.mtp => {}
            Some(Drafter::Block(_)) | None => {
                c.blocks.push(mtp::layer_of(&c));
                let mut made = match drafter {
                    Some(Drafter::Block(file)) => file.read(&mut from, &ends, options)?,
                    _ => Mtp::read(&mut from, &c, &ends, options)?,
                };
                follow(&mut pass, x, &ends.norm, &made);
                let norm = made.ends.norm.clone();
                results(&mut made.pass, made.output, &made.ends, Some(norm), (c.logit_scale, c.logit_cap));
                draft = Some(Program::new(&made.pass, &[made.before], true)?);
            }
        }
        from.nothing_left(&c, options.mtp)?;
        results(&mut pass, x, &ends, Some(ends.norm.clone()), (c.logit_scale, c.logit_cap));
        let (forward, append) = (Program::new(&pass, &[], true)?, Program::new(&pass, &[], false)?);
        let states = states(&forward, draft.as_ref().map_or(0, given));
        let facts = Facts::default();
        let mut decoder = Self { forward, append, draft, head, ropes, score, states, facts, config: c };
        let other_bytes = from.other_bytes() + drafter.map_or(0, Drafter::other_bytes);
        decoder.facts = facts_of(&decoder, other_bytes)?;
        Ok(decoder)
    }
}

/// Elements of a row that a pass is given.
fn given(program: &Program) -> usize {
    program.inputs().iter().map(|input| program.places()[input.index()].width).sum()
}

/// Pushes what makes the results of a pass, after which the residual is `x`: hidden states with `norm`, and logits,
/// with their divisor and cap.
fn results(pass: &mut Pass, x: Reg, ends: &Ends, norm: Option<Norm>, (divisor, cap): (f32, Option<f32>)) {
    pass.push(Op::Check);
    pass.push(Op::Hidden { x, norm });
    let (scaled, product) = (ends.norm.times(1.0 / divisor), ends.head.clone());
    pass.make(|rows| Op::Head { x, rows, norm: Some(scaled), product, cap });
}

/// Pushes what writes a block's K and V of the batch's rows, after which the residual is `x`.
fn follow(pass: &mut Pass, x: Reg, final_norm: &Norm, block: &Mtp) {
    pass.push(Op::Check);
    let hidden = pass.make(|to| Op::Norm { x, norm: final_norm.clone(), to });
    let before = pass.make(|to| Op::Shift { x: hidden, to });
    pass.append(&block.pass, [block.before, before]);
}
