//! Where requests' events wait for whoever polls: slots, the any-queue, blocked pollers and the wait descriptor.
//!
//! One lock guards it all. The engine thread publishes once per step, and what a request has not yet been asked
//! for is merged into one pending event, so nothing here grows with the length of an answer but the event itself.

use super::ids::{LAST_GENERATION, RequestId, Which};
use crate::base::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::base::{Error, Result, Status};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the hub needs to know of an event.
pub trait Merge {
    /// Appends what came later.
    fn merge(&mut self, next: Self);
    fn is_terminal(&self) -> bool;
}

/// The wait descriptor as the hub sees it; a flag in tests.
pub trait Readable {
    fn set(&self);
    fn clear(&self);
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

/// Why `open` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Full,
    /// The bytes reserved would pass the budget; what is left of it.
    Memory(u64),
    Closed(Phase),
}

struct Slot<E> {
    generation: u32,
    open: bool,
    /// Released while live: its events are dropped and its terminal event frees the slot.
    discard: bool,
    finished: bool,
    /// Somebody has asked for its end already.
    cancelled: bool,
    by_id: bool,
    in_any: bool,
    polled: bool,
    pending: Option<E>,
    /// What the last poll returned; its heap parts are what the caller's pointers point at.
    delivered: Option<E>,
    reserved: u64,
    bell: Arc<Condvar>,
}

struct State<E> {
    phase: Phase,
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
    /// Slots that had a pending event for `Which::Any`; entries may be stale.
    any: VecDeque<u32>,
    /// Slots that have one now.
    any_ready: usize,
    any_waiters: usize,
    pollers: usize,
    live: usize,
    reserved: u64,
    reserved_peak: u64,
    readable: bool,
}

pub struct Hub<E, R> {
    state: Mutex<State<E>>,
    any_bell: Condvar,
    quiet: Condvar,
    signal: Option<R>,
    salt: u16,
    capacity: usize,
    /// Bytes that unreleased requests may reserve together.
    budget: u64,
}

