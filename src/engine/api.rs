//! The engine's Rust interface: plain types that `ffi` converts to and from C.

use crate::model::{Loaded, Model};
use crate::sample::SamplingParams;
use std::borrow::Cow;
use std::sync::Arc;

pub use crate::cache::CacheEvent;
pub use crate::constrain::{Constraint, ConstraintKind, JsonOptions, WhiteSpace};
pub use crate::engine::hub::Stage;
pub use crate::engine::hub::ids::{RequestId, Which};
pub use crate::engine::request::adapters::{Adapted, Adapter};
pub use crate::engine::request::event::{Embedding, Event, FinishReason, Logprob, Usage};
pub use crate::engine::request::scores::ScoreParams;
pub use crate::engine::request::tool_calls::{CallText, CallView, TextView, ToolCalls};
pub use crate::engine::watch::buckets::{LATENCY_BOUNDS_NS, LENGTH_BOUNDS};
pub use crate::engine::watch::efficiency::{Efficiency, HeldBack, StepCost};
pub use crate::engine::watch::spans::{Span, SpanKind, SpanSink, TraceContext};
pub use crate::engine::watch::table::{LATENCY_BUCKETS, LENGTH_BUCKETS, Latency, Lengths, Stats};
pub use crate::kernels::Isa;
pub use crate::kernels::attention::KvType;
pub use crate::model::{LoadOptions, Pooling, Source, WeightType};
pub use crate::text::Message;

/// Called with (level, message) from any thread.
pub type LogSink = Arc<dyn Fn(u32, &str) + Send + Sync>;
/// Called with (fraction 0..=1, stage) while loading. If it returns true, loading ends with `Cancelled`.
pub type ProgressSink = Box<dyn FnMut(f32, &str) -> bool + Send>;
/// Called on the delivery thread with each event.
pub type EventSink = Box<dyn FnMut(&Event) + Send>;

/// Timeout value for "no timeout", whatever the engine's default is.
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

/// Called before each token of a request, on any of the engine's threads. If it returns anything but 0, the
/// request fails.
#[derive(Clone)]
pub struct LogitsHook(pub Arc<dyn Fn(&mut LogitsRow) -> i32 + Send + Sync>);

impl std::fmt::Debug for LogitsHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogitsHook")
    }
}

