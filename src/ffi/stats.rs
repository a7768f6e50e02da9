//! `bn_stats`: what the engine has done and is doing.

use super::growth::grown;
use crate::engine::api::{LATENCY_BUCKETS, LENGTH_BUCKETS, Latency, Lengths, Stats};

/// Number of `bn_latency.buckets`.
pub const BN_LATENCY_BUCKETS: usize = 24;
const _: () = assert!(BN_LATENCY_BUCKETS == LATENCY_BUCKETS);

/// A distribution of times. The percentiles are 0 before the first sample. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_latency {
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Samples by time: bucket `i` has those above `bn_latency_bound_ns(i - 1)` and up to
    /// `bn_latency_bound_ns(i)`. Together they are `count`. The buckets of several engines add up,
    /// which percentiles do not. The bounds are 1, 2.5 and 5 of each decade from 10 us to 50 s,
    /// 100 s, 300 s, and none.
    pub buckets: [u64; BN_LATENCY_BUCKETS],
}

/// Number of `bn_lengths.buckets`.
pub const BN_LENGTH_BUCKETS: usize = 20;
const _: () = assert!(BN_LENGTH_BUCKETS == LENGTH_BUCKETS);

/// A distribution of lengths in tokens. This struct never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_lengths {
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Samples by length: bucket `i` has those above `bn_length_bound(i - 1)` and up to
    /// `bn_length_bound(i)`. Together they are `count`. The bounds are 1, 2 and 5 of each decade up
    /// to 1000000, and none.
    pub buckets: [u64; BN_LENGTH_BUCKETS],
}

/// A snapshot of an engine's counters: `bn_stats_init`, then `bn_engine_stats`. Counters start at
/// 0 with the engine.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_stats {
    /// `sizeof(bn_stats)`; set by `bn_stats_init`.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Requests accepted.
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
    /// Requests waiting for their first admission now. Together with `running`: those accepted and
    /// not finished.
    pub queued: u64,
    /// Requests that were admitted and have not finished, paused and interrupted ones included.
    pub running: u64,
    /// Requests that count against `queue_capacity` now.
    pub unreleased: u64,
    /// Prompt tokens that went through the model.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Requests in the last forward pass; where there are several devices, in that of each, summed.
    pub last_batch_size: u64,
    /// Requests in a forward pass, on average.
    pub mean_batch_size: f64,
    /// `mean_batch_size` over `max_batch_size`, 0 to 1.
    pub batch_utilization: f64,
    /// Blocks of the KV cache that requests and sessions hold now.
    pub kv_blocks_used: u64,
    /// Blocks of the KV cache.
    pub kv_blocks_total: u64,
    /// Bytes that count against `memory_limit_bytes` now.
    pub memory_used_bytes: u64,
    /// The limit; 0: none.
    pub memory_limit_bytes: u64,
    /// The most that `memory_used_bytes` has been.
    pub memory_peak_bytes: u64,
    /// Generated tokens over the time spent in forward passes; of one device, if there are several.
    pub generated_tokens_per_second: f64,
    /// The same for prompt tokens.
    pub prompt_tokens_per_second: f64,
    /// From submit to admission.
    pub queue_wait: bn_latency,
    /// From submit to the first generated token.
    pub time_to_first_token: bn_latency,
    /// From a generated token to the next of the same request.
    pub inter_token: bn_latency,
    /// From submit to the terminal event.
    pub end_to_end: bn_latency,
    /// Requests finished as `BN_FINISH_EMBEDDING`.
    pub completed_embedding: u64,
    /// Bytes of the KV cache, of all its blocks.
    pub kv_bytes: u64,
    /// The most tokens of one request, prompt and output together.
    pub max_sequence_length: u64,
    /// Blocks of the KV cache that no request and no session uses now, with prefixes that a later
    /// request may take.
    pub kv_blocks_cached: u64,
    /// Cached blocks that were given up because requests needed the room.
    pub kv_evictions: u64,
    /// Prompt tokens that were in the prefix cache. `prompt_tokens` does not count them.
    pub cached_tokens: u64,
    /// Tokens computed again because their request was interrupted or paused. `prompt_tokens` does
    /// not count them.
    pub recomputed_tokens: u64,
    /// Times that a running request was interrupted, for KV blocks or for one of higher priority.
    pub preemptions: u64,
    /// Times that a request was paused because its output was not polled or memory was short. It
    /// gives up its KV blocks meanwhile.
    pub pauses: u64,
    /// Requests paused now; they count as running.
    pub paused: u64,
    /// Sessions kept now.
    pub sessions: u64,
    /// Blocks of the KV cache that they hold. A block that several share counts for each.
    pub session_blocks: u64,
    /// Nanoseconds that the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191 and
    /// 192 to 255 has waited; 0 without one.
    pub queue_age_ns: [u64; 4],
    /// What `unreleased` may be at most.
    pub queue_capacity: u64,
    /// Prompt tokens of the requests in `queued`.
    pub queued_tokens: u64,
    /// What `queued_tokens` may be at most; 0: no bound.
    pub queue_token_capacity: u64,
    /// Forward passes that carried running answers.
    pub decode_steps: u64,
    /// Of these, those that took longer than `max_step_ms`. Many of them: the model cannot hold it
    /// with so many requests at a time, or at all.
    pub long_steps: u64,
    /// Nanoseconds of forward passes that prompts took, tokens computed again included. A pass with
    /// prompts and answers is split by what their rows cost, as learned from all passes. This,
    /// `decode_ns`, `idle_ns` and `drafting_ns` are sums over the devices.
    pub prefill_ns: u64,
    /// Nanoseconds of forward passes that answers took.
    pub decode_ns: u64,
    /// Nanoseconds in which nothing could run: there were no requests, or all were paused. What is
    /// left of `uptime_ns` (times `devices`) went into planning, sampling and handing over.
    pub idle_ns: u64,
    /// Nanoseconds since the engine was made.
    pub uptime_ns: u64,
    /// Generated tokens per second over the last ten seconds.
    pub recent_generated_tokens_per_second: f64,
    /// The same for prompt tokens that went through the model.
    pub recent_prompt_tokens_per_second: f64,
    /// Prompt tokens of requests at their first admission; of these, `cached_tokens` were cached.
    pub queried_tokens: u64,
    /// Requests in forward passes, summed over all passes: the increase over that of `steps` is the
    /// mean batch size of a time.
    pub batched_requests: u64,
    /// `bn_engine_config.max_batch_size`: of each device.
    pub max_batch_size: u64,
    /// Tokens in a block of the KV cache.
    pub kv_block_size: u64,
    /// From admission to the end of the prompt, of requests that have ended and got so far.
    pub request_prefill: bn_latency,
    /// From the first generated token to the last, of requests that have ended and have one.
    pub request_decode: bn_latency,
    /// Prompt tokens of the requests that have ended.
    pub prompt_lengths: bn_lengths,
    /// Generated tokens of the requests that have ended.
    pub generated_lengths: bn_lengths,
    /// Tokens that were drafted and verified.
    pub drafted_tokens: u64,
    /// Of these, those that outputs have.
    pub accepted_tokens: u64,
    /// Constraints of requests that were compiled, those that failed not included.
    pub grammars_compiled: u64,
    /// Constraints of requests that were found compiled.
    pub grammars_reused: u64,
    /// Nanoseconds that compiling took, on the threads that submit.
    pub grammar_compile_ns: u64,
    /// Masks computed: which tokens a constraint allows next.
    pub masks: u64,
    /// Nanoseconds that they took, on threads of their own, beside the forward passes.
    pub mask_ns: u64,
    /// Nanoseconds that sampling waited for them, summed over requests.
    pub mask_wait_ns: u64,
    /// Nanoseconds of passes of the draft model, which `prefill_ns` and `decode_ns` do not count.
    pub drafting_ns: u64,
    /// Devices that compute; the CPU is one.
    pub devices: u64,
    /// Of these, those that were lost. While some are left, the engine goes on with them.
    pub devices_lost: u64,
}

