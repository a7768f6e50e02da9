//! Reads layers of Mamba-2.

use super::{Reader, scaled};
use crate::base::{Error, Result};
use crate::model::config::{DecoderConfig, GateNorm, MambaConfig};
use crate::model::decoder::{Beside, StateSpace};
use crate::ops::{Mamba, MambaFactors, MambaNorm, MambaShape, Norm};
use std::sync::Arc;

impl Reader<'_> {
    /// Mamba-2 beside the attention of layer `index`.
    pub(super) fn beside(&mut self, index: usize, m: &MambaConfig, c: &DecoderConfig) -> Result<Beside> {
        let output = [(format!("blk.{index}.ssm_out"), c.hidden)];
        Ok(Beside {
            mixer: self.mamba(index, m, c)?,
            place: c.blocks[..index].iter().filter(|block| block.has_state()).count(),
            output: self.projections(&output, m.shape.inner(), false, c)?,
        })
    }

    pub(super) fn mamba(&mut self, index: usize, m: &MambaConfig, c: &DecoderConfig) -> Result<StateSpace> {
        let (name, shape) = (|part: &str| format!("blk.{index}.{part}"), m.shape);
        let input = self.projections(&[(name("ssm_in"), shape.inputs())], c.hidden, false, c)?;
        let conv = self.convolution(&name("ssm_conv1d.weight"), shape.channels(), shape.kernel)?;
        let conv_bias = match m.conv_bias {
            true => self.vector(&name("ssm_conv1d.bias"), shape.channels())?,
            false => vec![0.0; shape.channels()].into(),
        };
        let a = self.vector(&name("ssm_a"), shape.heads)?;
        if a.iter().any(|a| *a > 0.0) {
            let what = self.files.what();
            return Err(Error::bad_model(format!("{what}: tensor '{}' makes a state grow", name("ssm_a"))));
        }
        let norm = self.gate_norm(index, m, c)?;
        let [gate, x, b, c, step] = m.inputs;
        Ok(StateSpace {
            input,
            net: Mamba {
                shape,
                conv: scaled_channels(&conv, &shape, [x, b, c]),
                conv_bias,
                a,
                dt_bias: self.vector(&name("ssm_dt.bias"), shape.heads)?,
                d: self.vector(&name("ssm_d"), shape.heads)?,
                factors: MambaFactors {
                    gate,
                    step,
                    // A norm behind it has it in its weights.
                    output: if matches!(norm, MambaNorm::AfterGate(_)) { 1.0 } else { m.output },
                },
                norm,
                steps: m.steps,
            },
        })
    }

    fn gate_norm(&mut self, index: usize, m: &MambaConfig, c: &DecoderConfig) -> Result<MambaNorm> {
        if m.norm == GateNorm::Never {
            return Ok(MambaNorm::Never);
        }
        let weight = self.vector(&format!("blk.{index}.ssm_norm.weight"), m.shape.inner())?;
        let norm = Norm { weight, bias: None, eps: c.rms_eps };
        Ok(match m.norm {
            GateNorm::BeforeGate => MambaNorm::BeforeGate(norm),
            _ => MambaNorm::AfterGate(scaled(&norm, m.output)),
        })
    }
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
