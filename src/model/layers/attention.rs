//! Attention over the KV cache.

use super::read::LayerReader;
use super::source::Source;
use super::tensors::{Add, products};
use super::{Mixed, Residual};
use crate::base::Result;
use crate::model::config::DecoderConfig;
use crate::model::family::{Named, QkNorm};
use crate::ops::pass::{Attend, Op, Pass};
use crate::ops::{Norm, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF: of products, and of those that some families have in one matrix.
pub(crate) const PRODUCTS: &[Named] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
];
pub(crate) const FUSED: Named = ("self_attn.qkv_proj", "attn_qkv");
pub(crate) const SINKS: Named = ("self_attn.sinks", "attn_sinks.weight");

pub(super) fn mix(from: &mut LayerReader, pass: &mut Pass, of: &Residual) -> Result<Mixed> {
    let (c, index) = (from.c, from.index);
    let shape = c.attention_of(index);
    let how = attend(from)?;
    let products = from.product(Slot::Enter, &c.qkv_products_of(index), c.hidden, c.parts.qkv_bias)?;
    let mut qkv = of.linear(pass, products);
    let whole = c.family.qk_norm == QkNorm::Row;
    if let Some([q, k]) = how.norms.as_ref().filter(|_| whole) {
        pass.push(Op::NormColumns { x: qkv, from: 0, norm: q.clone() });
        pass.push(Op::NormColumns { x: qkv, from: q.weight.len(), norm: k.clone() });
    }
    let mut gate = None;
    if c.family.attention_gate {
        // Each head has its query, then its gate.
        let (logits, shape, x) = (pass.register(shape.heads * shape.head_dim), shape.clone(), qkv);
        qkv = pass.make(|to| Op::SplitGate { x, shape, to, gate: logits });
        gate = Some(logits);
    }
    let how = Arc::new(Attend { norms: how.norms.filter(|_| !whole), ..how });
    let mut rows = pass.make(|to| Op::Attention { qkv, how, to });
    if c.family.head_gates {
        let heads = [("attn_gate", c.attention.heads)];
        gate = Some(of.linear(pass, from.product(Slot::Gate, &heads, c.hidden, false)?));
    }
    if let Some(gate) = gate {
        rows = pass.make(|to| Op::Gate { x: rows, gate, to });
    }
    Ok(Mixed { rows, output: "attn_output", width: shape.heads * shape.head_dim })
}

fn attend(from: &mut LayerReader) -> Result<Attend> {
    let (c, index) = (from.c, from.index);
    let (shape, block) = (c.attention_of(index).clone(), c.blocks[index]);
    let shared = block.shares.is_some();
    let q_norm = from.norm("attn_q_norm")?;
    let k_norm = if shared { q_norm.clone() } else { from.norm("attn_k_norm")? };
    let ones = |eps| Norm { weight: vec![1.0; shape.head_dim].into(), bias: None, eps };
    let heads = c.attention.heads;
    Ok(Attend {
        global: c.is_global(index),
        rope: block.rope,
        window: block.window,
        mutual: block.mutual,
        // Position 0 of a block of multi-token prediction has no key.
        from: usize::from(index == c.layers),
        sinks: c.family.sinks.then(|| from.vector("attn_sinks.weight", heads)).transpose()?,
        norms: q_norm.zip(k_norm).map(|(q, k)| [q, k]),
        value_norm: shape.value_eps.map(ones),
        shared,
        place: c.place(index),
        shape,
    })
}

/// Adds the tensors of a layer, besides its norms. `turn`: the rows of q and k are reordered.
pub(super) fn tensors(c: &DecoderConfig, turn: bool, add: &mut Add) {
    let heads = |part: &str| match part {
        "attn_q" => Some(c.attention.heads).filter(|_| turn),
        "attn_k" => Some(c.attention.kv_heads).filter(|_| turn),
        _ => None,
    };
    products(c, &c.qkv_products(), c.hidden, c.parts.qkv_bias, &heads, add);
    products(c, &[("attn_output", c.hidden)], c.attention_width(), c.parts.output_bias, &|_| None, add);
}
