//! Mamba-2, by itself or beside attention.

use super::read::LayerReader;
use super::{Mixed, Residual};
use crate::base::Result;
use crate::model::config::{Block, GateNorm, MambaConfig};
use crate::model::family::Named;
use crate::ops::pass::{Op, Pass};
use crate::ops::{Mamba, MambaFactors, MambaNorm, MambaShape, Net, Norm, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF, with the whole name's end.
pub(crate) const TENSORS: &[Named] = &[
    ("mamba.in_proj.weight", "ssm_in.weight"),
    ("mamba.conv1d.weight", "ssm_conv1d.weight"),
    ("mamba.conv1d.bias", "ssm_conv1d.bias"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.norm.weight", "ssm_norm.weight"),
    ("mamba.out_proj.weight", "ssm_out.weight"),
];

/// `slot`: that of its inputs.
pub(super) fn mix(
    from: &mut LayerReader,
    pass: &mut Pass,
    m: &MambaConfig,
    slot: Slot,
    of: &Residual,
) -> Result<Mixed> {
    let (c, shape) = (from.c, m.shape);
    // The gate; x, B and C; the steps
    let input = of.linear(pass, from.product(slot, &[("ssm_in", shape.inputs())], c.hidden, false)?);
    let net = Net::Mamba(Arc::new(net(from, m)?));
    let place = c.blocks[..from.index].iter().filter(|block| Block::has_state(block)).count();
    let rows = pass.make(|to| Op::Recur { inputs: vec![input], place, net, to });
    Ok(Mixed { rows, output: "ssm_out", width: shape.inner() })
}

fn net(from: &mut LayerReader, m: &MambaConfig) -> Result<Mamba> {
    let shape = m.shape;
    let conv = from.convolution("ssm_conv1d.weight", shape.channels(), shape.kernel)?;
    let conv_bias = match m.conv_bias {
        true => from.vector("ssm_conv1d.bias", shape.channels())?,
        false => vec![0.0; shape.channels()].into(),
    };
    let a = from.decays("ssm_a", shape.heads)?;
    let norm = gate_norm(from, m)?;
    let [gate, x, b, c, step] = m.inputs;
    Ok(Mamba {
        shape,
        conv: scaled_channels(&conv, &shape, [x, b, c]),
        conv_bias,
        a,
        dt_bias: from.vector("ssm_dt.bias", shape.heads)?,
        d: from.vector("ssm_d", shape.heads)?,
        factors: MambaFactors {
            gate,
            step,
            // A norm behind it has it in its weights.
            output: if matches!(norm, MambaNorm::AfterGate(_)) { 1.0 } else { m.output },
        },
        norm,
        steps: m.steps,
    })
}

fn gate_norm(from: &mut LayerReader, m: &MambaConfig) -> Result<MambaNorm> {
    if m.norm == GateNorm::Never {
        return Ok(MambaNorm::Never);
    }
    let weight = from.vector("ssm_norm.weight", m.shape.inner())?;
    let norm = Norm { weight, bias: None, eps: from.c.rms_eps };
    Ok(match m.norm {
        GateNorm::BeforeGate => MambaNorm::BeforeGate(norm),
        _ => MambaNorm::AfterGate(norm.times(m.output)),
    })
}

/// The convolution of x, B and C with a factor on each. Its inputs are linear in them.
fn scaled_channels(conv: &Arc<[f32]>, shape: &MambaShape, [x, b, c]: [f32; 3]) -> Arc<[f32]> {
    let (inner, vectors) = (shape.inner(), shape.vectors());
    let factor = |channel: usize| match channel.checked_sub(inner) {
        None => x,
        Some(at) if at < vectors => b,
        Some(_) => c,
    };
    conv.iter().enumerate().map(|(at, w)| w * factor(at % shape.channels())).collect()
}
