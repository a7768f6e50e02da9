//! The engine's Rust face: plain types that `ffi` converts to and from C.

use crate::model::Loaded;
use crate::sample::SamplingParams;
use std::borrow::Cow;
use std::sync::Arc;

pub use super::adapters::{Adapted, Adapter};
pub use super::efficiency::{Efficiency, HeldBack, StepCost};
pub use super::event::{Embedding, Event, FinishReason, Logprob, Usage};
pub use super::hub::Stage;
pub use super::ids::{RequestId, Which};
pub use super::loading::open_model;
pub use super::scores::ScoreParams;
pub use super::spans::{Span, SpanKind, SpanSink, TraceContext};
pub use super::tool_calls::{CallText, CallView, TextView, ToolCalls};
pub use crate::cache::CacheEvent;
pub use crate::constrain::{Constraint, ConstraintKind};
pub use crate::kernels::Isa;
pub use crate::kernels::attention::KvType;
pub use crate::model::{LoadOptions, Pooling, Source, WeightType};
pub use crate::text::Message;

/// Called with (level, message) from any thread.
pub type LogSink = Arc<dyn Fn(i32, &str) + Send + Sync>;
/// Called with (fraction 0..=1, what) while loading; true ends it as `Cancelled`.
pub type ProgressSink = Box<dyn FnMut(f32, &str) -> bool + Send>;
/// Called on the delivery thread with each event.
pub type EventSink = Box<dyn FnMut(&Event) + Send>;

/// A request's timeout that is none, whatever the engine's default is.
pub const TIMEOUT_NONE: u32 = u32::MAX;

pub use crate::base::log::{
    DEBUG as LOG_DEBUG, ERROR as LOG_ERROR, INFO as LOG_INFO, OFF as LOG_OFF, WARN as LOG_WARN,
};

/// A row of logits that the host may change.
pub struct LogitsRow<'a> {
    pub user_data: u64,
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    pub logits: &'a mut [f32],
}

/// Called before each token of a request, on any of the engine's threads; other than 0: the request fails.
#[derive(Clone)]
pub struct LogitsHook(pub Arc<dyn Fn(&mut LogitsRow) -> i32 + Send + Sync>);

impl std::fmt::Debug for LogitsHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogitsHook")
    }
}

/// How to open a model that engines share.
pub struct ModelConfig {
    pub source: Source,
    pub options: LoadOptions,
    /// That load, 0: the CPUs that this process may use. 1..=256.
    pub threads: u32,
    pub log: Option<LogSink>,
    pub log_level: i32,
    pub progress: Option<ProgressSink>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            source: Source::Embedded,
            options: LoadOptions::default(),
            threads: 0,
            log: None,
            log_level: LOG_WARN,
            progress: None,
        }
    }
}

