//! Reads layers of Gated DeltaNet from a `config.json`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::Block;
use crate::model::family::Family;
use crate::ops::{DeltaShape, HeadOrder};

const RECURRENT: &str = "linear_attention";
const ATTENTION: &str = "full_attention";

/// The shape of the recurrent layers, if the family has any; they are marked in `blocks`.
pub(super) fn read(config: &Fields, family: &Family, blocks: &mut [Block]) -> Result<Option<DeltaShape>> {
    let Some(defaults) = family.delta else { return Ok(None) };
    let every = config.size("full_attention_interval")?.unwrap_or(defaults.every);
    match config.texts("layer_types")? {
        Some(types) => mark(config, &types, blocks, [RECURRENT, ATTENTION])?,
        None if every == 0 => return Err(config.bad("full_attention_interval", "it must be 1 or more")),
        None => {
            let recurrent = |index: usize| !(index + 1).is_multiple_of(every);
            blocks.iter_mut().enumerate().for_each(|(index, block)| block.recurrent = recurrent(index));
        }
    }
    let size = |key, default| Ok(config.size(key)?.unwrap_or(default));
    let shape = DeltaShape {
        key_heads: size("linear_num_key_heads", defaults.key_heads)?,
        value_heads: size("linear_num_value_heads", defaults.value_heads)?,
        key_dim: size("linear_key_head_dim", defaults.dim)?,
        value_dim: size("linear_value_head_dim", defaults.dim)?,
        kernel: size("linear_conv_kernel_dim", defaults.kernel)?,
        order: HeadOrder::Grouped,
    };
    Ok(blocks.iter().any(|block| block.recurrent).then_some(shape))
}

/// Marks recurrent layers by the list of all layers' types. The names are those of both types.
pub(super) fn mark(
    config: &Fields,
    types: &[&str],
    blocks: &mut [Block],
    [recurrent, attention]: [&str; 2],
) -> Result<()> {
    if types.len() != blocks.len() {
        return Err(config.bad("layer_types", format_args!("num_hidden_layers is {}", blocks.len())));
    }
    for (block, kind) in blocks.iter_mut().zip(types) {
        block.recurrent = match *kind {
            kind if kind == recurrent => true,
            kind if kind == attention => false,
            other => {
                let other: String = other.chars().take(60).collect();
                let why = format!("'{other}' in it is not {recurrent} or {attention}");
                return Err(config.unsupported("layer_types", why));
            }
        };
    }
    Ok(())
}
