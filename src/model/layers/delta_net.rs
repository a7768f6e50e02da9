//! Gated DeltaNet.

use super::read::LayerReader;
use super::{Mixed, Residual};
use crate::base::Result;
use crate::model::family::{Joined, Named};
use crate::ops::pass::{Op, Pass};
use crate::ops::{DeltaNet, DeltaShape, Net, Norm, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF, with the whole name's end.
pub(crate) const TENSORS: &[Named] = &[
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
];
/// The products before the recurrence, one by one (Qwen 3.5), and in pairs (Qwen3-Next).
pub(crate) const SINGLE: &[Named] = &[
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
];
pub(crate) const PAIRS: &[Joined] = &[
    ("linear_attn.in_proj_qkvz.weight", &["attn_qkv.weight", "attn_gate.weight"]),
    ("linear_attn.in_proj_ba.weight", &["ssm_beta.weight", "ssm_alpha.weight"]),
];

pub(super) fn mix(
    from: &mut LayerReader,
    pass: &mut Pass,
    shape: DeltaShape,
    of: &Residual,
) -> Result<Mixed> {
    let (c, heads) = (from.c, shape.value_heads);
    let a = from.decays("ssm_a", heads)?;
    let weight = from.vector("ssm_norm.weight", shape.value_dim)?;
    // q, k and v, and the gate of the output
    let inputs = [("attn_qkv", shape.channels()), ("attn_gate", shape.values())];
    // The logits of rates, and of decays
    let gates = [("ssm_beta", heads), ("ssm_alpha", heads)];
    let inputs = vec![
        of.linear(pass, from.product(Slot::Enter, &inputs, c.hidden, false)?),
        of.linear(pass, from.product(Slot::Gate, &gates, c.hidden, false)?),
    ];
    let net = Net::DeltaNet(Arc::new(DeltaNet {
        shape,
        conv: from.convolution("ssm_conv1d.weight", shape.channels(), shape.kernel)?,
        a,
        dt_bias: from.vector("ssm_dt.bias", heads)?,
        norm: Norm { weight, bias: None, eps: c.rms_eps },
    }));
    let place = c.place(from.index);
    let rows = pass.make(|to| Op::Recur { inputs, place, net, to });
    Ok(Mixed { rows, output: "ssm_out", width: shape.values() })
}
