//! Several replicas of an engine: what one could do, and waiting requests that it hands on to another.

use super::*;

/// Waiting requests that are counted for others, at most.
const MANY: usize = 64;

impl Core {
    /// It has room for another's requests where nobody waits here and half of the KV blocks are free: for as many as take
    /// the rest, if they are like those that run. One that has none has room for a batch.
    pub(super) fn load(&self) -> Load {
        let counts = self.scheduler.counts();
        let free = counts.blocks_total - counts.blocks_used;
        let most = self.scheduler.config().max_batch_size as usize;
        let room = match self.active {
            0 => most,
            _ if counts.waiting > 0 || 2 * free < counts.blocks_total => 0,
            n => most.saturating_sub(n).min(free * n / counts.blocks_used.max(1)),
        };
        let waiting = self.passed_over.min(counts.waiting);
        Load { room: room as u32, idle: self.active == 0, waiting: waiting as u32 }
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
            if self.outbox.given.try_reserve(1).is_err() {
                return;
            }
            self.scheduler.cancel(seq, &Known(&self.sequences));
            let Some(sequence) = self.sequences[seq.0 as usize].take() else { return };
            self.active -= 1;
            self.hand_on(Some(to), sequence);
        }
    }

    /// To `to`, or to any other.
    pub(super) fn hand_on(&mut self, to: Option<usize>, mut sequence: Box<Sequence>) {
        sequence.moved = true;
        self.outbox.given.push((to, sequence.id, Work::Sequence(sequence)));
    }
}
