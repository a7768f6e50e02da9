//! Reads a mixture of experts from a `config.json`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, ExpertsConfig};
use crate::model::family::Family;
use crate::ops::{Choice, Gate};

/// The experts, if there are any, whose layers are marked in `blocks`. A file of a family without experts must not
/// name any.
pub fn read(config: &Fields, family: &Family, blocks: &mut [Block]) -> Result<Option<ExpertsConfig>> {
    let Some(defaults) = family.experts else {
        for key in ["num_experts", "num_local_experts"] {
            if config.size(key)?.is_some_and(|count| count > 1) {
                return Err(config.unsupported(key, format!("{} has no experts", family.name())));
            }
        }
        return Ok(None);
    };
    let count = match config.size("num_local_experts")? {
        Some(count) => count,
        None => config.need("num_experts")?,
    };
    // Layers that are not dense by list, and every `step`th of them.
    let step = config.size("decoder_sparse_step")?.unwrap_or(1);
    let dense = config.sizes("mlp_only_layers")?.unwrap_or_default();
    let first = match defaults.dense_first {
        Some((key, default)) => config.size(key)?.unwrap_or(default),
        None => 0,
    };
    for (index, block) in blocks.iter_mut().enumerate() {
        let nth = step > 0 && (index + 1).is_multiple_of(step);
        block.sparse = count > 0 && nth && index >= first && !dense.contains(&index);
    }
    if !blocks.iter().any(|block| block.sparse) {
        return Ok(None);
    }
    let renormalize = config.flag("norm_topk_prob")?.unwrap_or(defaults.renormalize);
    let scale = config.float("routed_scaling_factor")?.filter(|_| defaults.gate == Gate::Logistic);
    let choice = Choice {
        used: config.need("num_experts_per_tok")?,
        gate: defaults.gate,
        renormalize: renormalize.then_some(defaults.more),
        scale: scale.unwrap_or(1.0),
    };
    let bias = defaults.bias.is_some() && config.flag("use_expert_bias")?.unwrap_or(true);
    let width = config.need(defaults.width)?;
    let shared = match defaults.shared {
        true => Some(config.need("shared_expert_intermediate_size")?),
        false => None,
    };
    Ok(Some(ExpertsConfig { count, width, shared, choice, bias }))
}
