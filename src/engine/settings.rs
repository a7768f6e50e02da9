//! Every setting of an engine, once: its name, meaning, C type, and for a number its default and range. Other settings
//! have their type in Rust, and ranges that depend on more are checked in `handle/config.rs`. The build script makes
//! `bn_engine_config` of the header from this file, so comments here are the header's.

/// Calls a macro with the table.
macro_rules! settings {
    ($with:ident) => {
        $with! {
            /// How to make an engine. What contexts point to must live until `bn_engine_free` returns.
            pub struct EngineConfig {
                /// Compute threads, 1 to 256. 0: the CPUs that this process may use.
                threads: u32 = 0;
                /// The engine keeps its own reference. NULL: `model_path`.
                model: *mut bn_model => Option<Loaded>;
                /// As `bn_model_config.path`, for a model of this engine alone. Not set, with `model` NULL
                /// too: the model that is embedded in the library.
                model_path: bn_string => Option<String>;
                /// The model's name in metrics. Not set: `bn_model_info.name`.
                model_name: bn_string => Option<String>;
                /// A small model with the same vocabulary that drafts tokens for `model` to verify. The engine
                /// keeps its own reference. Its weights, states and part of each KV block count against
                /// `memory_limit_bytes`.
                draft_model: *mut bn_model => Option<Loaded>;
                /// Where forward passes run: `cpu`, also if not set, or NVIDIA devices of one type of those
                /// that `CUDA_VISIBLE_DEVICES` leaves, `cuda:0` or `cuda:0,cuda:1`. Answers equal the CPU's to
                /// the bit, except with F16 and BF16 weights and with `kv_type` F16, where they are near.
                ///
                /// Each device has the whole model and a KV cache, and runs up to `max_batch_size` requests.
                /// `memory_limit_bytes`, `kv_cache_bytes` and the free memory are each device's, in `bn_stats`
                /// they are summed; the queue's limits are the engine's. If one of several devices is lost,
                /// requests that ran there fail with `BN_ERR_ENGINE_DEAD`, its sessions are gone, and the
                /// engine goes on.
                device: bn_string => String;

                /// `BN_INSTRUCTIONS_*`. One that the machine lacks is refused. Results are bitwise the same
                /// with any.
                instructions: u32 => Option<Isa>;
                /// The most tokens of one request, prompt and output together: 2 to the model's own
                /// `context_length`. 0: that, or without `memory_limit_bytes` less if the KV cache holds no
                /// more (`bn_stats.context_length`).
                context_length: u32 = 0;
                /// The most requests in a forward pass, 1 to 4096, default 32.
                max_batch_size: u32 = 32, 1..=4096;
                /// The most tokens in a forward pass, `max_batch_size` to 65536. 0: 512, or more if
                /// `max_batch_size` is. An encoder runs a text in one pass: with 0 its passes hold
                /// `context_length` tokens, or as many as there is memory for.
                max_batch_tokens: u32 = 0;
                /// How long an idle engine waits for more requests before its first step, up to 1000000 us.
                max_wait_us: u32 = 0, 0..=1_000_000;
                /// How long a step with running answers should last at most, 1 to 60000 ms, default 200.
                /// Prompts are cut so that its predicted time is below seven eighths of that, or if this is
                /// more, 1.75 times the answers' time.
                max_step_ms: u32 = 200, 1..=60_000;
                /// The time between two tokens of an answer to aim at, up to 60000 ms: requests wait while a
                /// step with them is predicted to take longer, but one always runs, and none is interrupted.
                /// If lower, it replaces `max_step_ms` in steps with prompts. 0: as many run as fit.
                target_itl_ms: u32 = 0, 0..=60_000;
                /// How much later than one of priority 0 a request of priority 255 may be submitted and still
                /// come first, up to 3600000 ms, default 30000; others proportionally. 0: order of arrival.
                priority_ageing_ms: u32 = 30_000, 0..=3_600_000;

                /// The most requests, from submit to `bn_request_free`, 1 to 1048576, default 1024.
                queue_capacity: u32 = 1024, 1..=1 << SLOT_BITS;
                /// `bn_request_params.timeout_ms` of requests that set none.
                default_timeout_ms: u32 = 0;
                /// The most prompt tokens of queued requests together. More give `BN_ERR_QUEUE_FULL`, unless
                /// none is queued.
                queue_token_capacity: u64 = 0;

                /// The most bytes for weights, KV cache, workspace, prompts, outputs and events together.
                /// Weights count whole, also of a shared model; a prompt from submit on, an output as it
                /// grows, 16 tokens at a time. A request that gets no more memory is paused until others give
                /// some back, never shortened. 0: none, but the KV cache takes at most half of what the
                /// machine, the process's control groups and its own limits (`ulimit -v`) leave.
                memory_limit_bytes: u64 = 0;
                /// The most bytes of the KV cache, which takes no more than `memory_limit_bytes` leaves, or
                /// `max_batch_size` requests of `context_length` need. 0: these bounds alone.
                kv_cache_bytes: u64 = 0;
                /// Bytes of `memory_limit_bytes` that the KV cache leaves for adapters, besides those for
                /// requests. 0: adapters take from the requests' part.
                adapter_bytes: u64 = 0;
                /// The most bytes of output, as `memory_limit_bytes` counts them, that a streaming request may
                /// have unread. Beyond that it is paused until they are polled or delivered, or ends
                /// (`BN_REQUEST_END_UNREAD`). Default 4194304; 0: no limit.
                max_unread_bytes: u64 = 4 << 20;
                /// How long without a request, or in a pause, until the engine releases the pages of weights
                /// that are mapped from files, up to 604800000 ms. The next request reads them again. Weights
                /// that were packed or converted at load, and those on devices, stay. 0: never.
                idle_release_ms: u64 = 0, 0..=604_800_000;
                /// Tokens per KV block: 16, 32 (default), 64 or 128.
                kv_block_size: u32 = 32;
                /// `BN_KV_TYPE_*`, the type of keys and values. Not for `builtin:echo`.
                kv_type: u32 => KvType;
                /// Changes of the prefix cache to keep for `bn_kv_events`, up to 1048576; there is room for
                /// twice as many as the cache has blocks. 0: none.
                kv_events_capacity: u32 = 0, 0..=1 << 20;
                /// For models with recurrent layers, whose state is not in the KV cache: the most states to
                /// keep for later requests with the same prefix, up to 65536. 0: `max_batch_size`, at least 8.
                /// States count against `memory_limit_bytes`; with little memory there are fewer of them, and
                /// fewer requests run together.
                snapshots: u32 = 0, 0..=1 << 16;
                /// Tokens of a prompt between two such states, up to 16777216, rounded up to KV blocks, default
                /// 512. 0: only at the ends of prompts, and where prompts were seen to diverge.
                snapshot_interval: u32 = 512, 0..=1 << 24;

                /// `BN_SPECULATION_*` of requests that do not set it.
                speculation: u32 => Option<Speculation>;
                /// `bn_request_params.draft_tokens` of requests that do not set it, up to 15. 0: as many as
                /// save time.
                draft_tokens: u32 = 0, 0..=MAX_DRAFT as i64;

                /// The most detailed level that `log` gets, `BN_LOG_*`. Default `BN_LOG_WARN`.
                log_level: u32 = LOG_WARN;
                /// Receives the log.
                log: bn_log_callback, log_context: *mut c_void => Option<LogSink>;
                /// Receives each event: callback mode. NULL: poll mode.
                on_event: bn_event_callback, on_event_context: *mut c_void => Option<EventSink>;
                /// Receives the spans of requests that have a `trace_id`.
                on_span: bn_span_callback, on_span_context: *mut c_void => Option<SpanSink>;

                /// A folder to keep prefixes in that leave the prefix cache, all of them at the end of the
                /// engine. It is made if it is missing. Requests whose prompt begins with one take it from
                /// there, if that is faster than computing it; answers are the same. Engines and processes
                /// may share a folder: one at a time writes to it, for one model and `kv_type`. Prompts can
                /// be read from its files. Not for encoders. Not set: none.
                cache_path: bn_string => Option<String>;
                /// The most bytes of files there, for one model and `kv_type`, default 10737418240. Those
                /// not used for the longest time go.
                cache_bytes: u64 = 10_737_418_240;
                /// Bytes of the machine's memory for prefixes that leave the prefix cache of a device, beside
                /// `memory_limit_bytes`, which is the device's. With a `cache_path` too, files are kept there
                /// as they are read and written. 0: none. Not for the CPU, whose memory has the cache.
                host_cache_bytes: u64 = 0;
                /// The most vectors of a picture, 0 to 65536, default 4096. The model's own bound counts if it
                /// is lower. Larger pictures are made smaller where the model lets them (Qwen, Gemma 4), and
                /// refused elsewhere. Gemma's run in one step: max_batch_tokens bounds them too. Memory for one
                /// of this size is set aside. 0: pictures are refused.
                picture_tokens: u64 = 4096, 0..=65_536;
            }
        }
    };
}
pub(crate) use settings;

