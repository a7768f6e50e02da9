//! Gated short convolutions (LFM2, arXiv 2511.23404).

use super::recurrent::{Mixer, Recurrent, mark, mark_without_heads};
use super::source::Source;
use super::tensors::{Add, Kind, products};
use super::{Mixed, Residual};
use crate::base::Result;
use crate::formats::gguf::writer::Meta;
use crate::model::config::{Block, DecoderConfig, KERNEL};
use crate::model::family::{Family, Named, Windows};
use crate::model::gguf::Metadata;
use crate::model::hf::Fields;
use crate::model::names::Names;
use crate::ops::pass::{Op, Pass};
use crate::ops::{ConvShape, ShortConv, Slot};
use std::sync::Arc;

/// These layers in files that do not give their size.
#[derive(Debug)]
pub(crate) struct ConvDefaults {
    pub kernel: usize,
    /// A `config.json` gives 3/2 of the feed-forward's width, unrounded, unless it says that it gives the width.
    pub rounds_width: bool,
}

const TENSORS: &[Named] = &[
    ("conv.in_proj.weight", "shortconv.in_proj.weight"),
    ("conv.conv.weight", "shortconv.conv.weight"),
    ("conv.out_proj.weight", "shortconv.out_proj.weight"),
];
const TYPES: [&str; 2] = ["conv", "full_attention"];
const KERNEL_KEY: &str = "shortconv.l_cache";

impl Recurrent for ConvDefaults {
    fn types(&self) -> &'static [[&'static str; 2]] {
        &[TYPES]
    }

    fn tensors(&self) -> &'static [&'static [Named]] {
        &[TENSORS]
    }

    fn small(&self) -> &'static [&'static str] {
        &[".shortconv.conv.weight"]
    }

    fn gguf_keys(&self) -> &'static [&'static str] {
        &[KERNEL_KEY]
    }

    fn ignored_keys(&self) -> &'static [&'static str] {
        &["conv_dim", "conv_dim_out", "conv_use_xavier_init"]
    }

    fn key(&self, gguf: &str) -> Option<&'static str> {
        (gguf == KERNEL_KEY).then_some("conv_L_cache")
    }

    fn ffn(&self, config: &Fields) -> Result<Option<usize>> {
        let given = match config.size("block_ff_dim")? {
            Some(width) => width,
            None => config.need("intermediate_size")?,
        };
        if !self.rounds_width || !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
            return Ok(Some(given));
        }
        const MULTIPLIER: &str = "block_ffn_dim_multiplier";
        let two_thirds = given.saturating_mul(2) / 3;
        if config.contains(MULTIPLIER) && !config.is_set(MULTIPLIER) {
            return Ok(Some(two_thirds));
        }
        let width = (f64::from(config.float(MULTIPLIER)?.unwrap_or(1.0)) * two_thirds as f64) as usize;
        let multiple = config.size("block_multiple_of")?.unwrap_or(256).max(1);
        Ok(Some(width.checked_next_multiple_of(multiple).unwrap_or(usize::MAX)))
    }

    fn read_folder(
        &self,
        config: &Fields,
        family: &Family,
        hidden: usize,
        blocks: &mut [Block],
    ) -> Result<Option<Arc<dyn Mixer>>> {
        if config.flag("conv_bias")?.unwrap_or(false) {
            return Err(config.unsupported("conv_bias", "convolutions with biases are not computed"));
        }
        match (config.texts("layer_types")?, config.sizes("full_attn_idxs")?) {
            // The rotations have checked the list.
            (Some(types), _) if family.windows != Windows::Never => {
                blocks.iter_mut().zip(types).for_each(|(block, kind)| block.recurrent = kind == TYPES[0]);
            }
            (None, None) if family.windows != Windows::Never => {
                return Err(config.bad("layer_types", "it must list the type of each layer"));
            }
            (Some(types), _) => mark(config, &types, blocks, TYPES)?,
            (None, Some(attention)) => {
                let recurrent = |index: usize| !attention.contains(&index);
                blocks.iter_mut().enumerate().for_each(|(index, block)| block.recurrent = recurrent(index));
            }
            (None, None) => {}
        }
        if !blocks.iter().any(|block| block.recurrent) {
            return Ok(None);
        }
        let kernel = config.size("conv_L_cache")?.unwrap_or(self.kernel);
        Ok(Some(Arc::new(ConvShape { channels: hidden, kernel })))
    }

    fn read_gguf(
        &self,
        of: &Metadata,
        hidden: usize,
        blocks: &mut [Block],
    ) -> Result<Option<Arc<dyn Mixer>>> {
        mark_without_heads(of, blocks)?;
        if !blocks.iter().any(|block| block.recurrent) {
            return Ok(None);
        }
        let kernel = of.size(KERNEL_KEY, None)?;
        Ok(Some(Arc::new(ConvShape { channels: hidden, kernel })))
    }
}

impl Mixer for ConvShape {
    fn check(&self, names: &Names) -> Result<()> {
        names.within(KERNEL_KEY, self.kernel, KERNEL)
    }

    fn push(&self, from: &mut dyn Source, pass: &mut Pass, slot: Slot, of: &Residual) -> Result<Mixed> {
        // B, C and x
        let input = [("shortconv.in_proj", 3 * self.channels)];
        let input = of.linear(pass, from.product(slot, &input, from.hidden(), false)?);
        let weights = from.convolution("shortconv.conv.weight", self.channels, self.kernel)?;
        let net = Arc::new(ShortConv { shape: *self, weights });
        let place = from.state_place();
        let rows = pass.make(|to| Op::Recur { inputs: vec![input], place, net, to });
        Ok(Mixed { rows, output: "shortconv.out_proj", width: self.channels })
    }

    fn write_tensors(&self, c: &DecoderConfig, _: &Family, add: &mut Add) {
        let channels = self.channels;
        add("shortconv.conv.weight".into(), Kind::Convolution(*self));
        products(c, &[("shortconv.in_proj", 3 * channels)], c.hidden, false, &|_| None, add);
        products(c, &[("shortconv.out_proj", c.hidden)], channels, false, &|_| None, add);
    }

    fn write_keys(&self, c: &DecoderConfig, _: &Family) -> Result<Vec<(&'static str, Meta)>> {
        let kv_heads = c.attention.kv_heads as i32;
        let heads = c.blocks.iter().map(|block| if block.recurrent { 0 } else { kv_heads });
        Ok(vec![
            ("attention.head_count_kv", Meta::I32s(heads.collect())),
            (KERNEL_KEY, Meta::U32(self.kernel as u32)),
        ])
    }
}
