//! Reads layers of short convolutions from a `config.json`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::Block;
use crate::model::family::{ConvDefaults, Family, Windows};
use crate::ops::ConvShape;

pub(super) const CONV: &str = "conv";
const ATTENTION: &str = "full_attention";

/// The shape of the convolutions, if the family has any; their layers are marked in `blocks`.
pub(super) fn read(
    config: &Fields,
    family: &Family,
    hidden: usize,
    blocks: &mut [Block],
) -> Result<Option<ConvShape>> {
    let Some(defaults) = family.conv else { return Ok(None) };
    if config.flag("conv_bias")?.unwrap_or(false) {
        return Err(config.unsupported("conv_bias", "convolutions with biases are not computed"));
    }
    match (config.texts("layer_types")?, config.sizes("full_attn_idxs")?) {
        // The rotations have checked the list.
        (Some(types), _) if family.windows != Windows::Never => {
            blocks.iter_mut().zip(types).for_each(|(block, kind)| block.recurrent = kind == CONV);
        }
        (None, None) if family.windows != Windows::Never => {
            return Err(config.bad("layer_types", "it must list the type of each layer"));
        }
        (Some(types), _) => super::delta::mark(config, &types, blocks, [CONV, ATTENTION])?,
        (None, Some(attention)) => {
            let recurrent = |index: usize| !attention.contains(&index);
            blocks.iter_mut().enumerate().for_each(|(index, block)| block.recurrent = recurrent(index));
        }
        (None, None) => {}
    }
    let kernel = config.size("conv_L_cache")?.unwrap_or(defaults.kernel);
    let shape = ConvShape { channels: hidden, kernel };
    Ok(blocks.iter().any(|block| block.recurrent).then_some(shape))
}

/// The width of dense feed-forwards: two thirds of the file's number, rounded up, unless the file says that the number
/// is the width.
pub(super) fn ffn(config: &Fields, defaults: ConvDefaults) -> Result<usize> {
    let given = match config.size("block_ff_dim")? {
        Some(width) => width,
        None => config.need("intermediate_size")?,
    };
    let rounds = defaults.rounds_width && config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true);
    if !rounds {
        return Ok(given);
    }
    const MULTIPLIER: &str = "block_ffn_dim_multiplier";
    let two_thirds = given.saturating_mul(2) / 3;
    if config.contains(MULTIPLIER) && !config.is_set(MULTIPLIER) {
        return Ok(two_thirds);
    }
    let width = (f64::from(config.float(MULTIPLIER)?.unwrap_or(1.0)) * two_thirds as f64) as usize;
    let multiple = config.size("block_multiple_of")?.unwrap_or(256).max(1);
    Ok(width.checked_next_multiple_of(multiple).unwrap_or(usize::MAX))
}
