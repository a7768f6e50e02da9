//! Invariants 5 and 6 by a counting allocator, and that no thread or descriptor is left behind. One test: it
//! counts the process's own.

mod counting;
mod engine_support;

use bn_engine::engine::api::Pooling;
use counting::{CALLS, LIVE, PEAK};
use engine_support::*;
use std::sync::atomic::Ordering::SeqCst;

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn memory_stays_under_what_is_declared_and_nothing_is_left_behind() {
    // What is made once per process (clock, dispatch tables, regexes) is not a leak.
    drop(demo(|_| ()));
    let (threads, fds, before) = (entries("/proc/self/task"), entries("/proc/self/fd"), LIVE.load(SeqCst));
    PEAK.store(before, SeqCst);
    let engine = demo(|config| {
        (config.threads, config.max_batch_size, config.max_batch_tokens) = (2, 16, 512);
        config.memory_limit_bytes = 64 << 20;
    });
    assert!(entries("/proc/self/task") > threads);
    // A 200-token prompt beside others: wide steps, which would wake candle's own pool if an op used it.
    let long = "Once upon a time ".repeat(40);
    let prompts = (0..32).map(|i| text(if i % 8 == 0 { &long } else { "Once upon a time" }, 24)).collect();
    let during = entries("/proc/self/task");
    engine.submit(prompts).unwrap();
    engine.submit((0..8).map(|_| embedding(&long, Some(Pooling::Mean), true)).collect()).unwrap();
    collect(&engine, 32 + 8);
    assert_eq!(entries("/proc/self/task"), during, "a step started threads that are not the engine's");
    let stats = engine.stats();
    let (peak, declared) = (PEAK.load(SeqCst) - before, stats.memory_peak_bytes as usize);
    // The embedded file is counted, and is not on the heap.
    let declared = declared - engine.facts().weight_bytes as usize;
    assert!(peak <= declared, "{peak} bytes were allocated, {declared} declared");
    assert!(declared <= 64 << 20);
    let per_step = allocations_per_decode_step(&engine);
    println!("{per_step} allocations a decode step");
    assert!(per_step <= 20.0 + 30.0 * engine.facts().layers as f64, "{per_step} allocations a decode step");
    engine.destroy().unwrap();
    drop(engine);
    assert_eq!((entries("/proc/self/task"), entries("/proc/self/fd")), (threads, fds));
    let left = LIVE.load(SeqCst).saturating_sub(before);
    assert!(left < 64 << 10, "{left} bytes are left behind");
}

/// Of four sequences, from the difference of a long and a short run. Only candle's tensors are allocated: their
/// storage, and a few small parts, for each operation.
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