grown!(bn_stats: 1328);

/// A struct with fields of the same names as `$of`'s.
macro_rules! same {
    ($of:expr; $($field:ident)*; $($rest:tt)*) => { Self { $($field: $of.$field,)* $($rest)* } };
}

impl bn_latency {
    fn new(of: &Latency) -> Self {
        same!(of; p50_ns p90_ns p99_ns count sum_ns buckets;)
    }
}

impl bn_lengths {
    fn new(of: &Lengths) -> Self {
        same!(of; count sum buckets;)
    }
}

impl bn_stats {
    pub(super) fn new(of: &Stats) -> Self {
        same! { of;
            accepted rejected_invalid rejected_queue_full rejected_too_long rejected_memory rejected_shutdown
            completed_stop completed_stop_string completed_length completed_cancelled completed_timed_out
            completed_failed completed_embedding queued running unreleased prompt_tokens generated_tokens steps
            last_batch_size mean_batch_size batch_utilization kv_blocks_used kv_blocks_total kv_bytes
            memory_used_bytes memory_limit_bytes memory_peak_bytes generated_tokens_per_second
            prompt_tokens_per_second max_sequence_length kv_blocks_cached kv_evictions cached_tokens
            recomputed_tokens preemptions pauses paused sessions session_blocks queue_age_ns queue_capacity
            queued_tokens queue_token_capacity decode_steps long_steps prefill_ns decode_ns idle_ns uptime_ns
            recent_generated_tokens_per_second recent_prompt_tokens_per_second queried_tokens batched_requests
            max_batch_size kv_block_size drafted_tokens accepted_tokens grammars_compiled grammars_reused grammar_compile_ns masks mask_ns
            mask_wait_ns drafting_ns devices devices_lost;
            struct_size: 0,
            reserved: 0,
            queue_wait: bn_latency::new(&of.queue_wait),
            time_to_first_token: bn_latency::new(&of.time_to_first_token),
            inter_token: bn_latency::new(&of.inter_token),
            end_to_end: bn_latency::new(&of.end_to_end),
            request_prefill: bn_latency::new(&of.request_prefill),
            request_decode: bn_latency::new(&of.request_decode),
            prompt_lengths: bn_lengths::new(&of.prompt_lengths),
            generated_lengths: bn_lengths::new(&of.generated_lengths),
        }
    }
}
