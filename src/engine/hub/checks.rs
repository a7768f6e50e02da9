//! For the simulation: an exchange that does not block, and checks of the hub's state.

use super::slots::checks::View;
use super::*;
use std::collections::BTreeSet;

/// Outcome of an exchange that stops before its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bed {
    /// The exchange would not wait.
    Awake,
    /// The exchange would return false.
    Done,
    /// The exchange waits for the bell, or until its time is up.
    Asleep,
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// Runs `exchange` up to its wait.
    pub fn lie_down(&self, thread: usize, out: &mut Outbox<E, C>, rest: Rest) -> Bed {
        let mut state = self.hand_over(thread, out);
        if rest == Rest::None || !state.team.queues[thread].is_quiet() {
            return Bed::Awake;
        }
        if !matches!(rest, Rest::For(_)) && state.is_done() {
            return Bed::Done;
        }
        state.team.queues[thread].asleep = true;
        Bed::Asleep
    }

    /// Returns whether the thread's bell has rung since it lay down.
    pub fn is_rung(&self, thread: usize) -> bool {
        !self.state.lock().team.queues[thread].asleep
    }

    /// The outcome that the wait would see; None if it would go on waiting although it was rung.
    pub fn looks_up(&self, thread: usize) -> Option<Bed> {
        let mut state = self.state.lock();
        let (quiet, done) = (state.team.queues[thread].is_quiet(), state.is_done());
        state.team.queues[thread].asleep = quiet && !done;
        match (quiet, done) {
            (false, _) => Some(Bed::Awake),
            (true, true) => Some(Bed::Done),
            _ => None,
        }
    }

    /// Ends a timed wait.
    pub fn get_up(&self, thread: usize) {
        self.state.lock().team.queues[thread].asleep = false;
    }

    /// Checks invariants that no host may break at any time. `readable`: state of the wait descriptor.
    pub fn check(&self, readable: Option<bool>) {
        let state = self.state.lock();
        state.slots.check(self.bounds.bytes, state.aside, &state.team.balance.all_owed());
        for (number, thread) in state.team.queues.iter().enumerate() {
            let commands = &thread.commands;
            let rests = thread.asleep && (!thread.is_quiet() || state.is_done());
            assert!(!rests, "thread {number} sleeps beside {} commands", commands.len());
            let ends =
                || commands.iter().filter_map(|c| if let Command::End(id) = c { Some(*id) } else { None });
            let different: BTreeSet<RequestId> = ends().collect();
            assert_eq!(ends().count(), different.len(), "a request is to end twice");
            let kinds: Vec<_> = commands.iter().map(std::mem::discriminant).collect();
            assert!(!thread.gone || kinds.is_empty(), "thread {number} is gone: {kinds:?}");
        }
        let over = state.phase >= Phase::Drained;
        let expected = over || state.slots.usage().any_ready > 0;
        assert_eq!(readable.unwrap_or(expected), expected, "the wait descriptor, in {:?}", state.phase);
    }

    pub fn view(&self, slot: u32) -> View {
        self.state.lock().slots.view(slot as usize).expect("a slot")
    }

    /// Returns whether the host holds events or finished requests.
    pub fn waits_for_host(&self) -> bool {
        self.state.lock().slots.waits_for_host()
    }

    /// The state of the hub, for messages.
    pub fn describe(&self) -> String {
        let state = self.state.lock();
        let slots: Vec<View> = (0..).map_while(|index| state.slots.view(index)).collect();
        let grants: Vec<_> =
            state.team.queues.iter().map(|queue| (queue.grant_refused, queue.retry_grants)).collect();
        format!("{:?}, refused and to retry: {grants:?}, {slots:#?}", state.slots.usage())
    }

    /// The thread of an unreleased request, live or not.
    pub fn replica_of(&self, id: RequestId) -> Option<usize> {
        let state = self.state.lock();
        state.slots.find(id).ok().map(|index| state.slots.assignment(index).thread)
    }

    /// Number of requests that came before the oldest unfinished one; `u64::MAX` without one.
    pub fn first_live(&self) -> u64 {
        self.state.lock().slots.first_live()
    }

    /// Returns whether a grant would still let all requests finish; see `RequestSlots::grant`.
    pub fn could_grant(&self, slot: u32, bytes: u64, begun: bool) -> bool {
        let state = self.state.lock();
        let may_ask = state.team.may_ask(state.slots.assignment(slot as usize).thread, begun);
        let most = self.bounds.bytes;
        may_ask && (most == u64::MAX || state.slots.could_grant(slot as usize, bytes, most))
    }
}
