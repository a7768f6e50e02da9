//! Where host threads and the engine thread meet: requests in, events out, under one lock.
//!
//! `submit` opens a request's slot and queues it in one step; so does the engine thread hand over a step's events and
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

/// What is queued for the engine thread, and learns there which request it is.
pub trait Named {
    fn name(&mut self, id: RequestId);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Open,
    /// No new requests.
    Closing,
    /// Every request has had its terminal event and the engine thread is gone.
    Drained,
    /// The engine thread died.
    Dead,
    /// Being destroyed: pollers leave.
    Destroyed,
}

/// What host threads ask of the engine thread.
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
}

/// What the engine thread hands over after a step. Kept from step to step for its memory.
pub struct Outbox<E> {
    pub events: Vec<(u32, Box<E>)>,
    /// Slots whose requests were admitted.
    pub admitted: Vec<u32>,
    /// Memory has come back for which a grant was refused; set by `exchange`.
    pub fed: bool,
    /// Requests that gave more than their pollers took; filled by `exchange`.
    pub slow: Vec<RequestId>,
    /// Empty events to be used again; refilled by `exchange`.
    pub spare: Vec<Box<E>>,
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
    /// Being destroyed: polls return without an event, which would be freed under their callers.
    leaving: bool,
    /// The engine thread was refused a grant, and memory has come back since.
    hungry: bool,
    fed: bool,
    /// A poll left an event behind for want of memory: giving back wakes edge-triggered loops once more.
    starved: bool,
    slots: Slots<E>,
    commands: VecDeque<Command<C>>,
    /// The engine thread waits for `engine_bell`.
    asleep: bool,
    any_waiters: usize,
    pollers: usize,
    readable: bool,
}

pub struct Hub<E, C, R> {
    state: Mutex<State<E, C>>,
    any_bell: Condvar,
    engine_bell: Condvar,
    quiet: Condvar,
    /// An `End` or `EndAll` came that `ends` has not shown yet.
    urgent: AtomicBool,
    /// Bytes of what was set aside and is gone: whoever drops it may hold the lock.
    returned: Arc<AtomicU64>,
    signal: Option<R>,
    bounds: Bounds,
}

/// What unreleased requests may take together.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub requests: usize,
    /// Prompt tokens of those that wait for admission. One alone may pass it.
    pub queued_tokens: u64,
    /// Polled events included; MAX: no bound.
    pub bytes: u64,
    /// Of one request; see `Slots`.
    pub unread_bytes: u64,
}

impl<E> Default for Outbox<E> {
    fn default() -> Self {
        Self { events: Vec::new(), admitted: Vec::new(), fed: false, slow: Vec::new(), spare: Vec::new() }
    }
}

