//! A replica's own part in the choice of replicas: its load and its health.

use super::balance::Load;
use crate::engine::api::{LOG_INFO, LOG_WARN};
use crate::engine::core::sequences::Sequences;
use crate::engine::delivery::callback::Log;
use crate::schedule::Scheduler;

/// Number of passes that fail in a row, although the device is not lost, before a replica counts as sick.
const FAILURES: u32 = 4;

pub(crate) struct Replica {
    /// Number of its thread.
    number: usize,
    /// There is no other replica to take requests.
    alone: bool,
    /// Passes that failed in a row.
    failures: u32,
    /// The others were told that it is sick.
    was_sick: bool,
}

impl Replica {
    pub(crate) fn new(number: usize, replicas: usize) -> Self {
        Self { number, alone: replicas == 1, failures: 0, was_sick: false }
    }

    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn passed(&mut self) {
        self.failures = 0;
    }

    /// A sick replica soon has no work left, so without this flag it would be the first choice for every request.
    fn is_sick(&self) -> bool {
        self.failures >= FAILURES && !self.alone
    }

    pub(crate) fn load(&self, scheduler: &Scheduler, sequences: &Sequences) -> Load {
        if self.alone {
            return Load::default();
        }
        let running = scheduler.running().filter_map(|(seq, computed)| Some((sequences.get(seq)?, computed)));
        let done = running
            .map(|(sequence, computed)| sequence.placement.done(computed, sequence.output.len() as u32));
        let counts = scheduler.counts();
        let at_once = match counts.waiting {
            0 => scheduler.config().max_batch_size as usize,
            // More would run if there were room.
            _ => counts.running,
        };
        Load { done: done.sum(), seats: at_once + counts.paused, sick: self.is_sick() }
    }

    /// After a step: reports if the replica became sick or recovered. Returns whether it became sick.
    pub(crate) fn became_sick(&mut self, log: &Log) -> bool {
        let (sick, number) = (self.is_sick(), self.number);
        match (std::mem::replace(&mut self.was_sick, sick), sick) {
            (false, true) => {
                let text = format!(
                    "replica {number}: {FAILURES} passes failed in a row, others get its requests until one succeeds"
                );
                log.write(LOG_WARN, text);
                true
            }
            (true, false) => {
                log.write(LOG_INFO, format!("replica {number}: a pass succeeded, requests come again"));
                false
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_failures_in_a_row_make_a_replica_sick_beside_others() {
        for (replicas, sick) in [(1, false), (2, true)] {
            let mut replica = Replica::new(0, replicas);
            (1..FAILURES).for_each(|_| replica.failed());
            assert!(!replica.is_sick());
            replica.failed();
            assert_eq!(replica.is_sick(), sick);
            replica.passed();
            replica.failed();
            assert!(!replica.is_sick());
        }
    }
}