#[cfg(test)]
mod tests {
    use crate::engine::api::LOG_WARN;
    use crate::engine::hub::ids::SLOT_BITS;
    use crate::schedule::MAX_DRAFT;
    use std::ops::RangeInclusive;

    macro_rules! rows {
        ($(#[doc = $about:literal])+ pub struct $config:ident {$(
            $(#[doc = $doc:literal])+
            $field:ident: $c:ty $(, $context:ident: $pointer:ty)?
                $(=> $rust:ty)? $(= $default:expr $(, $range:expr)?)?;
        )+}) => {
            /// Name, help, and for numbers default and range.
            const ROWS: &[(&str, &str, &[i64], &[RangeInclusive<i64>])] = &[$(
                (stringify!($field), concat!($($doc),+), &[$($default as i64)?], &[$($($range)?)?]),
            )+];
        };
    }
    settings!(rows);

    #[test]
    fn help_names_ranges_and_defaults() {
        for (name, help, defaults, ranges) in ROWS {
            let says = |number: &i64| {
                help.split(|c: char| !c.is_ascii_digit()).any(|word| word == number.to_string())
            };
            let numbers = ranges.iter().flat_map(|range| [range.start(), range.end()]).chain(*defaults);
            for number in numbers.filter(|number| **number != 0 && *name != "log_level") {
                assert!(says(number), "the help of {name} lacks {number}");
            }
        }
    }
}
