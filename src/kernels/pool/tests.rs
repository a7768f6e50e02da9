use crate::base::panics;
use crate::kernels::Pool;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

/// Number of rounds; fewer under Miri, which is slow.
const ROUNDS: usize = if cfg!(miri) { 30 } else { 5_000 };

#[test]
fn every_task_runs_once() {
    for threads in 1..=4 {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 7, ROUNDS / 5] {
            let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|n| {
                counts[n].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{threads} threads, {tasks} tasks"
            );
        }
    }
    assert!(Pool::new(0).is_err());
}

#[test]
fn threads_work_at_the_same_time() {
    let pool = Pool::new(3).unwrap();
    for round in 0..20 {
        // Only three threads together get past the barrier.
        let barrier = Barrier::new(3);
        pool.run(3, &|_| {
            barrier.wait();
        });
        if round % 4 == 0 {
            // Wait until the workers have fallen asleep.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// If the system takes the core away from a thread, only that thread's own task is delayed.
#[test]
fn a_thread_that_is_held_up_leaves_the_rest_to_the_others() {
    let pool = Pool::new(3).unwrap();
    for held in [0, 1, 20] {
        let done = AtomicUsize::new(0);
        pool.run(50, &|n| {
            while n == held && done.load(Ordering::Relaxed) < 49 {
                std::thread::yield_now();
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 50);
    }
}

#[test]
fn regions_are_counted() {
    let pool = Pool::new(2).unwrap();
    pool.run(1, &|_| {});
    pool.run_if_worth(10, 10, &|_| {});
    assert_eq!(pool.regions(), 0, "run on the caller's thread");
    pool.run(2, &|_| {});
    pool.run_if_worth(1 << 20, 2, &|_| pool.run(5, &|_| {}));
    assert_eq!(pool.regions(), 2);
}

#[test]
fn many_small_regions() {
    let pool = Pool::new(3).unwrap();
    let total = AtomicUsize::new(0);
    for round in 0..ROUNDS {
        // The closure's borrow ends with each region.
        let parts: [AtomicUsize; 5] = Default::default();
        pool.run(5, &|n| parts[n].store(round + n, Ordering::Relaxed));
        total.fetch_add(parts.iter().map(|p| p.load(Ordering::Relaxed)).sum(), Ordering::Relaxed);
    }
    assert_eq!(total.into_inner(), (0..ROUNDS).map(|round| 5 * round + 10).sum::<usize>());
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..ROUNDS / 10 {
        let done = AtomicUsize::new(0);
        let text = panics::catch(|| {
            pool.run(40, &|n| {
                assert!(n != 13 && n != 30, "task {n} fails");
                done.fetch_add(1, Ordering::Relaxed);
            })
        })
        .unwrap_err();
        assert!(text.contains("task 13 fails") || text.contains("task 30 fails"), "{text}");
        assert_eq!(done.into_inner(), 38);
    }
    let done = AtomicUsize::new(0);
    pool.run(40, &|_| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 40);
}

#[test]
fn a_region_within_a_task_runs_there() {
    let pool = Pool::new(2).unwrap();
    let count = AtomicUsize::new(0);
    pool.run(8, &|_| {
        let outer = std::thread::current().id();
        pool.run(8, &|_| {
            assert_eq!(std::thread::current().id(), outer);
            count.fetch_add(1, Ordering::Relaxed);
        })
    });
    assert_eq!(count.into_inner(), 64);
}

#[test]
fn callers_take_turns() {
    let pool = Pool::new(2).unwrap();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(4, &|_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 3200);
}

#[test]
fn pools_come_and_go() {
    for round in 0..60 {
        let pool = Pool::new(3).unwrap();
        if round % 2 == 0 {
            pool.run(9, &|_| {});
        }
    }
}

#[test]
fn as_many_threads_take_part_as_are_set() {
    let pool = Pool::new(4).unwrap();
    assert_eq!((pool.threads(), pool.most_threads()), (4, 4));
    for threads in [2, 1, 4, 3, 0, 9] {
        pool.set_threads(threads);
        let threads = threads.clamp(1, 4);
        assert_eq!((pool.threads(), pool.most_threads()), (threads, 4));
        // Only so many threads together get past the barrier.
        let barrier = Barrier::new(threads);
        pool.run(threads, &|_| {
            barrier.wait();
        });
        // A worker that is to be parked may still take one more task.
        let mut crowded = 0;
        for _ in 0..ROUNDS / 5 {
            let seen = Mutex::new(HashSet::new());
            pool.run(40, &|_| {
                seen.lock().unwrap().insert(std::thread::current().id());
            });
            crowded += usize::from(seen.into_inner().unwrap().len() > threads);
        }
        assert!(crowded <= 4 - threads, "{crowded} regions had more than {threads} threads");
    }
}
