//! Requests.
use crate::adapter::Adapter;
use crate::chat::{Chat, Message};
use crate::constraint::Constraint;
use crate::decision::Question;
use crate::logits::OnLogits;
use crate::picture::Picture;
use crate::sampling::Sampling;
use crate::{params, sys};

/// The value of `timeout_ms` fields for no limit, whatever the engine's default is.
pub const NO_LIMIT: u32 = sys::BN_NO_LIMIT;
/// The most stop strings, and the most stop tokens, of a request.
pub const MAX_STOPS: usize = sys::BN_MAX_STOPS as usize;
/// The largest `draft_tokens`.
pub const MAX_DRAFT_TOKENS: u32 = sys::BN_MAX_DRAFT_TOKENS;
/// Halfway between the least urgent priority, 0, and the most urgent.
pub const PRIORITY_DEFAULT: u32 = sys::BN_PRIORITY_DEFAULT;
/// The most urgent priority.
pub const PRIORITY_MAX: u32 = sys::BN_PRIORITY_MAX;

/// The subject of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Prompt {
    /// A text. The tokenizer adds the tokens that the model wants in front (BOS) and, for embeddings, after it
    /// (EOS).
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// A conversation.
    Chat(Chat),
    /// With [`Task::Rerank`]: a query, and the document that may be relevant to it.
    Pair {
        /// The question.
        query: String,
        /// The text that the query is about.
        document: String,
    },
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<Chat> for Prompt {
    fn from(chat: Chat) -> Self {
        Self::Chat(chat)
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Self {
        Self::Chat(Chat::Messages(messages))
    }
}

/// The hidden states that make an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Pooling {
    /// The model's own.
    #[default]
    Model = sys::BN_POOLING_MODEL,
    /// The hidden state of the last token.
    Last = sys::BN_POOLING_LAST,
    /// The mean of all tokens' hidden states.
    Mean = sys::BN_POOLING_MEAN,
    /// The hidden state of the first token.
    First = sys::BN_POOLING_FIRST,
}

impl Pooling {
    pub(crate) fn of(pooling: u32) -> Self {
        let known = [Self::Last, Self::Mean, Self::First];
        known.into_iter().find(|known| *known as u32 == pooling).unwrap_or(Self::Model)
    }
}

/// Whether an embedding is divided by its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Normalization {
    /// As the model's files say; if they do not, as `Unit`.
    #[default]
    Model = sys::BN_NORMALIZATION_MODEL,
    /// The vector as it is.
    None = sys::BN_NORMALIZATION_NONE,
    /// The vector divided by its Euclidean length.
    Unit = sys::BN_NORMALIZATION_UNIT,
}

/// How a prompt becomes a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EmbeddingParams {
    /// The hidden states that become one vector.
    pub pooling: Pooling,
    /// The length of the vector.
    pub normalization: Normalization,
}

/// The result that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Task {
    /// An output.
    #[default]
    Generate,
    /// The prompt's embedding, in [`Finish::embedding`](crate::Finish::embedding).
    Embed(EmbeddingParams),
    /// The prompt's tokens and their log probabilities, without an output. Needs [`Request::logprobs`].
    Score {
        /// The first position of the prompt that counts.
        from: u32,
    },
    /// The relevance of a document to a query, as the only number of
    /// [`Finish::embedding`](crate::Finish::embedding).
    Rerank,
    /// The answers to [`Request::questions`] about the prompt, in [`Finish::decisions`](crate::Finish::decisions).
    Decide,
}

/// The source of drafted tokens, of which the model verifies several in one step. Drafts never change an
/// output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Speculation {
    /// For a request: the engine's. For an engine: a model that drafts if there is one, or look-ups as long
    /// as they save time.
    #[default]
    Default = sys::BN_SPECULATION_DEFAULT,
    /// No drafts.
    Off = sys::BN_SPECULATION_OFF,
    /// The tokens that followed the same ones earlier in prompt or output.
    Lookup = sys::BN_SPECULATION_LOOKUP,
    /// The engine's draft model, or the model's own block of multi-token prediction.
    Draft = sys::BN_SPECULATION_DRAFT,
}

/// A place in a trace, as in W3C's `traceparent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The caller's span in it; all 0: none.
    pub parent_id: [u8; 8],
}

