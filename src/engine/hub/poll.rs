//! Takes events out of the hub: polls of one request or of any, and the ownership of polled events.

use super::*;
use std::time::Duration;
use std::time::Instant;

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// Passes up to `capacity` events to `sink`, each with its lease. Waits for the first one for up to `timeout`
    /// (None: without limit). An event stays in place until `give_back`, the release of its request, or destroy.
    pub fn poll(
        &self,
        which: Which,
        capacity: usize,
        timeout: Option<Duration>,
        sink: &mut dyn FnMut(u64, &E),
    ) -> Result<usize> {
        // A timeout too long for the clock means no limit.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        match which {
            Which::Any => self.poll_any(capacity, deadline, sink),
            Which::One(id) => self.poll_one(id, deadline, true, &mut |slots, index| {
                let leased = slots.lease(index, self.bounds.bytes)?;
                Ok(leased.map(|(lease, event)| sink(lease, event)).is_some())
            }),
        }
    }

    /// Waits for the next event of a request and moves it out of the hub.
    pub fn take_one(&self, id: RequestId) -> Result<Box<E>> {
        let mut event = None;
        self.poll_one(id, None, false, &mut |slots, index| {
            event = slots.take(index);
            event.iter().for_each(|event| slots.ungrant(index, event.granted()));
            Ok(event.is_some())
        })?;
        event.ok_or_else(|| Error::internal("a poll without an event"))
    }

    /// `destroy` waits for every thread between `enter` and `leave`.
    fn enter(&self) -> MutexGuard<'_, State<E, C>> {
        let mut state = self.state.lock();
        state.pollers += 1;
        state
    }

    fn leave(&self, mut state: MutexGuard<'_, State<E, C>>) {
        state.pollers -= 1;
        if state.phase == Phase::Destroyed && state.pollers == 0 {
            self.quiet.notify_all();
        }
    }

    fn poll_any(
        &self,
        capacity: usize,
        deadline: Option<Instant>,
        sink: &mut dyn FnMut(u64, &E),
    ) -> Result<usize> {
        let mut state = self.enter();
        let result = loop {
            if state.leaving {
                break Err(shut_down());
            }
            let count = self.lease_any(&mut state, capacity, sink);
            if !matches!(count, Ok(0)) {
                self.resume_drained(&mut state);
                self.update_signal(&mut state);
                if state.slots.usage().any_ready > 0 && state.any_waiters > 0 {
                    self.any_bell.notify_one();
                }
                break count;
            }
            if let Err(error) = state.over() {
                break Err(error);
            }
            state.any_waiters += 1;
            let in_time;
            (state, in_time) = wait(&self.any_bell, state, deadline);
            state.any_waiters -= 1;
            if !in_time {
                break Ok(0);
            }
        };
        self.leave(state);
        result
    }

    fn lease_any(
        &self,
        state: &mut State<E, C>,
        capacity: usize,
        sink: &mut dyn FnMut(u64, &E),
    ) -> Result<usize> {
        let mut count = 0;
        while count < capacity
            && let Some(index) = state.slots.next_any()
        {
            match state.slots.lease(index, self.bounds.bytes) {
                Ok(Some((lease, event))) => sink(lease, event),
                Ok(None) => break,
                // Events leased before are handed out; the next poll meets the same error.
                Err(error) => {
                    state.grant_missed = true;
                    return if count > 0 { Ok(count) } else { Err(error) };
                }
            }
            count += 1;
        }
        Ok(count)
    }

    /// `take` takes the slot's event if one waits, and returns whether it did. `leaves`: return when the engine is
    /// destroyed.
    fn poll_one(
        &self,
        id: RequestId,
        deadline: Option<Instant>,
        leaves: bool,
        take: &mut dyn FnMut(&mut RequestSlots<E>, usize) -> Result<bool>,
    ) -> Result<usize> {
        let mut state = self.enter();
        let mut bell = None;
        let result = loop {
            if leaves && state.leaving {
                break Err(shut_down());
            }
            // The request may have been released meanwhile. Then the slot may serve another request, and
            // `end_poll` is not ours to call.
            let index = match state.slots.find(id) {
                Ok(index) => index,
                Err(error) => break Err(error),
            };
            if bell.is_none() && state.slots.is_polled(index) {
                break Err(Error::new(Status::Busy, "another thread is polling this request"));
            }
            match take(&mut state.slots, index) {
                Ok(true) => {
                    self.resume_drained(&mut state);
                    self.update_signal(&mut state);
                    break Ok(1);
                }
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            if state.slots.is_finished(index) {
                break Err(Error::new(Status::Finished, "the request's last event was polled before"));
            }
            if let Err(error) = state.over() {
                break Err(error);
            }
            let bell = bell.get_or_insert_with(|| state.slots.begin_poll(index));
            let in_time;
            (state, in_time) = wait(bell, state, deadline);
            if !in_time {
                break Ok(0);
            }
        };
        if bell.is_some()
            && let Ok(index) = state.slots.find(id)
        {
            state.slots.end_poll(index);
        }
        self.leave(state);
        result
    }

    /// Marks a caller who submits a request and then waits for it: until the value is dropped, `destroy` waits and
    /// forgets no event.
    pub fn stay(&self) -> Stay<'_, E, C, R> {
        drop(self.enter());
        Stay(self)
    }

    /// Runs the delivery thread: passes each event for any poller to `sink`, with no lock held, until there will never
    /// be another event. The last event of a request releases it.
    pub fn deliver(&self, sink: &mut dyn FnMut(&E)) {
        let mut events = Vec::new();
        while self.take(&mut events) {
            for (id, event) in events.drain(..) {
                self.hand_out(id, &event, sink);
            }
        }
    }

    /// Blocks until there are events for any poller and moves them out; they count until `hand_out` has passed them on.
    /// Returns false if there will never be another event.
    pub fn take(&self, out: &mut Vec<(RequestId, Box<E>)>) -> bool {
        let mut state = self.state.lock();
        loop {
            while let Some(index) = state.slots.next_any() {
                let id = state.slots.id(index);
                out.extend(state.slots.take(index).map(|event| (id, event)));
            }
            if !out.is_empty() {
                self.resume_drained(&mut state);
                self.update_signal(&mut state);
                return true;
            }
            if state.phase >= Phase::Drained {
                return false;
            }
            state.any_waiters += 1;
            state = self.any_bell.wait(state);
            state.any_waiters -= 1;
        }
    }

    /// Passes a taken event to `sink`. Returns false if its request was released meanwhile: the host wants no
    /// more of its events.
    pub fn hand_out(&self, id: RequestId, event: &E, sink: &mut dyn FnMut(&E)) -> bool {
        if self.state.lock().slots.find(id).is_err() {
            return false;
        }
        sink(event);
        let mut state = self.state.lock();
        // The host may have released it itself.
        if let Ok(index) = state.slots.find(id) {
            state.slots.ungrant(index, event.granted());
            self.retry_grants(state);
            if event.outcome() > 0 {
                let _ = self.release(id);
            }
        }
        true
    }
}

/// See `Hub::stay`.
pub struct Stay<'a, E: Merge, C: Cargo, R: Readable>(&'a Hub<E, C, R>);

impl<E: Merge, C: Cargo, R: Readable> Drop for Stay<'_, E, C, R> {
    fn drop(&mut self) {
        let Self(hub) = self;
        hub.leave(hub.state.lock());
    }
}

/// Waits for the bell. Returns false once `deadline` has passed.
fn wait<'a, T>(
    bell: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> (MutexGuard<'a, T>, bool) {
    let Some(deadline) = deadline else { return (bell.wait(guard), true) };
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => (guard, false),
        false => (bell.wait_for(guard, left), true),
    }
}
