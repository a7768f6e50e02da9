//! Requests that wait for memory, or for somebody to poll what they gave.

use super::*;

impl Core {
    /// Who is to give a token and has no room for it is granted some, or paused.
    pub(super) fn ask_for_grants(&mut self, plan: &mut Plan) {
        plan.retain(|entry| !entry.sample || self.is_granted(entry.seq));
    }

    fn is_granted(&mut self, seq: SeqId) -> bool {
        if self.grant(seq) {
            return true;
        }
        self.scheduler.pause(seq, &Known(&self.sequences));
        if let Some(sequence) = self.sequences[seq.0 as usize].as_mut() {
            sequence.starved = true;
            self.starved.push(seq);
        }
        false
    }

    /// True where `seq` can give a token.
    fn grant(&mut self, seq: SeqId) -> bool {
        let Self { sequences, starved, shared, .. } = self;
        let Some(sequence) = &mut sequences[seq.0 as usize] else { return true };
        let Some((tokens, bytes)) = sequence.wants() else { return true };
        // Who begins waits for those that wait already, in their order.
        let waits = !sequence.began && starved.first().is_some_and(|&first| first != seq);
        let granted = !waits && shared.hub.grant(seq.0, bytes, sequence.began);
        if granted {
            sequence.grant(tokens);
        }
        granted
    }

    /// Pauses who gave more than was polled, and lets those go on for whom memory has come back.
    pub(super) fn pace(&mut self) {
        let mut slow = std::mem::take(&mut self.outbox.slow);
        for id in slow.drain(..) {
            let seq = SeqId(id.slot());
            let sequence = self.sequences.get_mut(id.slot() as usize).and_then(Option::as_mut);
            let Some(sequence) = sequence.filter(|sequence| sequence.id == id) else { continue };
            sequence.unread = true;
            match sequence.end_unread {
                true => self.end(seq, Some(cancelled("its unread output passed max_unread_bytes"))),
                false => self.scheduler.pause(seq, &Known(&self.sequences)),
            }
        }
        self.outbox.slow = slow;
        if !std::mem::take(&mut self.outbox.fed) {
            return;
        }
        let mut at = 0;
        while let Some(&seq) = self.starved.get(at) {
            if self.grant(seq) {
                self.starved.remove(at);
                self.go_on(seq, |s| s.starved = false);
            } else {
                at += 1;
            }
        }
    }

    /// Ends one of the reasons for which `seq` is paused.
    pub(super) fn go_on(&mut self, seq: SeqId, reason: impl FnOnce(&mut Sequence)) {
        let Some(sequence) = self.sequences[seq.0 as usize].as_mut() else { return };
        reason(sequence);
        if !sequence.starved && !sequence.unread {
            self.scheduler.resume(seq, now_ns());
        }
    }
}
