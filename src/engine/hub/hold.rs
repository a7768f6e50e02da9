//! A hold: until the host ends it, no engine thread begins a step. Requests are submitted, expire and are cancelled
//! as usual. And a knock, which wakes a thread without a command.

use super::*;

impl<E, C: Cargo> State<E, C> {
    /// Threads that sleep must be woken to see a change.
    pub(super) fn hold(&mut self, hold: bool) {
        if std::mem::replace(&mut self.held, hold) != hold {
            self.team.queues.iter_mut().for_each(|queue| queue.news = true);
        }
    }
}

impl<E: Merge, C: Cargo, R: Readable> Hub<E, C, R> {
    /// Begins or ends a hold, and returns whether there was one. Each thread learns of it in its next `exchange`.
    /// Closing ends a hold, and no other can begin then.
    pub fn hold(&self, hold: bool) -> Result<bool> {
        let mut state = self.state.lock();
        if hold {
            state.open()?;
        }
        let before = state.held;
        state.hold(hold);
        self.wake(state);
        Ok(before)
    }

    /// Makes an engine thread look for what has arrived for it.
    pub fn knock(&self, thread: usize) {
        let mut state = self.state.lock();
        state.team.queues[thread].news = true;
        self.wake(state);
    }

    pub fn is_held(&self) -> bool {
        self.state.lock().held
    }
}
