//! Reads from a `config.json` how layers differ: heads of layers without a window, shared K and V, and inputs of single
//! layers.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, share as share_kv};
use crate::model::family::Family;
use crate::model::names::Names;
use crate::ops::AttentionShape;

const LIST: &str = "per_layer_config";
const FULL: &str = "full_attention";
/// Elements of a head of layers without a window, in files that do not say.
const GLOBAL_DIM: usize = 512;

/// The attention of layers without a window, given that of the others. `None`: all attend alike.
pub(super) fn global(
    config: &Fields,
    family: &Family,
    windowed: &AttentionShape,
    layers: usize,
) -> Result<Option<AttentionShape>> {
    if !family.global_heads {
        return Ok(None);
    }
    let same = config.flag("attention_k_eq_v")?.unwrap_or(false);
    let head_dim = config.size("global_head_dim")?.unwrap_or(GLOBAL_DIM);
    let kv_heads = config.size("num_global_key_value_heads")?.filter(|_| same).unwrap_or(windowed.kv_heads);
    let shape = AttentionShape { kv_heads, head_dim, keys_are_values: same, ..windowed.clone() };
    match config.object(LIST)? {
        Some(list) => listed(config, &list, &shape, windowed, layers).map(Some),
        None => Ok(Some(shape)),
    }
}

/// The same in files that list the layers that differ from those with a window, each with what differs.
fn listed(
    config: &Fields,
    list: &Fields,
    shape: &AttentionShape,
    windowed: &AttentionShape,
    layers: usize,
) -> Result<AttentionShape> {
    let kinds = config.texts("layer_types")?.unwrap_or_default();
    let plain = (windowed.head_dim, windowed.kv_heads);
    let mut found = None;
    for layer in 0..layers {
        let key = layer.to_string();
        let (mut head_dim, mut kv_heads) = plain;
        if let Some(own) = list.object(&key)? {
            head_dim = own.size("head_dim")?.unwrap_or(head_dim);
            kv_heads = own.size("num_key_value_heads")?.unwrap_or(kv_heads);
            if let Some(key) = own.unknown(&[]).first() {
                return Err(list.unsupported(&layer.to_string(), format!("'{key}' in it is not known")));
            }
        }
        if kinds.get(layer).is_none_or(|kind| *kind != FULL) {
            if (head_dim, kv_heads) != plain {
                return Err(list.unsupported(&key, format!("only layers of {FULL} may differ")));
            }
        } else if *found.get_or_insert((head_dim, kv_heads)) != (head_dim, kv_heads) {
            return Err(list.unsupported(&key, "layers without a window must be alike"));
        }
    }
    let (head_dim, kv_heads) = found.unwrap_or(plain);
    Ok(AttentionShape { kv_heads, head_dim, ..shape.clone() })
}

/// Marks the last layers that share K and V, whose feed-forwards may be twice as wide.
pub(super) fn share(
    config: &Fields,
    family: &Family,
    blocks: &mut [Block],
    ffn: usize,
    names: &Names,
) -> Result<()> {
    if !family.global_heads {
        return Ok(());
    }
    share_kv(blocks, config.size("num_kv_shared_layers")?.unwrap_or(0), names)?;
    if config.flag("use_double_wide_mlp")?.unwrap_or(false) {
        let shared = blocks.iter_mut().filter(|block| block.shares.is_some());
        shared.for_each(|block| block.ffn = Some(ffn.saturating_mul(2)));
    }
    Ok(())
}

/// Elements of a row's input to each layer, if there is such an input.
pub(super) fn inputs(config: &Fields, family: &Family) -> Result<Option<usize>> {
    if !family.global_heads {
        return Ok(None);
    }
    const ROWS: &str = "vocab_size_per_layer_input";
    let width = config.size("hidden_size_per_layer_input")?.unwrap_or(256);
    if width > 0
        && config.size(ROWS)?.is_some_and(|rows| Some(rows) != config.size("vocab_size").ok().flatten())
    {
        return Err(config.unsupported(ROWS, "each token of the vocabulary needs a row"));
    }
    Ok(Some(width).filter(|width| *width > 0))
}
