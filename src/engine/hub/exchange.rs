//! The engine threads' side of the hub: they publish the results of a step, take commands, and ask for memory.

use super::ids::RequestId;
use super::slots::{Merge, Usage};
use super::{Cargo, Command, Hub, Readable, State};
use crate::base::sync::MutexGuard;
use crate::engine::replicas::team::Share;
use std::collections::VecDeque;
use std::time::Duration;

/// Results that an engine thread publishes after a step. Reused from step to step for its memory.
pub struct Outbox<E, C> {
    pub events: Vec<(u32, Box<E>)>,
    /// Slots whose requests were admitted.
    pub admitted: Vec<u32>,
    /// Memory was returned after a grant was refused, so ask again; set by `exchange`.
    pub retry_grants: bool,
    /// No step may begin; set by `exchange`.
    pub held: bool,
    /// Requests with more unpolled output than allowed; filled by `exchange`.
    pub slow: Vec<RequestId>,
    /// Empty events for reuse; refilled by `exchange`.
    pub spare: Vec<Box<E>>,
    pub share: Share<C>,
}

impl<E, C> Default for Outbox<E, C> {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            admitted: Vec::new(),
            retry_grants: false,
            held: false,
            slow: Vec::new(),
            spare: Vec::new(),
            share: Share::default(),
        }
    }
}

/// Behavior of `exchange` if no command is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Returns at once: there is work.
    None,
    /// Sleeps for at most this long.
    For(Duration),
    /// The same, but as `UntilCommand` if no request is left.
    Idle(Duration),
    /// Sleeps until a command comes. Returns false if the hub is closing and every request has finished.
    UntilCommand,
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// Called by an engine thread: publishes the results of a step and takes the queued commands. Returns false when
    /// there will never be work again (`Rest::UntilCommand`).
    pub fn exchange(
        &self,
        thread: usize,
        out: &mut Outbox<E, C>,
        commands: &mut VecDeque<Command<C>>,
        rest: Rest,
    ) -> bool {
        debug_assert!(commands.is_empty());
        let mut state = self.hand_over(thread, out);
        let bell = &self.mailboxes[thread].bell;
        match rest {
            Rest::For(time) | Rest::Idle(time) if state.team.queues[thread].is_quiet() => {
                if state.is_done() && rest != Rest::For(time) {
                    return false;
                }
                state.team.queues[thread].asleep = true;
                state = bell.wait_for(state, time);
            }
            Rest::UntilCommand => {
                while state.team.queues[thread].is_quiet() {
                    if state.is_done() {
                        return false;
                    }
                    state.team.queues[thread].asleep = true;
                    state = bell.wait(state);
                }
            }
            _ => {}
        }
        out.held = state.held;
        let own = &mut state.team.queues[thread];
        (own.asleep, own.news) = (false, false);
        std::mem::swap(&mut own.commands, commands);
        let waited = own.begun_waits;
        if own.take_retry() {
            out.retry_grants = true;
            // Requests that were refused in favor of this thread's may ask again.
            if waited {
                state.team.retry_grants();
                self.ring(state.take_wakeups());
            }
        }
        self.mailboxes[thread].clear_cancel();
        true
    }

    /// First half of `exchange`: publishes the results.
    pub(super) fn hand_over(&self, thread: usize, out: &mut Outbox<E, C>) -> MutexGuard<'_, State<E, C>> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let Usage { any_ready: before, reserved, .. } = *state.slots.usage();
        out.admitted.drain(..).for_each(|slot| state.slots.admit(slot));
        let State { slots, team, ending, .. } = &mut *state;
        for (slot, event) in out.events.drain(..) {
            slots.accept(slot, event).into_iter().for_each(|assignment| team.balance.end(assignment));
        }
        // Ended requests have returned memory.
        if slots.usage().reserved < reserved {
            team.retry_grants();
        }
        team.share(thread, &mut out.share, slots, *ending);
        out.slow.append(&mut state.slots.slow);
        if out.spare.is_empty() {
            std::mem::swap(&mut out.spare, &mut state.slots.spare);
        }
        self.update_signal(&mut state);
        self.ring_any(state.slots.usage().any_ready.saturating_sub(before), state.any_waiters);
        // The published results may be what other threads wait for.
        self.ring(state.take_wakeups());
        state
    }

    /// Called by an engine thread during a pass: shows each `End` (Some) and `EndAll` (None) that came since the last
    /// look. The commands stay in the queue.
    pub fn ends(&self, thread: usize, show: &mut dyn FnMut(Option<RequestId>)) {
        if !self.mailboxes[thread].cancel_raised() {
            return;
        }
        let state = self.state.lock();
        self.mailboxes[thread].clear_cancel();
        for command in &state.team.queues[thread].commands {
            match command {
                Command::End(id) => show(Some(*id)),
                Command::EndAll { .. } => show(None),
                Command::Start(_) | Command::Resume(_) => {}
            }
        }
    }

    /// Called by the request's thread: grants bytes for its next output (see `RequestSlots::grant`). `begun`: it has
    /// had a grant before. If the grant is refused, `exchange` reports when memory is available again.
    pub fn grant(&self, slot: u32, bytes: u64, begun: bool) -> bool {
        let mut state = self.state.lock();
        self.settle(&mut state);
        let thread = state.slots.assignment(slot as usize).thread;
        let granted =
            state.team.may_ask(thread, begun) && state.slots.grant(slot as usize, bytes, self.bounds.bytes);
        if !granted {
            state.team.queues[thread].refuse_grant(begun);
        } else if !begun {
            // What this request will give back at its end counts for others from now on.
            state.team.retry_grants();
            self.wake(state);
        }
        granted
    }
}
