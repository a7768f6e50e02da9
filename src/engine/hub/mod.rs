//! Connects host threads and engine threads: requests in, events out, under one lock. An engine of several
//! devices has several such threads (`replicas/team.rs`), and each names itself by its number.
//!
//! `submit` opens a request's slot and queues the request for an engine thread in one critical section. In the
//! same way, `exchange` publishes a step's events and takes the commands that came meanwhile. A submit and a poll
//! take the lock once each, `bn_events_free` once for a batch. Unpolled events of a request are merged into one
//! pending event, so only that event grows with the length of an answer.

use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::base::{Error, Result, Status, reserved};
use crate::engine::hub::ids::{RequestId, Which};
use crate::engine::hub::slots::RequestSlots;
pub use crate::engine::hub::slots::{Merge, RequestInfo, Stage, Usage};
pub use crate::engine::replicas::team::Cargo;
use crate::engine::replicas::team::Team;

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The wait descriptor as the hub sees it; in tests, a counter.
pub trait Readable {
    /// Makes the descriptor readable. If it already is, edge-triggered waiters wake once more.
    fn set(&self);
    fn clear(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Open,
    /// No new requests.
    Closing,
    /// Every request has had its terminal event and all threads are gone.
    Drained,
    /// The threads died.
    Dead,
    /// The engine is being destroyed: pollers leave.
    Destroyed,
}

struct State<E, C> {
    phase: Phase,
    /// Bytes that are set aside now.
    aside: u64,
    /// No engine thread may begin a step; never after `Open`.
    held: bool,
    /// All requests were told to end because the engine shuts down.
    ending: bool,
    /// The engine is being destroyed: polls return without an event, since it would be freed under their callers.
    leaving: bool,
    /// A poll left an event behind for lack of memory. The next call that returns memory wakes edge-triggered
    /// loops again.
    grant_missed: bool,
    slots: RequestSlots<E>,
    team: Team<C>,
    any_waiters: usize,
    pollers: usize,
    readable: bool,
}

pub struct Hub<E, C, R> {
    state: Mutex<State<E, C>>,
    any_bell: Condvar,
    quiet: Condvar,
    /// One per engine thread.
    mailboxes: Arc<Vec<Mailbox>>,
    /// Bytes of dropped set-asides. An atomic, since the thread that drops one may hold the lock.
    returned: Arc<AtomicU64>,
    signal: Option<R>,
    bounds: Bounds,
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// `threads` is 1..=MAX_REPLICAS.
    pub fn new(salt: u16, bounds: Bounds, threads: usize, signal: Option<R>) -> Self {
        let team = Team::new(threads);
        let mailboxes = team.mailboxes.clone();
        let state = State {
            phase: Phase::Open,
            aside: 0,
            held: false,
            ending: false,
            leaving: false,
            grant_missed: false,
            slots: RequestSlots::new(salt, bounds.unread_bytes),
            team,
            any_waiters: 0,
            pollers: 0,
            readable: false,
        };
        Self {
            state: Mutex::new(state),
            any_bell: Condvar::new(),
            quiet: Condvar::new(),
            mailboxes,
            returned: Arc::new(AtomicU64::new(0)),
            signal,
            bounds,
        }
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub fn signal(&self) -> Option<&R> {
        self.signal.as_ref()
    }

    /// Takes all of `requests`, or none: opens a slot for each and queues it for an engine thread. Appends their ids to
    /// `ids`, which must have room for them.
    pub fn submit(&self, requests: &mut Vec<(RequestInfo, C)>, ids: &mut Vec<RequestId>) -> Result<()> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        state.open()?;
        self.bounds.queue(requests.iter().map(|(info, _)| info), state.slots.usage())?;
        if self.bounds.bytes != u64::MAX {
            fits(requests.iter().map(|(info, _)| info), &mut state.slots, self.bounds.bytes, 0)?;
        }
        state.make_room(requests.len())?;
        let mut before = None;
        for (info, mut cargo) in requests.drain(..) {
            let State { slots, team, .. } = &mut *state;
            let assignment = team.choose(&cargo, before);
            let id = slots.open(info, assignment);
            cargo.assign(id, assignment.tokens);
            ids.push(id);
            team.send(assignment.thread, Command::Start(cargo));
            before = Some(assignment.thread);
        }
        self.wake(state);
        Ok(())
    }

    /// Tells the thread of a request to end it.
    fn end(&self, mut state: MutexGuard<'_, State<E, C>>, index: usize, id: RequestId) {
        let assignment = state.slots.assignment(index);
        state.team.send(assignment.thread, Command::End(id));
        self.wake(state);
    }