/// Ranges are checked by `Engine::create`, which names the field and the range.
pub struct EngineConfig {
    /// A model that is open already, which engines share; None: `model_path` is loaded.
    pub model: Option<Loaded>,
    /// None: the embedded model. `builtin:echo`, `builtin:echo?us_per_token=N&load_ms=N`, or a file's path.
    pub model_path: Option<String>,
    /// 0: the CPUs that this process may use. 1..=256.
    pub threads: u32,
    /// Sequences in a step. 1..=4096; 1 is sequential mode.
    pub max_batch_size: u32,
    /// Rows in a step. max_batch_size..=65536.
    pub max_batch_tokens: u32,
    /// Prompt plus new tokens of one request; 0: the model's context length, or what half of the free memory holds.
    pub max_sequence_length: u32,
    /// Tokens per KV block: 16, 32, 64 or 128.
    pub kv_block_size: u32,
    /// What K and V are stored in; models that keep something else there (`builtin:echo`) have their own.
    pub kv_type: KvType,
    /// Weights, KV, workspace, queued prompts and buffered events; 0: no limit, and KV takes at most half of what is
    /// free.
    pub memory_limit_bytes: u64,
    /// At most; 0: what the machine and `memory_limit_bytes` leave, up to a whole sequence for each place in the batch.
    pub kv_cache_bytes: u64,
    /// Changes of the prefix cache that wait for `Engine::kv_events`, at most; 0: nobody asks. 0..=1048576.
    pub kv_events_capacity: u32,
    /// What a request that streams may have given and nobody polled, in bytes as `memory_limit_bytes` counts them; then
    /// it is paused, or ends (`RequestParams::end_unread`). 0: no limit.
    pub max_unread_bytes: u64,
    /// Unreleased requests at a time. 1..=1048576.
    pub queue_capacity: u32,
    /// Prompt tokens of queued requests at a time; a request that finds none queued may pass it. 0: no bound.
    pub queue_token_capacity: u64,
    /// How long an idle engine's first step waits for company. 0..=1000000.
    pub max_wait_us: u32,
    /// Target upper bound of a step that carries decode rows, by cutting prompts. 1..=60000.
    pub max_step_ms: u32,
    /// Target upper bound of the time between two tokens: no more requests run together than keep it. 0: none, as
    /// many as fit. 0..=60000.
    pub target_itl_ms: u32,
    /// How much later a request of priority 255 may be submitted than one of priority 0 and still come first.
    /// 0..=3600000.
    pub priority_ageing_ms: u32,
    /// For requests that set none; 0: none.
    pub default_timeout_ms: u32,
    /// Some: callback mode.
    pub on_event: Option<EventSink>,
    pub log: Option<LogSink>,
    /// LOG_*; 0 is silent.
    pub log_level: i32,
    /// In the metrics; None: the model's own.
    pub model_name: Option<String>,
    /// Gets the spans of requests with a `trace`.
    pub on_span: Option<SpanSink>,
    /// Of the memory limit: what is left free for adapters, beside requests. 0: they share with requests.
    pub adapter_bytes: u64,
    /// What the CPU's kernels use; None: the best that the machine has. The results are the same.
    pub instructions: Option<Isa>,
    /// "cpu" (also where it is empty), or "cuda:0" and so on, or several such with commas between them. Each device has the
    /// model and a KV cache of its own, and a thread that runs its requests.
    pub device: String,
    /// Of requests that do not say; None: by the draft model, if there is one.
    pub speculation: Option<Speculation>,
    /// Drafts for requests that ask for it. It has the model's vocabulary.
    pub draft_model: Option<Loaded>,
    /// Tokens drafted for one step of a request, at most; 0: as many as there can be. 0..=15.
    pub draft_tokens: u32,
    /// Drafts run whatever they seem to cost: for tests, which do not depend on measured times.
    pub draft_always: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: None,
            model_path: None,
            threads: 0,
            max_batch_size: 32,
            max_batch_tokens: 512,
            max_sequence_length: 0,
            kv_block_size: 32,
            kv_type: KvType::F16,
            memory_limit_bytes: 0,
            kv_cache_bytes: 0,
            max_unread_bytes: 4 << 20,
            kv_events_capacity: 0,
            queue_capacity: 1024,
            queue_token_capacity: 0,
            max_wait_us: 0,
            max_step_ms: 200,
            target_itl_ms: 0,
            priority_ageing_ms: 30_000,
            default_timeout_ms: 0,
            on_event: None,
            log: None,
            log_level: LOG_WARN,
            model_name: None,
            adapter_bytes: 0,
            on_span: None,
            instructions: None,
            device: String::new(),
            speculation: None,
            draft_model: None,
            draft_tokens: 0,
            draft_always: false,
        }
    }
}

impl EngineConfig {
    /// How requests draft that do not say.
    pub fn speculates(&self) -> Speculation {
        let default = if self.draft_model.is_some() { Speculation::Model } else { Speculation::Off };
        self.speculation.unwrap_or(default)
    }
}

#[derive(Clone, Debug)]
pub enum Prompt<'a> {
    Text(Cow<'a, str>),
    Tokens(Cow<'a, [u32]>),
    /// A conversation, which the model's chat template makes a prompt of.
    Chat(Cow<'a, [Message<'a>]>),
    /// The same with tools, as JSON (`text::Chat`).
    ChatJson(Cow<'a, str>),
}

/// What a request for an embedding asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingParams {
    /// None: the model's own, `Facts::pooling`.
    pub pooling: Option<Pooling>,
    /// Divide the vector by its Euclidean length.
    pub normalize: bool,
}

impl Default for EmbeddingParams {
    fn default() -> Self {
        Self { pooling: None, normalize: true }
    }
}

/// What drafts tokens for a request. The model verifies several of them in one step; its output is the same without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    Off,
    /// The request's own text: what followed its last tokens where they came before.
    Lookup,
    /// The engine's draft model.
    Model,
}

