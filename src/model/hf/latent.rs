//! Reads latent attention from a `config.json`.

use super::fields::Fields;
use crate::base::Result;
use crate::model::config::LatentConfig;
use crate::model::family::Family;
use crate::ops::{LatentShape, RopeStyle};

/// The eps of the norms of the latent and of the queries' one: that of transformers' class, whatever the file says.
const EPS: f32 = 1e-6;

/// The sizes of attention, if the family's is latent, and the factor on the scores.
pub(super) fn read(config: &Fields, family: &Family, heads: usize) -> Result<Option<(LatentConfig, f32)>> {
    if !family.latent {
        return Ok(None);
    }
    for key in ["attention_bias", "mlp_bias"] {
        if config.flag(key)?.unwrap_or(false) {
            return Err(config.unsupported(key, format!("{} has no biases here", family.name())));
        }
    }
    let shape = LatentShape {
        heads,
        rank: config.need("kv_lora_rank")?,
        rope: config.need("qk_rope_head_dim")?,
        nope: config.need("qk_nope_head_dim")?,
        value: config.need("v_head_dim")?,
    };
    // They follow from those.
    for key in ["head_dim", "qk_head_dim", "num_key_value_heads"] {
        config.contains(key);
    }
    let scale = stretched(config)? / (shape.query() as f64).sqrt();
    Ok(Some((LatentConfig { shape, query_rank: config.size("q_lora_rank")?, eps: EPS }, scale as f32)))
}

/// The factor of YaRN on scores.
fn stretched(config: &Fields) -> Result<f64> {
    let new = config.object("rope_parameters")?;
    let Some(parameters) = config.object("rope_scaling")?.or(new) else { return Ok(1.0) };
    let kind = parameters.text("rope_type")?.or(parameters.text("type")?);
    let all_dim = parameters.float("mscale_all_dim")?.unwrap_or(0.0);
    let factor = parameters.float("factor")?.unwrap_or(1.0);
    Ok(match kind {
        None | Some("default") => 1.0,
        Some(_) if factor <= 1.0 => 1.0,
        Some(_) => (0.1 * f64::from(all_dim) * f64::from(factor).ln() + 1.0).powi(2),
    })
}

/// Which elements are pairs. transformers reads the key for all but the first of these families.
pub(super) fn rope_style(config: &Fields, family: &Family) -> Result<RopeStyle> {
    Ok(match family.latent && config.flag("rope_interleave")? == Some(false) {
        true => RopeStyle::Neox,
        false => family.hf_rope,
    })
}

/// The file's key for GGUF's.
pub(super) fn key(gguf: &str) -> Option<&'static str> {
    Some(match gguf {
        "attention.kv_lora_rank" => "kv_lora_rank",
        "attention.q_lora_rank" => "q_lora_rank",
        "attention.key_length_mla" => "qk_nope_head_dim",
        "attention.value_length_mla" => "v_head_dim",
        "rope.dimension_count" => "qk_rope_head_dim",
        "expert_count" => "n_routed_experts",
        "expert_shared_feed_forward_length" => "n_shared_experts",
        "expert_group_count" => "n_group",
        "expert_group_used_count" => "topk_group",
        _ => return None,
    })
}