    fn end_all(&self, mut state: MutexGuard<'_, State<E, C>>, shutdown: bool) {
        state.slots.cancel_all();
        state.ending |= shutdown;
        state.team.end_all(shutdown);
        self.wake(state);
    }

    /// Queues a call, which has no request, for a thread. Refused like a submit once the engine is closing.
    pub fn call(&self, thread: usize, cargo: C) -> Result<()> {
        let mut state = self.state.lock();
        // Once the hub is closing, the thread may have taken its commands for the last time.
        state.open()?;
        if !state.team.balance.is_open(thread) {
            return Err(dead());
        }
        let own = &mut state.team.queues[thread];
        reserved(own.commands.try_reserve(1), "a call", size_of::<Command<C>>())?;
        own.commands.push_back(Command::Start(cargo));
        self.wake(state);
        Ok(())
    }

    pub fn usage(&self) -> Usage {
        let mut state = self.state.lock();
        self.settle(&mut state);
        *state.slots.usage()
    }

    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// `NotFound` unless `id` is an unreleased request of this engine.
    pub fn stage(&self, id: RequestId) -> Result<Stage> {
        let state = self.state.lock();
        state.slots.find(id).map(|index| state.slots.stage(index))
    }

    /// Asks for the end of one request, or of all that are live now. `EngineDead` if no engine thread is left.
    pub fn cancel(&self, which: Which) -> Result<()> {
        let mut state = self.state.lock();
        if state.phase == Phase::Dead {
            return Err(dead());
        }
        match which {
            Which::One(id) => {
                let index = state.slots.find(id)?;
                if state.slots.cancel(index) {
                    self.end(state, index, id);
                }
            }
            Which::Any if state.slots.usage().unfinished == 0 => {}
            Which::Any => self.end_all(state, false),
        }
        Ok(())
    }

    /// See `RequestSlots::queue_ages`.
    pub fn queue_ages(&self, now: u64) -> [u64; 4] {
        self.state.lock().slots.queue_ages(now)
    }

    /// Releases `id`: its events are freed, and a live request is cancelled.
    pub fn release(&self, id: RequestId) -> Result<()> {
        let mut state = self.state.lock();
        let index = state.slots.find(id)?;
        let (told, reserved) = (!state.slots.cancel(index), state.slots.usage().reserved);
        let live = state.slots.release(index);
        self.update_signal(&mut state);
        // The leases of the request returned memory, for which another request may wait.
        if state.slots.usage().reserved < reserved {
            state.team.retry_grants();
        }
        match live && !told {
            true => self.end(state, index, id),
            false => self.retry_grants(state),
        }
        Ok(())
    }

    /// Frees polled events.
    pub fn give_back(&self, leases: &mut dyn Iterator<Item = (RequestId, u64)>) {
        let mut state = self.state.lock();
        leases.for_each(|(id, lease)| state.slots.give_back(id, lease));
        self.retry_grants(state);
    }

    /// Wakes all requests that wait for memory, after some was returned.
    fn retry_grants(&self, mut state: MutexGuard<'_, State<E, C>>) {
        if std::mem::take(&mut state.grant_missed)
            && state.slots.usage().any_ready > 0
            && let Some(signal) = &self.signal
        {
            signal.set();
        }
        state.team.retry_grants();
        self.wake(state);
    }

    /// Resumes requests that were paused until their events were taken.
    fn resume_drained(&self, state: &mut State<E, C>) {
        if state.slots.drained.is_empty() {
            return;
        }
        let State { slots, team, .. } = state;
        let mut drained = std::mem::take(&mut slots.drained);
        for id in drained.drain(..) {
            team.send(slots.assignment(id.slot() as usize).thread, Command::Resume(id));
        }
        slots.drained = drained;
        self.ring(state.take_wakeups());
    }

    fn ring_any(&self, events: usize, waiters: usize) {
        match events.min(waiters) {
            0 => {}
            1 => self.any_bell.notify_one(),
            _ => self.any_bell.notify_all(),
        }
    }

    /// Moves the phase forward (never back) and wakes everybody to see it. If `end`, tells all requests to end.
    pub fn advance(&self, phase: Phase, end: bool) {
        let mut state = self.state.lock();
        state.phase = state.phase.max(phase);
        if state.phase > Phase::Open {
            state.hold(false);
        }
        if state.phase >= Phase::Drained {
            // These commands will never be executed. Dropping a call notifies its waiting caller.
            state.team.queues.iter_mut().for_each(|queue| queue.commands.clear());
        }
        self.update_signal(&mut state);
        state.slots.ring_all();
        self.any_bell.notify_all();
        match end && state.phase < Phase::Drained {
            true => self.end_all(state, true),
            false => self.wake(state),
        }
    }

