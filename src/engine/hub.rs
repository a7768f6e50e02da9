//! Where host threads and the engine's replicas meet: requests in, events out, under one lock. A replica is an engine thread
//! with what it computes on; there is one for each device.
//!
//! `submit` opens a request's slot and queues it for a replica in one step; so does a replica hand over a step's events and
//! take what came meanwhile (`exchange`). A submit and a poll take the lock once each, `bn_events_free` once for a batch.
//! What a request was not yet asked for is merged into one pending event, so nothing here grows with the length of an
//! answer but the event itself.

use super::ids::{RequestId, Which};
use super::slots::Slots;
pub use super::slots::{Merge, Place, Stage, Usage};
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::base::{Error, Result, Status, reserved};
use std::collections::VecDeque;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The wait descriptor as the hub sees it; a counter in tests.
pub trait Readable {
    /// Makes it readable; where it is already, edge-triggered waiters wake once more.
    fn set(&self);
    fn clear(&self);
}

/// What is queued for a replica.
pub trait Cargo {
    /// Learns which request it is.
    fn name(&mut self, id: RequestId);
    /// The replica with the lowest gets it. `owed`: tokens of that replica's unfinished requests; `before`: where the request
    /// went that was submitted right before this one, with it.
    fn rank(&self, replica: usize, owed: u64, before: Option<usize>) -> u64;
    /// Whether it goes to the replica that it ranks first even where that one is sick.
    fn stays(&self) -> bool {
        false
    }
    /// Tokens that `replica` owes with it.
    fn tokens(&self, replica: usize, before: Option<usize>) -> u64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Open,
    /// No new requests.
    Closing,
    /// Every request has had its terminal event and all replicas are gone.
    Drained,
    /// They died.
    Dead,
    /// Being destroyed: pollers leave.
    Destroyed,
}

/// What host threads, and the hub itself, ask of a replica.
#[derive(Debug, PartialEq)]
pub enum Command<C> {
    Start(C),
    /// Cancelled, or released while live.
    End(RequestId),
    /// What it gave and nobody polled, for which it was paused, is polled.
    Resume(RequestId),
    /// All that were started before.
    EndAll {
        shutdown: bool,
    },
    /// To hand requests that wait, and have never run, on to replica `to`: at most so many. Where that is not `idle`, only
    /// such as were not handed on before.
    Give {
        to: usize,
        most: u32,
        idle: bool,
    },
}

/// What a replica hands over after a step. Kept from step to step for its memory.
pub struct Outbox<E, C> {
    pub events: Vec<(u32, Box<E>)>,
    /// Slots whose requests were admitted.
    pub admitted: Vec<u32>,
    /// Memory has come back for which a grant was refused; set by `exchange`.
    pub fed: bool,
    /// Requests that gave more than their pollers took; filled by `exchange`.
    pub slow: Vec<RequestId>,
    /// Empty events to be used again; refilled by `exchange`.
    pub spare: Vec<Box<E>>,
    pub load: Load,
    /// Requests for a replica, or for any other.
    pub given: Vec<(Option<usize>, RequestId, C)>,
    /// It has done what `Give` asked for.
    pub gave: bool,
}

/// What `exchange` does when no command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Returns at once: there is work.
    None,
    /// Sleeps for so long at most.
    For(Duration),
    /// Sleeps until a command comes, or returns false when the hub is closing and every request has finished.
    UntilCommand,
}

struct State<E, C> {
    phase: Phase,
    /// Requests that came beside sick replicas and could go anywhere.
    beside_sick: u32,
    /// Bytes that are set aside.
    aside: u64,
    /// All requests were told to end, as the engine does.
    ending: bool,
    /// Being destroyed: polls return without an event, which would be freed under their callers.
    leaving: bool,
    /// A poll left an event behind for want of memory: giving back wakes edge-triggered loops once more.
    starved: bool,
    slots: Slots<E>,
    replicas: Vec<Replica<C>>,
    any_waiters: usize,
    pollers: usize,
    readable: bool,
}

pub struct Hub<E, C, R> {
    state: Mutex<State<E, C>>,
    any_bell: Condvar,
    quiet: Condvar,
    /// Of each replica.
    desks: Vec<Desk>,
    /// Bytes of what was set aside and is gone: whoever drops it may hold the lock.
    returned: Arc<AtomicU64>,
    signal: Option<R>,
    bounds: Bounds,
}

