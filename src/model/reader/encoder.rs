//! Reads an encoder from a checkpoint.

use super::Reader;
use crate::base::{Result, reserve};
use crate::model::encoder::family::Positions;
use crate::model::encoder::{Dense, Encoder, EncoderConfig, EncoderLayer, EncoderWeights, Norms, ScoreHead};
use crate::ops::{Norm, Projections, Rope, RopeStyle};
use std::sync::Arc;

impl Reader<'_> {
    pub fn encoder(mut self, c: EncoderConfig) -> Result<Encoder> {
        let (hidden, family) = (c.hidden, c.family);
        let embedding = self.dense("token_embd.weight", c.vocab_size, hidden)?;
        let positions = match family.positions {
            Positions::Rotated(_) => None,
            _ => {
                let rows = c.position_offset + c.context_length;
                Some(self.matrix("position_embd.weight", rows, hidden)?)
            }
        };
        let types = match c.types {
            0 => None,
            rows => Some(self.matrix("token_types.weight", rows, hidden)?),
        };
        let [first, last] = family.outer_norms;
        let embedding_norm =
            if first { Some(self.encoder_norm("token_embd_norm", hidden, &c)?) } else { None };
        let final_norm = if last { Some(self.encoder_norm("output_norm", hidden, &c)?) } else { None };
        let mut layers = Vec::new();
        reserve(&mut layers, c.layers, "layers")?;
        (0..c.layers).try_for_each(|index| self.encoder_layer(index, &c).map(|layer| layers.push(layer)))?;
        let score = self.score(&c)?;
        let mut dense = Vec::new();
        let mut from = hidden;
        for (at, (width, activation)) in c.dense.iter().enumerate() {
            // Numbered as the modules of sentence-transformers are, where the first two are other ones.
            let weights = self.products(&[(format!("dense_{}", at + 2), *width)], from)?;
            dense.push(Dense { weights, activation: *activation });
            from = *width;
        }
        self.all_used(&|_| false)?;
        let style = match family.positions {
            Positions::Rotated(style) => style,
            _ => RopeStyle::Neox,
        };
        let rope = |inv_freq: Vec<f32>, factor| Rope { inv_freq: inv_freq.into(), style, factor };
        let ropes = c.ropes.iter().map(|r| rope(r.inv_freq(), r.attention_factor())).collect();
        let weights = EncoderWeights {
            embedding,
            positions,
            types,
            embedding_norm,
            layers,
            final_norm,
            ropes,
            score,
            dense,
        };
        Ok(Encoder::new(c, weights, self.files.other_bytes()))
    }

    fn encoder_layer(&mut self, index: usize, c: &EncoderConfig) -> Result<EncoderLayer> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let a = &c.attention;
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let fused = self.files.has(&name("attn_qkv.weight"));
        let qkv = match fused {
            true => vec![(name("attn_qkv"), q + 2 * kv)],
            false => vec![(name("attn_q"), q), (name("attn_k"), kv), (name("attn_v"), kv)],
        };
        let gate_up = match (c.activation.gated(), self.files.has(&name("ffn_gate.weight"))) {
            (true, true) => vec![(name("ffn_gate"), c.ffn), (name("ffn_up"), c.ffn)],
            (true, false) => vec![(name("ffn_up"), 2 * c.ffn)],
            (false, _) => vec![(name("ffn_up"), c.ffn)],
        };
        let mut norm = |part: &str, width: usize| {
            let bare = index == 0 && c.family.first_bare && c.family.norms.first() == Some(&part);
            let has = c.family.norms.contains(&part) && !bare;
            if has { self.encoder_norm(&name(part), width, c).map(Some) } else { Ok(None) }
        };
        let qk_norms = [norm("attn_q_norm", a.head_dim)?, norm("attn_k_norm", a.head_dim)?];
        let mut norms = |[input, update, sum]: [&str; 3]| -> Result<Norms> {
            let mut norm = |part| norm(part, c.hidden);
            Ok(Norms { input: norm(input)?, update: norm(update)?, sum: norm(sum)? })
        };
        Ok(EncoderLayer {
            attention: norms(["attn_norm", "post_attention_norm", "attn_output_norm"])?,
            feed_forward: norms(["ffn_norm", "post_ffw_norm", "layer_output_norm"])?,
            qk_norms: if let [Some(q), Some(k)] = qk_norms { Some([q, k]) } else { None },
            qkv: self.products(&qkv, c.hidden)?,
            output: self.products(&[(name("attn_output"), c.hidden)], q)?,
            gate_up: self.products(&gate_up, c.hidden)?,
            down: self.products(&[(name("ffn_down"), c.hidden)], c.ffn)?,
        })
    }

    fn score(&mut self, c: &EncoderConfig) -> Result<Option<ScoreHead>> {
        let Some((pooling, activation)) = c.score else { return Ok(None) };
        let weights = self.products(&[("cls".into(), c.hidden)], c.hidden)?;
        let has_norm = self.files.has("cls.norm.weight");
        Ok(Some(ScoreHead {
            pooling,
            dense: Dense { weights, activation },
            norm: if has_norm { Some(self.encoder_norm("cls.norm", c.hidden, c)?) } else { None },
            out: self.products(&[("cls.output".into(), 1)], c.hidden)?,
        }))
    }

    /// Matrices (name, rows) of `cols` columns that are multiplied with the same activations, with the biases that the
    /// file has.
    fn products(&mut self, wanted: &[(String, usize)], cols: usize) -> Result<Projections> {
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
