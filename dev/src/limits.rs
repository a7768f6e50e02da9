//! The machine's limits: bytes read and multiply-adds done per second, by all threads of the pool.

use super::units::{Kind, Unit, of_kernels};
use super::{SplitMix, seconds};
use bn_engine::kernels::{Isa, Pool};
use std::cell::Cell;
use std::hint::black_box;

/// Words that one task adds up: 256 KiB.
const TASK: usize = 32 << 10;
/// Tasks of one measurement: 64 MiB.
const TASKS: usize = 256;
/// Rounds of twelve multiply-adds that one task does; about ten microseconds.
const ROUNDS: u64 = 2000;

/// Memory much larger than the caches, so that nothing read is still in them.
pub struct Memory {
    words: Vec<u64>,
    /// The next task's worth to read.
    at: Cell<usize>,
}

impl Memory {
    /// Eight times the last-level cache if its size is known, at least 256 MiB, at most 1 GiB.
    pub fn of_machine() -> Self {
        let bytes = (8 * last_level_cache()).clamp(256 << 20, 1 << 30);
        let mut random = SplitMix(1);
        Self { words: (0..bytes / 8).map(|_| random.draw()).collect(), at: Cell::new(0) }
    }

    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Adds up the next 64 MiB; returns bytes per second.
    pub fn read(&self, pool: &Pool) -> f64 {
        let tasks = self.words.len() / TASK;
        let first = self.at.get();
        self.at.set((first + TASKS) % tasks);
        let words = &self.words;
        let part = |task: usize| {
            let at = (first + task) % tasks * TASK;
            black_box(sum(&words[at..at + TASK]));
        };
        let taken = seconds(|| pool.run(TASKS, &part));
        (TASKS * TASK * 8) as f64 / taken
    }
}

/// Size in bytes; 0 if the system does not report it.
fn last_level_cache() -> usize {
    let size = |index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..5).filter_map(size).max().unwrap_or(0) * 1024
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2.
        return unsafe { sum_avx2(words) };
    }
    sum_anywhere(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum_anywhere(words)
}

#[inline(always)]
fn sum_anywhere(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for words in words.as_chunks::<32>().0 {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

/// Multiply-adds per second.
pub fn rate(pool: &Pool, unit: &Unit) -> f64 {
    let tasks = 32 * pool.threads();
    let taken = seconds(|| pool.run(tasks, &|_| unit.run(ROUNDS)));
    (tasks as u64 * ROUNDS * unit.per_round) as f64 / taken
}

/// The limits that a kernel is held against, measured next to it.
pub struct Limits<'a> {
    pool: &'a Pool,
    memory: &'a Memory,
    isa: Isa,
}

/// The work of one kernel call.
#[derive(Clone, Copy)]
pub struct Work {
    /// Bytes that it must read at least once.
    pub bytes: f64,
    pub multiply_adds: f64,
    pub kind: Kind,
}

/// The minimum time for some work, in seconds, and the limit that sets it: "read", "int8" or "f32".
pub struct Least {
    pub seconds: f64,
    pub by: &'static str,
}

impl<'a> Limits<'a> {
    pub fn new(pool: &'a Pool, memory: &'a Memory, isa: Isa) -> Self {
        Self { pool, memory, isa }
    }

    /// Measures both limits now.
    pub fn least(&self, work: &Work) -> Least {
        let reading = work.bytes / self.memory.read(self.pool);
        let computing = work.multiply_adds / rate(self.pool, &of_kernels(self.isa, work.kind));
        if reading > computing {
            Least { seconds: reading, by: "read" }
        } else {
            Least { seconds: computing, by: work.kind.name() }
        }
    }
}
