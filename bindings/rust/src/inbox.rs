//! A queue of events from one thread to one reader. Waiting events are merged into one. It does not call the
//! library, so that Miri can run its tests.
use crate::event::{Event, EventContent};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The tasks that a push leaves to its caller, in this order, without a lock.
pub(crate) struct Pushed {
    /// Too much is unread, for the first time.
    pub too_much: bool,
    /// Wakes the reader.
    pub waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    pending: Option<Event>,
    waker: Option<Waker>,
    /// The last event has come.
    ended: bool,
    /// Nobody will read.
    abandoned: bool,
    /// Too much was unread.
    overflowed: bool,
}

pub(crate) struct Inbox {
    user_data: u64,
    /// Maximum number of bytes that wait.
    limit: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

impl Inbox {
    pub fn new(user_data: u64, limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or(usize::MAX);
        Self { user_data, limit, state: Mutex::default(), arrived: Condvar::new() }
    }

    /// Ignores poisoning, because the state is consistent whenever the lock is free, even after a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub fn push(&self, part: EventContent<'_>) -> Pushed {
        let mut state = self.lock();
        state.ended |= part.finish.is_some();
        if state.abandoned {
            return Pushed { too_much: false, waker: None };
        }
        let pending =
            state.pending.get_or_insert_with(|| Event { user_data: self.user_data, ..Event::default() });
        pending.add(part);
        let too_much = pending.bytes() > self.limit && !state.ended && !state.overflowed;
        state.overflowed |= too_much;
        let waker = state.waker.take();
        drop(state);
        self.arrived.notify_one();
        Pushed { too_much, waker }
    }

    /// The waiting event. `Some(None)`: none will come any more.
    fn ready(state: &mut State) -> Option<Option<Event>> {
        match state.pending.take() {
            Some(event) => Some(Some(event)),
            None if state.ended || state.abandoned => Some(None),
            None => None,
        }
    }

    pub fn try_take(&self) -> Option<Event> {
        self.lock().pending.take()
    }

    /// None: the last event was taken before.
    pub fn take(&self) -> Option<Event> {
        let mut state = self.lock();
        loop {
            if let Some(event) = Self::ready(&mut state) {
                return event;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Like `take`, but also None once the time has passed.
    pub fn take_within(&self, time: Duration) -> Option<Event> {
        let Some(deadline) = Instant::now().checked_add(time) else { return self.take() };
        let mut state = self.lock();
        loop {
            if let Some(event) = Self::ready(&mut state) {
                return event;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Like `take`, for a task. A waker is dropped without the lock.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.lock();
        if let Some(event) = Self::ready(&mut state) {
            return Poll::Ready(event);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            let before = state.waker.replace(context.waker().clone());
            drop(state);
            drop(before);
        }
        Poll::Pending
    }

    /// Drops the waiting event and all later ones.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        let left = (state.pending.take(), state.waker.take());
        drop(state);
        drop(left);
    }

    /// The last event has come, and may wait to be taken.
    pub fn ended(&self) -> bool {
        self.lock().ended
    }

    /// The last event was taken, or nobody will read.
    pub fn over(&self) -> bool {
        let state = self.lock();
        state.abandoned || (state.ended && state.pending.is_none())
    }

    /// Too much was unread.
    pub fn overflowed(&self) -> bool {
        self.lock().overflowed
    }
}

#[cfg(test)]
mod tests;
