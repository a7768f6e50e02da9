//! Mamba-2 (arXiv 2405.21060), by itself or beside attention.

use super::recurrent::{Mixer, Recurrent, mark, mark_without_heads};
use super::source::Source;
use super::{Mixed, Residual};
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::model::config::{Block, DecoderConfig, FACTOR, HEADS, KERNEL};
use crate::model::family::{Family, Named};
use crate::model::gguf::Metadata;
use crate::model::hf::{Fields, Multipliers};
use crate::model::names::Names;
use crate::ops::pass::{Op, Pass};
use crate::ops::{MAX_HEAD, Mamba, MambaFactors, MambaNorm, MambaShape, Norm, Slot};
use std::sync::Arc;

/// These layers in a family's files.
#[derive(Debug)]
pub(crate) struct MambaDefaults {
    /// They stand beside attention, in every layer.
    pub beside: bool,
    /// The norm in Hugging Face's files. `None`: keys say it.
    pub norm: Option<GateNorm>,
}

/// The layers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MambaConfig {
    pub shape: MambaShape,
    pub norm: GateNorm,
    pub conv_bias: bool,
    /// Bounds of the steps.
    pub steps: [f32; 2],
    /// Factors on the gate, x, B, C and the steps, as the product gives them.
    pub inputs: [f32; 5],
    /// The factor on the output.
    pub output: f32,
}

/// Where the norm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateNorm {
    /// There is none.
    Never,
    BeforeGate,
    AfterGate,
}

