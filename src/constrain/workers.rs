//! Threads that compute masks, from the first request that needs one on.

use super::cache::Totals;
use super::guide::Slot;
use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status, fork, reserved, threads};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Derivatives of regular expressions recurse over them.
const STACK: usize = 64 << 20;

pub struct Workers {
    queue: Arc<Queue>,
    most: usize,
    made_in: u32,
    pub(super) totals: Arc<Totals>,
}

struct Queue {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    slots: VecDeque<Arc<Slot>>,
    threads: Vec<JoinHandle<()>>,
    resting: usize,
    stopped: bool,
}

impl Workers {
    pub fn new(most: usize, totals: Arc<Totals>) -> Self {
        let queue = Queue { state: Mutex::new(State::default()), work: Condvar::new() };
        Self { queue: Arc::new(queue), most: most.max(1), made_in: fork::generation(), totals }
    }

    /// Has a slot's mask computed, in the order of calls. `OutOfMemory` where no thread could be started.
    pub fn put(&self, slot: Arc<Slot>) -> Result<()> {
        let mut state = self.queue.state.lock();
        if state.stopped {
            return Err(Error::new(Status::Shutdown, "the engine was destroyed"));
        }
        if state.resting == 0 && state.threads.len() < self.most {
            let (queue, totals) = (self.queue.clone(), self.totals.clone());
            let name = format!("bn-grammar-{}", state.threads.len());
            match threads::spawn_on_stack(name, STACK, move || queue.serve(&totals)) {
                Ok(thread) => state.threads.push(thread),
                // Those that there are will do.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        reserved(state.slots.try_reserve(1), "masks to compute", 16)?;
        state.slots.push_back(slot);
        drop(state);
        self.queue.work.notify_one();
        Ok(())
    }

    /// Ends the threads; `wait` for them too. Masks that were not computed never are.
    pub fn stop(&self, wait: bool) {
        let mut state = self.queue.state.lock();
        state.stopped = true;
        state.slots.clear();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.queue.work.notify_all();
        for thread in threads.into_iter().filter(|_| wait) {
            // Its panics are caught where they happen.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // A child has none of the threads, and locks that may be torn.
        if self.made_in == fork::generation() {
            self.stop(false);
        } else {
            std::mem::forget(self.queue.clone());
        }
    }
}

impl Queue {
    fn serve(&self, totals: &Totals) {
        let mut state = self.state.lock();
        while !state.stopped {
            let Some(slot) = state.slots.pop_front() else {
                state.resting += 1;
                state = self.work.wait(state);
                state.resting -= 1;
                continue;
            };
            drop(state);
            let started = now_ns();
            if slot.run() {
                totals.masked(now_ns().saturating_sub(started));
            }
            drop(slot);
            state = self.state.lock();
        }
    }
}
