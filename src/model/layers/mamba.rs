//! Mamba-2, by itself or beside attention.

use super::inventory::{Inventory, Product};
use super::kind::Mixer;
use super::products::Products;
use super::read::LayerReader;
use super::step::{Residual, Step};
use crate::base::Result;
use crate::model::config::{Block, GateNorm, MambaConfig};
use crate::model::family::Named;
use crate::ops::{Mamba, MambaFactors, MambaNorm, MambaShape, Norm, Owned, Recurrent, Slot};
use std::sync::Arc;

/// Names of Hugging Face and of GGUF, with the whole name's end.
pub const TENSORS: &[Named] = &[
    ("mamba.in_proj.weight", "ssm_in.weight"),
    ("mamba.conv1d.weight", "ssm_conv1d.weight"),
    ("mamba.conv1d.bias", "ssm_conv1d.bias"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.norm.weight", "ssm_norm.weight"),
    ("mamba.out_proj.weight", "ssm_out.weight"),
];

pub struct StateSpace {
    /// The gate; x, B and C; the steps: `[inputs, hidden]`.
    input: Product,
    net: Mamba,
    /// Index of its state.
    place: usize,
}

/// Mamba-2 beside attention.
pub struct Beside {
    mixer: StateSpace,
    /// `[hidden, inner]`.
    output: Product,
}

impl StateSpace {
    pub fn read(from: &mut LayerReader, m: &MambaConfig, slot: Slot) -> Result<Self> {
        let (c, shape) = (from.c, m.shape);
        let input = from.product(slot, &[("ssm_in", shape.inputs())], c.hidden, false)?;
        let conv = from.convolution("ssm_conv1d.weight", shape.channels(), shape.kernel)?;
        let conv_bias = match m.conv_bias {
            true => from.vector("ssm_conv1d.bias", shape.channels())?,
            false => vec![0.0; shape.channels()].into(),
        };
        let a = from.decays("ssm_a", shape.heads)?;
        let norm = gate_norm(from, m)?;
        let [gate, x, b, c, step] = m.inputs;
        Ok(Self {
            input,
            net: Mamba {
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
            },
            place: from.c.blocks[..from.index].iter().filter(|block| Block::has_state(block)).count(),
        })
    }
}

impl Mixer for StateSpace {
    fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        to.product(&self.input);
    }

    fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        let input = residual.linear(step, &self.input)?;
        step.ops.mamba(&input, step.paging.batch, step.kv, self.place, &self.net)
    }

    fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        Some((self.place, Recurrent::Mamba(&self.net)))
    }
}

impl Beside {
    pub fn read(from: &mut LayerReader, m: &MambaConfig) -> Result<Self> {
        let mixer = StateSpace::read(from, m, Slot::Beside)?;
        let output = [("ssm_out", from.c.hidden)];
        Ok(Self { mixer, output: from.product(Slot::BesideOutput, &output, m.shape.inner(), false)? })
    }

    pub fn list<'a>(&'a self, to: &mut Inventory<'a>) {
        self.mixer.list(to);
        to.product(&self.output);
    }

    pub fn state(&self) -> Option<(usize, Recurrent<'_>)> {
        self.mixer.state()
    }

    /// The output before its product, once the first mixer has added the update to the residual.
    pub fn run(&self, step: &Step, residual: &mut Residual) -> Result<Owned> {
        self.mixer.run(step, residual)
    }

    pub fn output(&self, products: &Products, mixed: Owned) -> Result<Owned> {
        products.linear(&mixed, None, &self.output)
    }
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
