//! The share of memory that states of recurrent layers take.

use crate::base::{Error, Result, Status};
use crate::engine::api::EngineConfig;
use crate::ops::StateShape;
use crate::schedule::MAX_DRAFT;
use std::ops::Add;

/// Counts and bytes of states; zeros in a model without recurrent layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatePlan {
    /// Slots for running sequences, snapshots and sessions.
    pub slots: usize,
    /// Maximum number of running sequences, at most `slots`.
    pub running: usize,
    /// Maximum number of drafted rows of a step.
    pub drafted: usize,
    /// Bytes of all slots, and of the data kept for drafted rows.
    pub bytes: u64,
}

impl Add for StatePlan {
    type Output = Self;

    /// The states of two devices together.
    fn add(self, other: Self) -> Self {
        Self {
            slots: self.slots + other.slots,
            running: self.running + other.running,
            drafted: self.drafted + other.drafted,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Sequences that draft in one step with the maximum depth. More of them draft less.
const DRAFTING: usize = 4;
/// Snapshots if the configuration does not say: as many as sequences run, and at least these.
const LEAST_SNAPSHOTS: usize = 8;

impl StatePlan {
    /// Divides `room` bytes between states and KV: states take at most half, and leave `kv` bytes, unless a single one
    /// needs more. `block` is the size of a KV block. `MemoryLimit` if one state and one block do not fit.
    pub(crate) fn new(
        config: &EngineConfig,
        shape: StateShape,
        room: u64,
        kv: u64,
        block: u64,
    ) -> Result<Self> {
        if shape.is_empty() {
            return Ok(Self::default());
        }
        let slot = shape.slot_bytes().unwrap_or(usize::MAX) as u64;
        let batch = config.max_batch_size as usize;
        let drafted = DRAFTING * MAX_DRAFT;
        let rows = drafted as u64 * shape.row_bytes() as u64;
        let snapshots = match config.snapshots {
            0 => batch.max(LEAST_SNAPSHOTS),
            given => given as usize,
        };
        let left = room.saturating_sub(rows);
        let fits = (left.saturating_sub(kv).min(left / 2) / slot)
            .max(u64::from(slot.saturating_add(block) <= left)) as usize;
        if fits == 0 {
            return Err(Error::new(
                Status::MemoryLimit,
                format!(
                    "{room} bytes are left beside weights and workspace, and the state of one sequence takes {slot} \
                     bytes, one KV block {block}, and drafts {rows}"
                ),
            ));
        }
        let wanted = batch.saturating_add(snapshots);
        let slots = wanted.min(fits);
        // A third is kept for snapshots before fewer sequences run.
        let running = batch.min((slots - (slots / 3).min(snapshots)).max(1));
        Ok(Self { slots, running, drafted, bytes: slots as u64 * slot + rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_half_and_leave_a_third_to_snapshots() {
        let shape = StateShape { layers: 2, floats: 128, row: 0, hidden: 0 };
        let config =
            |max_batch_size, snapshots| EngineConfig { max_batch_size, snapshots, ..Default::default() };
        let plan = |config: &EngineConfig, room| {
            StatePlan::new(config, shape, room, 200, 100).map(|plan| (plan.slots, plan.running))
        };
        assert_eq!(plan(&config(4, 0), 1 << 30).unwrap(), (12, 4));
        assert_eq!(plan(&config(4, 2), 1 << 30).unwrap(), (6, 4));
        assert_eq!(plan(&config(4, 0), 2 * 6 * 1024).unwrap(), (6, 4));
        assert_eq!(plan(&config(8, 0), 2 * 6 * 1024).unwrap(), (6, 4));
        assert_eq!(plan(&config(8, 0), 2 * 2 * 1024).unwrap(), (2, 2));
        assert_eq!(plan(&config(8, 0), 1024 + 100).unwrap(), (1, 1));
        let error = plan(&config(8, 0), 1024 + 99).unwrap_err();
        assert_eq!(error.status, Status::MemoryLimit);
        assert!(error.message.contains("takes 1024 bytes, one KV block 100"), "{error}");
        assert_eq!(
            StatePlan::new(&config(8, 0), StateShape::default(), 0, 1, 1).unwrap(),
            StatePlan::default()
        );
    }
}
