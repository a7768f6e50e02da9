//! `bn_stats`: what the engine has done and is doing.

use super::growth::Grown;
use crate::engine::api::{Percentiles, Stats};

/// A distribution of times, in nanoseconds; 0 before the first sample.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_percentiles {
    /// Half of the samples are at most this.
    pub p50_ns: u64,
    /// Nine in ten are.
    pub p90_ns: u64,
    /// 99 in 100 are.
    pub p99_ns: u64,
    /// Samples.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
}

/// A snapshot of an engine's counters: `bn_stats_init`, then `bn_engine_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_stats {
    /// `sizeof(bn_stats)`; set by `bn_stats_init`.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Requests accepted since create.
    pub accepted: u64,
    /// Requests refused for their parameters.
    pub rejected_invalid: u64,
    /// Requests refused with `BN_ERR_QUEUE_FULL`.
    pub rejected_queue_full: u64,
    /// Requests refused with `BN_ERR_TOO_LONG`.
    pub rejected_too_long: u64,
    /// Requests refused with `BN_ERR_MEMORY_LIMIT` or `BN_ERR_OUT_OF_MEMORY`.
    pub rejected_memory: u64,
    /// Requests refused with `BN_ERR_SHUTDOWN`.
    pub rejected_shutdown: u64,
    /// Requests finished as `BN_FINISH_STOP`.
    pub completed_stop: u64,
    /// Requests finished as `BN_FINISH_STOP_STRING`.
    pub completed_stop_string: u64,
    /// Requests finished as `BN_FINISH_LENGTH`.
    pub completed_length: u64,
    /// Requests finished as `BN_FINISH_CANCELLED`.
    pub completed_cancelled: u64,
    /// Requests finished as `BN_FINISH_TIMED_OUT`.
    pub completed_timed_out: u64,
    /// Requests finished as `BN_FINISH_FAILED`.
    pub completed_failed: u64,
    /// Requests waiting for admission now.
    pub queued: u64,
    /// Requests running now.
    pub running: u64,
    /// Requests that count against `queue_capacity` now.
    pub unreleased: u64,
    /// Prompt tokens that went through the model.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Requests in the last forward pass.
    pub last_batch_size: u64,
    /// Requests in a forward pass, on average.
    pub mean_batch_size: f64,
    /// `mean_batch_size` over `max_batch_size`, 0 to 1.
    pub batch_utilization: f64,
    /// Blocks of the KV cache in use now.
    pub kv_blocks_used: u64,
    /// Blocks of the KV cache.
    pub kv_blocks_total: u64,
    /// Bytes that count against `memory_limit_bytes` now.
    pub memory_used_bytes: u64,
    /// The limit; 0: none.
    pub memory_limit_bytes: u64,
    /// The most that `memory_used_bytes` has been.
    pub memory_peak_bytes: u64,
    /// Generated tokens over the time spent in forward passes.
    pub generated_tokens_per_second: f64,
    /// Prompt tokens over the time spent in forward passes.
    pub prompt_tokens_per_second: f64,
    /// From submit to admission.
    pub queue_wait: bn_percentiles,
    /// From submit to the first generated token.
    pub time_to_first_token: bn_percentiles,
    /// From a generated token to the next of the same request.
    pub inter_token: bn_percentiles,
    /// From submit to the terminal event.
    pub end_to_end: bn_percentiles,
    /// Requests finished as `BN_FINISH_EMBEDDING`.
    pub completed_embedding: u64,
    /// Bytes of the KV cache, of all its blocks.
    pub kv_bytes: u64,
}

// SAFETY: repr(C), `struct_size` first, and numbers after it.
unsafe impl Grown for bn_stats {
    const NAME: &'static str = "bn_stats";
    const FIRST: usize = 392;
    fn defaults() -> Self {
        Self::new(&Stats::default())
    }
    fn set_struct_size(&mut self, size: u32) {
        self.struct_size = size;
    }
}

const _: () = assert!(size_of::<bn_stats>() >= <bn_stats as Grown>::FIRST);

impl bn_percentiles {
    fn new(of: &Percentiles) -> Self {
        Self { p50_ns: of.p50_ns, p90_ns: of.p90_ns, p99_ns: of.p99_ns, count: of.count, sum_ns: of.sum_ns }
    }
}

impl bn_stats {
    pub(super) fn new(of: &Stats) -> Self {
        Self {
            struct_size: 0,
            reserved: 0,
            accepted: of.accepted,
            rejected_invalid: of.rejected_invalid,
            rejected_queue_full: of.rejected_queue_full,
            rejected_too_long: of.rejected_too_long,
            rejected_memory: of.rejected_memory,
            rejected_shutdown: of.rejected_shutdown,
            completed_stop: of.completed_stop,
            completed_stop_string: of.completed_stop_string,
            completed_length: of.completed_length,
            completed_cancelled: of.completed_cancelled,
            completed_timed_out: of.completed_timed_out,
            completed_failed: of.completed_failed,
            queued: of.queued,
            running: of.running,
            unreleased: of.unreleased,
            prompt_tokens: of.prompt_tokens,
            generated_tokens: of.generated_tokens,
            steps: of.steps,
            last_batch_size: of.last_batch_size,
            mean_batch_size: of.mean_batch_size,
            batch_utilization: of.batch_utilization,
            kv_blocks_used: of.kv_blocks_used,
            kv_blocks_total: of.kv_blocks_total,
            memory_used_bytes: of.memory_used_bytes,
            memory_limit_bytes: of.memory_limit_bytes,
            memory_peak_bytes: of.memory_peak_bytes,
            generated_tokens_per_second: of.generated_tokens_per_second,
            prompt_tokens_per_second: of.prompt_tokens_per_second,
            queue_wait: bn_percentiles::new(&of.queue_wait),
            time_to_first_token: bn_percentiles::new(&of.time_to_first_token),
            inter_token: bn_percentiles::new(&of.inter_token),
            end_to_end: bn_percentiles::new(&of.end_to_end),
            completed_embedding: of.completed_embedding,
            kv_bytes: of.kv_bytes,
        }
    }
}