const TENSORS: &[Named] = &[
    ("mamba.in_proj.weight", "ssm_in.weight"),
    ("mamba.conv1d.weight", "ssm_conv1d.weight"),
    ("mamba.conv1d.bias", "ssm_conv1d.bias"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.norm.weight", "ssm_norm.weight"),
    ("mamba.out_proj.weight", "ssm_out.weight"),
];
/// Biases of the products, which no known model has.
const BIASES: [&str; 2] = ["mamba_proj_bias", "projectors_bias"];
/// Norms whose names have no `.weight` in GGUF files of Falcon-H1.
const BARE: &str = ".ffn_norm";

impl Recurrent for MambaDefaults {
    /// As transformers names them, and as most files do.
    fn types(&self) -> &'static [[&'static str; 2]] {
        &[["linear_attention", "full_attention"], ["mamba", "attention"]]
    }

    fn tensors(&self) -> &'static [&'static [Named]] {
        &[TENSORS]
    }

    fn small(&self) -> &'static [&'static str] {
        &[".ssm_conv1d.weight"]
    }

    fn gguf_keys(&self) -> &'static [&'static str] {
        &["ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"]
    }

    fn ignored_keys(&self) -> &'static [&'static str] {
        &["mamba_chunk_size"]
    }

    fn read_folder(
        &self,
        config: &Fields,
        family: &Family,
        hidden: usize,
        blocks: &mut [Block],
    ) -> Result<Option<Arc<dyn Mixer>>> {
        const USE_MLP: &str = "mamba_use_mlp";
        if !config.flag(USE_MLP)?.unwrap_or(true) {
            return Err(config.unsupported(USE_MLP, "layers without a feed-forward are not computed"));
        }
        if self.beside {
            blocks.iter_mut().for_each(|block| block.beside = true);
        } else {
            self.mark(config, blocks)?;
        }
        if !blocks.iter().any(Block::has_state) {
            return Ok(None);
        }
        for key in BIASES {
            if config.flag(key)?.unwrap_or(false) {
                return Err(config.unsupported(key, "biases of Mamba-2's products are not computed"));
            }
        }
        let shape = shape(config, hidden)?;
        let factors = Multipliers::read(config, family.multipliers)?;
        Ok(Some(Arc::new(MambaConfig {
            shape,
            norm: self.norm.map_or_else(|| norm(config), Ok)?,
            conv_bias: config.flag("mamba_conv_bias")?.unwrap_or(true),
            steps: config.range("time_step_limit")?.unwrap_or([0.0, f32::INFINITY]),
            inputs: factors.inputs,
            output: factors.output / factors.attention,
        })))
    }

    fn read_gguf(&self, of: &Metadata, _: usize, blocks: &mut [Block]) -> Result<Option<Arc<dyn Mixer>>> {
        if self.beside {
            blocks.iter_mut().for_each(|block| block.beside = true);
        } else {
            mark_without_heads(of, blocks)?;
        }
        let Some(first) = blocks.iter().position(Block::has_state) else { return Ok(None) };
        let [heads, head_dim] = of.heads_of_state()?;
        let shape = MambaShape {
            heads,
            head_dim,
            groups: of.size("ssm.group_count", None)?,
            state_dim: of.size("ssm.state_size", None)?,
            kernel: of.size("ssm.conv_kernel", None)?,
        };
        let normed = of.has(first, "ssm_norm.weight");
        Ok(Some(Arc::new(MambaConfig {
            shape,
            norm: if normed { GateNorm::AfterGate } else { GateNorm::Never },
            conv_bias: of.has(first, "ssm_conv1d.bias"),
            steps: [0.0, f32::INFINITY],
            inputs: [1.0; 5],
            output: 1.0,
        })))
    }

    fn key(&self, gguf: &str) -> Option<&'static str> {
        Some(match gguf {
            "ssm.group_count" => "mamba_n_groups",
            "ssm.time_step_rank" => "mamba_n_heads",
            "ssm.state_size" => "mamba_d_state",
            "ssm.inner_size" => "mamba_d_head",
            "ssm.conv_kernel" => "mamba_d_conv",
            "expert_count" => "num_local_experts",
            "residual_scale" => "attention_out_multiplier",
            "attention.scale" => "key_multiplier",
            _ => return None,
        })
    }

    fn usual_name(&self, name: &str) -> String {
        if name.ends_with(BARE) { format!("{name}.weight") } else { name.to_owned() }
    }

    /// That of heads has a second dimension, that of groups too.
    fn vector(&self, gguf: &Gguf, name: &str, len: usize) -> Result<Arc<[f32]>> {
        let bare =
            name.strip_suffix(".weight").filter(|bare| bare.ends_with(BARE) && gguf.tensor(name).is_none());
        let name = bare.unwrap_or(name);
        let is_of = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        match gguf.tensor(name).map(|tensor| tensor.dims) {
            Some([1, n, 1, 1]) if n == len && is_of(&[".ssm_a", ".ssm_d"]) => gguf.vector_of(name, [1, n]),
            Some([width, groups, 1, 1])
                if width.checked_mul(groups) == Some(len) && is_of(&[".ssm_norm.weight"]) =>
            {
                gguf.vector_of(name, [width, groups])
            }
            _ => gguf.vector_f32(name, len),
        }
    }
}

impl MambaDefaults {
    fn mark(&self, config: &Fields, blocks: &mut [Block]) -> Result<()> {
        let listed = match config.texts("layer_types")? {
            None => config.texts("layers_block_type")?,
            types => types,
        };
        let Some(types) = listed else {
            blocks.iter_mut().for_each(|block| block.recurrent = true);
            return Ok(());
        };
        let [new, published] = [0, 1].map(|at| self.types()[at]);
        let published = Some(published).filter(|pair| types.iter().any(|kind| pair.contains(kind)));
        mark(config, &types, blocks, published.unwrap_or(new))
    }
}

