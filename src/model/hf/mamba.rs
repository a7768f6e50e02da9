//! Reads layers of Mamba-2 from a `config.json`, and Falcon-H1's factors on parts of a layer.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, GateNorm, MambaConfig};
use crate::model::family::{Family, MambaDefaults};
use crate::ops::{Activation, MambaShape};

/// The types of layers as transformers names them, and as most files do.
const TYPES: [[&str; 2]; 2] = [["linear_attention", "full_attention"], ["mamba", "attention"]];
/// Biases of Mamba-2's products.
const BIASES: [&str; 2] = ["mamba_proj_bias", "projectors_bias"];

/// The shape of the layers of Mamba-2, if there are any; they are marked in `blocks`.
pub(super) fn read(
    config: &Fields,
    family: &Family,
    hidden: usize,
    blocks: &mut [Block],
) -> Result<Option<MambaConfig>> {
    let Some(defaults) = family.mamba else { return Ok(None) };
    if defaults.beside {
        blocks.iter_mut().for_each(|block| block.beside = true);
    } else {
        mark(config, blocks)?;
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
    let factors = Multipliers::read(config, family)?;
    Ok(Some(MambaConfig {
        shape,
        norm: norm(config, defaults)?,
        conv_bias: config.flag("mamba_conv_bias")?.unwrap_or(true),
        steps: config.range("time_step_limit")?.unwrap_or([0.0, f32::INFINITY]),
        inputs: factors.inputs,
        output: factors.output / factors.attention,
    }))
}

fn mark(config: &Fields, blocks: &mut [Block]) -> Result<()> {
    let listed = match config.texts("layer_types")? {
        None => config.texts("layers_block_type")?,
        types => types,
    };
    let Some(types) = listed else {
        blocks.iter_mut().for_each(|block| block.recurrent = true);
        return Ok(());
    };
    let published = types.iter().any(|kind| TYPES[1].contains(kind));
    super::delta::mark(config, &types, blocks, TYPES[usize::from(published)])
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

fn norm(config: &Fields, defaults: MambaDefaults) -> Result<GateNorm> {
    if let Some(norm) = defaults.norm {
        return Ok(norm);
    }
    let before = config.flag("mamba_norm_before_gate")?.unwrap_or(true);
    Ok(match config.flag("mamba_rms_norm")?.unwrap_or(false) {
        false => GateNorm::Never,
        true if before => GateNorm::BeforeGate,
        true => GateNorm::AfterGate,
    })
}

/// Factors on parts of a layer. The residual is kept divided by that of attention's output, so that its updates need none.
pub(super) struct Multipliers {
    /// On attention's output.
    pub attention: f32,
    /// On attention's scores.
    pub scores: f32,
    /// On the gate, and on the output of the feed-forward.
    feed_forward: [f32; 2],
    /// On the gate, x, B, C and the steps of Mamba-2.
    inputs: [f32; 5],
    /// On Mamba-2's output.
    output: f32,
}

impl Multipliers {
    pub(super) fn read(config: &Fields, family: &Family) -> Result<Self> {
        let given = family.mamba.is_some_and(|defaults| defaults.multipliers);
        if !given {
            return Ok(Self {
                attention: 1.0,
                scores: 1.0,
                feed_forward: [1.0; 2],
                inputs: [1.0; 5],
                output: 1.0,
            });
        }
        let one = |key| Ok::<_, crate::base::Error>(config.float(key)?.unwrap_or(1.0));
        let input = one("attention_in_multiplier")?;
        let before = one("ssm_in_multiplier")?;
        let attention = input * one("attention_out_multiplier")?;
        let feed_forward: [f32; 2] = several(config, "mlp_multipliers")?;
        // These factors are computed behind products, or before them, as if there were no bias.
        for (key, none) in [("attention_bias", input == 1.0), ("mlp_bias", feed_forward[1] == attention)] {
            if !none && config.flag(key)?.unwrap_or(false) {
                let why = "biases beside attention_in_multiplier and the second of mlp_multipliers are not computed";
                return Err(config.unsupported(key, why));
            }
        }
        Ok(Self {
            attention,
            scores: input * input * one("key_multiplier")?,
            feed_forward,
            inputs: several(config, "ssm_multipliers")?.map(|factor: f32| factor * before),
            output: one("ssm_out_multiplier")?,
        })
    }

    /// The activation with the factors of the feed-forward.
    pub(super) fn activation(&self, config: &Fields, activation: Activation) -> Result<Activation> {
        let [by, output] = [self.feed_forward[0], self.feed_forward[1] / self.attention];
        match activation {
            activation if [by, output] == [1.0; 2] => Ok(activation),
            Activation::SwiGlu => Ok(Activation::ScaledSwiGlu { by, output }),
            _ => Err(config.unsupported("mlp_multipliers", "they are read beside silu only")),
        }
    }
}

/// So many factors, each 1 without the key.
fn several<const N: usize>(config: &Fields, key: &str) -> Result<[f32; N]> {
    let Some(list) = config.floats(key)? else { return Ok([1.0; N]) };
    list.try_into().map_err(|_| config.bad(key, format_args!("it must have {N} numbers")))
}

/// Maps GGUF's key to the key of a file with Mamba-2.
pub(super) fn key(gguf: &str) -> Option<&'static str> {
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
