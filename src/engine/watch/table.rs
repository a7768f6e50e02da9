//! Every statistic, once: its name, type, meaning and metric. The build script makes `bn_stats` of the header from
//! this file, so comments here are the header's.

use super::metrics::statistics;

/// Number of `bn_latency.buckets`.
pub const LATENCY_BUCKETS: usize = 24;

/// A distribution of times. The percentiles are 0 before the first sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
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
    /// Bucket `i` has samples above `bn_latency_bound_ns(i - 1)` and up to
    /// `bn_latency_bound_ns(i)`: together `count`. The bounds are 1, 2.5 and 5 of each decade from
    /// 10 us to 50 s, 100 s, 300 s, and none.
    pub buckets: [u64; LATENCY_BUCKETS],
}

/// Number of `bn_lengths.buckets`.
pub const LENGTH_BUCKETS: usize = 20;

/// A distribution of lengths in tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lengths {
    /// Number of samples.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The same by `bn_length_bound`. The bounds are 1, 2 and 5 of each decade up to 1000000, and
    /// none.
    pub buckets: [u64; LENGTH_BUCKETS],
}

statistics! {
    /// A snapshot of an engine's counters, which start at 0 with the engine.
    pub struct Stats {
        /// Set by `bn_stats_init`.
        struct_size: u32;

        /// When the engine was made, in nanoseconds since 1970.
        made_unix_ns: u64 => GaugeOfSeconds "engine_start_time_seconds" ("When the engine was made.");
        /// Nanoseconds since then.
        uptime_ns: u64;
        /// Devices that compute; the CPU is one.
        devices: u64 => Gauge "devices";
        /// Devices that were lost.
        devices_lost: u64 => Gauge "devices_lost" ("Devices that were lost.");
        /// `bn_engine_config.max_batch_size`, of each device.
        max_batch_size: u64 => Gauge "max_batch_size" ("The most requests in a forward pass.");
        /// `bn_engine_config.context_length`, or less if the KV cache holds no more, or of an encoder a
        /// step (`max_batch_tokens`).
        context_length: u64;

        /// Requests accepted.
        accepted: u64 => Counter "requests_accepted_total";
        /// Requests refused for their parameters.
        rejected_invalid: u64 => Counter "request_rejected_total" reason = "invalid" ("Requests refused at submit, by reason.");
        /// Requests refused with `BN_ERR_QUEUE_FULL`.
        rejected_queue_full: u64 => Counter "request_rejected_total" reason = "queue_full";
        /// Requests refused with `BN_ERR_TOO_LONG`.
        rejected_too_long: u64 => Counter "request_rejected_total" reason = "too_long";
        /// Requests refused with `BN_ERR_MEMORY_LIMIT` or `BN_ERR_OUT_OF_MEMORY`.
        rejected_memory: u64 => Counter "request_rejected_total" reason = "memory";
        /// Requests refused with `BN_ERR_SHUTDOWN`.
        rejected_shutdown: u64 => Counter "request_rejected_total" reason = "shutdown";
        /// Requests finished as `BN_FINISH_STOP`.
        completed_stop: u64 => Counter "request_success_total" finished_reason = "stop" ("Requests finished, by reason.");
        /// Requests finished as `BN_FINISH_STOP_STRING`.
        completed_stop_string: u64 => Counter "request_success_total" finished_reason = "stop_string";
        /// Requests finished as `BN_FINISH_LENGTH`.
        completed_length: u64 => Counter "request_success_total" finished_reason = "length";
        /// Requests finished as `BN_FINISH_EMBEDDING`.
        completed_embedding: u64 => Counter "request_success_total" finished_reason = "embedding";
        /// Requests finished as `BN_FINISH_CANCELLED`.
        completed_cancelled: u64 => Counter "request_failure_total" finished_reason = "cancelled" ("Requests ended early, by reason.");
        /// Requests finished as `BN_FINISH_TIMED_OUT`.
        completed_timed_out: u64 => Counter "request_failure_total" finished_reason = "timed_out";
        /// Requests finished as `BN_FINISH_FAILED`.
        completed_failed: u64 => Counter "request_failure_total" finished_reason = "failed";

        /// Requests waiting for their first admission now.
        queued: u64 => Gauge "num_requests_waiting" ("Requests waiting for admission.");
        /// Requests admitted and not finished, paused and interrupted ones included.
        running: u64 => Gauge "num_requests_running" ("Requests admitted and not finished.");
        /// Requests paused now; they count as running.
        paused: u64 => Gauge "num_requests_paused";
        /// Requests that are not freed; they count against `queue_capacity`.
        unreleased: u64 => Gauge "num_requests_unreleased" ("Requests that hold a queue place.");
        /// Its limit.
        queue_capacity: u64 => Gauge "queue_capacity" ("Queue places.");
        /// Prompt tokens of the requests in `queued`.
        queued_tokens: u64 => Gauge "queued_prompt_tokens" ("Prompt tokens waiting for admission.");
        /// Their limit; 0: none.
        queue_token_capacity: u64 => Gauge "queue_token_capacity" ("The most queued prompt tokens; 0: any.");
        /// Nanoseconds that the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191 and
        /// 192 to 255 has waited, or 0.
        queue_age_ns: [u64; 4];
        /// Running requests interrupted, for KV blocks or a higher priority.
        preemptions: u64 => Counter "num_preemptions_total" ("Requests interrupted.");
        /// Requests paused, without KV blocks, as output was not polled or memory was short.
        pauses: u64 => Counter "pauses_total" ("Requests paused.");

        /// Prompt tokens that went through the model, each once.
        prompt_tokens: u64 => Counter "prompt_tokens_total";
        /// Tokens generated.
        generated_tokens: u64 => Counter "generation_tokens_total";
        /// Prompt tokens of requests at their first admission.
        queried_tokens: u64 => Counter "prefix_cache_queries_total" ("Prompt tokens of admitted requests.");
        /// Prompt tokens that were in the prefix cache, not in `prompt_tokens`.
        cached_tokens: u64 => Counter "prefix_cache_hits_total" ("Prompt tokens found in the cache.");
        /// Tokens computed again after an interruption or a pause, not in `prompt_tokens`.
        recomputed_tokens: u64 => Counter "recomputed_tokens_total" ("Tokens computed again.");

        /// Forward passes.
        steps: u64 => Counter "engine_steps_total";
        /// Requests in forward passes, summed over passes.
        batched_requests: u64 => Counter "batched_requests_total" ("Requests in forward passes.");
        /// Requests in the last forward pass, summed over devices.
        last_batch_size: u64;
        /// Forward passes that carried running answers.
        decode_steps: u64 => Counter "decode_steps_total" ("Forward passes with answers.");
        /// Forward passes with running answers that took longer than `max_step_ms`.
        long_steps: u64 => Counter "long_steps_total" ("Decode steps longer than max_step_ms.");
        /// Nanoseconds of forward passes that prompts took, tokens computed again included; a pass
        /// with prompts and answers is split by the cost of their rows. This, `decode_ns`, `idle_ns`
        /// and `drafting_ns` are sums over the devices.
        prefill_ns: u64 => CounterOfSeconds "engine_time_seconds_total" phase = "prefill" ("Time of the engine, by what it did.");
        /// Nanoseconds of forward passes that answers took.
        decode_ns: u64 => CounterOfSeconds "engine_time_seconds_total" phase = "decode";
        /// Nanoseconds in which nothing could run: no requests, or all paused. What is left of
        /// `uptime_ns` (times `devices`) went into planning, sampling and handing over.
        idle_ns: u64 => CounterOfSeconds "engine_time_seconds_total" phase = "idle";

        /// From submit to admission.
        queue_wait: Latency => Times "request_queue_time_seconds" ("Submit to admission.");
        /// From submit to the first generated token.
        time_to_first_token: Latency => Times "time_to_first_token_seconds" ("Submit to first token.");
        /// From a generated token to the next of the same request.
        inter_token: Latency => Times "inter_token_latency_seconds" ("A token to the next.");
        /// From submit to the terminal event.
        end_to_end: Latency => Times "e2e_request_latency_seconds" ("Submit to completion.");
        /// From admission to the end of the prompt, of ended requests that got so far.
        request_prefill: Latency => Times "request_prefill_time_seconds" ("Admission to the end of the prompt.");
        /// From the first generated token to the last, of ended requests that have one.
        request_decode: Latency => Times "request_decode_time_seconds" ("First token to last.");
        /// Prompt tokens of ended requests.
        prompt_lengths: Lengths => Tokens "request_prompt_tokens" ("Prompt tokens of a request.");
        /// Generated tokens of ended requests.
        generated_lengths: Lengths => Tokens "request_generation_tokens" ("Generated tokens of a request.");

        /// Blocks of the KV cache.
        kv_blocks_total: u64;
        /// Blocks that requests and sessions hold now.
        kv_blocks_used: u64;
        /// Blocks not in use, with prefixes that a later request may take.
        kv_blocks_cached: u64 => Gauge "kv_blocks_cached" ("KV blocks with prefixes for later.");
        /// Cached blocks given up because requests needed the room.
        kv_evictions: u64 => Counter "kv_cache_evictions_total" ("Cached blocks given up.");
        /// Tokens in a block of the KV cache.
        kv_block_size: u64;
        /// Bytes of all blocks.
        kv_bytes: u64;
        /// Sessions kept now.
        sessions: u64 => Gauge "sessions";
        /// Blocks that they hold. One that several share counts for each.
        session_blocks: u64 => Gauge "session_blocks" ("KV blocks that sessions hold.");
        /// Bytes that count against `memory_limit_bytes` now, with compiled constraints that are
        /// kept.
        memory_used_bytes: u64 => Gauge "memory_used_bytes" ("Bytes counted against the limit.");
        /// The most that it has been.
        memory_peak_bytes: u64 => Gauge "memory_peak_bytes" ("The most ever counted.");
        /// Its limit; 0: none.
        memory_limit_bytes: u64 => Gauge "memory_limit_bytes" ("The most bytes counted; 0: any.");

        /// Tokens that were drafted and verified.
        drafted_tokens: u64 => Counter "spec_decode_num_draft_tokens_total";
        /// Drafted tokens that outputs have.
        accepted_tokens: u64 => Counter "spec_decode_num_accepted_tokens_total" ("Drafted tokens that stood.");
        /// Nanoseconds of passes that draft, not in `prefill_ns` and `decode_ns`.
        drafting_ns: u64 => CounterOfSeconds "spec_decode_drafting_seconds_total" ("Seconds in passes that draft.");
        /// Constraints of requests that were compiled without an error.
        grammars_compiled: u64 => Counter "grammars_compiled_total" ("Constraints compiled.");
        /// Constraints of requests that were found compiled.
        grammars_reused: u64 => Counter "grammars_reused_total" ("Constraints found compiled.");
        /// Nanoseconds of compiling, on threads that submit.
        grammar_compile_ns: u64 => CounterOfSeconds "grammar_compile_seconds_total" ("Seconds of compiling constraints.");
        /// Masks computed: which tokens a constraint allows next.
        masks: u64 => Counter "masks_total" ("Masks of constraints computed.");
        /// Nanoseconds that they took, beside the forward passes.
        mask_ns: u64 => CounterOfSeconds "mask_seconds_total" ("Seconds of computing masks.");
        /// Nanoseconds that sampling waited for them, summed over requests.
        mask_wait_ns: u64 => CounterOfSeconds "mask_wait_seconds_total" ("Seconds that sampling waited for masks.");
        /// Gates of feed-forwards with ReLU² (BitNet b1.58 2B-4T) that passes with up to four tokens
        /// looked at.
        ffn_gates: u64 => Counter "ffn_gates_total" ("Gates of ReLU² in passes of few tokens.");
        /// Gates that are shut, which make their value zero.
        ffn_gates_shut: u64 => Counter "ffn_gates_shut_total" ("Gates of ReLU² that made a zero.");

        /// 1 while `bn_engine_pause` is in force, else 0.
        engine_paused: u64 => Gauge "engine_paused" ("Whether the host has paused the engine.");
        /// Compute threads that take part (`bn_engine_set_threads`).
        threads: u64 => Gauge "compute_threads" ("Threads that compute.");
        /// Bytes of mapped weights whose pages were released (`idle_release_ms`); 0 again once a
        /// request runs.
        weights_released_bytes: u64 => Gauge "weights_released_bytes" ("Mapped weights released while idle.");
        /// Times that this happened.
        weight_releases: u64 => Counter "weight_releases_total" ("Times that mapped weights were released.");

        /// Prompt tokens that were read from `cache_path`; most are then in `cached_tokens`.
        disk_tokens: u64 => Counter "external_prefix_cache_hits_total" ("Prompt tokens read from disk.");
        /// Prefixes that requests began to wait for from there.
        disk_fetches: u64 => Counter "disk_cache_fetches_total" ("Prefixes ordered from disk.");
        /// Prefixes of these that took longer than computing them would have.
        disk_fetches_late: u64 => Counter "disk_cache_fetches_late_total" ("Prefixes from disk that took too long.");
        /// Bytes read from there.
        disk_read_bytes: u64 => Counter "disk_cache_read_bytes_total" ("Bytes read from the disk cache.");
        /// Nanoseconds of reading, on a thread of its own.
        disk_read_ns: u64 => CounterOfSeconds "disk_cache_read_seconds_total" ("Seconds of reading the disk cache.");
        /// Bytes written there.
        disk_written_bytes: u64 => Counter "disk_cache_written_bytes_total" ("Bytes written to the disk cache.");
        /// Nanoseconds of writing, on the same thread.
        disk_write_ns: u64 => CounterOfSeconds "disk_cache_write_seconds_total" ("Seconds of writing the disk cache.");
        /// Blocks and states that left memory and were not written, as that failed or was too slow.
        disk_dropped: u64 => Counter "disk_cache_dropped_total" ("Blocks and states not written.");
        /// Files there that were damaged.
        disk_damaged: u64 => Counter "disk_cache_damaged_total" ("Damaged files of the disk cache.");
        /// Bytes of the files there that this engine knows.
        disk_bytes: u64 => Gauge "disk_cache_bytes" ("Bytes of the disk cache.");
    }
}
