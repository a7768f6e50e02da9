//! The engine's worker threads.

pub mod buffer;
#[cfg(test)]
mod tests;

use crate::base::sync::{Condvar, Mutex};
use crate::base::{Error, Result, panics, threads};
use crossbeam::utils::CachePadded;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread polls for work, or for the end of the others' tasks, before it sleeps. It is longer than
/// the gap between two kernels of one forward pass, and too short for anybody to notice.
const SPIN: Duration = Duration::from_micros(40);
/// The part of `SPIN` in which a thread keeps its core. After that it yields at each poll, so that another
/// engine's threads run first if there are more threads than cores.
const ALONE: Duration = Duration::from_micros(4);

/// Flag in `Shared::pending`: the caller sleeps.
const CALLER_SLEEPS: usize = 1 << (usize::BITS - 1);
const MOST_THREADS: usize = 1 << 16;

thread_local! {
    /// Whether this thread is running a task of some region.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads, named `bn-worker-N`, that run parallel regions for one engine.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the thread whose region is running.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    regions: AtomicU64,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    /// Number of unclaimed tasks of the region; 0 between regions.
    left: CachePadded<AtomicUsize>,
    /// Number of tasks of the region that are not done, and the flag `CALLER_SLEEPS`.
    pending: CachePadded<AtomicUsize>,
    job: UnsafeCell<Job>,
    /// Number of threads that take part, the caller included. Workers with this number or a higher one are parked.
    active: CachePadded<AtomicUsize>,
    /// Number of workers that sleep or are about to. Parked ones do not count.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    /// Guards going to sleep on `wake`, `parked` and `done`.
    lock: Mutex<()>,
    wake: Condvar,
    parked: Condvar,
    done: Condvar,
    /// Text of the region's first panic.
    panic: Mutex<Option<String>>,
}

// SAFETY: all fields but `job` are Send and Sync by themselves. `job` is written only by the thread that holds
// `Pool::turn`, while `pending` is 0. It is read only by a thread that has claimed a task and not yet counted it as
// done, so that `pending` is not 0. The counters order reads and writes: claims acquire what was released when `left`
// was set, and the next writer acquires what was released when `pending` fell to 0. The closure that `job` points to
// is Sync, so several threads may call it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// Starts `threads - 1` workers; the calling thread counts too. Errors: `InvalidArgument` for 0 threads or more
    /// than `MOST_THREADS`, `OutOfMemory` if the system refuses a thread or memory.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        if threads == 0 || threads > MOST_THREADS {
            return Err(Error::invalid(format!(
                "{threads} threads: at least 1 is needed, and no more than {MOST_THREADS}"
            )));
        }
        let shared = Arc::new(Shared {
            left: CachePadded::new(AtomicUsize::new(0)),
            pending: CachePadded::new(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { task: &|_| {}, tasks: 0 }),
            active: CachePadded::new(AtomicUsize::new(threads)),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            parked: Condvar::new(),
            done: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, turn: Mutex::new(()), workers: Vec::new(), regions: AtomicU64::new(0) };
        let bytes = (threads - 1).saturating_mul(size_of::<JoinHandle<()>>());
        pool.workers
            .try_reserve_exact(threads - 1)
            .map_err(|_| Error::out_of_memory("worker threads", bytes))?;
        for n in 1..threads {
            let shared = pool.shared.clone();
            // If a thread is refused, dropping `pool` ends those that were started.
            pool.workers.push(threads::spawn(format!("bn-worker-{n}"), move || shared.work(n))?);
        }
        Ok(Arc::new(pool))
    }

    /// Number of threads that take part in regions, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.active.load(Ordering::Relaxed)
    }

    /// Number of threads that were started, the caller included.
    pub fn most_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// From the next region on, `threads` threads take part, 1 to `most_threads`. The others sleep.
    pub fn set_threads(&self, threads: usize) {
        let turn = self.turn.lock();
        let guard = self.shared.lock.lock();
        self.shared.active.store(threads.clamp(1, self.most_threads()), Ordering::SeqCst);
        drop(guard);
        // Wake the sleepers that are to be parked, so that a later region does not count them when it wakes
        // some.
        self.shared.wake.notify_all();
        self.shared.parked.notify_all();
        drop(turn);
    }

    /// Number of regions so far in which other threads took part.
    pub fn regions(&self) -> u64 {
        self.regions.load(Ordering::Relaxed)
    }

    /// Runs `task(0..tasks)` on the workers and the calling thread, and returns when all tasks are done. Callers take
    /// turns. Within a task, or with only one thread or task, the tasks run on the calling thread one after another.
    /// A panic in a task is passed on to the caller once the other tasks are done; the pool stays usable.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.threads() == 1 || IN_TASK.get() {
            return (0..tasks).for_each(task);
        }
        let turn = self.turn.lock();
        self.regions.fetch_add(1, Ordering::Relaxed);
        let failed = self.shared.region(tasks, task);
        drop(turn);
        if let Some(text) = failed {
            panics::resume(text);
        }
    }
}

/// Bytes of weights that a thread reads in one go, for tasks whose time is spent on reading. Pieces of 20 KB reach
/// only two thirds of the bandwidth of pieces of this size.
const PIECE: usize = 512 << 10;
/// Minimum number of tasks that a thread does in one go. Each task prefetches the next one's data; the first
/// has no prefetch.
const NEIGHBORS: usize = 4;
/// Minimum number of pieces per thread, so that no thread waits long for the last piece.
const PIECES: usize = 4;