/// A prompt, and the options of the request. Fields have the names and units of the C header, which errors use too; it
/// has the range of each. [`Request::default`] has the library's defaults:
///
/// ```no_run
/// let request = bn::Request { max_new_tokens: 64, ignore_eos: true, ..bn::Request::prompt("Once upon a time") };
/// ```
#[derive(Clone)]
pub struct Request {
    /// The result that it asks for.
    pub task: Task,
    /// Its subject.
    pub prompt: Prompt,
    /// Pictures, for models that see ([`ModelInfo::sees`](crate::ModelInfo::sees)), in the order of their places in the
    /// prompt: one for each part `{"type": "image"}` of a conversation, or for each token that stands for a picture.
    pub pictures: Vec<Picture>,
    /// Priority, 0 to [`PRIORITY_MAX`].
    pub priority: u32,
    /// Returned in every event.
    pub user_data: u64,
    /// Tokens that end the output besides the model's end tokens.
    pub stop_tokens: Vec<u32>,
    /// Texts that end the output. The returned text ends before the first one.
    pub stop_strings: Vec<String>,
    /// The most tokens to generate. 0: as many as the context leaves.
    pub max_new_tokens: u32,
    /// Number of tokens before an end token is allowed.
    pub min_new_tokens: u32,
    /// With `parse_output`: number of tokens of reasoning after which its end marker is forced. None: no
    /// limit.
    pub max_reasoning_tokens: Option<u32>,
    /// Milliseconds from submit until the request ends with what it has. 0: the engine's; [`NO_LIMIT`]: none.
    pub timeout_ms: u32,
    /// Milliseconds that it may be queued. 0: only `timeout_ms` counts.
    pub queue_timeout_ms: u32,
    /// An adapter of the same engine.
    pub adapter: Option<Adapter>,
    /// The adapter's factor.
    pub adapter_scale: f32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The rule that the output must match.
    pub constraint: Option<Constraint>,
    /// Return the log probability of each generated token, and of others as the next two fields say.
    pub logprobs: bool,
    /// With `logprobs`: return those of this many of the most likely tokens.
    pub top_logprobs: u32,
    /// With `logprobs`: also return those of these tokens.
    pub logprob_tokens: Vec<u32>,
    /// With `logprobs`: those of the distribution that the token is drawn from, in place of the model's own.
    pub chain_logprobs: bool,
    /// With `logprobs` and `echo_prompt`: those of the prompt's tokens, too, from `logprobs_from` on.
    pub prompt_logprobs: bool,
    /// The first position for `prompt_logprobs`.
    pub logprobs_from: u32,
    /// With [`Task::Decide`]: questions about the prompt.
    pub questions: Vec<Question>,
    /// The source of drafts.
    pub speculation: Speculation,
    /// The most tokens to draft for one step. 0: the engine's default.
    pub draft_tokens: u32,
    /// Requests with different salts share no part of the prefix cache.
    pub cache_salt: u64,
    /// Keeps the conversation's keys and values under this name for its next turn.
    pub session: Option<String>,
    /// The caller's trace, for [`EngineOptions::on_span`](crate::EngineOptions::on_span).
    pub trace: Option<Trace>,
    /// One event at the end, with the whole text and all tokens.
    pub no_stream: bool,
    /// Return the prompt's text and tokens in front of the output.
    pub echo_prompt: bool,
    /// Do not end at the model's end tokens.
    pub ignore_eos: bool,
    /// Control tokens spelled out in a prompt become those tokens. Not for text from outside.
    pub parse_special: bool,
    /// With [`Chat::Json`]: separate reasoning and calls of tools from text.
    pub parse_output: bool,
    /// Take nothing from the prefix cache and leave nothing there.
    pub no_cache: bool,
    /// Needs `queue_timeout_ms`: end a queued request once its first token is predicted to come too late.
    pub drop_late: bool,
    /// End the request when the engine's `max_unread_bytes` would pause it.
    pub end_unread: bool,
    /// The most bytes of output that its stream may hold unread: beyond that the request is cancelled. None: no limit.
    pub max_unread_bytes: Option<usize>,
    /// Changes the logits before each token.
    pub on_logits: Option<OnLogits>,
}

impl Default for Request {
    /// An empty text, and the library's defaults.
    fn default() -> Self {
        let raw = params::defaults();
        Self {
            task: Task::Generate,
            prompt: Prompt::Text(String::new()),
            pictures: Vec::new(),
            priority: raw.priority,
            user_data: 0,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            max_new_tokens: raw.max_new_tokens,
            min_new_tokens: raw.min_new_tokens,
            max_reasoning_tokens: None,
            timeout_ms: raw.timeout_ms,
            queue_timeout_ms: raw.queue_timeout_ms,
            adapter: None,
            adapter_scale: raw.adapter_scale,
            sampling: Sampling::default(),
            constraint: None,
            logprobs: false,
            top_logprobs: raw.top_logprobs,
            logprob_tokens: Vec::new(),
            chain_logprobs: false,
            prompt_logprobs: false,
            logprobs_from: raw.logprobs_from,
            questions: Vec::new(),
            speculation: Speculation::Default,
            draft_tokens: raw.draft_tokens,
            cache_salt: raw.cache_salt,
            session: None,
            trace: None,
            no_stream: false,
            echo_prompt: false,
            ignore_eos: false,
            parse_special: false,
            parse_output: false,
            no_cache: false,
            drop_late: false,
            end_unread: false,
            max_unread_bytes: None,
            on_logits: None,
        }
    }
}

impl Request {
    /// A request to continue a text, token ids or a conversation.
    pub fn prompt(prompt: impl Into<Prompt>) -> Self {
        Self { prompt: prompt.into(), ..Self::default() }
    }

    /// A request to answer in a conversation.
    pub fn chat(messages: Vec<Message>) -> Self {
        Self::prompt(messages)
    }

    /// A request for the embedding of a text, with the model's own pooling.
    pub fn embed(prompt: impl Into<Prompt>) -> Self {
        Self { task: Task::Embed(EmbeddingParams::default()), ..Self::prompt(prompt) }
    }

    /// A request for the relevance of a document to a query.
    pub fn rerank(query: impl Into<String>, document: impl Into<String>) -> Self {
        let prompt = Prompt::Pair { query: query.into(), document: document.into() };
        Self { task: Task::Rerank, prompt, ..Self::default() }
    }
}
