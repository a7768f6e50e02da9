//! Decides the order of grammar compilations and how many run at once.

use crate::base::clock::now_ns;
use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, Status, fork, reserve};
use crate::text::watch::Watch;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of compilations that run at once.
const SLOTS: usize = 3;
/// Slots open to compilations longer than `SMALL_NS`: a short compilation waits only for short ones.
const LARGE_SLOTS: usize = SLOTS - 1;
const SMALL_NS: u64 = 20_000_000;
/// Number of callers that may wait.
const MOST_WAITING: usize = 64;
/// A stopped compilation that runs on for longer than this loses its slot.
const GRACE_NS: u64 = 1_000_000_000;

pub(super) struct CompileQueue {
    state: Mutex<State>,
    changed: Condvar,
    made_in: u32,
}

#[derive(Default)]
struct State {
    /// The first one runs next, if there is a slot for it.
    waiting: Vec<Turn>,
    running: Vec<Running>,
    threads: Vec<JoinHandle<()>>,
    /// Number of the next caller.
    next: u64,
    closed: bool,
}

/// Ranked by arrival time plus expected duration, so that short compilations overtake long ones that arrived
/// slightly earlier, and none starves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    rank_ns: u64,
    number: u64,
    large: bool,
}

struct Running {
    number: u64,
    large: bool,
    bytes: u64,
    /// None until the computation begins.
    watch: Option<Arc<Watch>>,
}

/// A slot for one compilation, held until it is dropped.
pub(super) struct CompileSlot {
    queue: Arc<CompileQueue>,
    number: u64,
    large: bool,
}

impl State {
    fn has_room(&self, large: bool) -> bool {
        let running_large = self.running.iter().filter(|one| one.large).count();
        self.running.len() < SLOTS && (!large || running_large < LARGE_SLOTS)
    }

    fn is_next(&self, turn: &Turn) -> bool {
        self.waiting.iter().find(|one| self.has_room(one.large)) == Some(turn)
    }

    /// Returns true if every suitable slot is held by a compilation that runs on past its time limit.
    fn is_stuck(&self, large: bool, now: u64) -> bool {
        let lost = |one: &&Running| {
            one.watch.as_ref().is_some_and(|watch| watch.over_since(now).is_some_and(|ns| ns > GRACE_NS))
        };
        let lost_large = self.running.iter().filter(lost).filter(|one| one.large).count();
        self.running.iter().filter(lost).count() == SLOTS || large && lost_large == LARGE_SLOTS
    }

    fn open(&self) -> Result<()> {
        match self.closed {
            true => Err(Error::new(Status::Shutdown, "the engine is shutting down")),
            false => Ok(()),
        }
    }

