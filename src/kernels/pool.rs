//! The engine's worker threads.

use crate::base::{Error, Result, panics, threads};
use crossbeam::utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread looks for work, or for the others' end, before it sleeps: longer than the gap
/// between two kernels of one forward pass, far shorter than anybody notices.
const SPIN: Duration = Duration::from_micros(40);

// The gate's bits: 32 of epoch, then flags, then how many workers are inside the region.
const ONE_EPOCH: u64 = 1 << 32;
const EPOCH: u64 = !(ONE_EPOCH - 1);
const OPEN: u64 = 1 << 31;
const CALLER_SLEEPS: u64 = 1 << 30;
const INSIDE: u64 = CALLER_SLEEPS - 1;

thread_local! {
    /// This thread is running a task of some region.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads named `bn-worker-N` that run parallel regions for one engine.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the one thread whose region is running.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    threads: usize,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    gate: CachePadded<AtomicU64>,
    /// The next task that nobody has taken.
    next: CachePadded<AtomicUsize>,
    job: UnsafeCell<Job>,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    /// Guards falling asleep on `wake` and `done`.
    lock: Mutex<()>,
    wake: Condvar,
    done: Condvar,
    /// Text of the first panic of the region.
    panic: Mutex<Option<String>>,
}

// SAFETY: all fields but `job` are Send and Sync by themselves. `job` is written only by the thread that holds
// `Pool::turn` while the gate is closed and nobody is inside, and read only by workers inside an open region; the
// gate orders the two (release on open and on leaving, acquire on joining and on seeing nobody inside). The closure
// it points to is Sync, so calling it from several threads is allowed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// `threads` counts the calling thread: 1 starts none. Errors: `InvalidArgument` for 0 threads,
    /// `OutOfMemory` where the system refuses one.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        if threads == 0 || threads > INSIDE as usize {
            return Err(Error::invalid(format!(
                "{threads} threads: at least 1 is needed, and no more than {INSIDE}"
            )));
        }
        let shared = Arc::new(Shared {
            gate: CachePadded::new(AtomicU64::new(0)),
            next: CachePadded::new(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { task: &|_| {}, tasks: 0 }),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            done: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared, turn: Mutex::new(()), workers: Vec::new(), threads };
        let bytes = (threads - 1).saturating_mul(size_of::<JoinHandle<()>>());
        pool.workers
            .try_reserve_exact(threads - 1)
            .map_err(|_| Error::out_of_memory("worker threads", bytes))?;
        for n in 1..threads {
            let shared = pool.shared.clone();
            // Where one is refused, dropping `pool` ends those that started.
            pool.workers.push(threads::spawn(format!("bn-worker-{n}"), move || shared.work())?);
        }
        Ok(Arc::new(pool))
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `task(0..tasks)`, the caller included, and returns when all are done. Callers take turns; from within a
    /// task, and with one thread or task, the tasks run here one after another. A panic in a task is carried on to
    /// the caller once the others are done; the pool stays usable.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            return (0..tasks).for_each(task);
        }
        let turn = self.turn.lock();
        let failed = self.shared.region(tasks, task);
        drop(turn);
        if let Some(text) = failed {
            panics::resume(text);
        }
    }
}

/// Operations below which waking others takes longer than the work.
const SMALL: usize = 1 << 16;

impl Pool {
    /// As `run`, but here alone where `work`, the operations in all, is little.
    pub fn run_if_worth(&self, work: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if work < SMALL { (0..tasks).for_each(task) } else { self.run(tasks, task) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Under the lock, so that no worker is between its last look and its sleep.
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task, so there is no error to carry.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// One region, by the thread that holds the turn. Returns the text of its first panic.
    fn region(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Option<String> {
        // SAFETY: only the lifetime is changed. Workers call the closure only between joining and leaving; joining
        // needs an open gate, and this function closes the gate and waits until nobody is inside before it returns.
        // Nothing in between unwinds: `drain` catches the tasks' panics.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        // SAFETY: the gate is closed and nobody is inside (the last region ended so), and this thread has the turn.
        unsafe { *self.job.get() = Job { task, tasks } };
        self.next.store(0, Ordering::Relaxed);
        let epoch = (self.gate.load(Ordering::Relaxed) & EPOCH).wrapping_add(ONE_EPOCH);
        self.gate.store(epoch | OPEN, Ordering::SeqCst);
        // A worker counts itself before its last look at the gate: either it sees the gate open or we see it here.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.wake.notify_all();
        }
        IN_TASK.set(true);
        self.drain(task, tasks);
        IN_TASK.set(false);
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        self.wait_until_empty();
        self.panic.lock().take()
    }

    /// Takes tasks until none is left. A panic is noted, and the rest goes on.
    fn drain(&self, task: &(dyn Fn(usize) + Sync), tasks: usize) {
        let take_all = || {
            loop {
                let n = self.next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    return;
                }
                task(n);
            }
        };
        while let Err(text) = panics::catch(take_all) {
            self.panic.lock().get_or_insert(text);
        }
    }

    fn wait_until_empty(&self) {
        let mut spin = Spin::new();
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            if spin.again() {
                continue;
            }
            let mut guard = self.lock.lock();
            // The last worker to leave sees the flag, or has left before and is seen here.
            self.gate.fetch_or(CALLER_SLEEPS, Ordering::AcqRel);
            while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
                self.done.wait(&mut guard);
            }
            return;
        }
    }

    fn work(&self) {
        IN_TASK.set(true);
        let mut seen = 0;
        while let Some(epoch) = self.join(seen) {
            seen = epoch;
            // SAFETY: this worker is inside an open or closing region, so the job is set, nobody writes it, and the
            // closure lives until this worker has left; the reference is not kept beyond `drain`.
            unsafe {
                let job = *self.job.get();
                self.drain(&*job.task, job.tasks);
            }
            let before = self.gate.fetch_sub(1, Ordering::AcqRel);
            if before & INSIDE == 1 && before & CALLER_SLEEPS != 0 {
                drop(self.lock.lock());
                self.done.notify_all();
            }
        }
    }

    /// Enters the next region that this worker has not seen; None when the pool ends.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut spin = Spin::new();
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            let gate = self.gate.load(Ordering::SeqCst);
            if is_news(gate, seen) {
                if self.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(gate & EPOCH);
                }
            } else if !spin.again() {
                self.sleep(seen);
                spin = Spin::new();
            }
        }
    }

    fn sleep(&self, seen: u64) {
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_news(self.gate.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::SeqCst) {
            self.wake.wait(&mut guard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn is_news(gate: u64, seen: u64) -> bool {
    gate & OPEN != 0 && gate & EPOCH != seen
}

/// A bounded wait without sleeping.
struct Spin {
    rounds: u32,
    start: Option<Instant>,
}

impl Spin {
    fn new() -> Self {
        Self { rounds: 0, start: None }
    }

    /// Waits a moment; false when the time is up.
    fn again(&mut self) -> bool {
        spin_loop();
        self.rounds += 1;
        !self.rounds.is_multiple_of(32) || self.start.get_or_insert_with(Instant::now).elapsed() < SPIN
    }
}
