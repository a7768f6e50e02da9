//! Latent attention's sizes, and checks of groups of experts.

use super::limits::{HEAD_DIM, HIDDEN};
use crate::base::Result;
use crate::model::names::Names;
use crate::ops::{Groups, LatentShape};

/// Latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentConfig {
    pub shape: LatentShape,
    /// Elements of the queries' own latent. `None`: they have none.
    pub query_rank: Option<usize>,
    /// The eps of both latents' norms.
    pub eps: f32,
}

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
