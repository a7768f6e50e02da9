//! Checks of the sizes of mixers other than plain attention, and of groups of experts.

use super::{FACTOR, HEAD_DIM, HEADS, HIDDEN, KERNEL, LatentConfig, MambaConfig};
use crate::base::Result;
use crate::model::names::Names;
use crate::ops::{DeltaShape, Groups, LatentShape, MAX_HEAD, MambaShape};

impl LatentConfig {
    pub(super) fn check(&self, names: &Names) -> Result<()> {
        let LatentShape { rank, rope, nope, value, .. } = self.shape;
        names.within("attention.kv_lora_rank", rank, HEAD_DIM)?;
        names.within("rope.dimension_count", rope, HEAD_DIM)?;
        names.within("attention.key_length_mla", nope, 1..=*HEAD_DIM.end())?;
        names.within("attention.value_length_mla", value, 1..=*HEAD_DIM.end())?;
        self.query_rank.map_or(Ok(()), |rank| names.within("attention.q_lora_rank", rank, HIDDEN))
    }
}

/// Groups of `experts`, of which a row has `used`.
pub(super) fn check_groups(groups: &Groups, experts: usize, used: usize, names: &Names) -> Result<()> {
    const COUNT: &str = "expert_group_count";
    names.within(COUNT, groups.count, 1..=experts)?;
    names.within("expert_group_used_count", groups.used, 1..=groups.count)?;
    let size = experts / groups.count;
    if !experts.is_multiple_of(groups.count) || size < groups.best {
        let why = format!("{experts} experts must be in groups of as many, {} or more", groups.best);
        return Err(names.bad(COUNT, groups.count, &why));
    }
    names.within("expert_used_count", used, 1..=groups.used * size)
}

impl MambaConfig {
    pub(super) fn check(&self, names: &Names) -> Result<()> {
        let MambaShape { heads, head_dim, groups, state_dim, kernel } = self.shape;
        names.within("ssm.time_step_rank", heads, HEADS)?;
        names.within("ssm.group_count", groups, 1..=heads)?;
        if !heads.is_multiple_of(groups) {
            let why = format!("it must divide the number of heads, {heads}");
            return Err(names.bad("ssm.group_count", groups, &why));
        }
        names.within("ssm.inner_size", head_dim, 1..=MAX_HEAD)?;
        names.within("ssm.state_size", state_dim, 1..=MAX_HEAD)?;
        names.within("ssm.conv_kernel", kernel, KERNEL)?;
        let factors = self.inputs.iter().chain([&self.output]);
        factors.into_iter().try_for_each(|factor| names.float("ssm_multipliers", *factor, FACTOR))?;
        let [least, most] = self.steps;
        match least >= 0.0 && least <= most {
            true => Ok(()),
            false => {
                Err(names.bad("time_step_limit", format_args!("{least} to {most}"), "it must be a range"))
            }
        }
    }
}

pub(super) fn check_delta(delta: &DeltaShape, names: &Names) -> Result<()> {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim, kernel, .. } = *delta;
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