fn shape(config: &Fields, hidden: usize) -> Result<MambaShape> {
    const HEADS: &str = "mamba_n_heads";
    const HEAD_DIM: &str = "mamba_d_head";
    let expanded = config.size("mamba_expand")?.unwrap_or(2).saturating_mul(hidden);
    let inner = config.size("mamba_d_ssm")?.unwrap_or(expanded);
    let heads = config.need(HEADS)?;
    if heads == 0 || !inner.is_multiple_of(heads) {
        return Err(config.bad(HEADS, format_args!("it must divide Mamba's {inner} elements")));
    }
    let head_dim = inner / heads;
    let auto = config.text(HEAD_DIM).is_ok_and(|text| text == Some("auto"));
    if !auto && config.size(HEAD_DIM)?.is_some_and(|given| given != head_dim) {
        return Err(config.bad(HEAD_DIM, format_args!("{heads} heads have {inner} elements")));
    }
    Ok(MambaShape {
        heads,
        head_dim,
        groups: config.size("mamba_n_groups")?.unwrap_or(1),
        state_dim: config.need("mamba_d_state")?,
        kernel: config.size("mamba_d_conv")?.unwrap_or(4),
    })
}

fn norm(config: &Fields) -> Result<GateNorm> {
    let before = config.flag("mamba_norm_before_gate")?.unwrap_or(true);
    Ok(match config.flag("mamba_rms_norm")?.unwrap_or(false) {
        false => GateNorm::Never,
        true if before => GateNorm::BeforeGate,
        true => GateNorm::AfterGate,
    })
}

impl Mixer for MambaConfig {
    fn check(&self, names: &Names) -> Result<()> {
        let MambaShape { heads, head_dim, groups, state_dim, kernel } = self.shape;
        names.within("ssm.time_step_rank", heads, HEADS)?;
        names.within("ssm.group_count", groups, 1..=heads)?;
        if !heads.is_multiple_of(groups) {
            let why = format!("it must divide the number of heads, {heads}");
            return Err(names.bad("ssm.group_count", groups, &why));
        }
        names.within("ssm.inner_size", head_dim, 1..=MAX_HEAD)?;
        names.within("ssm.state_size", state_dim, 1..=MAX_HEAD)?;
        names.within("ssm.conv_kernel", kernel, KERNEL)?;
        let factors = self.inputs.iter().chain([&self.output]);
        factors.into_iter().try_for_each(|factor| names.float("ssm_multipliers", *factor, FACTOR))?;
        let [least, most] = self.steps;
        match least >= 0.0 && least <= most {
            true => Ok(()),
            false => {
                Err(names.bad("time_step_limit", format_args!("{least} to {most}"), "it must be a range"))
            }
        }
    }

    fn push(&self, from: &mut dyn Source, pass: &mut Pass, slot: Slot, of: &Residual) -> Result<Mixed> {
        // The gate; x, B and C; the steps
        let input = [("ssm_in", self.shape.inputs())];
        let input = of.linear(pass, from.product(slot, &input, from.hidden(), false)?);
        let net = Arc::new(net(from, self)?);
        let place = from.state_place();
        let rows = pass.make(|to| Op::Recur { inputs: vec![input], place, net, to });
        Ok(Mixed { rows, output: "ssm_out", width: self.shape.inner() })
    }

    fn unwritten(&self) -> Option<&'static str> {
        Some("layers of Mamba-2")
    }

    fn check_update(&self, c: &DecoderConfig, _: &str, peft: bool) -> std::result::Result<(), &'static str> {
        let in_weights = self.inputs == [1.0; 5] && self.output == 1.0;
        match c.family.multipliers && peft == in_weights {
            true => Err(
                "the model's factors are in the weights of GGUF files, and not in those of folders; open a folder \
                         with PEFT's adapters, and a GGUF file with those in GGUF",
            ),
            false => Ok(()),
        }
    }
}

fn net(from: &mut dyn Source, m: &MambaConfig) -> Result<Mamba> {
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
            // A norm after the gate has the factor in its weights.
            output: if matches!(norm, MambaNorm::AfterGate(_)) { 1.0 } else { m.output },
        },
        norm,
        steps: m.steps,
    })
}

fn gate_norm(from: &mut dyn Source, m: &MambaConfig) -> Result<MambaNorm> {
    if m.norm == GateNorm::Never {
        return Ok(MambaNorm::Never);
    }
    let weight = from.vector("ssm_norm.weight", m.shape.inner())?;
    let norm = Norm { weight, bias: None, eps: from.rms_eps() };
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
