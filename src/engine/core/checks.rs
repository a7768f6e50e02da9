//! For the simulation: single turns of the loop, and checks of the core's state.

use super::*;
use crate::engine::hub::checks::Bed;
use crate::engine::hub::ids::RequestId;
use crate::schedule::{MAX_DRAFT, State};

/// Upper bound of the granted bytes of an event with one token.
const EVENT: u64 = 300;

impl Core {
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs the next exchange up to its wait.
    pub fn lie_down(&mut self, rest: Rest) -> Bed {
        self.publish();
        self.shared.hub.lie_down(self.number, &mut self.outbox, rest)
    }

    /// Runs one turn as `main` does.
    pub fn try_turn(&mut self, rest: Rest) -> std::result::Result<Option<Rest>, String> {
        panics::catch(|| self.turn(rest))
    }

    /// Does what `main` does after its last turn.
    pub fn leave(self, outcome: std::result::Result<(), String>) {
        self.close(outcome);
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub fn live(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    /// Checks the state between turns. `events`: all events are in slots, or here.
    pub fn check(&self, events: bool, max_unread: u64) {
        self.scheduler.check().unwrap();
        assert_eq!(self.sequences.len(), self.live().count());
        let counts = self.scheduler.counts();
        assert_eq!(self.sequences.len(), counts.waiting + counts.paused + counts.running);
        assert!(self.ended.is_empty());
        let awaiting = self.live().filter(|sequence| sequence.account.awaits_grant).count();
        assert_eq!(self.awaiting_grant.len(), awaiting, "those in line for a grant");
        for seq in self.sequences.slots() {
            if let Some(sequence) = self.sequences.get(seq) {
                assert_eq!(SeqId(sequence.id.slot()), seq);
                self.check_sequence(sequence, events);
                self.check_unread(sequence, max_unread);
            }
        }
    }

    fn check_sequence(&self, sequence: &Sequence, events: bool) {
        let slot = sequence.id.slot();
        let seq = SeqId(slot);
        let state = self.scheduler.state(seq);
        assert_eq!(state == State::Paused, sequence.account.is_paused(), "{:?}", sequence.id);
        assert_eq!(
            sequence.account.awaits_grant,
            self.awaiting_grant.contains(&seq),
            "{:?} in line for a grant",
            sequence.id
        );
        for deadline in sequence.times.deadlines() {
            let known = self.deadlines.has(deadline, sequence.id);
            assert!(known, "a deadline of {:?} is forgotten", sequence.id);
        }
        let view = self.shared.hub.view(slot);
        assert_eq!(view.thread, self.number, "{:?} is another's", sequence.id);
        assert!(view.open && !view.finished, "{:?} {view:?}", sequence.id);
        let admitted = view.running || self.outbox.admitted.contains(&slot);
        assert_eq!(sequence.times.was_admitted(), admitted, "{:?} {view:?}", sequence.id);
        let here = self.outbox.events.iter().filter(|(to, _)| *to == slot);
        let here: u64 = here.map(|(_, event)| event.granted).sum();
        let held = sequence.granted_bytes() + here + view.pending + view.leased;
        let fits = if events && !view.discard { view.granted == held } else { view.granted >= held };
        assert!(fits, "{:?} was granted {} bytes and holds {held}: {view:?}", sequence.id, view.granted);
    }

    /// At most one event exceeds the limit.
    fn check_unread(&self, sequence: &Sequence, max_unread: u64) {
        let view = self.shared.hub.view(sequence.id.slot());
        assert!(sequence.account.unread || !view.slow, "{:?} goes on: {view:?}", sequence.id);
        let event = EVENT * if sequence.drafts.is_some() { 1 + MAX_DRAFT as u64 } else { 1 };
        let few = max_unread == 0 || view.slow || view.pending <= max_unread.max(event);
        assert!(few, "{:?} goes on: {view:?}", sequence.id);
    }

    /// The requests that wait for a grant, and those that neither wait for one nor have begun.
    pub fn line(&self) -> [Vec<RequestId>; 2] {
        if self.awaiting_grant.is_empty() {
            return Default::default();
        }
        let awaiting = self.live().filter(|sequence| sequence.account.awaits_grant);
        let fresh = self.live().filter(|Sequence { account, .. }| !account.awaits_grant && !account.began);
        [awaiting.map(|sequence| sequence.id).collect(), fresh.map(|sequence| sequence.id).collect()]
    }

    /// Checks that no sequence has since begun ahead of one that was already waiting.
    pub fn check_line(&self, [awaiting, fresh]: &[Vec<RequestId>; 2]) {
        let waits =
            self.live().any(|sequence| sequence.account.awaits_grant && awaiting.contains(&sequence.id));
        for sequence in self.live().filter(|sequence| waits && sequence.account.began) {
            assert!(!fresh.contains(&sequence.id), "{:?} began before others that wait", sequence.id);
        }
    }

    /// Checks a turn whose pass of `sequences` sequences was stopped at `now` at the latest.
    pub fn check_stopped(&self, sequences: usize, now: u64) {
        let entries = self.plan.entries.iter().filter(|_| self.plan.entries.len() == sequences);
        for sequence in entries.filter_map(|entry| self.sequences.get(entry.seq)) {
            let ends = sequence.doomed || sequence.times.expired(now).is_some();
            assert!(ends, "the pass of {:?} was stopped", sequence.id);
        }
    }

    /// Checks that only time or the host can advance any request, so that the loop may `rest` from `now` on.
    pub fn check_rest(&self, rest: Rest, now: u64, max_unread: u64, host: bool) {
        let until = match rest {
            Rest::None => panic!("no rest at all"),
            Rest::For(time) | Rest::Idle(time) => now + time.as_nanos() as u64,
            Rest::UntilCommand => u64::MAX,
        };
        let held = self.outbox.held;
        if let Some(at) = self.scheduler.ready_at(now).filter(|_| !held) {
            assert!(now < at && until <= at, "a step at {at}, and the loop rests from {now} to {until}");
        }
        for sequence in self.live() {
            let id = sequence.id;
            for deadline in sequence.times.deadlines() {
                assert!(
                    until <= deadline.max(now + 1),
                    "{id:?} ends at {deadline}, and is asleep to {until}"
                );
            }
            match self.scheduler.state(SeqId(id.slot())) {
                // Requests may also wait for each other, and for the end of the hold.
                _ if held => {}
                State::Waiting => assert!(self.scheduler.ready_at(now).is_some(), "{id:?} waits for nothing"),
                State::Paused => self.check_pause(sequence, max_unread, host),
                state => panic!("{id:?} is {state:?}, and the loop rests"),
            }
        }
    }

    fn check_pause(&self, sequence: &Sequence, max_unread: u64, host: bool) {
        let (id, view) = (sequence.id, self.shared.hub.view(sequence.id.slot()));
        let account = &sequence.account;
        if account.unread {
            assert!(!account.end_unread, "{id:?} was to end");
            let unread = view.slow && view.pending > max_unread && max_unread > 0;
            assert!(unread, "{id:?} waits for a poller of {view:?}");
        }
        if account.awaits_grant {
            assert!(host || self.shared.hub.waits_for_host(), "{id:?} waits for memory that no host holds");
            let first = self.awaiting_grant.first() == Some(&SeqId(id.slot()));
            let (_, bytes) = sequence.wants().expect("a sequence that wants nothing waits for no grant");
            let waits = !account.began && !first;
            let none = waits || !self.shared.hub.could_grant(id.slot(), bytes, account.began);
            assert!(none, "{id:?} waits for {bytes} bytes that there are: {}", self.shared.hub.describe());
        }
    }
}
