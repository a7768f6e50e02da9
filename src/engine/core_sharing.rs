//! Several replicas of an engine: what one could do, and waiting requests that it hands on to another.

use super::super::api::LOG_INFO;
use super::*;

/// Waiting requests that are counted for others, at most.
const MANY: usize = 64;

/// Passes that fail one after the other until a replica counts as sick.
const FAILURES: u32 = 4;

impl Core {
    /// Its passes fail, though the device is not lost. With nothing left to do, it would look best to every request.
    pub(super) fn is_sick(&self) -> bool {
        self.failures >= FAILURES && self.shared.hub.replicas() > 1
    }

    /// It has become sick, and what never ran here goes to others; or it is well again.
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

    /// It has room for another's requests where nobody waits here and half of the KV blocks are free: for as many as take
    /// the rest, if they are like those that run. One that has none has room for a batch.
    pub(super) fn load(&self) -> Load {
        let counts = self.scheduler.counts();
        let free = counts.blocks_total - counts.blocks_used;
        let most = self.scheduler.config().max_batch_size as usize;
        let sick = self.is_sick();
        let room = match self.active {
            _ if sick => 0,
            0 => most,
            _ if counts.waiting > 0 || 2 * free < counts.blocks_total => 0,
            n => most.saturating_sub(n).min(free * n / counts.blocks_used.max(1)),
        };
        let waiting = self.passed_over.min(counts.waiting);
        Load { room: room as u32, idle: self.active == 0 && !sick, waiting: waiting as u32, sick }
    }

    /// Counts who waits though a step was planned, and could run elsewhere.
    pub(super) fn pass_over(&mut self) {
        self.passed_over = match self.shared.hub.replicas() {
            1 => 0,
            _ => self.scheduler.untouched().filter(|seq| self.may_go(*seq, true)).take(MANY).count(),
        };
    }

    /// No session's, whose replica is fixed. Each is handed on but once, so that none goes to and fro, unless the other has
    /// nothing at all to do.
    fn may_go(&self, seq: SeqId, idle: bool) -> bool {
        let sequence = self.sequences[seq.0 as usize].as_ref();
        sequence.is_some_and(|sequence| sequence.session.is_none() && (idle || !sequence.moved))
    }

    /// Hands waiting requests on, the first in line first: the other can begin them at once.
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

    /// Hands a waiting request on. False where memory is refused.
    fn part_with(&mut self, seq: SeqId, to: Option<usize>) -> bool {
        if self.outbox.given.try_reserve(1).is_err() {
            return false;
        }
        self.scheduler.cancel(seq, &Known(&self.sequences));
        let Some(sequence) = self.sequences[seq.0 as usize].take() else { return false };
        self.active -= 1;
        self.hand_on(to, sequence);
        true
    }

    /// To `to`, or to any other.
    pub(super) fn hand_on(&mut self, to: Option<usize>, mut sequence: Box<Sequence>) {
        sequence.moved = true;
        self.outbox.given.push((to, sequence.id, Work::Sequence(sequence)));
    }
}
