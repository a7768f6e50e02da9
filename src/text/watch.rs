//! Stops computations of dependencies that never poll.
//!
//! tokenizers, llguidance and derivre make their hash tables with seeds from ahash. ahash asks a source of
//! seeds that a program may set once, before the first table. Our source checks the thread's watch first, and
//! unwinds if the time is up. So code that makes tables repeatedly can be stopped there; code that makes none
//! cannot. Our own loops call `is_over` at each step.

use crate::base::clock::{now_ns, thread_ns};
use crate::base::panics;
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Tables between two readings of a thread's clock, since each reading is a system call.
const CLOCK: u64 = 16;
/// Steps of our own loops between two readings of the clocks.
const STEPS: u64 = 32;

/// Limits of one computation. Any thread may stop it.
#[derive(Debug)]
pub struct Watch {
    /// By the clock of `clock::now_ns`.
    deadline_ns: u64,
    /// Limit on CPU time in nanoseconds.
    core_ns: u64,
    /// Time at which it was stopped, or ran out of tables or CPU time. 0: not yet.
    stopped_ns: AtomicU64,
    /// Number of tables that may still be made.
    tables: AtomicU64,
    /// Number of calls of `is_over`.
    steps: AtomicU64,
}

impl Watch {
    pub fn new(deadline_ns: u64, core_ns: u64, tables: u64) -> Self {
        let (stopped_ns, steps) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { deadline_ns, core_ns, stopped_ns, tables: AtomicU64::new(tables), steps }
    }

    pub fn stop(&self) {
        let _ = self.stopped_ns.compare_exchange(0, now_ns(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns true if the computation has been stopped, or will be at its next table.
    pub fn is_over(&self) -> bool {
        self.over_since(now_ns()).is_some()
    }

    /// Nanoseconds since it should have ended; None if it may continue.
    pub fn over_since(&self, now: u64) -> Option<u64> {
        let stopped = match self.stopped_ns.load(Ordering::Relaxed) {
            0 => self.deadline_ns,
            ns => ns.min(self.deadline_ns),
        };
        now.checked_sub(stopped)
    }

    /// Number of tables that may still be made.
    pub fn tables_left(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// Counts a table. Only one thread counts, whose clock was at `begun_ns` at first. Returns true if the
    /// table may not be made.
    fn table(&self, begun_ns: u64) -> bool {
        match self.tables_left().checked_sub(1) {
            Some(left) => self.tables.store(left, Ordering::Relaxed),
            None => self.stop(),
        }
        if self.tables_left().is_multiple_of(CLOCK) && thread_ns().saturating_sub(begun_ns) >= self.core_ns {
            self.stop();
        }
        self.is_over()
    }

    /// Counts a step. Only one thread counts, whose clock was at `begun_ns` at first. Returns true if it was
    /// the last one.
    fn step(&self, begun_ns: u64) -> bool {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
        let looks = steps.is_multiple_of(STEPS);
        if looks && (thread_ns().saturating_sub(begun_ns) >= self.core_ns || now_ns() >= self.deadline_ns) {
            self.stop();
        }
        self.stopped_ns.load(Ordering::Relaxed) != 0
    }
}

thread_local! {
    /// The thread's watch, and its clock when the watch began.
    static WATCH: RefCell<Option<(Arc<Watch>, u64)>> = const { RefCell::new(None) };
}

struct Seeds {
    first: usize,
    next: AtomicUsize,
}

impl ahash::random_state::RandomSource for Seeds {
    fn gen_hasher_seed(&self) -> usize {
        if !std::thread::panicking() {
            let over = WATCH
                .try_with(|watch| watch.borrow().as_ref().is_some_and(|(watch, begun)| watch.table(*begun)));
            if over == Ok(true) {
                panics::resume("stopped".into());
            }
        }
        self.first ^ self.next.fetch_add(0x9e37_79b9_7f4a_7c15_u64 as usize, Ordering::Relaxed)
    }
}

/// Must be called before these dependencies make their first table. Later calls do nothing.
pub fn install() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Acquire) {
        let first = RandomState::new().hash_one(0u64) as usize;
        // A Rust program that made such a table earlier keeps its own source; then nothing is stopped.
        let _ = ahash::random_state::set_random_source(Seeds { first, next: AtomicUsize::new(0) });
        DONE.store(true, Ordering::Release);
    }
}

/// Counts a step of one of our own loops on this thread, of some milliseconds at most. Returns true if the
/// watch is over and the loop must end.
pub fn is_over() -> bool {
    let over =
        WATCH.try_with(|watch| watch.borrow().as_ref().is_some_and(|(watch, begun)| watch.step(*begun)));
    over == Ok(true)
}

/// Runs `f` on this thread under `watch`. Once the watch is over, `f` unwinds at its next table.
pub fn run<T>(watch: &Arc<Watch>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<(Arc<Watch>, u64)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            WATCH.set(self.0.take());
        }
    }
    let _restore = Restore(WATCH.replace(Some((watch.clone(), thread_ns()))));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ahash::{AHashMap, RandomState};

    fn tables(n: usize) {
        (0..n).for_each(|_| drop(AHashMap::<u8, u8>::with_hasher(RandomState::new())));
    }

    #[test]
    fn a_computation_ends_at_the_table_behind_its_last() {
        install();
        let watch = Arc::new(Watch::new(u64::MAX, u64::MAX, 3));
        assert!(panics::catch(|| run(&watch, || tables(3))).is_ok());
        assert_eq!((watch.tables_left(), watch.is_over()), (0, false));
        assert!(panics::catch(|| run(&watch, || tables(1))).is_err());
        assert!(watch.is_over());
        // Nothing is watched after the run, nor on other threads.
        tables(1);
        let late = Arc::new(Watch::new(1, u64::MAX, 9));
        assert!(panics::catch(|| run(&late, || std::thread::scope(|s| drop(s.spawn(|| tables(9)))))).is_ok());
        assert!(panics::catch(|| run(&late, || tables(1))).is_err());
    }

    #[test]
    fn it_is_stopped_from_elsewhere() {
        install();
        let watch = Arc::new(Watch::new(u64::MAX, u64::MAX, u64::MAX));
        let stopped = panics::catch(|| {
            run(&watch, || {
                tables(1);
                watch.stop();
                tables(1);
            })
        });
        assert!(stopped.is_err() && watch.over_since(now_ns()).is_some());
    }

    #[test]
    fn it_may_take_so_much_of_a_core() {
        install();
        let watch = Arc::new(Watch::new(u64::MAX, 0, u64::MAX));
        assert!(panics::catch(|| run(&watch, || tables(CLOCK as usize))).is_err());
        assert!(watch.is_over());
    }

    #[test]
    fn loops_of_our_own_see_each_end() {
        let over = |watch: Watch| run(&Arc::new(watch), || (0..=STEPS).any(|_| is_over()));
        assert!(!over(Watch::new(u64::MAX, u64::MAX, 0)) && !is_over());
        assert!(over(Watch::new(u64::MAX, 0, 0)) && over(Watch::new(1, u64::MAX, 0)));
        let stopped = Arc::new(Watch::new(u64::MAX, u64::MAX, 0));
        stopped.stop();
        assert!(run(&stopped, is_over));
    }

    #[test]
    fn seeds_differ() {
        install();
        let hashes: Vec<u64> = (0..100).map(|_| RandomState::new().hash_one(7)).collect();
        assert!(hashes.iter().enumerate().all(|(n, hash)| !hashes[..n].contains(hash)));
    }
}
