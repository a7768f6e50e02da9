//! Requests that wait for memory, for a mask, or for their output to be polled.

use super::*;
use crate::constrain::{Guide, SLOW_NS};
use crate::engine::request::account::Account;

fn guide_of(sequences: &mut Sequences, seq: SeqId) -> Option<&mut Guide> {
    sequences.get_mut(seq)?.guide()
}

impl Core {
    /// Grants room to every sequence that is about to generate a token without room for it, or pauses it.
    pub(super) fn ask_for_grants(&mut self, plan: &mut Plan) {
        plan.retain(|entry| !entry.sample || self.is_granted(entry.seq));
    }

    /// Leaves out sequences that wait for a slow mask, so that a grammar delays only its own request. Without
    /// a commit they keep their state. If no other sequence runs, waits briefly.
    ///
    /// A pass changes the states of recurrent layers, so there every mask must be ready before it.
    pub(super) fn leave_out_late_masks(&mut self, plan: &mut Plan) {
        let (sequences, scheduler, mut late) = (&mut self.sequences, &self.scheduler, None);
        let until_ns = now_ns().saturating_add(SLOW_NS);
        plan.retain(|entry| {
            let needed = scheduler.state_slot(entry.seq).is_some();
            let is_late = |guide: &mut Guide| guide.is_late() || needed && !guide.is_ready(until_ns);
            let waits = entry.sample && guide_of(sequences, entry.seq).is_some_and(is_late);
            late = late.or(waits.then_some(entry.seq));
            !waits
        });
        if plan.is_empty()
            && let Some(guide) = late.and_then(|seq| guide_of(sequences, seq))
        {
            guide.is_ready(now_ns().saturating_add(SLOW_NS));
        }
    }

    fn is_granted(&mut self, seq: SeqId) -> bool {
        if self.grant(seq) {
            return true;
        }
        self.scheduler.pause(seq, &self.sequences);
        if let Some(sequence) = self.sequences.get_mut(seq) {
            sequence.account.awaits_grant = true;
            self.awaiting_grant.push(seq);
        }
        false
    }

    /// Returns true if `seq` has room for a token, or gets it.
    fn grant(&mut self, seq: SeqId) -> bool {
        let Self { sequences, awaiting_grant, shared, .. } = self;
        let Some(sequence) = sequences.get_mut(seq) else { return true };
        let Some((tokens, bytes)) = sequence.wants() else { return true };
        // A sequence that has not begun waits until all that were refused a grant have theirs, in order.
        let account = &mut sequence.account;
        let waits = !account.began && awaiting_grant.first().is_some_and(|&first| first != seq);
        let ask = || shared.hub.grant(seq.0, bytes, account.began);
        // Kept grammars are evicted before any sequence is paused.
        let granted = !waits && (ask() || shared.grammars.clear() && ask());
        if granted {
            account.grant(tokens);
        }
        granted
    }

    /// Pauses sequences with too much unpolled output, and resumes those that wait for a grant once there is memory.
    pub(super) fn pace(&mut self) {
        let mut slow = std::mem::take(&mut self.outbox.slow);
        for id in slow.drain(..) {
            let seq = SeqId(id.slot());
            let Some(Sequence { account, .. }) = self.sequences.find(id) else { continue };
            account.unread = true;
            match account.end_unread {
                true => self.end(seq, Some(cancelled("its unread output passed max_unread_bytes"))),
                false => self.scheduler.pause(seq, &self.sequences),
            }
        }
        self.outbox.slow = slow;
        if !std::mem::take(&mut self.outbox.retry_grants) {
            return;
        }
        let mut at = 0;
        while let Some(&seq) = self.awaiting_grant.get(at) {
            if self.grant(seq) {
                self.awaiting_grant.remove(at);
                self.go_on(seq, |account| account.awaits_grant = false);
            } else {
                at += 1;
            }
        }
    }

    /// Clears one of the reasons why `seq` is paused, and resumes it when none is left.
    pub(super) fn go_on(&mut self, seq: SeqId, reason: impl FnOnce(&mut Account)) {
        let Some(Sequence { account, .. }) = self.sequences.get_mut(seq) else { return };
        reason(account);
        if !account.is_paused() {
            self.scheduler.resume(seq, now_ns());
        }
    }
}