    fn reap(&mut self) {
        let (ended, going) = std::mem::take(&mut self.threads).into_iter().partition(JoinHandle::is_finished);
        self.threads = going;
        for thread in Vec::<JoinHandle<()>>::into_iter(ended) {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }
}

impl CompileQueue {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::default()), changed: Condvar::new(), made_in: fork::generation() }
    }

    /// Waits for a slot, for a compilation expected to take `expected_ns`. Fails with `TimedOut` if there was
    /// none until `until_ns`, `QueueFull` if too many callers wait or no slot can become free, or `Shutdown`
    /// if the engine is being destroyed.
    pub(super) fn enter(self: &Arc<Self>, expected_ns: u64, until_ns: u64) -> Result<CompileSlot> {
        let (large, now) = (expected_ns > SMALL_NS, now_ns());
        let mut state = self.state.lock();
        state.reap();
        state.open()?;
        if state.waiting.len() >= MOST_WAITING || state.is_stuck(large, now) {
            return Err(Error::new(Status::QueueFull, "constraint: too many grammars are being compiled"));
        }
        let turn = Turn { rank_ns: now.saturating_add(expected_ns), number: state.next, large };
        state.next += 1;
        reserve(&mut state.waiting, 1, "grammars to compile")?;
        let at = state.waiting.partition_point(|one| *one < turn);
        state.waiting.insert(at, turn);
        let entered = loop {
            let now = now_ns();
            if let Err(error) = state.open() {
                break Err(error);
            }
            if state.is_next(&turn) {
                break reserve(&mut state.running, 1, "grammars that are compiled");
            }
            if now >= until_ns {
                break Err(Error::new(
                    Status::TimedOut,
                    "constraint: others were compiled until the time was up",
                ));
            }
            state = self.changed.wait_for(state, Duration::from_nanos(until_ns - now));
        };
        state.waiting.retain(|one| *one != turn);
        let entered = entered.map(|()| {
            state.running.push(Running { number: turn.number, large, bytes: 0, watch: None });
            CompileSlot { queue: self.clone(), number: turn.number, large }
        });
        drop(state);
        self.changed.notify_all();
        entered
    }

    /// Fails with `Shutdown` after `close`.
    pub(super) fn open(&self) -> Result<()> {
        self.state.lock().open()
    }

    /// Refuses all waiting callers with `Shutdown` and stops running compilations. Does not wait for them.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.running.iter().filter_map(|one| one.watch.as_ref()).for_each(|watch| watch.stop());
        drop(state);
        self.changed.notify_all();
    }

    /// After `close`: waits until all compilations have ended, which they do at their next table: `bounds` and
    /// `products` bound the steps between.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while !state.running.is_empty() {
            state = self.changed.wait(state);
        }
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }

    /// Counts of running compilations, waiting compilations, and threads not yet joined.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize, usize) {
        let mut state = self.state.lock();
        state.reap();
        (state.running.len(), state.waiting.len(), state.threads.len())
    }
}

impl CompileSlot {
    /// Claims memory for this computation beside the others: the part of `room` that they leave, up to `most`
    /// bytes.
    pub(super) fn claim(&self, room: u64, most: u64) -> u64 {
        let mut state = self.queue.state.lock();
        let others: u64 = state.running.iter().map(|one| one.bytes).sum();
        let bytes = room.saturating_sub(others).min(most);
        if let Some(own) = state.running.iter_mut().find(|one| one.number == self.number) {
            own.bytes = bytes;
        }
        bytes
    }

    /// Returns true if this is a slot for long compilations.
    pub(super) fn is_large(&self) -> bool {
        self.large
    }

    /// Returns a slot for `expected_ns` from now on: this one, or another at the end of the queue if this one
    /// is for shorter compilations. Fails as `CompileQueue::enter` does.
    pub(super) fn grown(self, expected_ns: u64, until_ns: u64) -> Result<Self> {
        if self.large || expected_ns <= SMALL_NS {
            return Ok(self);
        }
        let queue = self.queue();
        drop(self);
        queue.enter(expected_ns, until_ns)
    }

    /// Registers `watch`, so that closing the queue stops it.
    pub(super) fn begin(&self, watch: &Arc<Watch>) {
        let mut state = self.queue.state.lock();
        if state.closed {
            watch.stop();
        }
        if let Some(own) = state.running.iter_mut().find(|one| one.number == self.number) {
            own.watch = Some(watch.clone());
        }
    }

    /// Registers the thread that now uses this slot.
    pub(super) fn runs_on(queue: &CompileQueue, thread: JoinHandle<()>) {
        queue.state.lock().threads.push(thread);
    }

    pub(super) fn queue(&self) -> Arc<CompileQueue> {
        self.queue.clone()
    }
}

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.queue.state.lock().running.retain(|one| one.number != self.number);
        self.queue.changed.notify_all();
    }
}

impl Drop for CompileQueue {
    fn drop(&mut self) {
        if self.made_in != fork::generation() {
            // After a fork, the child has none of the threads.
            std::mem::forget(std::mem::take(&mut self.state.get_mut().threads));
        }
    }
}
