//! Counters and latency histograms; the engine thread records once per step.

use super::api::{Percentiles, Stats};
use super::event::{FinishReason, Usage};
use crate::base::Status;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

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

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepRecord {
    pub sequences: usize,
    pub prompt_rows: usize,
    pub generated: usize,
    pub step_ns: u64,
}

struct Inner {
    /// Counters only; the rest of `Stats` is filled in at `snapshot`.
    stats: Stats,
    sequence_steps: u64,
    step_ns: u64,
    queue_wait: Latency,
    time_to_first_token: Latency,
    inter_token: Latency,
    end_to_end: Latency,
}

pub struct Recorder(Mutex<Inner>);

impl Default for Recorder {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            stats: Stats::default(),
            sequence_steps: 0,
            step_ns: 0,
            queue_wait: Latency::new(),
            time_to_first_token: Latency::new(),
            inter_token: Latency::new(),
            end_to_end: Latency::new(),
        }))
    }
}

impl Recorder {
    /// Counts `n` requests and hands them over by `publish`: whoever reads the count can cancel them, and none of
    /// them is counted as completed before.
    pub fn accepted(&self, n: usize, publish: impl FnOnce()) {
        let inner = &mut *self.0.lock();
        inner.stats.accepted += n as u64;
        publish();
    }

    pub fn rejected(&self, why: Status, n: usize) {
        let stats = &mut self.0.lock().stats;
        let counter = match why {
            Status::QueueFull => &mut stats.rejected_queue_full,
            Status::TooLong => &mut stats.rejected_too_long,
            Status::MemoryLimit | Status::OutOfMemory => &mut stats.rejected_memory,
            Status::Shutdown | Status::EngineDead => &mut stats.rejected_shutdown,
            _ => &mut stats.rejected_invalid,
        };
        *counter += n as u64;
    }

    /// `waits`: queue waits of requests admitted in this step; `gaps`: first tokens (true) and gaps between tokens.
    pub fn step(&self, step: StepRecord, waits: &[u64], gaps: &[(bool, u64)]) {
        let inner = &mut *self.0.lock();
        let stats = &mut inner.stats;
        stats.steps += 1;
        stats.last_batch_size = step.sequences as u64;
        stats.prompt_tokens += step.prompt_rows as u64;
        stats.generated_tokens += step.generated as u64;
        inner.sequence_steps += step.sequences as u64;
        inner.step_ns += step.step_ns;
        for &ns in waits {
            inner.queue_wait.record(ns);
        }
        for &(first, ns) in gaps {
            if first { inner.time_to_first_token.record(ns) } else { inner.inter_token.record(ns) }
        }
    }

    pub fn finished(&self, reason: FinishReason, usage: &Usage) {
        let inner = &mut *self.0.lock();
        let stats = &mut inner.stats;
        let counter = match reason {
            FinishReason::Stop => &mut stats.completed_stop,
            FinishReason::StopString => &mut stats.completed_stop_string,
            FinishReason::Length => &mut stats.completed_length,
            FinishReason::Cancelled => &mut stats.completed_cancelled,
            FinishReason::TimedOut => &mut stats.completed_timed_out,
            FinishReason::Embedding => &mut stats.completed_embedding,
            FinishReason::Failed | FinishReason::None => &mut stats.completed_failed,
        };
        *counter += 1;
        inner.end_to_end.record(usage.total_ns);
    }

    /// What the scheduler holds now; part of the snapshot.
    pub fn gauges(&self, queued: usize, running: usize, blocks_used: usize) {
        let stats = &mut self.0.lock().stats;
        stats.queued = queued as u64;
        stats.running = running as u64;
        stats.kv_blocks_used = blocks_used as u64;
    }

    pub fn snapshot(&self, max_batch_size: u32) -> Stats {
        let inner = self.0.lock();
        let mut stats = inner.stats;
        if stats.steps > 0 {
            stats.mean_batch_size = inner.sequence_steps as f64 / stats.steps as f64;
            stats.batch_utilization = stats.mean_batch_size / max_batch_size as f64;
        }
        if inner.step_ns > 0 {
            let seconds = inner.step_ns as f64 * 1e-9;
            stats.generated_tokens_per_second = stats.generated_tokens as f64 / seconds;
            stats.prompt_tokens_per_second = stats.prompt_tokens as f64 / seconds;
        }
        stats.queue_wait = inner.queue_wait.percentiles();
        stats.time_to_first_token = inner.time_to_first_token.percentiles();
        stats.inter_token = inner.inter_token.percentiles();
        stats.end_to_end = inner.end_to_end.percentiles();
        stats
    }
}