/// Options for opening a model that several engines share.
pub struct ModelConfig {
    pub source: Source,
    pub options: LoadOptions,
    /// Threads that load the model, 1..=256; 0: as many as the CPUs that this process may use.
    pub threads: u32,
    pub log: Option<LogSink>,
    pub log_level: u32,
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

/// Configuration of an engine. `Engine::create` checks the ranges; its errors name the field and the range.
pub struct EngineConfig {
    /// A loaded model, which several engines may share. None: the model is loaded from `model_path`.
    pub model: Option<Loaded>,
    /// None: the embedded model. Otherwise `builtin:echo`, `builtin:echo?us_per_token=N&load_ms=N`, or the path of
    /// a file.
    pub model_path: Option<String>,
    /// 1..=256; 0: as many as the CPUs that this process may use.
    pub threads: u32,
    /// Maximum number of sequences in a step, 1..=4096; 1 is sequential mode.
    pub max_batch_size: u32,
    /// Maximum number of rows in a step, max_batch_size..=65536. 0: 512, or max_batch_size if that is more; with an
    /// encoder, which runs a text in one step, as many as its longest text has, if memory allows.
    pub max_batch_tokens: u32,
    /// Maximum number of tokens of one request, prompt and output; 0: the model's context length, or as many as
    /// fit in half of the free memory.
    pub context_length: u32,
    /// Tokens per KV block: 16, 32, 64 or 128.
    pub kv_block_size: u32,
    /// Element type of the KV cache. Models that keep something else there (`builtin:echo`) have their own.
    pub kv_type: KvType,
    /// Limit for weights, KV, workspace, queued prompts and buffered events, in bytes. 0: no limit, and KV takes
    /// at most half of the free memory.
    pub memory_limit_bytes: u64,
    /// Maximum size of the KV cache; 0: what the machine and `memory_limit_bytes` leave, up to a whole sequence
    /// per batch slot.
    pub kv_cache_bytes: u64,
    /// Maximum number of snapshots of states, in a model with recurrent layers; 0: as many as `max_batch_size`, and at
    /// least 8.
    pub snapshots: u32,
    /// Tokens of a prompt between two snapshots of its state, rounded up to whole KV blocks; 0: only at the ends of
    /// prompts, and where prompts were seen to diverge.
    pub snapshot_interval: u32,
    /// Maximum number of prefix cache changes that wait for `Engine::kv_events`, 0..=1048576; 0: the host
    /// reads none.
    pub kv_events_capacity: u32,
    /// Limit for the unpolled output of a streaming request, in bytes as `memory_limit_bytes` counts them. Beyond
    /// it the request is paused, or ends (`RequestParams::end_unread`). 0: no limit.
    pub max_unread_bytes: u64,
    /// Maximum number of unreleased requests, 1..=1048576.
    pub queue_capacity: u32,
    /// Maximum number of prompt tokens of queued requests. A request may exceed it if none is queued. 0: no bound.
    pub queue_token_capacity: u64,
    /// Time that the first step of an idle engine waits for further requests, in microseconds, 0..=1000000.
    pub max_wait_us: u32,
    /// Target upper bound for the time of a step that has decode rows; prompts are cut to keep it. 1..=60000.
    pub max_step_ms: u32,
    /// Target upper bound for the time between two tokens; limits how many requests run together. 0..=60000; 0: no
    /// target, as many run as fit.
    pub target_itl_ms: u32,
    /// A request of priority 255 precedes one of priority 0 that was submitted up to this much earlier.
    /// 0..=3600000.
    pub priority_ageing_ms: u32,
    /// Timeout of requests that set none; 0: none.
    pub default_timeout_ms: u32,
    /// Some: callback mode.
    pub on_event: Option<EventSink>,
    pub log: Option<LogSink>,
    /// LOG_*; 0 is silent.
    pub log_level: u32,
    /// Name of the model in the metrics; None: the model's own.
    pub model_name: Option<String>,
    /// Receives the spans of requests with a `trace`.
    pub on_span: Option<SpanSink>,
    /// Part of the memory limit that is kept free for adapters, besides requests. 0: adapters share memory with
    /// requests.
    pub adapter_bytes: u64,
    /// Instruction set of the CPU kernels; None: the best that the machine has. The results are the same.
    pub instructions: Option<Isa>,
    /// "cpu" (also if empty), or "cuda:0" and so on, or several CUDA devices separated by commas. Each device has
    /// its own copy of the model, its own KV cache and its own engine thread.
    pub device: String,
    /// Default for requests that set none. None: a model drafts if there is one, else look-ups draft as long as
    /// they gain.
    pub speculation: Option<Speculation>,
    /// The model that drafts tokens for requests that ask for it. It must have the same vocabulary.
    pub draft_model: Option<Loaded>,
    /// Maximum number of drafted tokens per step of a request, 0..=15; 0: the largest possible number.
    pub draft_tokens: u32,
    /// Drafts run regardless of their predicted cost. For tests, which must not depend on measured times.
    pub draft_always: bool,
    /// Idle time in milliseconds after which the pages of mapped weights are released; 0: never.
    pub idle_release_ms: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model: None,
            model_path: None,
            threads: 0,
            max_batch_size: 32,
            max_batch_tokens: 0,
            context_length: 0,
            kv_block_size: 32,
            kv_type: KvType::F16,
            memory_limit_bytes: 0,
            kv_cache_bytes: 0,
            snapshots: 0,
            snapshot_interval: 512,
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
            idle_release_ms: 0,
        }
    }
}

/// Whether an `EngineConfig.device` is the CPU.
pub fn is_cpu(device: &str) -> bool {
    matches!(device, "" | "cpu")
}

impl EngineConfig {
    /// Whether something drafts for `model`: the draft model, or the model itself.
    pub fn drafts(&self, model: &dyn Model) -> bool {
        self.draft_model.is_some() || model.drafts()
    }

    /// Whether the engine computes on the CPU.
    pub fn on_cpu(&self) -> bool {
        is_cpu(&self.device)
    }

    /// The speculation mode of requests to `model` that set none.
    pub fn speculates(&self, model: &dyn Model) -> Speculation {
        self.speculation.unwrap_or_else(|| {
            if self.drafts(model) {
                Speculation::Model
            } else if self.on_cpu() {
                Speculation::Auto
            } else {
                // A step with drafts is not replayed as a graph, and its cost has not been measured on a
                // device.
                Speculation::Off
            }
        })
    }
}

#[derive(Clone, Debug)]
pub enum Prompt<'a> {
    Text(Cow<'a, str>),
    Tokens(Cow<'a, [u32]>),
    /// A conversation, which the model's chat template turns into a prompt.
    Chat(Cow<'a, [Message<'a>]>),
    /// A conversation with tools, as JSON (`text::Chat`).
    ChatJson(Cow<'a, str>),
    /// Two texts, a query and a document, for a score.
    Pair(Cow<'a, str>, Cow<'a, str>),
}

/// Options of a request for an embedding.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct EmbeddingParams {
    /// None: the model's own, `Facts::pooling`.
    pub pooling: Option<Pooling>,
    /// Divide the vector by its Euclidean length. None: unless `Facts::raw_embeddings`.
    pub normalize: Option<bool>,
    /// The vector is the score of a `Prompt::Pair`, one number within 0 and 1.
    pub score: bool,
}

