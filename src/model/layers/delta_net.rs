//! Gated DeltaNet (arXiv 2412.06464).

use super::heads::{Heads, Part};
use super::recurrent::{Mixer, Recurrent, mark};
use super::source::Source;
use super::tensors::{Add, Kind};
use super::{Mixed, Residual};
use crate::base::{Error, Result};
use crate::formats::gguf::writer::Meta;
use crate::model::config::{Block, DecoderConfig, HEADS, KERNEL, LAYERS};
use crate::model::family::{Family, Joined, Named};
use crate::model::gguf::Metadata;
use crate::model::hf::Fields;
use crate::model::names::Names;
use crate::ops::pass::{Op, Pass};
use crate::ops::{DeltaNet, DeltaShape, HeadOrder, MAX_HEAD, Norm, Slot};
use std::sync::Arc;

/// These layers in files that do not give their sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaDefaults {
    /// Each `every`th layer is of attention (`full_attention_interval`).
    pub every: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    /// Elements of a key, and of a value.
    pub dim: usize,
    pub kernel: usize,
    /// In GGUF files. Hugging Face's are always grouped.
    pub order: HeadOrder,
    /// Files have the rows of each key head's products side by side (`fused`).
    pub fused: bool,
}

/// The layers of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaConfig {
    pub shape: DeltaShape,
    /// As `DeltaDefaults::fused`.
    pub fused: bool,
}

const TENSORS: &[Named] = &[
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
];
/// The products before the recurrence, one by one (Qwen 3.5), and in pairs (Qwen3-Next).
const SINGLE: &[Named] = &[
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
];
const PAIRS: &[Joined] = &[
    ("linear_attn.in_proj_qkvz.weight", &["attn_qkv.weight", "attn_gate.weight"]),
    ("linear_attn.in_proj_ba.weight", &["ssm_beta.weight", "ssm_alpha.weight"]),
];
/// GGUF's name of the matrix that has the gates in pieces (`fused`).
pub(crate) const GATES: &str = "ssm_ba.weight";
const EVERY: &str = "full_attention_interval";

impl Recurrent for DeltaDefaults {
    fn types(&self) -> &'static [[&'static str; 2]] {
        &[["linear_attention", "full_attention"]]
    }

    fn tensors(&self) -> &'static [&'static [Named]] {
        if self.fused { &[TENSORS] } else { &[SINGLE, TENSORS] }
    }

    fn joined(&self) -> &'static [Joined] {
        if self.fused { PAIRS } else { &[] }
    }

    fn small(&self) -> &'static [&'static str] {
        &[".ssm_beta.weight", ".ssm_alpha.weight", ".ssm_conv1d.weight"]
    }

    fn gguf_keys(&self) -> &'static [&'static str] {
        &[
            EVERY,
            "ssm.conv_kernel",
            "ssm.group_count",
            "ssm.inner_size",
            "ssm.state_size",
            "ssm.time_step_rank",
        ]
    }

    fn key(&self, gguf: &str) -> Option<&'static str> {
        Some(match gguf {
            "ssm.group_count" => "linear_num_key_heads",
            "ssm.time_step_rank" => "linear_num_value_heads",
            "ssm.state_size" => "linear_key_head_dim",
            "ssm.inner_size" => "linear_value_head_dim",
            "ssm.conv_kernel" => "linear_conv_kernel_dim",
            _ => return None,
        })
    }

    fn lacks_heads(&self) -> bool {
        false
    }

    fn takes_ternary(&self) -> bool {
        true
    }

    fn read_folder(
        &self,
        config: &Fields,
        _: &Family,
        _: usize,
        blocks: &mut [Block],
    ) -> Result<Option<Arc<dyn Mixer>>> {
        let every = config.size(EVERY)?.unwrap_or(self.every);
        match config.texts("layer_types")? {
            Some(types) => mark(config, &types, blocks, self.types()[0])?,
            None if every == 0 => return Err(config.bad(EVERY, "it must be 1 or more")),
            None => mark_every(every, blocks),
        }
        let size = |key, default| Ok(config.size(key)?.unwrap_or(default));
        let shape = DeltaShape {
            key_heads: size("linear_num_key_heads", self.key_heads)?,
            value_heads: size("linear_num_value_heads", self.value_heads)?,
            key_dim: size("linear_key_head_dim", self.dim)?,
            value_dim: size("linear_value_head_dim", self.dim)?,
            kernel: size("linear_conv_kernel_dim", self.kernel)?,
            order: HeadOrder::Grouped,
        };
        let any = blocks.iter().any(|block| block.recurrent);
        Ok(any.then(|| Arc::new(DeltaConfig { shape, fused: self.fused }) as Arc<dyn Mixer>))
    }

    fn read_gguf(&self, of: &Metadata, _: usize, blocks: &mut [Block]) -> Result<Option<Arc<dyn Mixer>>> {
        let every = of.size(EVERY, Some(self.every))?;
        of.names.within(EVERY, every, LAYERS)?;
        mark_every(every, blocks);
        if !blocks.iter().any(|block| block.recurrent) {
            return Ok(None);
        }
        let [value_heads, value_dim] = of.heads_of_state()?;
        let shape = DeltaShape {
            key_heads: of.size("ssm.group_count", None)?,
            value_heads,
            key_dim: of.size("ssm.state_size", None)?,
            value_dim,
            kernel: of.size("ssm.conv_kernel", None)?,
            order: self.order,
        };
        Ok(Some(Arc::new(DeltaConfig { shape, fused: self.fused })))
    }

    fn keys_without(&self) -> Vec<(&'static str, Meta)> {
        vec![(EVERY, Meta::U32(1))]
    }
}

