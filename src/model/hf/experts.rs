//! Reads a mixture of experts from a `config.json`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::{Block, ExpertsConfig};
use crate::model::family::{ExpertDefaults, Family, GroupDefaults, SharedExpert};
use crate::ops::{Choice, Gate, Groups};

/// The experts, if there are any, whose layers are marked in `blocks`. A file of a family without experts must not
/// name any.
pub(super) fn read(config: &Fields, family: &Family, blocks: &mut [Block]) -> Result<Option<ExpertsConfig>> {
    let Some(defaults) = family.experts else {
        for key in ["num_experts", "num_local_experts"] {
            if config.size(key)?.is_some_and(|count| count > 1) {
                return Err(config.unsupported(key, format!("{} has no experts", family.name())));
            }
        }
        return Ok(None);
    };
    if defaults.beside && !config.flag("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    let count = match config.size("num_local_experts")? {
        Some(count) => count,
        None => config.need(defaults.count)?,
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
    if family.latent {
        listed(config, blocks)?;
    }
    if !blocks.iter().any(|block| block.sparse) {
        return Ok(None);
    }
    let renormalize = config.flag("norm_topk_prob")?.unwrap_or(defaults.renormalize);
    let scale =
        config.float("routed_scaling_factor")?.filter(|_| defaults.scaled || defaults.gate == Gate::Logistic);
    let choice = Choice {
        used: config.need(if defaults.beside { "top_k_experts" } else { "num_experts_per_tok" })?,
        gate: defaults.gate,
        renormalize: renormalize.then_some(defaults.more),
        scale: scale.unwrap_or(1.0),
        groups: defaults.groups.map_or(Ok(None), |groups| grouped(config, &defaults, &groups))?,
    };
    let bias = defaults.bias.is_some() && config.flag("use_expert_bias")?.unwrap_or(true);
    let width = config.need(defaults.width.0)?;
    let shared = match defaults.shared {
        SharedExpert::Weighed => Some(config.need("shared_expert_intermediate_size")?),
        SharedExpert::Added => config.size("shared_intermediate_size")?.filter(|width| *width > 0),
        SharedExpert::Counted => {
            let count = config.size("n_shared_experts")?.unwrap_or(0);
            Some(count.saturating_mul(width)).filter(|width| *width > 0)
        }
        SharedExpert::Never => None,
    };
    Ok(Some(ExpertsConfig { count, width, shared, choice, bias }))
}

/// Marks the sparse layers of a file that lists them.
fn listed(config: &Fields, blocks: &mut [Block]) -> Result<()> {
    const LIST: &str = "mlp_layer_types";
    let Some(kinds) = config.texts(LIST)? else { return Ok(()) };
    if kinds.len() != blocks.len() {
        return Err(config.bad(LIST, format_args!("there are {} layers", blocks.len())));
    }
    for (block, kind) in blocks.iter_mut().zip(kinds) {
        block.sparse = match kind {
            "dense" => false,
            "sparse" => true,
            _ => return Err(config.unsupported(LIST, "a layer in it is neither dense nor sparse")),
        };
    }
    Ok(())
}

/// The groups of experts, if a row's are not of any. Files may name the way to choose them, and the gate.
fn grouped(config: &Fields, defaults: &ExpertDefaults, groups: &GroupDefaults) -> Result<Option<Groups>> {
    const METHOD: &str = "topk_method";
    const GATE: &str = "scoring_func";
    let gate = if defaults.gate == Gate::Softmax { "softmax" } else { "sigmoid" };
    if config.text(GATE)?.is_some_and(|own| own != gate) {
        return Err(config.unsupported(GATE, format!("here it is {gate}")));
    }
    let known = if groups.method.is_some() { "greedy" } else { "noaux_tc" };
    let method = config.text(METHOD)?.unwrap_or(known);
    if method != known && Some(method) != groups.method {
        let other = groups.method.map_or(String::new(), |other| format!(" or {other}"));
        return Err(config.unsupported(METHOD, format!("here it is {known}{other}")));
    }
    let [count, used] = [("n_group", groups.count), ("topk_group", groups.used)]
        .map(|(key, default)| config.size(key).map(|size| size.unwrap_or(default)));
    let (count, used) = (count?, used?);
    if groups.method.is_some_and(|name| name != method) {
        return Ok(None);
    }
    Ok(Groups::of(count, used, defaults.gate))
}
