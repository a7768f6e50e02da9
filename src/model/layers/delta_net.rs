//! Gated DeltaNet.

use super::inventory::{Inventory, Product};
use super::kind::Mixer;
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::Result;
use crate::model::family::{Joined, Named};
use crate::ops::{DeltaNet, DeltaShape, Norm, Owned, Recurrent, Slot};

/// Names of Hugging Face and of GGUF, with the whole name's end.
pub const TENSORS: &[Named] = &[
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
];
/// The products before the recurrence, one by one (Qwen 3.5), and in pairs (Qwen3-Next).
pub const SINGLE: &[Named] = &[
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
];
pub const PAIRS: &[Joined] = &[
    ("linear_attn.in_proj_qkvz.weight", &["attn_qkv.weight", "attn_gate.weight"]),
    ("linear_attn.in_proj_ba.weight", &["ssm_beta.weight", "ssm_alpha.weight"]),
];

pub struct GatedDelta {
    /// q, k and v, and the gate of the output: `[channels, hidden]`, `[values, hidden]`.
    inputs: Product,
    /// The logits of rates, and of decays: each `[value_heads, hidden]`.
    gates: Product,
    net: DeltaNet,
    /// Index of its state.
    place: usize,
}

impl GatedDelta {
    pub fn read(from: &mut LayerReader, shape: DeltaShape) -> Result<Self> {
        let (c, heads) = (from.c, shape.value_heads);
        let inputs = [("attn_qkv", shape.channels()), ("attn_gate", shape.values())];
        let gates = [("ssm_beta", heads), ("ssm_alpha", heads)];
        let a = from.decays("ssm_a", heads)?;
        let weight = from.vector("ssm_norm.weight", shape.value_dim)?;
        Ok(Self {
            inputs: from.product(Slot::Enter, &inputs, c.hidden, false)?,
            gates: from.product(Slot::Gate, &gates, c.hidden, false)?,
            net: DeltaNet {
                shape,
                conv: from.convolution("ssm_conv1d.weight", shape.channels(), shape.kernel)?,
                a,
                dt_bias: from.vector("ssm_dt.bias", heads)?,
                norm: Norm { weight, bias: None, eps: c.rms_eps },
            },
            place: c.place(from.index),
        })
    }
}

impl Mixer for GatedDelta {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.inputs);
        to.product(&self.gates);
    }

    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let mixed = residual.linear(step, &self.inputs)?;
        let gates = residual.linear(step, &self.gates)?;
        step.ops.delta_net(&mixed, &gates, step.paging.batch, step.kv, self.place, &self.net)
    }

    fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        Some((self.place, Recurrent::DeltaNet(&self.net)))
    }
}
