//! The cost of the worker pool and of the engine's threads: an empty region, two pools at once, an idle engine.
//!
//!   cargo dev pool -- [--quick] [--json FILE] [--threads N]
//!
//! "of the ideal": the time of threads that never wait for each other, over that of a pool. "together": two pools, and two
//! engines, of N threads each, at the same time on the machine's cores. 100% is the time that they take one after the
//! other.

use bn_dev::{Options, cpu_seconds, machine, median, seconds};
use bn_engine::base::Result;
use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, Event, FinishReason, Prompt, RequestParams, Which};
use bn_engine::kernels::Pool;
use serde_json::json;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Tasks of a region.
const TASKS: usize = 80;
/// Microseconds of a task of one thread: the small model's regions, a decode step's, a prompt's.
const SIZES: [f64; 4] = [0.1, 1.0, 10.0, 100.0];
/// Seconds that a pool works in one round, about.
const ROUND: f64 = 0.15;

fn main() {
    let options = Options::parse("pool");
    let (threads, rounds) = (options.threads, options.rounds());
    println!("{}; pools of {threads} threads, regions of {TASKS} tasks; medians of {rounds}\n", machine());
    let pools = [0, 1].map(|_| Pool::new(threads).expect("a pool"));
    let empty = median((0..rounds).map(|_| empty(&pools[0])).collect());
    println!("an empty region {empty:>8.2} us\n\n{:>8} {:>12} {:>12}", "us/task", "of the ideal", "together");
    let unit = spins_per_us();
    let mut rows = Vec::new();
    for size in SIZES {
        let spins = (size * unit) as u64;
        let ideal = TASKS as f64 * size * 1e-6 / threads as f64;
        let regions = ((ROUND / ideal) as usize).max(20);
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let ideal = seconds(|| independent(threads, 2 * regions * TASKS / threads, spins));
            let turns = seconds(|| pools.iter().for_each(|pool| work(pool, regions, spins)));
            let both = seconds(|| beside(&pools, regions, spins));
            alone.push(ideal / turns);
            together.push(turns / both);
        }
        let (alone, together) = (100.0 * median(alone), 100.0 * median(together));
        println!("{size:>8} {alone:>11.0}% {together:>11.0}%");
        rows.push(json!({"task_us": size, "of_ideal_percent": alone, "together_percent": together}));
    }
    let engines = engines(threads, rounds).expect("two engines");
    let idle = idle(threads).expect("an idle engine");
    println!("\ntwo engines with the model inside the library, together {:>4.0}%", 100.0 * engines);
    println!("an idle engine takes {:.3}% of a core", 100.0 * idle);
    options.write(&json!({"machine": machine(), "threads": threads, "empty_us": empty, "pools": rows,
        "engines_together_percent": 100.0 * engines, "idle_percent": 100.0 * idle}));
}

/// Microseconds of a region with nothing to do.
fn empty(pool: &Pool) -> f64 {
    let regions = 20_000;
    seconds(|| {
        (0..regions).for_each(|_| {
            pool.run(TASKS, &|n| {
                black_box(n);
            })
        })
    }) * 1e6
        / regions as f64
}

/// Dependent multiplications: as fast on a core whose other half is busy.
fn burn(spins: u64) {
    let mut x = spins;
    for _ in 0..spins {
        x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

fn spins_per_us() -> f64 {
    let spins = 20_000_000;
    median((0..5).map(|_| spins as f64 / (seconds(|| burn(spins)) * 1e6)).collect())
}

/// Threads that never wait for each other, `tasks` for each.
fn independent(threads: usize, tasks: usize, spins: u64) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..tasks).for_each(|_| burn(spins)));
        }
    });
}

/// `regions` regions.
fn work(pool: &Pool, regions: usize, spins: u64) {
    let done = AtomicUsize::new(0);
    let task = |_| {
        burn(spins);
        done.fetch_add(1, Ordering::Relaxed);
    };
    for _ in 0..regions {
        pool.run(TASKS, &task);
    }
    assert_eq!(done.into_inner(), regions * TASKS);
}

fn beside(pools: &[Arc<Pool>; 2], regions: usize, spins: u64) {
    std::thread::scope(|scope| {
        for pool in pools {
            scope.spawn(move || work(pool, regions, spins));
        }
    });
}

fn engine(threads: usize) -> Result<Engine> {
    Engine::create(EngineConfig { threads: threads as u32, max_batch_size: 4, ..EngineConfig::default() })
}

/// Four sequences of 256 tokens.
fn generate(engine: &Engine) -> Result<()> {
    let request = RequestParams {
        prompt: Prompt::Tokens(vec![3, 5, 7, 11].into()),
        max_new_tokens: 256,
        ignore_eos: true,
        ..RequestParams::default()
    };
    let ids = engine.submit(vec![request; 4])?;
    let mut ended = 0;
    while ended < 4 {
        let mut count = |event: &Event| ended += (event.finish != FinishReason::None) as usize;
        engine.poll(Which::Any, 64, None, &mut |_, event| count(event))?;
    }
    ids.into_iter().try_for_each(|id| engine.release(id))
}

/// The time of two engines one after the other over their time together.
fn engines(threads: usize, rounds: usize) -> Result<f64> {
    let both = [engine(threads)?, engine(threads)?];
    both.iter().try_for_each(generate)?;
    let (mut ratios, mut results) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let turns = seconds(|| results.extend(both.iter().map(generate)));
        let together = seconds(|| {
            std::thread::scope(|scope| {
                let threads = both.each_ref().map(|engine| scope.spawn(move || generate(engine)));
                results.extend(threads.map(|thread| thread.join().expect("no panic")));
            })
        });
        ratios.push(turns / together);
    }
    results.into_iter().collect::<Result<()>>()?;
    both.into_iter().try_for_each(|engine| engine.destroy())?;
    Ok(median(ratios))
}

/// CPU time over time of an engine that has worked and waits.
fn idle(threads: usize) -> Result<f64> {
    let engine = engine(threads)?;
    generate(&engine)?;
    std::thread::sleep(Duration::from_millis(50));
    let before = cpu_seconds();
    let taken = seconds(|| std::thread::sleep(Duration::from_secs(1)));
    let share = (cpu_seconds() - before) / taken;
    engine.destroy()?;
    Ok(share)
}
