//! Load sharing among the replicas of an engine: the load of one, and the waiting requests that it hands on to
//! another.

use super::*;
use crate::engine::api::LOG_INFO;
use crate::engine::replicas::balance::Load;
use crate::engine::replicas::health::FAILURES;

/// Maximum number of waiting requests that a replica counts.
const MANY: usize = 64;

impl Core {
    /// Reports that the replica became sick or recovered. A sick one hands the requests that never ran here to
    /// others.
    pub(super) fn turn_sick(&mut self, sick: bool) {
        let (log, replica) = (&self.shared.log, self.replica);
        if !sick {
            return log.write(LOG_INFO, format!("replica {replica}: a pass succeeded, requests come again"));
        }
        let text = format!(
            "replica {replica}: {FAILURES} passes failed in a row, others get its requests until one succeeds"
        );
        log.write(LOG_WARN, text);
        self.passed_over = 0;
        loop {
            let Some(seq) = self.scheduler.untouched().find(|seq| self.may_go(*seq, true)) else { return };
            if !self.part_with(seq, None) {
                return;
            }
        }
    }

    /// Load of this replica. It has room for requests of others if none wait here and at least half of the KV
    /// blocks are free: for as many as fill the free blocks, if they are like the running ones. An idle replica
    /// has room for a batch.
    pub(super) fn load(&self) -> Load {
        let counts = self.scheduler.counts();
        let free = counts.blocks_total - counts.blocks_used;
        let most = self.scheduler.config().max_batch_size as usize;
        let (sick, live) = (self.health.is_sick(), self.sequences.len());
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
    pub(super) fn pass_over(&mut self) {
        self.passed_over = match self.shared.hub.replicas() {
            1 => 0,
            _ => self.scheduler.untouched().filter(|seq| self.may_go(*seq, true)).take(MANY).count(),
        };
    }

    /// See `Placement::may_go`.
    fn may_go(&self, seq: SeqId, idle: bool) -> bool {
        self.sequences.get(seq).is_some_and(|sequence| sequence.placement.may_go(idle))
    }

    /// Hands waiting requests on, in queue order: the other replica can begin them at once.
    pub(super) fn give(&mut self, to: usize, most: usize, idle: bool) {
        self.outbox.gave = true;
        self.passed_over = 0;
        for _ in 0..most {
            let Some(seq) = self.scheduler.untouched().find(|seq| self.may_go(*seq, idle)) else { return };
            if !self.part_with(seq, Some(to)) {
                return;
            }
        }
    }

    /// Hands a waiting request on. Returns false if memory is refused.
    fn part_with(&mut self, seq: SeqId, to: Option<usize>) -> bool {
        if self.outbox.given.try_reserve(1).is_err() {
            return false;
        }
        self.scheduler.cancel(seq, &self.sequences);
        let Some(sequence) = self.sequences.remove(seq) else { return false };
        self.hand_on(to, sequence);
        true
    }

    /// Hands a sequence to replica `to`, or to any other.
    pub(super) fn hand_on(&mut self, to: Option<usize>, mut sequence: Box<Sequence>) {
        sequence.placement.moved = true;
        self.outbox.given.push((to, sequence.id, Work::Sequence(sequence)));
    }
}
