//! Attention over the KV cache.

use super::inventory::{Inventory, Product};
use super::kind::Mixer;
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::Result;
use crate::model::family::{Named, QkNorm};
use crate::ops::{Attention, AttentionShape, Norm, Owned, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF: of products, and of those that some families have in one matrix.
pub const PRODUCTS: &[Named] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
];
pub const FUSED: Named = ("self_attn.qkv_proj", "attn_qkv");
pub const SINKS: Named = ("self_attn.sinks", "attn_sinks.weight");

pub struct SelfAttention {
    /// q, k, v: `[heads * head_dim, hidden]`, and twice `[kv_heads * head_dim, hidden]`. With an output gate q has
    /// twice the rows: of each head, its query and its gate.
    qkv: Product,
    /// The logits of a gate for each head of the output: `[heads, hidden]`.
    head_gate: Option<Product>,
    /// The norm of q, and that of k: of each head, or of whole rows (`QkNorm`).
    qk_norms: Option<[Norm; 2]>,
    qk_norm: QkNorm,
    /// The norm of each v head, which has no weights.
    value_norm: Option<Norm>,
    /// K and V are another layer's: `qkv` is of q alone, and the norm of k is not used.
    shared: bool,
    /// One of each head, if the model has them (`ops::Attention`).
    sinks: Option<Arc<[f32]>>,
    /// `qkv` has the gate of the output.
    gated: bool,
    shape: AttentionShape,
    /// It is that of `DecoderConfig::global`.
    global: bool,
    window: Option<usize>,
    /// Index into `DecoderConfig::ropes`.
    rope: usize,
    /// The first position that has a key.
    from: usize,
    /// Index of its KV cache.
    place: usize,
}

impl SelfAttention {
    pub fn read(from: &mut LayerReader) -> Result<Self> {
        let (c, index) = (from.c, from.index);
        let (shape, block) = (c.attention_of(index).clone(), c.blocks[index]);
        let shared = block.shares.is_some();
        let q_norm = from.norm("attn_q_norm")?;
        let k_norm = if shared { q_norm.clone() } else { from.norm("attn_k_norm")? };
        let ones = |eps| Norm { weight: vec![1.0; shape.head_dim].into(), bias: None, eps };
        let heads = c.attention.heads;
        let gate = [("attn_gate", heads)];
        Ok(Self {
            sinks: c.family.sinks.then(|| from.vector("attn_sinks.weight", heads)).transpose()?,
            qkv: from.product(Slot::Enter, &c.qkv_products_of(index), c.hidden, c.parts.qkv_bias)?,
            head_gate: match c.family.head_gates {
                true => Some(from.product(Slot::Gate, &gate, c.hidden, false)?),
                false => None,
            },
            qk_norms: q_norm.zip(k_norm).map(|(q, k)| [q, k]),
            qk_norm: c.family.qk_norm,
            value_norm: shape.value_eps.map(ones),
            shared,
            gated: c.family.attention_gate,
            shape,
            global: c.is_global(index),
            window: block.window,
            rope: block.rope,
            from: usize::from(index == c.layers),
            place: c.place(index),
        })
    }

    fn how<'a>(&'a self, step: &'a Step) -> Attention<'a> {
        Attention {
            shape: &self.shape,
            rope: step.rope(self.rope),
            window: self.window,
            from: self.from,
            sinks: self.sinks.as_deref(),
            norms: self.qk_norms.as_ref().filter(|_| self.qk_norm != QkNorm::Row),
            value_norm: self.value_norm.as_ref(),
            shared: self.shared,
        }
    }

    /// q, k and v, and with an output gate its logits.
    fn qkv(&self, step: &Step, residual: &mut Residual) -> Result<(Owned, Option<Owned>)> {
        let mut qkv = residual.linear(step, &self.qkv)?;
        if let (QkNorm::Row, Some([q, k])) = (self.qk_norm, &self.qk_norms) {
            step.ops.norm_columns(&mut qkv, 0, q)?;
            step.ops.norm_columns(&mut qkv, q.weight.len(), k)?;
        }
        if !self.gated {
            return Ok((qkv, None));
        }
        let [qkv, gate] = step.ops.split_gate(&qkv, &self.shape)?;
        Ok((qkv, Some(gate)))
    }
}

impl Mixer for SelfAttention {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.qkv);
        self.head_gate.iter().for_each(|gate| to.product(gate));
        let norms = self.qk_norms.iter().flatten();
        to.norms(norms.take(if self.shared { 1 } else { 2 }));
        self.sinks.iter().for_each(|sinks| to.sinks(sinks));
    }

    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let (qkv, gate) = self.qkv(step, residual)?;
        let paging = step.paging_of(self.global);
        let out = step.ops.attention(&qkv, paging, step.kv, self.place, &self.how(step))?;
        drop(qkv);
        match (gate, &self.head_gate) {
            (Some(gate), _) => step.ops.gate(&out, &gate),
            (None, Some(product)) => step.ops.gate(&out, &residual.linear(step, product)?),
            (None, None) => Ok(out),
        }
    }

    fn append(&self, step: &Step, residual: &mut Residual) -> Result<()> {
        let (qkv, _) = self.qkv(step, residual)?;
        step.ops.append(&qkv, step.paging_of(self.global), step.kv, self.place, &self.how(step))
    }
}