/// Borrowed where it can be: nothing of it is needed once the request is submitted.
#[derive(Clone, Debug)]
pub struct RequestParams<'a> {
    pub prompt: Prompt<'a>,
    /// Some: the request is for the prompt's embedding, and generates nothing. `max_new_tokens` is not looked at
    /// then, and what else shapes an output must have its default.
    pub embedding: Option<EmbeddingParams>,
    /// Some: log probabilities of the prompt's own tokens, with those that `sampling` asks for.
    pub scores: Option<ScoreParams>,
    /// 0: as many as `max_sequence_length` leaves.
    pub max_new_tokens: u32,
    pub sampling: SamplingParams,
    pub stop_tokens: Cow<'a, [u32]>,
    /// The text stops before the first of these; none may be empty.
    pub stop_strings: Vec<Cow<'a, str>>,
    /// Texts that do not come, alone or behind a space, as the tokens that the tokenizer makes of them.
    pub bad_words: Vec<Cow<'a, str>>,
    /// What the output must match.
    pub constraint: Option<Constraint<'a>>,
    pub on_logits: Option<LogitsHook>,
    pub ignore_eos: bool,
    /// Give the prompt's text and ids back in front of the output.
    pub echo_prompt: bool,
    /// False: one event, the completion, with everything.
    pub stream: bool,
    pub poll_by_id: bool,
    /// Events have text, reasoning and calls of tools apart; for `Prompt::ChatJson`.
    pub parse_output: bool,
    /// Special tokens written out in a text prompt are recognized.
    pub parse_special: bool,
    pub user_data: u64,
    /// From submit; 0: the engine's default; TIMEOUT_NONE: none.
    pub timeout_ms: u32,
    /// From submit to admission; 0: none.
    pub queue_timeout_ms: u32,
    /// Ends it where it would be paused because its output is not polled.
    pub end_unread: bool,
    /// Ends it early, once its first token is not to be expected by `queue_timeout_ms`.
    pub drop_late: bool,
    /// 255 is the most urgent.
    pub priority: u8,
    /// False: nothing is taken from the prefix cache, and nothing left there.
    pub cache: bool,
    /// Requests with different ones share no prefix.
    pub cache_salt: u64,
    /// When it ends, what it has computed is kept under this name (1 to 256 bytes), and what had it before is not.
    pub session: Option<Cow<'a, str>>,
    /// Some: its spans go to `EngineConfig::on_span`.
    pub trace: Option<TraceContext>,
    /// It runs with this adapter of the engine's.
    pub adapter: Option<Adapted>,
    /// None: the engine's.
    pub speculation: Option<Speculation>,
    /// Tokens drafted for one step, at most; 0: the engine's. 0..=15.
    pub draft_tokens: u32,
}

impl RequestParams<'_> {
    /// It asks for an output.
    pub fn generates(&self) -> bool {
        self.embedding.is_none() && self.scores.is_none_or(|scores| scores.generates)
    }
}

/// Of requests that set none.
pub const PRIORITY_DEFAULT: u8 = 128;

impl Default for RequestParams<'_> {
    fn default() -> Self {
        Self {
            prompt: Prompt::Tokens(Cow::default()),
            embedding: None,
            scores: None,
            max_new_tokens: 128,
            sampling: SamplingParams::default(),
            stop_tokens: Cow::default(),
            stop_strings: Vec::new(),
            bad_words: Vec::new(),
            constraint: None,
            on_logits: None,
            ignore_eos: false,
            echo_prompt: false,
            stream: true,
            poll_by_id: false,
            parse_output: false,
            parse_special: false,
            user_data: 0,
            timeout_ms: 0,
            queue_timeout_ms: 0,
            end_unread: false,
            drop_late: false,
            priority: PRIORITY_DEFAULT,
            cache: true,
            cache_salt: 0,
            session: None,
            trace: None,
            adapter: None,
            speculation: None,
            draft_tokens: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// No new requests; running and queued ones finish.
    Drain,
    /// No new requests; all others are cancelled.
    Cancel,
}

/// Upper bounds of the buckets of a [`Latency`], inclusive, in nanoseconds: 1, 2.5 and 5 of each decade from 10 us on,
/// 100 s and 300 s. One more bucket has what lies above.
pub const LATENCY_BOUNDS_NS: [u64; 23] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    50_000_000_000,
    100_000_000_000,
    300_000_000_000,
];
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS_NS.len() + 1;

/// A distribution of times. The percentiles are in nanoseconds, 0 before the first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub count: u64,
    pub sum_ns: u64,
    /// Samples in each bucket by itself. Unlike percentiles, those of several engines add up.
    pub buckets: [u64; LATENCY_BUCKETS],
}

/// Upper bounds of the buckets of [`Lengths`], inclusive, in tokens: 1, 2 and 5 of each decade up to a million. One more
/// bucket has what lies above.
pub const LENGTH_BOUNDS: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
];
pub const LENGTH_BUCKETS: usize = LENGTH_BOUNDS.len() + 1;

/// A distribution of lengths in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lengths {
    pub count: u64,
    pub sum: u64,
    /// Samples in each bucket by itself.
    pub buckets: [u64; LENGTH_BUCKETS],
}

