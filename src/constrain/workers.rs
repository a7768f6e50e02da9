//! Threads that compute masks, started when the first request needs one.

use super::guide::MaskSlot;
use super::weigh::Totals;
use crate::base::clock::{ThreadClock, now_ns};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status, fork, reserved, threads};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Large, because derivatives of regular expressions are computed recursively.
const STACK: usize = 64 << 20;

pub(super) struct Workers {
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
    /// Not sorted; `take` picks by rank.
    slots: Vec<Turn>,
    /// Masks being computed.
    running: Vec<Running>,
    threads: Vec<JoinHandle<()>>,
    resting: usize,
    stopped: bool,
    /// For tests: no mask is computed while this is set.
    #[cfg(test)]
    held: bool,
}

/// Ranked by arrival time plus a multiple of the request's last mask time: masks of slow grammars wait for
/// those of fast ones, for a bounded time.
struct Turn {
    rank_ns: u64,
    slot: Arc<MaskSlot>,
}

struct Running {
    /// Clock of the thread, and its reading when the computation began.
    clock: ThreadClock,
    began: u64,
    slot: Arc<MaskSlot>,
}

/// A mask waits for this multiple of its request's last mask time while others overtake it.
const PATIENCE: u64 = 8;
/// CPU time after which a mask is abandoned, unless its step limit ends it earlier: single parser items can
/// be slow.
const MOST_NS: u64 = 1_000_000_000;
/// Limit on the last mask time that counts towards a rank.
const MOST_LAST_NS: u64 = 1_000_000_000;

impl State {
    fn take(&mut self) -> Option<Arc<MaskSlot>> {
        #[cfg(test)]
        if self.held {
            return None;
        }
        let first = self.slots.iter().enumerate().min_by_key(|(_, turn)| turn.rank_ns)?.0;
        // Among equals, the first to arrive.
        Some(self.slots.remove(first).slot)
    }
}

impl Workers {
    pub(super) fn new(most: usize, totals: Arc<Totals>) -> Self {
        let queue = Queue { state: Mutex::new(State::default()), work: Condvar::new() };
        Self { queue: Arc::new(queue), most: most.max(1), made_in: fork::generation(), totals }
    }

    /// Queues a slot's mask. Masks are computed in the order of calls, except for slow ones. Fails with
    /// `OutOfMemory` if no thread could be started.
    pub(super) fn put(&self, slot: Arc<MaskSlot>) -> Result<()> {
        let mut state = self.queue.state.lock();
        if state.stopped {
            return Err(Error::new(Status::Shutdown, "the engine was destroyed"));
        }
        let threads = state.threads.len() + 1;
        reserved(state.running.try_reserve(threads), "masks that are computed", size_of::<Running>())?;
        if state.resting == 0 && state.threads.len() < self.most {
            let (queue, totals) = (self.queue.clone(), self.totals.clone());
            let name = format!("bn-grammar-{}", state.threads.len());
            match threads::spawn_on_stack(name, STACK, move || queue.serve(&totals)) {
                Ok(thread) => state.threads.push(thread),
                // The existing threads are enough.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        // Slots that are being served may come back.
        reserved(state.slots.try_reserve(1 + threads), "masks to compute", 16)?;
        let rank_ns = now_ns().saturating_add(PATIENCE * slot.last_ns().min(MOST_LAST_NS));
        state.slots.push(Turn { rank_ns, slot });
        drop(state);
        self.queue.work.notify_one();
        Ok(())
    }

    /// Suspends all masks, or resumes them.
    #[cfg(test)]
    pub fn hold(&self, held: bool) {
        self.queue.state.lock().held = held;
        self.queue.work.notify_all();
    }

    /// Expires masks that take too long. Threads that wait for a mask call this periodically.
    pub(super) fn expire(&self) {
        let state = self.queue.state.lock();
        let late = state.running.iter().filter(|one| one.clock.ns().saturating_sub(one.began) > MOST_NS);
        late.for_each(|one| one.slot.expire());
    }

    /// Stops the threads, and joins them if `wait`. Pending masks are dropped.
    pub(super) fn stop(&self, wait: bool) {
        let mut state = self.queue.state.lock();
        state.stopped = true;
        state.slots.clear();
        state.running.iter().for_each(|one| one.slot.expire());
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.queue.work.notify_all();
        for thread in threads.into_iter().filter(|_| wait) {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // After a fork, the child has none of the threads, and its locks may be inconsistent.
        if self.made_in == fork::generation() {
            self.stop(false);
        } else {
            std::mem::forget(self.queue.clone());
        }
    }
}

impl Queue {
    fn serve(&self, totals: &Totals) {
        let clock = ThreadClock::own();
        let mut state = self.state.lock();
        while !state.stopped {
            let Some(slot) = state.take() else {
                state.resting += 1;
                state = self.work.wait(state);
                state.resting -= 1;
                continue;
            };
            let started = now_ns();
            // Cannot fail: capacity was reserved for all threads.
            state.running.push(Running { clock, began: clock.ns(), slot: slot.clone() });
            drop(state);
            let ran = slot.run();
            if ran.masked {
                totals.masked(now_ns().saturating_sub(started));
            }
            state = self.state.lock();
            state.running.retain(|one| !Arc::ptr_eq(&one.slot, &slot));
            if ran.again && !state.stopped {
                // Queue the slot after the masks that others wait for.
                state.slots.push(Turn { rank_ns: now_ns(), slot });
                continue;
            }
            drop(state);
            // If this is the request's last reference, it frees the parser here, outside the lock.
            drop(slot);
            state = self.state.lock();
        }
    }
}
