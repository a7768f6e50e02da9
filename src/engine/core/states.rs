//! States of recurrent layers in a step: passed to the batch, advanced by accepted drafts.

use super::*;
use crate::ops::{Accepted, StateRows};

/// Adds the state of the entry's sequence to the batch, in a model with recurrent layers.
pub(super) fn push_state(batch: &mut RaggedBatch, scheduler: &Scheduler, entry: &PlanEntry) -> Result<()> {
    let Some(slot) = scheduler.state_slot(entry.seq) else { return Ok(()) };
    let first = batch.saves.len() as u32;
    reserve(&mut batch.saves, scheduler.saves(entry.seq).count(), BATCH)?;
    batch.saves.extend(scheduler.saves(entry.seq).map(|save| (save.at - entry.start, save.slot)));
    let saves = (first, batch.saves.len() as u32);
    batch.states.push(StateRows { slot, drafted: entry.drafts, saves });
    Ok(())
}

impl Core {
    /// Advances states by the accepted drafts. If that fails, the requests that drafted fail too.
    pub(super) fn advance_states(&mut self, entries: &[PlanEntry]) {
        let drafted = |entry: &&PlanEntry| entry.accepted > 0;
        if self.memory.layout().states.shape.is_empty() || !entries.iter().any(|entry| drafted(&entry)) {
            return;
        }
        if let Err(error) = self.advance(entries) {
            entries.iter().filter(drafted).for_each(|entry| self.fail(entry.seq, error.clone()));
        }
    }

    fn advance(&mut self, entries: &[PlanEntry]) -> Result<()> {
        let (mut accepted, mut first) = (Vec::new(), 0);
        reserve(&mut accepted, entries.len(), BATCH)?;
        for entry in entries {
            if let Some(slot) = self.scheduler.state_slot(entry.seq).filter(|_| entry.accepted > 0) {
                accepted.push(Accepted { slot, first, rows: entry.accepted });
            }
            first += entry.drafts;
        }
        let Self { backend, memory, shared, .. } = self;
        panics::checked("accepting drafts", || {
            shared.loaded.model.advance(&*backend.ops, &mut **memory, &accepted)
        })
    }
}