impl<E: Merge, C: Named, R: Readable> Hub<E, C, R> {
    pub fn new(salt: u16, bounds: Bounds, signal: Option<R>) -> Self {
        let state = State {
            phase: Phase::Open,
            leaving: false,
            hungry: false,
            fed: false,
            starved: false,
            slots: Slots::new(salt, bounds.unread_bytes),
            commands: VecDeque::new(),
            asleep: false,
            any_waiters: 0,
            pollers: 0,
            readable: false,
        };
        Self {
            state: Mutex::new(state),
            any_bell: Condvar::new(),
            engine_bell: Condvar::new(),
            quiet: Condvar::new(),
            urgent: AtomicBool::new(false),
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

    /// Opens a slot for each of `requests` and queues them for the engine thread, or none. Their ids go to `ids`, which
    /// has room for them.
    pub fn submit(&self, requests: Vec<(Place, C)>, ids: &mut Vec<RequestId>) -> Result<()> {
        let mut state = self.state.lock();
        state.open()?;
        self.settle(&mut state);
        self.bounds.queue(requests.iter().map(|(place, _)| place), state.slots.usage())?;
        if self.bounds.bytes != u64::MAX {
            fits(requests.iter().map(|(place, _)| place), &mut state.slots, self.bounds.bytes)?;
        }
        state.make_room(requests.len())?;
        for (place, mut cargo) in requests {
            let id = state.slots.open(place);
            cargo.name(id);
            ids.push(id);
            state.commands.push_back(Command::Start(cargo));
        }
        self.wake_engine(state);
        Ok(())
    }

    fn wake_engine(&self, mut state: MutexGuard<'_, State<E, C>>) {
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.engine_bell.notify_one();
        }
    }

    fn tell(&self, mut state: MutexGuard<'_, State<E, C>>, command: Command<C>) {
        state.commands.push_back(command);
        self.urgent.store(true, Ordering::Release);
        self.wake_engine(state);
    }

    /// Queues what is no request. Refused as a submit is once the engine is closing.
    pub fn call(&self, cargo: C) -> Result<()> {
        let mut state = self.state.lock();
        // Later the engine thread may have taken its last look.
        state.open()?;
        reserved(state.commands.try_reserve(1), "a call", size_of::<Command<C>>())?;
        state.commands.push_back(Command::Start(cargo));
        self.wake_engine(state);
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
                    self.tell(state, Command::End(id));
                }
            }
            // A flood of cancels is one command.
            Which::Any if state.ends_all() => {}
            Which::Any if state.slots.usage().unfinished == 0 => {}
            Which::Any => self.tell(state, Command::EndAll { shutdown: false }),
        }
        Ok(())
    }

    /// Engine thread: bytes for what a request gives next (see `Slots::grant`). Where they are refused, `exchange` says
    /// when memory has come back.
    pub fn grant(&self, slot: u32, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let granted = state.slots.grant(slot as usize, bytes, self.bounds.bytes);
        state.hungry |= !granted;
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
        let told = !state.slots.cancel(index);
        let live = state.slots.release(index);
        self.update_signal(&mut state);
        match live && !told {
            true => self.tell(state, Command::End(id)),
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
        if std::mem::take(&mut state.hungry) {
            state.fed = true;
            self.wake_engine(state);
        }
    }

    /// Events were taken: requests that waited for that go on.
    fn resume_drained(&self, state: &mut State<E, C>) {
        if state.slots.drained.is_empty() {
            return;
        }
        let State { slots, commands, .. } = state;
        commands.extend(slots.drained.drain(..).map(Command::Resume));
        if std::mem::take(&mut state.asleep) {
            self.engine_bell.notify_one();
        }
    }

    /// Engine thread: hands over what a step made and takes the commands that came. False when there is nothing left to
    /// do, ever (`Rest::UntilCommand`).
    pub fn exchange(&self, out: &mut Outbox<E>, commands: &mut VecDeque<Command<C>>, rest: Rest) -> bool {
        debug_assert!(commands.is_empty());
        let mut state = self.hand_over(out);
        match rest {
            Rest::For(time) if state.is_quiet() => {
                state.asleep = true;
                state = self.engine_bell.wait_for(state, time);
                state.asleep = false;
            }
            Rest::UntilCommand => {
                while state.is_quiet() {
                    if state.is_done() {
                        return false;
                    }
                    state.asleep = true;
                    state = self.engine_bell.wait(state);
                    state.asleep = false;
                }
            }
            _ => {}
        }
        out.fed |= std::mem::take(&mut state.fed);
        std::mem::swap(&mut state.commands, commands);
        self.urgent.store(false, Ordering::Relaxed);
        true
    }

    /// The first half of `exchange`.
    fn hand_over(&self, out: &mut Outbox<E>) -> MutexGuard<'_, State<E, C>> {
        let mut state = self.state.lock();
        let Usage { any_ready: before, reserved, .. } = *state.slots.usage();
        self.settle(&mut state);
        out.admitted.drain(..).for_each(|slot| state.slots.admit(slot));
        out.events.drain(..).for_each(|(slot, event)| state.slots.accept(slot, event));
        // What ended has given back what it no longer holds.
        if state.slots.usage().reserved < reserved && std::mem::take(&mut state.hungry) {
            state.fed = true;
        }
        out.slow.append(&mut state.slots.slow);
        if out.spare.is_empty() {
            std::mem::swap(&mut out.spare, &mut state.slots.spare);
        }
        self.update_signal(&mut state);
        self.ring_any(state.slots.usage().any_ready.saturating_sub(before), state.any_waiters);
        state
    }

    /// Engine thread, while a pass runs: shows each `End` (Some) and `EndAll` (None) that came since the last look. They
    /// stay in the queue.
    pub fn ends(&self, show: &mut dyn FnMut(Option<RequestId>)) {
        if !self.urgent.load(Ordering::Acquire) {
            return;
        }
        let state = self.state.lock();
        self.urgent.store(false, Ordering::Relaxed);
        for command in &state.commands {
            match command {
                Command::End(id) => show(Some(*id)),
                Command::EndAll { .. } => show(None),
                Command::Start(_) | Command::Resume(_) => {}
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
            state.commands.clear();
        }
        self.update_signal(&mut state);
        state.slots.ring_all();
        self.any_bell.notify_all();
        match end && !state.ends_all() && state.phase < Phase::Drained {
            true => self.tell(state, Command::EndAll { shutdown: true }),
            false => self.wake_engine(state),
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
        state.slots = Slots::new(0, 0);
    }

    /// Requests without a terminal event, each with its `user_data`: what a dying engine still owes.
    pub fn lost(&self) -> Vec<(RequestId, u64)> {
        self.state.lock().slots.lost()
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

impl Bounds {
    /// `QueueFull` where `places` are too many beside what is there, or their prompts too long.
    fn queue<'a>(&self, places: impl ExactSizeIterator<Item = &'a Place>, used: &Usage) -> Result<()> {
        let (n, unreleased, most) = (places.len(), used.unreleased, self.requests);
        let message = if n > most - unreleased {
            format!(
                "{unreleased} of {most} requests (queue_capacity) are unreleased, so {n} more cannot be taken; release \
                 finished ones, or raise it"
            )
        } else {
            let (tokens, most) = (places.map(|place| place.prompt_tokens).sum::<u64>(), self.queued_tokens);
            let queued = used.queued_tokens;
            if queued == 0 || tokens <= most.saturating_sub(queued) {
                return Ok(());
            }
            format!(
                "{queued} of {most} prompt tokens (queue_token_capacity) wait for admission, and {tokens} more do not \
                 fit; try again later, or raise it"
            )
        };
        Err(Error::new(Status::QueueFull, message))
    }
}

/// `MemoryLimit` where requests cannot wait beside the others, or not even run alone. Room for the largest need of any
/// live request is left, so that all can come to their ends.
fn fits<'a, E: Merge>(
    places: impl Iterator<Item = &'a Place>,
    slots: &mut Slots<E>,
    budget: u64,
) -> Result<()> {
    let (mut bytes, mut alone, mut need) = (0u64, 0, slots.largest_need());
    for place in places {
        bytes = bytes.saturating_add(place.reserved);
        (alone, need) = (alone.max(place.alone), need.max(place.need()));
    }
    let left = budget.saturating_sub(slots.usage().reserved).saturating_sub(need);
    let message = if alone > budget {
        format!(
            "the request may need {alone} bytes, and memory_limit_bytes leaves {budget} for all requests: it does not \
             fit even alone; lower max_new_tokens, or let it stream"
        )
    } else if bytes > left {
        format!(
            "the request takes {bytes} bytes while it is queued, and memory_limit_bytes leaves {left} of {budget}: it \
             does not fit now"
        )
    } else {
        return Ok(());
    };
    Err(Error::new(Status::MemoryLimit, message))
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
        let most = 3 * n + 2 * self.slots.usage().unfinished;
        reserved(self.commands.try_reserve(most), "the request queue", most * size_of::<Command<C>>())
    }

    /// Nothing waits for the engine thread.
    fn is_quiet(&self) -> bool {
        self.commands.is_empty() && !self.fed
    }

    /// Nothing ever will.
    fn is_done(&self) -> bool {
        self.phase > Phase::Open && self.slots.usage().unfinished == 0
    }

    /// The newest command ends all that came before it.
    fn ends_all(&self) -> bool {
        matches!(self.commands.back(), Some(Command::EndAll { .. }))
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
#[path = "hub_poll.rs"]
mod poll;

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