impl Pool {
    /// As `run`, for tasks that read `bytes` in all from consecutive memory and use them for `tokens` rows of
    /// activations. A thread does several neighboring tasks in one go, and `piece` is given all of them; the fewer rows
    /// there are, the more tasks it does.
    pub fn run_pieces(
        &self,
        tasks: usize,
        bytes: usize,
        tokens: usize,
        piece: &(dyn Fn(Range<usize>) + Sync),
    ) {
        let most = tasks / (PIECES * self.threads());
        let span = PIECE.saturating_mul(tasks) / bytes.saturating_mul(tokens).max(1);
        let span = span.max(NEIGHBORS).min(most).max(1);
        self.run(tasks.div_ceil(span), &|n| piece(n * span..tasks.min((n + 1) * span)));
    }
}

/// Number of operations below which waking other threads takes longer than the work.
const SMALL: usize = 1 << 16;

impl Pool {
    /// As `run`, but on the calling thread alone if `work`, the number of operations in all, is small.
    pub fn run_if_worth(&self, work: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if work < SMALL { (0..tasks).for_each(task) } else { self.run(tasks, task) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Take the lock, so that no worker is between its last check and its sleep.
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        self.shared.parked.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task, so there is no error to pass on.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs one region; the calling thread holds the turn. Returns the text of the region's first panic.
    fn region(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Option<String> {
        debug_assert!(tasks < CALLER_SLEEPS);
        // SAFETY: only the lifetime is changed. The closure is called only for a claimed task, and this function
        // returns when all tasks are claimed and done. Nothing in between unwinds: `drain` catches the tasks' panics.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        // SAFETY: all tasks of the last region are done, and this thread has the turn.
        unsafe { *self.job.get() = Job { task, tasks } };
        self.pending.store(tasks, Ordering::Relaxed);
        self.left.store(tasks, Ordering::SeqCst);
        // A worker counts itself before its last check of `left`: either it sees the tasks, or this thread sees the
        // worker here.
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            drop(self.lock.lock());
            for _ in 0..sleepers.min(tasks - 1) {
                self.wake.notify_one();
            }
        }
        IN_TASK.set(true);
        self.drain();
        IN_TASK.set(false);
        self.wait_until_done();
        self.panic.lock().take()
    }

    /// Claims and runs tasks until none is left, then counts them as done. A panic is recorded, and the
    /// remaining tasks continue. A thread that comes late finds no task and delays no other.
    fn drain(&self) {
        let mut claimed = 0;
        let mut all = || {
            while let Some(rest) = self.claim() {
                claimed += 1;
                // SAFETY: this thread has claimed a task that `pending` still counts. So the job is set and
                // not written meanwhile, and its closure is alive; neither is used after the call.
                unsafe {
                    let job = *self.job.get();
                    (*job.task)(job.tasks - rest);
                }
            }
        };
        while let Err(text) = panics::catch(&mut all) {
            self.panic.lock().get_or_insert(text);
        }
        if claimed > 0 && self.pending.fetch_sub(claimed, Ordering::AcqRel) == claimed | CALLER_SLEEPS {
            drop(self.lock.lock());
            self.done.notify_all();
        }
    }

    /// Claims a task, and returns how many were left, this one included. The task may belong to any region, whose job
    /// is set.
    fn claim(&self) -> Option<usize> {
        let take = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).ok()
    }

    fn wait_until_done(&self) {
        let mut spin = Spin::new();
        while self.pending.load(Ordering::Acquire) != 0 {
            if spin.again() {
                continue;
            }
            let mut guard = self.lock.lock();
            // The thread that does the last task sees the flag. If it counted the task earlier, this thread sees
            // the count.
            self.pending.fetch_or(CALLER_SLEEPS, Ordering::AcqRel);
            while self.pending.load(Ordering::Acquire) != CALLER_SLEEPS {
                guard = self.done.wait(guard);
            }
            self.pending.store(0, Ordering::Relaxed);
        }
    }

    /// The life of worker `number`.
    fn work(&self, number: usize) {
        IN_TASK.set(true);
        let mut spin = Spin::new();
        while !self.stop.load(Ordering::SeqCst) {
            if self.is_parked(number) {
                self.park(number);
                spin = Spin::new();
            } else if self.left.load(Ordering::Relaxed) != 0 {
                self.drain();
                spin = Spin::new();
            } else if !spin.again() {
                self.sleep(number);
                // After waking, poll again even if the others took all tasks, because more will come.
                spin = Spin::new();
            }
        }
    }

    fn is_parked(&self, number: usize) -> bool {
        number >= self.active.load(Ordering::SeqCst)
    }

    fn park(&self, number: usize) {
        let mut guard = self.lock.lock();
        while self.is_parked(number) && !self.stop.load(Ordering::SeqCst) {
            guard = self.parked.wait(guard);
        }
    }

    fn sleep(&self, number: usize) {
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let wanted = || self.left.load(Ordering::SeqCst) != 0 || self.stop.load(Ordering::SeqCst);
        if !wanted() && !self.is_parked(number) {
            guard = self.wake.wait(guard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}

/// A bounded wait that does not sleep.
struct Spin {
    rounds: u32,
    start: Option<Instant>,
    shares: bool,
}

impl Spin {
    fn new() -> Self {
        Self { rounds: 0, start: None, shares: false }
    }

    /// Waits a moment; returns false when the time is up.
    fn again(&mut self) -> bool {
        self.rounds += 1;
        if self.shares {
            std::thread::yield_now();
        } else {
            spin_loop();
            if !self.rounds.is_multiple_of(32) {
                return true;
            }
        }
        let waited = self.start.get_or_insert_with(Instant::now).elapsed();
        self.shares = waited >= ALONE;
        waited < SPIN
    }
}
