//! Invariants 5 and 6 by a counting allocator, and a check that no thread or descriptor is left. One test: it
//! counts the whole process.
#![cfg(target_os = "linux")] // counts threads and descriptors by /proc; tests/c does it on Windows

mod counting;
mod engine_support;

use bn_engine::cache::ContentId;
use bn_engine::engine::api::Pooling;
use bn_engine::schedule::{Plan, Request, Scheduler, SchedulerConfig, SeqId, Tokens};
use counting::{CALLS, LIVE, PEAK};
use engine_support::*;
use std::sync::atomic::Ordering::SeqCst;

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Number of threads of this process. Waits for threads that made engines, which are listed for a moment after
/// they were joined.
fn threads() -> usize {
    let name =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("a process has tasks").flatten();
        let names: Vec<String> = tasks.map(name).filter(|name| !name.is_empty()).collect();
        // New threads have the name of the one that made them until they set their own.
        if !names.iter().any(|name| name.trim() == "bn-load") {
            return names.len();
        }
        std::thread::yield_now();
    }
}

/// The system lists a thread for a moment after it was joined, so this returns once `count` are left, and what is
/// left otherwise.
fn threads_once(count: usize) -> usize {
    for _ in 0..1000 {
        if threads() <= count {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    threads()
}

#[test]
fn memory_stays_under_what_is_declared_and_nothing_is_left_behind() {
    // Objects made once per process (clock, dispatch tables, regexes) are not leaks.
    drop(demo(|_| ()));
    // The test's own and the one that runs tests.
    let (before_threads, fds, before) = (threads_once(2), entries("/proc/self/fd"), LIVE.load(SeqCst));
    PEAK.store(before, SeqCst);
    let engine = demo(|config| {
        (config.threads, config.max_batch_size, config.max_batch_tokens) = (2, 16, 512);
        config.memory_limit_bytes = 64 << 20;
    });
    assert!(threads() > before_threads);
    // A 200-token prompt in a batch: wide steps, which would wake candle's own pool if an op used it.
    let long = "Once upon a time ".repeat(40);
    let prompts = (0..32).map(|i| text(if i % 8 == 0 { &long } else { "Once upon a time" }, 24)).collect();
    let during = threads();
    engine.submit(prompts).unwrap();
    engine.submit((0..8).map(|_| embedding(&long, Some(Pooling::Mean), true)).collect()).unwrap();
    collect(&engine, 32 + 8);
    assert_eq!(threads(), during, "a step started threads that are not the engine's");
    let stats = engine.stats();
    let (peak, declared) = (PEAK.load(SeqCst) - before, stats.memory_peak_bytes as usize);
    // The embedded file is counted, but is not on the heap.
    let declared = declared - engine.facts().weight_bytes as usize;
    assert!(peak <= declared, "{peak} bytes were allocated, {declared} declared");
    assert!(declared <= 64 << 20);
    let per_step = allocations_per_decode_step(&engine);
    println!("{per_step} allocations a decode step");
    assert!(per_step <= 20.0 + 30.0 * engine.facts().layers as f64, "{per_step} allocations a decode step");
    a_scheduler_that_decodes_allocates_nothing();
    engine.destroy().unwrap();
    drop(engine);
    assert_eq!((threads_once(before_threads), entries("/proc/self/fd")), (before_threads, fds));
    let left = LIVE.load(SeqCst).saturating_sub(before);
    assert!(left < 64 << 10, "{left} bytes are left behind");
}

/// Allocations per decode step of four sequences, from the difference of a long and a short run. Only
/// candle's tensors are allocated: their storage, and a few small parts, for each operation.
fn allocations_per_decode_step(engine: &bn_engine::engine::Engine) -> f64 {
    let run = |tokens: u32| {
        let request =
            bn_engine::engine::api::RequestParams { ignore_eos: true, stream: false, ..text("Once", tokens) };
        let (before, steps) = (CALLS.load(SeqCst), engine.stats().steps);
        engine.submit(vec![request; 4]).unwrap();
        collect(engine, 4);
        (CALLS.load(SeqCst) - before, engine.stats().steps - steps)
    };
    let ((few, short), (many, long)) = (run(40), run(160));
    many.saturating_sub(few) as f64 / (long - short) as f64
}

/// Except for the lists of a sequence's blocks and of their keys, which double as they grow.
fn a_scheduler_that_decodes_allocates_nothing() {
    const RUNNING: u32 = 64;
    const BLOCK: u32 = 16;
    struct Distinct;
    impl Tokens for Distinct {
        fn content(&self, seq: SeqId, position: u32) -> ContentId {
            (seq.0 * 10_000 + position).into()
        }
    }
    let (prompt_len, max_new) = (10, 64 * BLOCK - 10);
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_batch_size: RUNNING,
        max_batch_tokens: 2 * RUNNING,
        max_logits_rows: RUNNING,
        max_step_ns: 200_000_000,
        block_size: BLOCK,
        blocks: 64 * RUNNING,
        states: Default::default(),
        max_wait_ns: 0,
        target_itl_ns: 0,
        ageing_ns: 0,
    })
    .unwrap();
    for id in 0..2 * RUNNING {
        let request = Request { prompt_len, max_new, ..Request::default() };
        scheduler.submit(SeqId(id), request, &Distinct).unwrap();
    }
    let mut plan = Plan::default();
    let mut until = |position: u32| {
        let before = CALLS.load(SeqCst);
        while scheduler.computed(SeqId(0)) < Some(position) {
            scheduler.plan(&mut plan, &Distinct, 0);
            scheduler.commit(&plan, 1_000_000, &Distinct);
        }
        assert_eq!(plan.decode_rows, RUNNING);
        CALLS.load(SeqCst) - before
    };
    // In steady decode from block 2 on, and from block 34 on until the lists double again.
    until(2 * BLOCK);
    let doublings = 2 * 6 * RUNNING as usize;
    let growing = until(34 * BLOCK);
    assert!((1..=doublings).contains(&growing), "{growing} allocations");
    assert_eq!(until(62 * BLOCK), 0);
}
