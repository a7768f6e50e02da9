//! Counters and latency histograms; the engine thread records once per step.

use super::api::{Percentiles, Stats};
use crate::base::Status;
use crate::base::sync::Mutex;
use crate::schedule::Plan;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two significant digits from a microsecond to an hour; what lies outside counts as the nearest bound.
struct Latency {
    histogram: Histogram<u64>,
    sum_ns: u64,
}

impl Latency {
    fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1_000, 3_600_000_000_000, 2).expect("constant bounds are valid");
        Self { histogram, sum_ns: 0 }
    }

    fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    fn percentiles(&self) -> Percentiles {
        let at = |q| if self.histogram.is_empty() { 0 } else { self.histogram.value_at_quantile(q) };
        let (p50_ns, p90_ns, p99_ns) = (at(0.50), at(0.90), at(0.99));
        Percentiles { p50_ns, p90_ns, p99_ns, count: self.histogram.len(), sum_ns: self.sum_ns }
    }
}

/// What happened since the last record. Kept from step to step for its memory.
#[derive(Default)]
pub struct StepLog {
    steps: u64,
    sequences: u64,
    prompt_rows: u64,
    step_ns: u64,
    /// Queue waits of the requests that were admitted.
    pub waits: Vec<u64>,
    /// First tokens (true), and gaps between tokens.
    pub gaps: Vec<(bool, u64)>,
    /// Submit to terminal event.
    pub ends: Vec<u64>,
}

impl StepLog {
    pub fn step(&mut self, plan: &Plan, step_ns: u64) {
        self.steps += 1;
        self.sequences = plan.entries.len() as u64;
        self.prompt_rows += plan.entries.iter().filter(|e| !e.decode).map(|e| u64::from(e.rows)).sum::<u64>();
        self.step_ns += step_ns;
    }
}

struct Inner {
    steps: u64,
    last_batch_size: u64,
    sequence_steps: u64,
    step_ns: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
    queue_wait: Latency,
    time_to_first_token: Latency,
    inter_token: Latency,
    end_to_end: Latency,
}

pub struct Recorder {
    inner: Mutex<Inner>,
    kv_blocks_used: AtomicU64,
    rejected: [AtomicU64; REJECTIONS],
}

/// Invalid, queue full, too long, memory, shutdown.
const REJECTIONS: usize = 5;

impl Default for Recorder {
    fn default() -> Self {
        let inner = Inner {
            steps: 0,
            last_batch_size: 0,
            sequence_steps: 0,
            step_ns: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            queue_wait: Latency::new(),
            time_to_first_token: Latency::new(),
            inter_token: Latency::new(),
            end_to_end: Latency::new(),
        };
        Self { inner: Mutex::new(inner), kv_blocks_used: AtomicU64::new(0), rejected: Default::default() }
    }
}

impl Recorder {
    pub fn rejected(&self, why: Status, n: usize) {
        let counter = match why {
            Status::QueueFull => 1,
            Status::TooLong => 2,
            Status::MemoryLimit | Status::OutOfMemory => 3,
            Status::Shutdown | Status::EngineDead => 4,
            _ => 0,
        };
        self.rejected[counter].fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Engine thread: takes in what happened, and empties `log`.
    pub fn record(&self, log: &mut StepLog, kv_blocks_used: usize) {
        self.kv_blocks_used.store(kv_blocks_used as u64, Ordering::Relaxed);
        if log.steps == 0 && log.ends.is_empty() && log.waits.is_empty() {
            return;
        }
        let inner = &mut *self.inner.lock();
        if log.steps > 0 {
            inner.last_batch_size = log.sequences;
        }
        inner.steps += log.steps;
        inner.sequence_steps += log.sequences;
        inner.step_ns += log.step_ns;
        inner.prompt_tokens += log.prompt_rows;
        inner.generated_tokens += log.gaps.len() as u64;
        log.waits.drain(..).for_each(|ns| inner.queue_wait.record(ns));
        for (first, ns) in log.gaps.drain(..) {
            if first { inner.time_to_first_token.record(ns) } else { inner.inter_token.record(ns) }
        }
        log.ends.drain(..).for_each(|ns| inner.end_to_end.record(ns));
        (log.steps, log.sequences, log.prompt_rows, log.step_ns) = (0, 0, 0, 0);
    }

    /// What `hub` does not count.
    pub fn snapshot(&self, max_batch_size: u32) -> Stats {
        let rejected = self.rejected.each_ref().map(|n| n.load(Ordering::Relaxed));
        let inner = self.inner.lock();
        let mean = if inner.steps > 0 { inner.sequence_steps as f64 / inner.steps as f64 } else { 0.0 };
        let per_second =
            |n: u64| if inner.step_ns > 0 { n as f64 / (inner.step_ns as f64 * 1e-9) } else { 0.0 };
        Stats {
            rejected_invalid: rejected[0],
            rejected_queue_full: rejected[1],
            rejected_too_long: rejected[2],
            rejected_memory: rejected[3],
            rejected_shutdown: rejected[4],
            prompt_tokens: inner.prompt_tokens,
            generated_tokens: inner.generated_tokens,
            steps: inner.steps,
            last_batch_size: inner.last_batch_size,
            mean_batch_size: mean,
            batch_utilization: mean / max_batch_size as f64,
            kv_blocks_used: self.kv_blocks_used.load(Ordering::Relaxed),
            generated_tokens_per_second: per_second(inner.generated_tokens),
            prompt_tokens_per_second: per_second(inner.prompt_tokens),
            queue_wait: inner.queue_wait.percentiles(),
            time_to_first_token: inner.time_to_first_token.percentiles(),
            inter_token: inner.inter_token.percentiles(),
            end_to_end: inner.end_to_end.percentiles(),
            ..Stats::default()
        }
    }
}