impl<E, C> Default for Outbox<E, C> {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            admitted: Vec::new(),
            fed: false,
            slow: Vec::new(),
            spare: Vec::new(),
            load: Load::default(),
            given: Vec::new(),
            gave: false,
        }
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// `replicas`: 1..=MAX_REPLICAS.
    pub fn new(salt: u16, bounds: Bounds, replicas: usize, signal: Option<R>) -> Self {
        let state = State {
            phase: Phase::Open,
            beside_sick: 0,
            aside: 0,
            ending: false,
            leaving: false,
            starved: false,
            slots: Slots::new(salt, replicas, bounds.unread_bytes),
            replicas: (0..replicas).map(|_| Replica::new()).collect(),
            any_waiters: 0,
            pollers: 0,
            readable: false,
        };
        Self {
            state: Mutex::new(state),
            any_bell: Condvar::new(),
            quiet: Condvar::new(),
            desks: (0..replicas).map(|_| Desk::new()).collect(),
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

    /// Opens a slot for each of `requests` and queues it for a replica, or none. Their ids go to `ids`, which has room for
    /// them.
    pub fn submit(&self, requests: Vec<(Place, C)>, ids: &mut Vec<RequestId>) -> Result<()> {
        let mut state = self.state.lock();
        state.open()?;
        self.settle(&mut state);
        self.bounds.queue(requests.iter().map(|(place, _)| place), state.slots.usage())?;
        if self.bounds.bytes != u64::MAX {
            fits(requests.iter().map(|(place, _)| place), &mut state.slots, self.bounds.bytes)?;
        }
        state.make_room(requests.len())?;
        let mut before = None;
        for (place, mut cargo) in requests {
            let rank = |replica, owed| cargo.rank(replica, owed, before);
            let replica = state.choose_for_new(&rank, cargo.stays()).unwrap_or(0);
            let id = state.slots.open(place, replica, cargo.tokens(replica, before));
            cargo.name(id);
            ids.push(id);
            state.start(replica, cargo);
            before = Some(replica);
        }
        self.wake(state);
        Ok(())
    }

    /// Has the replica of a request end it.
    fn end(&self, mut state: MutexGuard<'_, State<E, C>>, index: usize, id: RequestId) {
        let replica = state.slots.replica(index);
        state.replicas[replica].commands.push_back(Command::End(id));
        self.desks[replica].urgent.store(true, Ordering::Release);
        self.wake(state);
    }

    /// Has all replicas end what they have.
    fn end_all(&self, mut state: MutexGuard<'_, State<E, C>>, shutdown: bool) {
        state.slots.cancel_all();
        state.ending |= shutdown;
        for (own, desk) in state.replicas.iter_mut().zip(&self.desks) {
            // A flood of these is one command.
            if !own.gone && !own.ends_all() {
                own.commands.push_back(Command::EndAll { shutdown });
                desk.urgent.store(true, Ordering::Release);
            }
        }
        self.wake(state);
    }

    /// Queues what is no request for a replica. Refused as a submit is once the engine is closing.
    pub fn call(&self, replica: usize, cargo: C) -> Result<()> {
        let mut state = self.state.lock();
        // Later the replica may have taken its last look.
        state.open()?;
        let own = &mut state.replicas[replica];
        if !own.open {
            return Err(dead());
        }
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

    /// NotFound unless `id` is an unreleased request of this engine.
    pub fn stage(&self, id: RequestId) -> Result<Stage> {
        let state = self.state.lock();
        state.slots.find(id).map(|index| state.slots.stage(index))
    }

    /// Asks the engine thread to end a request, or all that are live now.
    /// `EngineDead` where there is no such thread any more.
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

    /// Its replica: bytes for what a request gives next (see `Slots::grant`), which has `begun` to give or not. Where they
    /// are refused, `exchange` says when memory has come back.
    pub fn grant(&self, slot: u32, bytes: u64, begun: bool) -> bool {
        let mut state = self.state.lock();
        let replica = state.slots.replica(slot as usize);
        let granted =
            state.may_ask(replica, begun) && state.slots.grant(slot as usize, bytes, self.bounds.bytes);
        if !granted {
            state.replicas[replica].starve(begun);
        }
        granted
    }

    /// See `Slots::queue_ages`.
    pub fn queue_ages(&self, now: u64) -> [u64; 4] {
        self.state.lock().slots.queue_ages(now)
    }

    /// Retires `id`: its events are freed, and a live request is cancelled.
    pub fn release(&self, id: RequestId) -> Result<()> {
        let mut state = self.state.lock();
        let index = state.slots.find(id)?;
        let (told, reserved) = (!state.slots.cancel(index), state.slots.usage().reserved);
        let live = state.slots.release(index);
        self.update_signal(&mut state);
        // Of its leases; another replica's request may wait for them.
        if state.slots.usage().reserved < reserved {
            state.feed_all();
        }
        match live && !told {
            true => self.end(state, index, id),
            false => self.feed(state),
        }
        Ok(())
    }

    /// Frees polled events.
    pub fn give_back(&self, leases: &mut dyn Iterator<Item = (RequestId, u64)>) {
        let mut state = self.state.lock();
        leases.for_each(|(id, lease)| state.slots.give_back(id, lease));
        self.feed(state);
    }

    /// The delivery thread is done with an event of a request.
    pub fn delivered(&self, id: RequestId, granted: u64) {
        let mut state = self.state.lock();
        if let Ok(index) = state.slots.find(id) {
            state.slots.ungrant(index, granted);
            self.feed(state);
        }
    }

    /// Memory came back.
    fn feed(&self, mut state: MutexGuard<'_, State<E, C>>) {
        if std::mem::take(&mut state.starved)
            && state.slots.usage().any_ready > 0
            && let Some(signal) = &self.signal
        {
            signal.set();
        }
        state.feed_all();
        self.wake(state);
    }

    /// Events were taken: requests that waited for that go on.
    fn resume_drained(&self, state: &mut State<E, C>) {
        if state.slots.drained.is_empty() {
            return;
        }
        let State { slots, replicas, .. } = state;
        let mut drained = std::mem::take(&mut slots.drained);
        for id in drained.drain(..) {
            replicas[slots.replica(id.slot() as usize)].commands.push_back(Command::Resume(id));
        }
        slots.drained = drained;
        self.ring(state.rouse());
    }

    /// A replica: hands over what a step made and takes the commands that came. False when there is nothing left to do,
    /// ever (`Rest::UntilCommand`).
    pub fn exchange(
        &self,
        replica: usize,
        out: &mut Outbox<E, C>,
        commands: &mut VecDeque<Command<C>>,
        rest: Rest,
    ) -> bool {
        debug_assert!(commands.is_empty());
        let mut state = self.hand_over(replica, out);
        let bell = &self.desks[replica].bell;
        match rest {
            Rest::For(time) if state.replicas[replica].is_quiet() => {
                state.replicas[replica].asleep = true;
                state = bell.wait_for(state, time);
            }
            Rest::UntilCommand => {
                while state.replicas[replica].is_quiet() {
                    if state.is_done() {
                        return false;
                    }
                    state.replicas[replica].asleep = true;
                    state = bell.wait(state);
                }
            }
            _ => {}
        }
        let own = &mut state.replicas[replica];
        own.asleep = false;
        std::mem::swap(&mut own.commands, commands);
        let waited = own.begun_waits;
        if own.take_fed() {
            out.fed = true;
            // Who was refused for its sake may ask again.
            if waited {
                state.feed_all();
                self.ring(state.rouse());
            }
        }
        self.desks[replica].urgent.store(false, Ordering::Relaxed);
        true
    }

    /// The first half of `exchange`.
    fn hand_over(&self, replica: usize, out: &mut Outbox<E, C>) -> MutexGuard<'_, State<E, C>> {
        let mut state = self.state.lock();
        let Usage { any_ready: before, reserved, .. } = *state.slots.usage();
        self.settle(&mut state);
        out.admitted.drain(..).for_each(|slot| state.slots.admit(slot));
        out.events.drain(..).for_each(|(slot, event)| state.slots.accept(slot, event));
        // What ended has given back what it no longer holds.
        if state.slots.usage().reserved < reserved {
            state.feed_all();
        }
        self.share(&mut state, replica, out);
        out.slow.append(&mut state.slots.slow);
        if out.spare.is_empty() {
            std::mem::swap(&mut out.spare, &mut state.slots.spare);
        }
        self.update_signal(&mut state);
        self.ring_any(state.slots.usage().any_ready.saturating_sub(before), state.any_waiters);
        // What it gave, asked for or ended may be what others wait for.
        self.ring(state.rouse());
        state
    }

    /// A replica, while a pass runs: shows each `End` (Some) and `EndAll` (None) that came since the last look. They stay
    /// in the queue.
    pub fn ends(&self, replica: usize, show: &mut dyn FnMut(Option<RequestId>)) {
        let urgent = &self.desks[replica].urgent;
        if !urgent.load(Ordering::Acquire) {
            return;
        }
        let state = self.state.lock();
        urgent.store(false, Ordering::Relaxed);
        for command in &state.replicas[replica].commands {
            match command {
                Command::End(id) => show(Some(*id)),
                Command::EndAll { .. } => show(None),
                Command::Start(_) | Command::Resume(_) | Command::Give { .. } => {}
            }
        }
    }

    fn ring_any(&self, events: usize, waiters: usize) {
        match events.min(waiters) {
            0 => {}
            1 => self.any_bell.notify_one(),
            _ => self.any_bell.notify_all(),
        }
    }

    /// Moves the phase forward (never back) and wakes everybody to see it. `EndAll` where `end` says so.
    pub fn advance(&self, phase: Phase, end: bool) {
        let mut state = self.state.lock();
        state.phase = state.phase.max(phase);
        if state.phase >= Phase::Drained {
            // Nobody takes them any more: who waits for an answer learns that with its sender.
            state.replicas.iter_mut().for_each(|replica| replica.commands.clear());
        }
        self.update_signal(&mut state);
        state.slots.ring_all();
        self.any_bell.notify_all();
        match end && state.phase < Phase::Drained {
            true => self.end_all(state, true),
            false => self.wake(state),
        }
    }

    /// Before `destroy`: who polls leaves, and takes no event along.
    pub fn leave_all(&self) {
        let mut state = self.state.lock();
        state.leaving = true;
        state.slots.ring_all();
        self.any_bell.notify_all();
    }

    /// `Destroyed`, then waits until the last poller has left, then forgets every event.
    pub fn destroy(&self) {
        self.advance(Phase::Destroyed, false);
        let mut state = self.state.lock();
        while state.pollers > 0 {
            state = self.quiet.wait(state);
        }
        state.slots = Slots::new(0, self.desks.len(), 0);
    }

    /// Requests without a terminal event, each with its `user_data`: what a dying replica still owes.
    pub fn lost(&self, replica: usize) -> Vec<(RequestId, u64)> {
        self.state.lock().slots.lost(replica)
    }

    /// Readable while an event waits and from the engine's end on. At the end it is set anew by each change, and by each
    /// poll that takes the last event: an edge-triggered loop that stopped at a short count would not come back.
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

impl<E: Merge, C> State<E, C> {
    /// For `n` more requests, with a command to start each, one to let it go on, and one to end it.
    fn make_room(&mut self, n: usize) -> Result<()> {
        self.slots.make_room(n)?;
        // And whatever replica has them in the end; with one to end all, and one to give some.
        let most = 3 * n + 2 * self.slots.usage().unfinished + 2;
        let made = self.replicas.iter_mut().try_for_each(|replica| replica.commands.try_reserve(most));
        reserved(made, "the request queue", most * size_of::<Command<C>>())
    }

    fn open(&self) -> Result<()> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Dead => Err(dead()),
            _ => Err(Error::new(Status::Shutdown, "the engine is shutting down")),
        }
    }

    fn over(&self) -> Result<()> {
        match self.phase {
            Phase::Open | Phase::Closing => Ok(()),
            Phase::Dead => Err(dead()),
            Phase::Drained | Phase::Destroyed => Err(shut_down()),
        }
    }
}

#[path = "hub_aside.rs"]
mod aside;
pub use aside::SetAside;
#[path = "hub_bounds.rs"]
mod bounds;
pub use bounds::Bounds;
use bounds::fits;
#[path = "hub_poll.rs"]
mod poll;
#[path = "hub_replicas.rs"]
mod replicas;
use replicas::{Desk, Replica};
pub use replicas::{Load, MAX_REPLICAS};

#[cfg(all(test, not(loom)))]
#[path = "simulation/hub_checks.rs"]
pub mod checks;

#[cfg(test)]
#[path = "hub_support.rs"]
mod support;

#[cfg(all(test, loom))]
#[path = "hub_loom.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "hub_tests.rs"]
mod tests;
