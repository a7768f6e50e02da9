//! Several replicas of an engine: what one could do, and waiting requests that it hands on to another.

use super::*;

impl Core {
    /// It has room for another's requests where nobody waits here, and half of the KV blocks are free or it has none.
    pub(super) fn load(&self) -> Load {
        let counts = self.scheduler.counts();
        let free = counts.blocks_total - counts.blocks_used;
        let idle = self.active == 0;
        let places = (self.scheduler.config().max_batch_size as usize).saturating_sub(self.active);
        let room = if idle || counts.waiting == 0 && 2 * free >= counts.blocks_total { places } else { 0 };
        Load { room: room as u32, idle, waiting: self.passed_over.min(counts.waiting) as u32 }
    }

    /// Hands waiting requests on, the last in line first. None of a session, whose replica is fixed; and each but once, so that
    /// none goes to and fro, unless the other has nothing at all to do.
    pub(super) fn give(&mut self, to: usize, most: usize, idle: bool) {
        self.outbox.gave = true;
        self.passed_over = 0;
        for _ in 0..most {
            let may_go = |seq: &SeqId| {
                let sequence = self.sequences[seq.0 as usize].as_ref();
                sequence.is_some_and(|s| s.session.is_none() && (idle || !s.moved))
            };
            let Some(seq) = self.scheduler.untouched().find(may_go) else { return };
            if self.outbox.given.try_reserve(1).is_err() {
                return;
            }
            self.scheduler.cancel(seq, &Known(&self.sequences));
            let Some(sequence) = self.sequences[seq.0 as usize].take() else { return };
            self.active -= 1;
            self.hand_on(Some(to), sequence);
        }
    }

    /// What was to be handed on stays here.
    pub(super) fn take_back(&mut self) {
        for (_, id, work) in self.outbox.given.drain(..) {
            if let Work::Sequence(sequence) = work {
                self.sequences[id.slot() as usize] = Some(sequence);
                self.active += 1;
            }
        }
    }

    /// To `to`, or to any other.
    pub(super) fn hand_on(&mut self, to: Option<usize>, mut sequence: Box<Sequence>) {
        sequence.moved = true;
        self.outbox.given.push((to, sequence.id, Work::Sequence(sequence)));
    }
}