impl<E: Merge, R: Readable> Hub<E, R> {
    pub fn new(salt: u16, capacity: usize, budget: u64, signal: Option<R>) -> Self {
        let state = State {
            phase: Phase::Open,
            slots: Vec::new(),
            free: Vec::new(),
            any: VecDeque::new(),
            any_ready: 0,
            any_waiters: 0,
            pollers: 0,
            live: 0,
            reserved: 0,
            reserved_peak: 0,
            readable: false,
        };
        Self {
            state: Mutex::new(state),
            any_bell: Condvar::new(),
            quiet: Condvar::new(),
            signal,
            salt,
            capacity,
            budget,
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn signal(&self) -> Option<&R> {
        self.signal.as_ref()
    }

    /// Opens one slot for each of `wanted` (poll by id, bytes reserved), or none.
    pub fn open(&self, wanted: &[(bool, u64)], ids: &mut Vec<RequestId>) -> std::result::Result<(), Refused> {
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Err(Refused::Closed(state.phase));
        }
        if wanted.len() > self.capacity - state.live {
            return Err(Refused::Full);
        }
        let bytes = wanted.iter().fold(0u64, |sum, w| sum.saturating_add(w.1));
        if bytes > self.budget - state.reserved {
            return Err(Refused::Memory(self.budget - state.reserved));
        }
        for &(by_id, reserved) in wanted {
            let index = state.take_free();
            let slot = &mut state.slots[index as usize];
            slot.open = true;
            slot.by_id = by_id;
            slot.reserved = reserved;
            ids.push(RequestId::new(self.salt, slot.generation, index));
            state.live += 1;
            state.reserved += reserved;
        }
        state.reserved_peak = state.reserved_peak.max(state.reserved);
        Ok(())
    }

    /// Requests unreleased, the bytes they reserve, and the most that was ever reserved.
    pub fn usage(&self) -> (usize, u64, u64) {
        let state = self.state.lock();
        (state.live, state.reserved, state.reserved_peak)
    }

    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// NotFound unless `id` is an unreleased request of this engine.
    pub fn check(&self, id: RequestId) -> Result<()> {
        self.state.lock().find(self.salt, id).map(drop)
    }

    /// True where the engine has to be told: `id` is live, and this is the first cancel of it.
    pub fn cancel(&self, id: RequestId) -> Result<bool> {
        let mut state = self.state.lock();
        let index = state.find(self.salt, id)?;
        let slot = &mut state.slots[index];
        Ok(!std::mem::replace(&mut slot.cancelled, true) && !slot.finished)
    }

    /// Engine thread: hands over a step's events. A terminal event must be a slot's last.
    pub fn publish(&self, events: &mut Vec<(u32, E)>) {
        let mut state = self.state.lock();
        let before = state.any_ready;
        for (index, event) in events.drain(..) {
            state.accept(index, event);
        }
        self.update_signal(&mut state);
        let (fresh, waiters) = (state.any_ready.saturating_sub(before), state.any_waiters);
        drop(state);
        self.ring_any(fresh, waiters);
    }

    fn ring_any(&self, events: usize, waiters: usize) {
        match events.min(waiters) {
            0 => {}
            1 => {
                self.any_bell.notify_one();
            }
            _ => {
                self.any_bell.notify_all();
            }
        }
    }

    /// Hands up to `capacity` events to `sink`; waits for the first for up to `timeout` (None: for good).
    pub fn poll(
        &self,
        which: Which,
        capacity: usize,
        timeout: Option<Duration>,
        sink: &mut dyn FnMut(usize, &E),
    ) -> Result<usize> {
        // A timeout too long for the clock is one for good.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut state = self.state.lock();
        state.pollers += 1;
        let result = match which {
            Which::Any => self.poll_any(&mut state, capacity, deadline, sink),
            Which::One(id) => self.poll_one(&mut state, id, deadline, sink),
        };
        state.pollers -= 1;
        if state.phase == Phase::Destroyed && state.pollers == 0 {
            self.quiet.notify_all();
        }
        result
    }

    fn poll_any(
        &self,
        state: &mut MutexGuard<'_, State<E>>,
        capacity: usize,
        deadline: Option<Instant>,
        sink: &mut dyn FnMut(usize, &E),
    ) -> Result<usize> {
        loop {
            let mut count = 0;
            while count < capacity {
                let Some(index) = state.pop_any() else { break };
                sink(count, state.deliver(index));
                count += 1;
            }
            if count > 0 {
                self.update_signal(state);
                if state.any_ready > 0 && state.any_waiters > 0 {
                    self.any_bell.notify_one();
                }
                return Ok(count);
            }
            state.over()?;
            state.any_waiters += 1;
            let waited = wait(&self.any_bell, state, deadline);
            state.any_waiters -= 1;
            if !waited {
                return Ok(0);
            }
        }
    }

    fn poll_one(
        &self,
        state: &mut MutexGuard<'_, State<E>>,
        id: RequestId,
        deadline: Option<Instant>,
        sink: &mut dyn FnMut(usize, &E),
    ) -> Result<usize> {
        let index = state.find(self.salt, id)?;
        if state.slots[index].polled {
            return Err(Error::new(Status::Busy, "another thread is polling this request"));
        }
        state.slots[index].polled = true;
        let bell = state.slots[index].bell.clone();
        let result = loop {
            // Released meanwhile; the slot may already serve somebody else, and its `polled` is not ours.
            let index = state.find(self.salt, id)?;
            if state.slots[index].pending.is_some() {
                if !state.slots[index].by_id {
                    state.any_ready -= 1;
                }
                sink(0, state.deliver(index as u32));
                self.update_signal(state);
                break Ok(1);
            }
            if state.slots[index].finished {
                break Ok(0);
            }
            if let Err(error) = state.over() {
                break Err(error);
            }
            if !wait(&bell, state, deadline) {
                break Ok(0);
            }
        };
        state.slots[index].polled = false;
        result
    }

    /// Blocks until there are events that any poller may have and moves them out, freeing the slots of finished
    /// requests only when `retire` is called. False: there will never be another.
    pub fn take(&self, out: &mut Vec<(u32, E)>) -> bool {
        let mut state = self.state.lock();
        loop {
            while let Some(index) = state.pop_any() {
                let event = state.slots[index as usize].pending.take();
                out.extend(event.map(|event| (index, event)));
            }
            if !out.is_empty() {
                self.update_signal(&mut state);
                return true;
            }
            if state.phase >= Phase::Drained {
                return false;
            }
            state.any_waiters += 1;
            self.any_bell.wait(&mut state);
            state.any_waiters -= 1;
        }
    }

    /// Retires a request whose terminal event was taken; fine if the host released it already.
    pub fn retire(&self, id: RequestId) {
        let mut state = self.state.lock();
        if let Ok(index) = state.find(self.salt, id) {
            state.release(index);
        }
    }

    /// Ends `id`. True where the request is still live and the engine has to be told.
    pub fn release(&self, id: RequestId) -> Result<bool> {
        let mut state = self.state.lock();
        let index = state.find(self.salt, id)?;
        let live = !state.slots[index].finished;
        state.release(index);
        self.update_signal(&mut state);
        Ok(live)
    }

    /// Moves the phase forward (never back) and wakes every poller to see it.
    /// True where that is a change.
    pub fn advance(&self, phase: Phase) -> bool {
        let mut state = self.state.lock();
        let news = state.phase < phase;
        state.phase = state.phase.max(phase);
        self.update_signal(&mut state);
        for slot in &state.slots {
            slot.bell.notify_all();
        }
        drop(state);
        self.any_bell.notify_all();
        news
    }

    /// `Destroyed`, then waits until the last poller has left, then forgets every event.
    pub fn destroy(&self) {
        self.advance(Phase::Destroyed);
        let mut state = self.state.lock();
        while state.pollers > 0 {
            self.quiet.wait(&mut state);
        }
        state.slots = Vec::new();
        state.free = Vec::new();
        state.any = VecDeque::new();
        (state.any_ready, state.live, state.reserved) = (0, 0, 0);
    }

    /// Slots of requests without a terminal event: what a dying engine still owes.
    pub fn unfinished(&self) -> Vec<(u32, RequestId)> {
        let state = self.state.lock();
        let open = state.slots.iter().enumerate().filter(|(_, slot)| slot.open && !slot.finished);
        open.map(|(i, slot)| (i as u32, RequestId::new(self.salt, slot.generation, i as u32))).collect()
    }

    fn update_signal(&self, state: &mut State<E>) {
        let Some(signal) = &self.signal else { return };
        let readable = state.any_ready > 0 || state.phase >= Phase::Drained;
        if readable != state.readable {
            state.readable = readable;
            if readable { signal.set() } else { signal.clear() }
        }
    }
}

/// Waits for the bell; false once `deadline` has passed.
fn wait<T>(bell: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
    let Some(deadline) = deadline else {
        bell.wait(guard);
        return true;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    bell.wait_for(guard, left);
    true
}

impl<E: Merge> State<E> {
    fn take_free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                open: false,
                discard: false,
                finished: false,
                cancelled: false,
                by_id: false,
                in_any: false,
                polled: false,
                pending: None,
                delivered: None,
                reserved: 0,
                bell: Arc::new(Condvar::new()),
            });
            (self.slots.len() - 1) as u32
        })
    }

    fn find(&self, salt: u16, id: RequestId) -> Result<usize> {
        let index = id.slot() as usize;
        match self.slots.get(index) {
            Some(slot)
                if id.salt() == salt && slot.open && !slot.discard && slot.generation == id.generation() =>
            {
                Ok(index)
            }
            _ => Err(Error::new(
                Status::NotFound,
                "no such request: it was released, or this engine never issued it",
            )),
        }
    }

    fn over(&self) -> Result<()> {
        match self.phase {
            Phase::Open | Phase::Closing => Ok(()),
            Phase::Dead => {
                Err(Error::new(Status::EngineDead, "the engine's thread died; destroy the engine"))
            }
            Phase::Drained | Phase::Destroyed => Err(Error::new(Status::Shutdown, "the engine is shut down")),
        }
    }

    fn accept(&mut self, index: u32, event: E) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.open && !slot.finished, "invariant 2: an event after the terminal one");
        slot.finished |= event.is_terminal();
        if slot.discard {
            if slot.finished {
                self.close(index as usize);
            }
            return;
        }
        match &mut slot.pending {
            Some(pending) => pending.merge(event),
            None => {
                slot.pending = Some(event);
                self.any_ready += !slot.by_id as usize;
                if !slot.by_id && !slot.in_any {
                    slot.in_any = true;
                    self.any.push_back(index);
                }
            }
        }
        slot.bell.notify_all();
    }

    /// The next slot with an event for any poller; it no longer counts as ready.
    fn pop_any(&mut self) -> Option<u32> {
        while let Some(index) = self.any.pop_front() {
            let slot = &mut self.slots[index as usize];
            slot.in_any = false;
            if slot.pending.is_some() && !slot.by_id {
                self.any_ready -= 1;
                return Some(index);
            }
        }
        None
    }

    fn deliver(&mut self, index: u32) -> &E {
        let slot = &mut self.slots[index as usize];
        slot.delivered = slot.pending.take();
        slot.delivered.as_ref().expect("the caller saw a pending event")
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.discard = true;
        slot.bell.notify_all();
        if slot.pending.take().is_some() && !slot.by_id {
            self.any_ready -= 1;
        }
        slot.delivered = None;
        if slot.finished {
            self.close(index);
        }
    }

    /// Frees a released and finished slot for the next request.
    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        self.live -= 1;
        self.reserved -= slot.reserved;
        (slot.open, slot.discard, slot.finished, slot.polled) = (false, false, false, false);
        slot.cancelled = false;
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            self.free.push(index as u32);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "hub_loom.rs"]
mod loom_tests;
#[cfg(all(test, not(loom)))]
#[path = "hub_tests.rs"]
mod tests;