impl Lengths {
    pub fn record(&mut self, tokens: u64) {
        self.count += 1;
        self.sum += tokens;
        self.buckets[LENGTH_BOUNDS.partition_point(|&bound| bound < tokens)] += 1;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    pub accepted: u64,
    pub rejected_invalid: u64,
    pub rejected_queue_full: u64,
    pub rejected_too_long: u64,
    pub rejected_memory: u64,
    pub rejected_shutdown: u64,
    pub completed_stop: u64,
    pub completed_stop_string: u64,
    pub completed_length: u64,
    pub completed_cancelled: u64,
    pub completed_timed_out: u64,
    pub completed_failed: u64,
    pub completed_embedding: u64,
    /// Waiting for admission, running (together: accepted and not finished), and unreleased in all.
    pub queued: u64,
    pub running: u64,
    pub unreleased: u64,
    /// What `unreleased` may be.
    pub queue_capacity: u64,
    /// Prompt tokens of the waiting ones, and what these may be (0: no bound).
    pub queued_tokens: u64,
    pub queue_token_capacity: u64,
    /// How long the oldest queued request of priority 0 to 63, 64 to 127, 128 to 191 and 192 to 255 has waited.
    pub queue_age_ns: [u64; 4],
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens drafted and verified, and those of them that stood.
    pub drafted_tokens: u64,
    pub accepted_tokens: u64,
    /// Of passes of the draft model.
    pub drafting_ns: u64,
    pub steps: u64,
    /// Steps with decode rows, and those of them that took longer than `max_step_ms`.
    pub decode_steps: u64,
    pub long_steps: u64,
    /// Sequences in the last step (of each device, summed), and the mean over all steps.
    pub last_batch_size: u64,
    pub mean_batch_size: f64,
    /// mean_batch_size / max_batch_size.
    pub batch_utilization: f64,
    /// Sequences in steps, summed over the steps.
    pub batched_requests: u64,
    pub max_batch_size: u64,
    /// Held by running requests.
    pub kv_blocks_used: u64,
    /// Held by none, with prefixes that a later request may take.
    pub kv_blocks_cached: u64,
    /// Cached blocks that were given up for the room.
    pub kv_evictions: u64,
    /// Prompt tokens of first admissions, and those of them that were in the cache.
    pub queried_tokens: u64,
    pub cached_tokens: u64,
    /// Rows computed again after a preemption or a pause; `prompt_tokens` does not count them.
    pub recomputed_tokens: u64,
    pub preemptions: u64,
    pub pauses: u64,
    /// Now.
    pub paused: u64,
    pub sessions: u64,
    pub session_blocks: u64,
    pub kv_blocks_total: u64,
    /// Tokens in a block.
    pub kv_block_size: u64,
    pub kv_bytes: u64,
    /// Prompt and output tokens of one request together, at most.
    pub max_sequence_length: u64,
    /// What invariant 5 counts, and its limit (0: none).
    pub memory_used_bytes: u64,
    pub memory_limit_bytes: u64,
    pub memory_peak_bytes: u64,
    /// Generated tokens over the time spent in steps.
    pub generated_tokens_per_second: f64,
    pub prompt_tokens_per_second: f64,
    /// Over the last ten seconds, whatever they were spent on.
    pub recent_generated_tokens_per_second: f64,
    pub recent_prompt_tokens_per_second: f64,
    /// Of the time in steps, what prompts and what decode rows took; and the time in which nothing could run. All are sums
    /// over the devices. What is left of the uptime of each went into planning, sampling and handing over.
    pub prefill_ns: u64,
    pub decode_ns: u64,
    pub idle_ns: u64,
    pub uptime_ns: u64,
    /// When it was made, since 1970.
    pub made_unix_ns: u64,
    pub queue_wait: Latency,
    pub time_to_first_token: Latency,
    pub inter_token: Latency,
    pub end_to_end: Latency,
    /// Of requests that have ended: admission to the end of the prompt, first token to last, where they got so far; and
    /// the tokens of all of them.
    pub request_prefill: Latency,
    pub request_decode: Latency,
    pub prompt_lengths: Lengths,
    pub generated_lengths: Lengths,
    /// Grammars of accepted requests: compiled, and found compiled; on callers' threads.
    pub grammars_compiled: u64,
    pub grammars_reused: u64,
    pub grammar_compile_ns: u64,
    /// Computed on threads of their own; what sampling waited for them.
    pub masks: u64,
    pub mask_ns: u64,
    pub mask_wait_ns: u64,
    pub efficiency: Efficiency,
    /// That compute, the CPU being one, and those of them that were lost.
    pub devices: u64,
    pub devices_lost: u64,
}
