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
    /// Sequences whose states a draft model keeps.
    pub drafting: usize,
    /// Bytes of all slots, of the data kept for drafted rows, and of the draft model's states.
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
            drafting: self.drafting + other.drafting,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Slots of a draft model for a sequence: a state after certain tokens, and one that goes on through drafts.
pub(crate) const DRAFT_SLOTS: usize = 2;
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
        Ok(Self { slots, running, drafted, drafting: 0, bytes: slots as u64 * slot + rows })
    }

    /// Adds the states of a draft model, for as many sequences as run. They take at most half of what the states of the
    /// model leave of `room`, and leave `kv` bytes, unless those of a single sequence need more. `MemoryLimit` if
    /// these and one block do not fit.
    pub(crate) fn with_draft(
        self,
        config: &EngineConfig,
        shape: StateShape,
        room: u64,
        kv: u64,
        block: u64,
    ) -> Result<Self> {
        if shape.is_empty() {
            return Ok(self);
        }
        let slots = shape.slot_bytes().and_then(|bytes| bytes.checked_mul(DRAFT_SLOTS));
        let sequence = slots.unwrap_or(usize::MAX) as u64;
        let left = room.saturating_sub(self.bytes);
        let fits = (left.saturating_sub(kv).min(left / 2) / sequence)
            .max(u64::from(sequence.saturating_add(block) <= left)) as usize;
        if fits == 0 {
            return Err(Error::new(
                Status::MemoryLimit,
                format!(
                    "{left} bytes are left beside weights, workspace and the model's states, and the draft model's \
                     states of one sequence take {sequence} bytes, and one KV block {block}"
                ),
            ));
        }
        let running = if self.slots == 0 { config.max_batch_size as usize } else { self.running };
        let drafting = running.min(fits);
        Ok(Self { drafting, bytes: self.bytes + drafting as u64 * sequence, ..self })
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

    #[test]
    fn a_draft_model_takes_half_of_what_the_model_leaves() {
        let shape = StateShape { layers: 2, floats: 128, row: 0, hidden: 0 };
        let config = |max_batch_size| EngineConfig { max_batch_size, ..Default::default() };
        let with = |own: StatePlan, batch, room| {
            own.with_draft(&config(batch), shape, room, 200, 100).map(|plan| (plan.drafting, plan.bytes))
        };
        let none = StatePlan::default();
        assert_eq!(with(none, 4, 1 << 30).unwrap(), (4, 4 * 2048));
        assert_eq!(with(none, 4, 2 * 3 * 2048).unwrap(), (3, 3 * 2048));
        assert_eq!(with(none, 4, 2048 + 100).unwrap(), (1, 2048));
        let own = StatePlan { slots: 5, running: 2, bytes: 5000, ..none };
        assert_eq!(with(own, 4, 1 << 30).unwrap(), (2, 5000 + 2 * 2048), "as many as run");
        assert_eq!(with(own, 4, 5000 + 2048 + 100).unwrap(), (1, 5000 + 2048));
        let error = with(own, 4, 5000 + 2048 + 99).unwrap_err();
        assert_eq!(error.status, Status::MemoryLimit);
        assert!(error.message.contains("of one sequence take 2048 bytes, and one KV block 100"), "{error}");
        let empty = own.with_draft(&config(4), StateShape::default(), 0, 1, 1);
        assert_eq!(empty.unwrap(), own);
    }
}
