//! A replica's own part in load sharing: its load, its health, and the waiting requests that it hands on.

use super::balance::{Load, Migration};
use super::team::Share;
use crate::engine::api::{LOG_INFO, LOG_WARN};
use crate::engine::core::sequences::Sequences;
use crate::engine::delivery::callback::Log;
use crate::engine::request::sequence::Sequence;
use crate::schedule::{Scheduler, SeqId};

/// Number of passes that fail in a row, although the device is not lost, before a replica counts as sick.
const FAILURES: u32 = 4;

/// Maximum number of waiting requests that a replica counts.
const MANY: usize = 64;

pub(crate) struct Replica {
    /// Number of its thread.
    number: usize,
    /// There is no other replica to take requests.
    alone: bool,
    /// Passes that failed in a row.
    failures: u32,
    /// The others were told that it is sick.
    was_sick: bool,
    /// Waiting requests that the last step passed over and that could run elsewhere.
    passed_over: usize,
}

impl Replica {
    pub(crate) fn new(number: usize, replicas: usize) -> Self {
        Self { number, alone: replicas == 1, failures: 0, was_sick: false, passed_over: 0 }
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

    /// The replica's load with `live` requests. It has room for other replicas' requests if none wait here and at
    /// least half of the KV blocks are free: for as many as would fill the free blocks if they were like the running
    /// ones. An idle replica has room for a batch.
    pub(crate) fn load(&self, scheduler: &Scheduler, live: usize) -> Load {
        let counts = scheduler.counts();
        let free = counts.blocks_total - counts.blocks_used;
        let most = scheduler.config().max_batch_size as usize;
        let sick = self.is_sick();
        let room = match live {
            _ if sick => 0,
            0 => most,
            _ if counts.waiting > 0 || 2 * free < counts.blocks_total => 0,
            n => most.saturating_sub(n).min(free * n / counts.blocks_used.max(1)),
        };
        let waiting = self.passed_over.min(counts.waiting);
        Load { room: room as u32, idle: live == 0 && !sick, waiting: waiting as u32, sick }
    }

    /// Counts the waiting requests that a step has passed over and that could run elsewhere.
    pub(crate) fn pass_over(&mut self, scheduler: &Scheduler, sequences: &Sequences) {
        self.passed_over = match self.alone {
            true => 0,
            false => scheduler.untouched().filter(|seq| may_go(sequences, *seq, true)).take(MANY).count(),
        };
    }

    /// Hands waiting requests on, in queue order, since the other replica can begin them at once.
    pub(crate) fn migrate<W: From<Box<Sequence>>>(
        &mut self,
        migration: Migration,
        scheduler: &mut Scheduler,
        sequences: &mut Sequences,
        share: &mut Share<W>,
    ) {
        self.passed_over = 0;
        for _ in 0..migration.most {
            let next = scheduler.untouched().find(|seq| may_go(sequences, *seq, migration.idle));
            let Some(seq) = next.filter(|_| share.migrated.try_reserve(1).is_ok()) else { return };
            scheduler.cancel(seq, sequences);
            let Some(sequence) = sequences.remove(seq) else { return };
            share.migrate(migration.to, sequence);
        }
    }

    /// After a step: reports if the replica became sick or recovered. A sick replica is to hand all requests that never
    /// ran here to others.
    pub(crate) fn examine(&mut self, log: &Log) -> Option<Migration> {
        let (sick, number) = (self.is_sick(), self.number);
        if sick == std::mem::replace(&mut self.was_sick, sick) {
            return None;
        }
        if !sick {
            log.write(LOG_INFO, format!("replica {number}: a pass succeeded, requests come again"));
            return None;
        }
        let text = format!(
            "replica {number}: {FAILURES} passes failed in a row, others get its requests until one succeeds"
        );
        log.write(LOG_WARN, text);
        Some(Migration { to: None, most: u32::MAX, idle: true })
    }
}

/// See `Placement::may_go`.
fn may_go(sequences: &Sequences, seq: SeqId, idle: bool) -> bool {
    sequences.get(seq).is_some_and(|sequence| sequence.placement.may_go(idle))
}

impl<W: From<Box<Sequence>>> Share<W> {
    /// Hands a sequence to replica `to`, or to any other.
    pub fn migrate(&mut self, to: Option<usize>, mut sequence: Box<Sequence>) {
        sequence.placement.moved = true;
        let id = sequence.id;
        self.migrated.push((to, id, sequence.into()));
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