    /// Before `destroy`: all pollers leave without an event.
    pub fn leave_all(&self) {
        let mut state = self.state.lock();
        state.leaving = true;
        state.slots.ring_all();
        self.any_bell.notify_all();
    }

    /// Enters `Destroyed`, waits until the last poller has left, then drops every event.
    pub fn destroy(&self) {
        self.advance(Phase::Destroyed, false);
        let mut state = self.state.lock();
        while state.pollers > 0 {
            state = self.quiet.wait(state);
        }
        state.slots = RequestSlots::new(0, 0);
        // Set-aside bytes are returned when their holders drop them.
        let aside = state.aside;
        state.slots.set_aside(aside, u64::MAX);
    }

    /// Requests of a dying thread that have no terminal event yet, each with its `user_data`.
    pub fn lost(&self, thread: usize) -> Vec<(RequestId, u64)> {
        self.state.lock().slots.lost(thread)
    }

    /// The thread accepts no more requests, and hands its waiting ones to others. Returns false if there are no
    /// others; the hub is then closing.
    pub fn retire(&self, thread: usize) -> bool {
        let mut state = self.state.lock();
        let others = state.team.balance.close(thread);
        if !others {
            state.phase = state.phase.max(Phase::Closing);
        }
        self.wake(state);
        others
    }

    /// The thread has ended. After the last one the hub is drained, or dead if the last one `died`.
    pub fn part(&self, thread: usize, died: bool) {
        let last = self.state.lock().team.part(thread, died);
        if last {
            self.advance(if died { Phase::Dead } else { Phase::Drained }, false);
        }
    }

    /// Wakes every thread that sleeps although something waits for it, or nothing ever will.
    fn wake(&self, mut state: MutexGuard<'_, State<E, C>>) {
        let ring = state.take_wakeups();
        drop(state);
        self.ring(ring);
    }

    /// Rings the bells of the threads in a mask.
    fn ring(&self, mut threads: u64) {
        while threads != 0 {
            self.mailboxes[threads.trailing_zeros() as usize].bell.notify_one();
            threads &= threads - 1;
        }
    }

    /// Runs `look` on the team, under the lock.
    pub fn team<T>(&self, look: impl FnOnce(&Team<C>) -> T) -> T {
        look(&self.state.lock().team)
    }

    /// Number of engine threads that were started.
    pub fn threads(&self) -> usize {
        self.mailboxes.len()
    }

    /// The descriptor is readable while an event waits, and from the engine's end on. After the end, each change
    /// and each poll that takes the last event sets it again: otherwise an edge-triggered loop that stopped at a
    /// short count would not come back.
    fn update_signal(&self, state: &mut State<E, C>) {
        let Some(signal) = &self.signal else { return };
        let over = state.phase >= Phase::Drained;
        let readable = state.slots.usage().any_ready > 0 || over;
        if readable && (over || !state.readable) {
            signal.set();
        } else if !readable && state.readable {
            signal.clear();
        }
        state.readable = readable;
    }
}

fn shut_down() -> Error {
    Error::new(Status::Shutdown, "the engine is shut down")
}

pub fn dead() -> Error {
    Error::new(Status::EngineDead, "the engine's thread died; destroy the engine")
}

impl<E: Merge, C: Cargo> State<E, C> {
    /// Reserves room for `n` more requests and, for each, commands to start it, to resume it and to end it.
    fn make_room(&mut self, n: usize) -> Result<()> {
        self.slots.make_room(n)?;
        // One more command ends all requests.
        self.team.make_room(3 * n + 2 * self.slots.usage().unfinished + 1)
    }

    fn open(&self) -> Result<()> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Dead => Err(dead()),
            _ => Err(Error::new(Status::Shutdown, "the engine is shutting down")),
        }
    }

    /// Returns whether no thread will ever have work again.
    fn is_done(&self) -> bool {
        self.phase > Phase::Open && self.slots.usage().unfinished == 0
    }

    /// See `Team::take_wakeups`.
    fn take_wakeups(&mut self) -> u64 {
        self.team.take_wakeups(self.is_done())
    }

    fn over(&self) -> Result<()> {
        match self.phase {
            Phase::Open | Phase::Closing => Ok(()),
            Phase::Dead => Err(dead()),
            Phase::Drained | Phase::Destroyed => Err(shut_down()),
        }
    }
}

mod aside;
mod hold;
pub mod ids;
pub mod slots;
pub use aside::SetAside;
mod bounds;
pub use bounds::Bounds;
use bounds::fits;
mod exchange;
pub use exchange::{Outbox, Rest};
mod poll;
pub mod queue;
pub use queue::Command;
use queue::Mailbox;

#[cfg(all(test, not(loom)))]
pub mod checks;

#[cfg(test)]
pub mod support;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
