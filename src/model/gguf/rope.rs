//! Rotations and windows of GGUF files, and the growth of queries, which files describe beside them.

use super::Keys;
use crate::base::Result;
use crate::formats::gguf::Gguf;
use crate::model::config::{Block, LAYERS, RopeConfig, RopeScaling};
use crate::model::family::{Rotation, Windows};
use crate::model::keys::TEMPERATURE;
use crate::ops::Temperature;

/// The base of windowed layers.
const BASE_OF_WINDOWS: &str = "rope.freq_base_swa";

/// The `rope.scaling.type` of LongRoPE.
pub(super) const LONG: &str = "longrope";
/// The key of YaRN's `mscale_all_dim`.
pub(super) const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
/// The tensors of its divisors for short and for long contexts.
pub(super) const LONG_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The kind of scaling of rotations. Files of Phi-3 do not name it, but have LongRoPE's divisors.
pub(super) fn kind<'a>(gguf: &'a Gguf, architecture: &str) -> Result<Option<&'a str>> {
    let named = gguf.find::<&str>(&format!("{architecture}.rope.scaling.type"))?;
    let long = LONG_FACTORS.iter().any(|name| gguf.tensor(name).is_some());
    Ok(named.or(Some(LONG).filter(|_| long)))
}

impl Keys<'_> {
    /// The rotations, and the block of each layer. The sizes are those of heads without a window, and of the others.
    pub(super) fn blocks(
        &self,
        layers: usize,
        context: usize,
        [head_dim, windowed_dim]: [usize; 2],
    ) -> Result<(Vec<RopeConfig>, Vec<Block>)> {
        let dims = self.size("rope.dimension_count", Some(head_dim))?;
        // 10000 is the value of the paper, and of files without the key.
        let base = self.float("rope.freq_base", 10_000.0)?;
        let rope = RopeConfig { base, dims, scaling: self.rope_scaling(context, dims)? };
        let default = match self.family.windows {
            Windows::AllBut { gguf_default, .. } => gguf_default,
            _ => None,
        };
        // 0 means that there is none.
        let window = self.find::<u64>("attention.sliding_window")?.or(default).filter(|&window| window > 0);
        let Some(window) = window else {
            if self.family.rotates_in_windows_only() {
                let why = "layers of this family rotate in a window only, and it must be positive";
                return Err(self.names.bad("attention.sliding_window", 0, why));
            }
            let stands =
                self.family.may_stand_still && self.find::<bool>("rope.scaling.finetuned")? == Some(false);
            let rotates = if stands { vec![false; layers] } else { self.family.rotating(layers) };
            return Ok(rope.of_layers(&rotates));
        };
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        match self.family.windows {
            Windows::Never | Windows::Upper | Windows::Listed | Windows::AllIfUsed { .. } => {
                Err(self.names.unsupported("attention.sliding_window", window))
            }
            Windows::AllInGguf | Windows::All { .. } => {
                Ok((vec![rope], vec![Block { window: Some(window), ..Block::default() }; layers]))
            }
            Windows::AllBut { every, rotation, own_beside, .. } => {
                let reads_base = matches!(rotation, Rotation::Local { .. });
                if let Some(other) =
                    self.find::<f32>(BASE_OF_WINDOWS)?.filter(|other| *other != base && !reads_base)
                {
                    return Err(self.names.unsupported(BASE_OF_WINDOWS, other));
                }
                let ropes = match rotation {
                    Rotation::Local { base: default } => {
                        let base = self.float(BASE_OF_WINDOWS, default.unwrap_or(base))?;
                        let own = if self.family.global_heads { windowed_dim } else { dims };
                        let dims = self.size("rope.dimension_count_swa", Some(own))?;
                        vec![rope, RopeConfig { base, dims, scaling: RopeScaling::None }]
                    }
                    Rotation::Same => vec![rope],
                    Rotation::WindowedOnly | Rotation::WindowedIfAny => vec![rope.still(), rope],
                };
                let window = window.saturating_add(own_beside.into());
                let local = Block { window: Some(window), rope: ropes.len() - 1, ..Block::default() };
                let windowed = self.windowed(layers, every)?.into_iter();
                let blocks = windowed.map(|windowed| if windowed { local } else { Block::default() });
                Ok((ropes, blocks.collect()))
            }
        }
    }

    /// Whether each layer has a window: the file's list, or all but each `every`th layer, by the file's number, or
    /// `every` without one.
    pub(super) fn windowed(&self, layers: usize, every: usize) -> Result<Vec<bool>> {
        const KEY: &str = "attention.sliding_window_pattern";
        if let Ok(Some(list)) = self.find::<Vec<bool>>(KEY) {
            let count = format_args!("a list of {}", list.len());
            let why = format!("there are {layers} layers");
            return if list.len() == layers { Ok(list) } else { Err(self.names.bad(KEY, count, &why)) };
        }
        let every = self.size(KEY, Some(every))?;
        self.names.within(KEY, every, LAYERS)?;
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(every)).collect())
    }

    fn rope_scaling(&self, context: usize, dims: usize) -> Result<RopeScaling> {
        let kind = kind(self.gguf, self.gguf.get("general.architecture")?)?;
        let factor = match self.find::<f32>("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.float("rope.scale_linear", 1.0)?,
        };
        let attention = self.float("rope.scaling.attn_factor", 1.0)?;
        let only = |key: &str, value: f32, kinds: &str| {
            let why = format_args!("{value} where rope.scaling.type is not {kinds}");
            Err(self.names.unsupported(key, why))
        };
        if attention != 1.0 && !matches!(kind, Some("yarn" | LONG)) {
            return only("rope.scaling.attn_factor", attention, "yarn or longrope");
        }
        for (key, neutral) in [("rope.scaling.yarn_attn_factor", 1.0), (LOG_MULTIPLIER, 0.0)] {
            let value = self.float(key, neutral)?;
            if value != neutral && kind != Some("yarn") {
                return only(key, value, "yarn");
            }
        }
        match kind {
            Some("none") => Ok(RopeScaling::None),
            // A factor of 1 scales nothing; converters write it.
            None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.size("rope.scaling.original_context_length", Some(context))?,
                beta_fast: self.float("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: self.float("rope.scaling.yarn_beta_slow", 1.0)?,
                attention_factor: attention * self.yarn_attention(factor)?,
                truncate: self.family.rounds_yarn,
            }),
            Some(LONG) => {
                let original_context = self.size("rope.scaling.original_context_length", Some(context))?;
                let [short, long] = LONG_FACTORS.map(|name| self.gguf.vector_f32(name, dims / 2));
                Ok(RopeScaling::Long {
                    short: short?.to_vec(),
                    long: long?.to_vec(),
                    original_context,
                    attention_factor: match self.find::<f32>("rope.scaling.attn_factor")? {
                        Some(_) => attention,
                        None => {
                            let times = context as f64 / original_context.max(1) as f64;
                            attention * RopeScaling::long_attention(times, original_context)
                        }
                    },
                })
            }
            Some(other) => Err(self.names.unsupported("rope.scaling.type", format_args!("'{other}'"))),
        }
    }

    /// YaRN's factor on cos and sin: the file's own, which converters take from a `config.json`, or the usual one. By
    /// `mscale_all_dim`, of which files have the logarithm's multiplier, it gets smaller.
    fn yarn_attention(&self, factor: f32) -> Result<f32> {
        let multiplier = self.float(LOG_MULTIPLIER, 0.0)?;
        if self.family.latent && multiplier != 0.0 {
            // Their `mscale` is `mscale_all_dim`; the key has a tenth of it, and is a factor on scores.
            return Ok(self.find::<f32>("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0));
        }
        let all_dim = 1.0 + multiplier * (RopeScaling::yarn_attention(factor) - 1.0);
        let own = self.find::<f32>("rope.scaling.yarn_attn_factor")?;
        Ok(own.unwrap_or(RopeScaling::yarn_attention(factor) / all_dim))
    }

    /// The growth of queries, if the family and the file have it.
    pub(super) fn temperature(&self) -> Result<Option<Temperature>> {
        let scale = self.float(TEMPERATURE, 0.0)?;
        if !self.family.temperature || scale == 0.0 {
            return Ok(None);
        }
        let context = self.size("context_length", None)?;
        let length = self.size("rope.scaling.original_context_length", Some(context))?;
        Ok(Some(Temperature { scale, length }))
    }
}