/// Source of drafted tokens for a request. The model verifies several of them in one step; the output is the same
/// with and without drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    Off,
    /// The request's own text: the tokens that followed an earlier occurrence of its last tokens.
    Lookup,
    /// `Lookup`, as long as such requests gain from it.
    Auto,
    /// The engine's draft model, or the model's own block of multi-token prediction.
    Model,
}

/// A request. Fields borrow if they can: the data is not needed once the request is submitted.
#[derive(Clone, Debug)]
pub struct RequestParams<'a> {
    pub prompt: Prompt<'a>,
    /// Some: the request asks for the prompt's embedding and generates nothing. `max_new_tokens` is then ignored,
    /// and all other options of the output must have their defaults.
    pub embedding: Option<EmbeddingParams>,
    /// Some: the request asks for log probabilities of the prompt's own tokens, along with those of the other tokens
    /// that `sampling` asks for.
    pub scores: Option<ScoreParams>,
    /// 0: as many as `context_length` leaves.
    pub max_new_tokens: u32,
    pub sampling: SamplingParams,
    pub stop_tokens: Cow<'a, [u32]>,
    /// The output ends before the first of these strings; none may be empty.
    pub stop_strings: Vec<Cow<'a, str>>,
    /// Strings that must not occur in the output, alone or after a space, as the tokens that the tokenizer makes
    /// of them.
    pub bad_words: Vec<Cow<'a, str>>,
    /// The grammar that the output must match.
    pub constraint: Option<Constraint<'a>>,
    /// Spelling of JSON in tool calls. A constraint has its own.
    pub json: JsonOptions,
    pub on_logits: Option<LogitsHook>,
    pub ignore_eos: bool,
    /// Return the prompt's text and ids in front of the output.
    pub echo_prompt: bool,
    /// False: the completion is one event, with the whole output.
    pub stream: bool,
    pub poll_by_id: bool,
    /// Events separate text, reasoning and tool calls; for `Prompt::ChatJson`.
    pub parse_output: bool,
    /// Tokens of reasoning after which its end marker is forced, with `parse_output`; `u64::MAX`: no bound.
    pub max_reasoning_tokens: u64,
    /// Special tokens that are spelled out in a text prompt are recognized.
    pub parse_special: bool,
    pub user_data: u64,
    /// Milliseconds from submit to the end; 0: the engine's default; TIMEOUT_NONE: none.
    pub timeout_ms: u32,
    /// Milliseconds from submit to admission; 0: none.
    pub queue_timeout_ms: u32,
    /// The request ends, instead of being paused, when too much of its output is not polled.
    pub end_unread: bool,
    /// The request ends early once its first token is not expected by `queue_timeout_ms`.
    pub drop_late: bool,
    /// 255 is the most urgent.
    pub priority: u8,
    /// False: the request takes nothing from the prefix cache and leaves nothing there.
    pub cache: bool,
    /// Requests with different salts share no prefix.
    pub cache_salt: u64,
    /// When the request ends, its KV is kept under this name (1 to 256 bytes) and replaces the session that had
    /// the name.
    pub session: Option<Cow<'a, str>>,
    /// Some: the request's spans go to `EngineConfig::on_span`.
    pub trace: Option<TraceContext>,
    /// The adapter of this engine that the request runs with.
    pub adapter: Option<Adapted>,
    /// None: the engine's default.
    pub speculation: Option<Speculation>,
    /// Maximum number of drafted tokens per step, 0..=15; 0: the engine's default.
    pub draft_tokens: u32,
}

impl RequestParams<'_> {
    /// Returns whether the request asks for an output.
    pub fn generates(&self) -> bool {
        self.embedding.is_none() && self.scores.is_none_or(|scores| scores.generates)
    }

    /// Returns whether the request asks for the score of a pair of texts.
    pub fn scores_pair(&self) -> bool {
        self.embedding.as_ref().is_some_and(|embedding| embedding.score)
    }
}

/// Priority of requests that set none.
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
            json: JsonOptions::default(),
            on_logits: None,
            ignore_eos: false,
            echo_prompt: false,
            stream: true,
            poll_by_id: false,
            parse_output: false,
            max_reasoning_tokens: u64::MAX,
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
