//! The engine's Rust interface: plain types that `ffi` converts to and from C.

use crate::base::{Result, in_range};
use crate::engine::hub::ids::SLOT_BITS;
use crate::engine::settings::settings;
use crate::model::{Loaded, Model};
use crate::sample::SamplingParams;
use crate::schedule::MAX_DRAFT;
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;

pub use crate::cache::CacheEvent;
pub use crate::constrain::{Constraint, ConstraintKind, JsonOptions, WhiteSpace};
pub use crate::engine::hub::Stage;
pub use crate::engine::hub::ids::{RequestId, Which};
pub use crate::engine::request::adapters::{Adapted, Adapter};
pub use crate::engine::request::decision::{Decision, Decisions, OptionScore, Question, QuestionKind};
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

/// Makes `EngineConfig` of the table of settings.
macro_rules! engine_config {
    ($(#[doc = $about:literal])+ pub struct $config:ident {$(
        $(#[doc = $doc:literal])+
        $field:ident: $c:ty $(, $context:ident: $pointer:ty)?
            $(=> $rust:ty)? $(= $default:expr $(, $range:expr)?)?;
    )+}) => {
        $(#[doc = $about])+
        pub struct $config {
            $($(#[doc = $doc])+ pub $field: engine_config!(@type $c $(=> $rust)?),)+
            /// Drafts run regardless of their predicted cost. For tests, which must not depend on measured times.
            pub draft_always: bool,
        }

        impl Default for $config {
            fn default() -> Self {
                Self { $($field: engine_config!(@default $($default)?),)+ draft_always: false }
            }
        }

        impl $config {
            /// Checks the numbers that have a range in the table.
            pub(crate) fn check_ranges(&self) -> Result<()> {
                $($($(within(stringify!($field), self.$field, $range)?;)?)?)+
                Ok(())
            }
        }
    };
    (@type $c:ty => $rust:ty) => { $rust };
    (@type $c:ty) => { $c };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}
settings!(engine_config);

fn within(name: &str, value: impl TryInto<i64>, range: RangeInclusive<i64>) -> Result<()> {
    in_range(name, value.try_into().unwrap_or(i64::MAX), *range.start(), *range.end())
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

/// A picture of a request.
#[derive(Clone, Debug)]
pub enum Picture<'a> {
    /// A file's bytes: PNG, JPEG, WebP, or GIF, whose first frame counts.
    Encoded(Cow<'a, [u8]>),
    /// `[height, width, 3]`: red, green and blue.
    Pixels { width: u32, height: u32, rgb: Cow<'a, [u8]> },
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
    /// The pictures, in the order of their places in the prompt: the model's tokens for pictures, or the parts of a
    /// conversation of type image.
    pub pictures: Vec<Picture<'a>>,
    /// Some: the request asks for the prompt's embedding and generates nothing. `max_new_tokens` is then ignored,
    /// and all other options of the output must have their defaults.
    pub embedding: Option<EmbeddingParams>,
    /// Some: the request asks for log probabilities of the prompt's own tokens, along with those of the other tokens
    /// that `sampling` asks for.
    pub scores: Option<ScoreParams>,
    /// Some: the request asks these questions about the prompt, and generates nothing. Options as with `embedding`.
    pub questions: Option<Vec<Question<'a>>>,
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
        self.embedding.is_none()
            && self.questions.is_none()
            && self.scores.is_none_or(|scores| scores.generates)
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
            pictures: Vec::new(),
            embedding: None,
            scores: None,
            questions: None,
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