fn mark_every(every: usize, blocks: &mut [Block]) {
    for (index, block) in blocks.iter_mut().enumerate() {
        block.recurrent = !(index + 1).is_multiple_of(every);
    }
}

impl Mixer for DeltaConfig {
    fn check(&self, names: &Names) -> Result<()> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, kernel, .. } = self.shape;
        names.within("ssm.group_count", key_heads, HEADS)?;
        names.within("ssm.time_step_rank", value_heads, HEADS)?;
        if !value_heads.is_multiple_of(key_heads) {
            let why = format!("it must be a multiple of the number of key heads, {key_heads}");
            return Err(names.bad("ssm.time_step_rank", value_heads, &why));
        }
        names.within("ssm.state_size", key_dim, 1..=MAX_HEAD)?;
        names.within("ssm.inner_size", value_dim, 1..=MAX_HEAD)?;
        names.within("ssm.conv_kernel", kernel, KERNEL)
    }

    fn push(&self, from: &mut dyn Source, pass: &mut Pass, slot: Slot, of: &Residual) -> Result<Mixed> {
        let (hidden, shape, heads) = (from.hidden(), self.shape, self.shape.value_heads);
        let a = from.decays("ssm_a", heads)?;
        let weight = from.vector("ssm_norm.weight", shape.value_dim)?;
        // q, k and v, and the gate of the output
        let inputs = [("attn_qkv", shape.channels()), ("attn_gate", shape.values())];
        // The logits of rates, and of decays
        let gates = [("ssm_beta", heads), ("ssm_alpha", heads)];
        let inputs = vec![
            of.linear(pass, from.product(slot, &inputs, hidden, false)?),
            of.linear(pass, from.product(Slot::Gate, &gates, hidden, false)?),
        ];
        let net = Arc::new(DeltaNet {
            shape,
            conv: from.convolution("ssm_conv1d.weight", shape.channels(), shape.kernel)?,
            a,
            dt_bias: from.vector("ssm_dt.bias", heads)?,
            norm: Norm { weight, bias: None, eps: from.rms_eps() },
        });
        let place = from.state_place();
        let rows = pass.make(|to| Op::Recur { inputs, place, net, to });
        Ok(Mixed { rows, output: "ssm_out", width: shape.values() })
    }

    fn check_update(
        &self,
        c: &DecoderConfig,
        name: &str,
        peft: bool,
    ) -> std::result::Result<(), &'static str> {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let index = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
        let recurrent = index.and_then(|index| c.blocks.get(index)).is_some_and(|block| block.recurrent);
        let in_gguf = c.family.recurrent_as::<DeltaDefaults>().map_or(HeadOrder::Grouped, |of| of.order);
        let (shape, order) = (self.shape, if peft { HeadOrder::Grouped } else { in_gguf });
        let moved = order != shape.order && shape.key_heads > 1 && shape.value_heads > shape.key_heads;
        match moved && recurrent && !name.contains(".ffn_") {
            true => Err(
                "the heads of the model's file are in another order; open a folder with PEFT's adapters, and \
                        a GGUF file with those in GGUF",
            ),
            false => Ok(()),
        }
    }

    fn write_tensors(&self, _: &DecoderConfig, family: &Family, add: &mut Add) {
        let (shape, of) = (self.shape, family.recurrent_as::<DeltaDefaults>());
        let heads = Heads { shape, order: of.map_or(shape.order, |of| of.order) };
        let gates: &[_] = match of.is_some_and(|of| of.fused) {
            true => &[(GATES, Part::Gates)],
            false => &[("ssm_beta.weight", Part::Gate), ("ssm_alpha.weight", Part::Gate)],
        };
        let (keys, each) = (2 * shape.keys(), shape.value_dim);
        let others = [
            ("attn_qkv.weight", Part::Rows { keys, each }),
            ("attn_gate.weight", Part::Rows { keys: 0, each }),
            ("ssm_conv1d.weight", Part::Convolution),
            ("ssm_dt.bias", Part::Vector),
            ("ssm_a", Part::Vector),
            ("ssm_out.weight", Part::Columns),
        ];
        for (name, part) in gates.iter().copied().chain(others) {
            add(name.into(), Kind::Delta(heads, part));
        }
        add("ssm_norm.weight".into(), Kind::Norm { len: shape.value_dim, offset: 0.0 });
    }

    fn write_keys(&self, c: &DecoderConfig, _: &Family) -> Result<Vec<(&'static str, Meta)>> {
        let first = c.blocks.iter().position(|block| !block.recurrent);
        let every = first.unwrap_or(c.layers) + 1;
        let other = |(index, block): (usize, &Block)| block.recurrent == (index + 1).is_multiple_of(every);
        if c.blocks.iter().enumerate().any(other) {
            let why = "layers of attention that are not each so many layers apart have no key in GGUF";
            return Err(Error::unsupported(why));
        }
        let DeltaShape { key_heads, value_heads, key_dim, kernel, .. } = self.shape;
        let sizes = [
            (EVERY, every),
            ("ssm.conv_kernel", kernel),
            ("ssm.state_size", key_dim),
            ("ssm.group_count", key_heads),
            ("ssm.time_step_rank", value_heads),
            ("ssm.inner_size", self.shape.values()),
        ];
        Ok(sizes.map(|(key, n)| (key, Meta::U32(n as u32))).into())
    }

    /// Value heads are written in the file's own order.
    fn kept(&self) -> String {
        format!("{:?}", DeltaShape { order: HeadOrder::Grouped, ..self.shape })
    }
}
