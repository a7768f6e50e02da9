//! Reads an encoder from a checkpoint.

use super::Reader;
use crate::base::Result;
use crate::model::encoder::family::Positions;
use crate::model::encoder::{Dense, Encoder, EncoderConfig, Heads, ScoreHead};
use crate::ops::pass::{Attend, Ids, Op, Pass, Product, Program, Reg, Ropes};
use crate::ops::{Norm, Projections, Rope, RopeStyle};
use std::sync::Arc;

/// The norms around a part of a layer: of its input, of its update, and of the sum.
struct Norms {
    input: Option<Norm>,
    update: Option<Norm>,
    sum: Option<Norm>,
}

impl Reader<'_> {
    pub(crate) fn encoder(mut self, c: EncoderConfig) -> Result<Encoder> {
        let mut pass = Pass::default();
        let x = self.embeddings(&c, &mut pass)?;
        let last = c.family.outer_norms[1];
        let last = if last { Some(self.encoder_norm("output_norm", c.hidden, &c)?) } else { None };
        (0..c.layers).try_for_each(|index| self.encoder_layer(index, &c, &mut pass, x))?;
        normed(&mut pass, x, last);
        let (score, mut dense) = (self.score(&c)?, Vec::new());
        let mut from = c.hidden;
        for (at, (width, activation)) in c.dense.iter().enumerate() {
            // Numbered as the modules of sentence-transformers are, where the first two are other ones.
            let weights = self.products(&[(format!("dense_{}", at + 2), *width)], from)?;
            dense.push(Dense::new(weights, *activation)?);
            from = *width;
        }
        self.all_used(&|_| false)?;
        let style = match c.family.positions {
            Positions::Rotated(style) => style,
            _ => RopeStyle::Neox,
        };
        let rope = |inv_freq: Vec<f32>, factor| Rope { inv_freq: inv_freq.into(), style, factor, axes: None };
        let ropes = c.ropes.iter().map(|r| rope(r.inv_freq(), r.attention_factor()));
        let ropes = ropes.map(|rope| Ropes { rope, long: None }).collect();
        pass.push(Op::Hidden { x, norm: None });
        let program = Program::new(&pass, &[], true)?;
        Ok(Encoder::new(c, program, ropes, Heads { score, dense }, self.files.other_bytes()))
    }

    /// The sum of the embeddings of tokens, types and positions.
    fn embeddings(&mut self, c: &EncoderConfig, pass: &mut Pass) -> Result<Reg> {
        let hidden = c.hidden;
        let table = self.dense("token_embd.weight", c.vocab_size, hidden)?;
        let positions = match c.family.positions {
            Positions::Rotated(_) => None,
            _ => Some(self.matrix("position_embd.weight", c.position_offset + c.context_length, hidden)?),
        };
        let types = match c.types {
            0 => None,
            rows => Some(self.matrix("token_types.weight", rows, hidden)?),
        };
        let x = pass.make(|to| Op::Embed { ids: Ids::Tokens, table, scale: c.embedding_scale, to });
        for (ids, table) in [(Ids::Types, types), (Ids::Positions(c.position_offset as u32), positions)] {
            let Some(table) = table else { continue };
            let rows = pass.make(|to| Op::Embed { ids, table, scale: 1.0, to });
            pass.add(x, rows, None);
        }
        if c.family.outer_norms[0] {
            normed(pass, x, Some(self.encoder_norm("token_embd_norm", hidden, c)?));
        }
        Ok(x)
    }

    /// Pushes layer `index`, which updates the residual `x`. Behind the last one's attention the wanted rows alone go
    /// on.
    fn encoder_layer(&mut self, index: usize, c: &EncoderConfig, pass: &mut Pass, x: Reg) -> Result<()> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let mut norm = |part: &str, width: usize| {
            let bare = index == 0 && c.family.first_bare && c.family.norms.first() == Some(&part);
            let has = c.family.norms.contains(&part) && !bare;
            if has { self.encoder_norm(&name(part), width, c).map(Some) } else { Ok(None) }
        };
        let a = &c.attention;
        let qk_norms = [norm("attn_q_norm", a.head_dim)?, norm("attn_k_norm", a.head_dim)?];
        let mut norms = |[input, update, sum]: [&str; 3]| -> Result<Norms> {
            let mut norm = |part| norm(part, c.hidden);
            Ok(Norms { input: norm(input)?, update: norm(update)?, sum: norm(sum)? })
        };
        let around = norms(["attn_norm", "post_attention_norm", "attn_output_norm"])?;
        let around_ffn = norms(["ffn_norm", "post_ffw_norm", "layer_output_norm"])?;
        pass.push(Op::Check);
        let products = self.qkv(c, &name)?;
        let qkv = pass.linear(x, around.input, Product::fixed(products));
        let how = Arc::new(Attend {
            window: c.blocks[index].window,
            norms: if let [Some(q), Some(k)] = qk_norms { Some([q, k]) } else { None },
            ..Attend::plain(a.clone(), c.blocks[index].rope)
        });
        let mixed = pass.make(|to| Op::Encode { qkv, how, to });
        if index + 1 == c.layers {
            [mixed, x].into_iter().for_each(|x| pass.push(Op::Want { x }));
        }
        let output = self.products(&[(name("attn_output"), c.hidden)], a.heads * a.head_dim)?;
        let update = pass.linear(mixed, None, Product::fixed(output));
        pass.add(x, update, around.update);
        normed(pass, x, around.sum);
        let gate_up = self.gate_up(c, &name)?;
        let gate_up = pass.linear(x, around_ffn.input, Product::fixed(gate_up));
        let gated = pass.make(|to| Op::Gated { x: gate_up, activation: c.activation, to });
        let down = self.products(&[(name("ffn_down"), c.hidden)], c.ffn)?;
        let update = pass.linear(gated, None, Product::fixed(down));
        pass.add(x, update, around_ffn.update);
        normed(pass, x, around_ffn.sum);
        Ok(())
    }

    fn qkv(&mut self, c: &EncoderConfig, name: &dyn Fn(&str) -> String) -> Result<Projections> {
        let a = &c.attention;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        match self.files.has(&name("attn_qkv.weight")) {
            true => self.products(&[(name("attn_qkv"), q + 2 * kv)], c.hidden),
            false => {
                self.products(&[(name("attn_q"), q), (name("attn_k"), kv), (name("attn_v"), kv)], c.hidden)
            }
        }
    }

    fn gate_up(&mut self, c: &EncoderConfig, name: &dyn Fn(&str) -> String) -> Result<Projections> {
        let wanted = match (c.activation.gated(), self.files.has(&name("ffn_gate.weight"))) {
            (true, true) => vec![(name("ffn_gate"), c.ffn), (name("ffn_up"), c.ffn)],
            (true, false) => vec![(name("ffn_up"), 2 * c.ffn)],
            (false, _) => vec![(name("ffn_up"), c.ffn)],
        };
        self.products(&wanted, c.hidden)
    }

    fn score(&mut self, c: &EncoderConfig) -> Result<Option<ScoreHead>> {
        let Some((pooling, activation)) = c.score else { return Ok(None) };
        let weights = self.products(&[("cls".into(), c.hidden)], c.hidden)?;
        let has_norm = self.files.has("cls.norm.weight");
        let norm = if has_norm { Some(self.encoder_norm("cls.norm", c.hidden, c)?) } else { None };
        let out = self.products(&[("cls.output".into(), 1)], c.hidden)?;
        ScoreHead::new(pooling, Dense::new(weights, activation)?, norm, out).map(Some)
    }

    /// Matrices (name, rows) of `cols` columns that are multiplied with the same activations, with the biases that the
    /// file has.
    pub(super) fn products(&mut self, wanted: &[(String, usize)], cols: usize) -> Result<Projections> {
        let (mut matrices, mut bias) = (Vec::new(), Vec::new());
        let has = wanted.iter().any(|(name, _)| self.files.has(&format!("{name}.bias")));
        for (name, rows) in wanted {
            matrices.push(self.dense(&format!("{name}.weight"), *rows, cols)?);
            if has {
                bias.extend_from_slice(&self.vector(&format!("{name}.bias"), *rows)?);
            }
        }
        Ok(Projections { bias: has.then(|| bias.into()), ..matrices.into() })
    }

    fn encoder_norm(&mut self, name: &str, len: usize, c: &EncoderConfig) -> Result<Norm> {
        let weight = self.norm_weight(name, len, c.norm_offset)?;
        let own = format!("{name}.bias");
        let bias: Option<Arc<[f32]>> = match (c.family.rms_norms, self.files.has(&own)) {
            (true, _) => None,
            (false, true) => Some(self.vector(&own, len)?),
            // LayerNorm all the same.
            (false, false) => Some(vec![0.0; len].into()),
        };
        Ok(Norm { weight, bias, eps: c.eps })
    }
}

/// Norms the residual in place.
fn normed(pass: &mut Pass, x: Reg, norm: Option<Norm>) {
    norm.into_iter().for_each(|norm| pass.push(Op::NormColumns { x, from: 0, norm }));
}
