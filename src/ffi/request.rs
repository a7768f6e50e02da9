//! `bn_request_params` and its way into `RequestParams`; `bn_request_info`.

use super::config::{choice, speculation};
use super::constraint::{bn_logits_callback, constraint};
use super::growth::{self, Array, Grown, grown};
use super::guard;
use super::registry;
use super::sampling::bn_logit_bias;
use super::types::*;
use crate::base::{Error, Result, Status, reserve};
use crate::engine::api::{
    Adapted, EmbeddingParams, Message, Pooling, Prompt, RequestParams, ScoreParams, Stage, TraceContext,
};
use crate::sample::{Dry, MAX_LISTED, SamplingParams};
use crate::text::chat::MAX_MESSAGES;
use std::borrow::Cow;
use std::ffi::c_void;

/// No events on the way: one event at the end, with the whole text and all tokens.
pub const BN_REQUEST_NO_STREAM: u32 = 1 << 0;
/// Only a `bn_poll` of the request's own id returns its events: `BN_ANY` and the wait descriptor
/// do not see them. Refused in callback mode.
pub const BN_REQUEST_POLL_BY_ID: u32 = 1 << 1;
/// Return the prompt's text and tokens in front of the output.
pub const BN_REQUEST_ECHO_PROMPT: u32 = 1 << 2;
/// Do not end at the model's end tokens.
pub const BN_REQUEST_IGNORE_EOS: u32 = 1 << 3;
/// Return the log probability of each generated token, and of `top_logprobs` more.
pub const BN_REQUEST_LOGPROBS: u32 = 1 << 4;
/// Control tokens spelled out in `prompt` (like `<|eot_id|>`) become those tokens. Not for text
/// from outside.
pub const BN_REQUEST_PARSE_SPECIAL: u32 = 1 << 5;
/// Compute the prompt's embedding instead of an output. The request's only event has it.
/// `max_new_tokens` is ignored; sampling and stop fields, `messages` and the other output flags
/// must have their defaults.
pub const BN_REQUEST_EMBED: u32 = 1 << 6;
/// With `BN_REQUEST_EMBED`: do not divide the vector by its Euclidean length.
pub const BN_REQUEST_EMBED_RAW: u32 = 1 << 7;

/// Take nothing from the prefix cache and leave nothing there: every token of the prompt is
/// computed. Results are the same. Not with `session`.
pub const BN_REQUEST_NO_CACHE: u32 = 1 << 8;

/// Needs `queue_timeout_ms`: end the request while it is queued, as `BN_FINISH_TIMED_OUT`, as soon
/// as its first token is predicted to come later than that. So in overload, no time is spent on
/// requests that would be late anyway.
pub const BN_REQUEST_DROP_LATE: u32 = 1 << 9;

/// End the request, as `BN_FINISH_CANCELLED`, when it would be paused because its output is not
/// polled (`max_unread_bytes`).
pub const BN_REQUEST_END_UNREAD: u32 = 1 << 10;

/// With `BN_REQUEST_LOGPROBS`: log probabilities of what the token is drawn from, behind penalties,
/// temperature and all that drops tokens (of a dropped one: -infinity), instead of the model's own.
pub const BN_REQUEST_CHAIN_LOGPROBS: u32 = 1 << 11;

/// Needs `chat_json`: events have the answer's reasoning in `reasoning`, calls of tools in
/// `tool_calls`, and all else in `text`. The markers between them are left out, with the line breaks
/// beside them. The model's chat template tells how it writes these. Calls are looked for if `tools`
/// may be called.
///
/// A call is returned as soon as its name is known and its arguments begin, and these as they come.
/// What begins like a call and is none is text. If the arguments turn out not to be JSON, the call
/// keeps what was returned of them, and the rest is text. Stop strings are looked for in all that
/// is generated.
pub const BN_REQUEST_PARSE_OUTPUT: u32 = 1 << 12;

/// With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: return the log probabilities of the
/// prompt's tokens too, those from `logprobs_from` on: of each one behind those before it, of the
/// model's own softmax. Without it, and for the first token of all, they are NaN. Not with
/// `chat_json`.
pub const BN_REQUEST_PROMPT_LOGPROBS: u32 = 1 << 13;

/// Generate nothing: with `BN_REQUEST_LOGPROBS`, return the prompt's tokens from `logprobs_from` on
/// and their log probabilities, as for `BN_REQUEST_PROMPT_LOGPROBS`, in one event that finishes the
/// request as `BN_FINISH_LENGTH`. What stands before them is taken from the prefix cache if it is
/// there: continuations of one prompt compute it once. For reranking, classification and evaluation.
/// `max_new_tokens` is ignored; stop fields, `constraint` and `on_logits` are refused.
pub const BN_REQUEST_SCORE: u32 = 1 << 14;

/// The default of `bn_request_params.priority`.
pub const BN_PRIORITY_DEFAULT: u32 = 128;
/// The most urgent `bn_request_params.priority`.
pub const BN_PRIORITY_MAX: u32 = 255;

/// The pooling that the model was made for, `bn_model_info.pooling`.
pub const BN_POOLING_MODEL: i32 = 0;
/// The hidden state of the last prompt token, after the final norm.
pub const BN_POOLING_LAST: i32 = 1;
/// The mean of the hidden states of all prompt tokens.
pub const BN_POOLING_MEAN: i32 = 2;
/// The hidden state of the first prompt token.
pub const BN_POOLING_FIRST: i32 = 3;

const _: () = {
    assert!(BN_POOLING_LAST == Pooling::Last as i32);
    assert!(BN_POOLING_MEAN == Pooling::Mean as i32);
    assert!(BN_POOLING_FIRST == Pooling::First as i32);
};

/// The largest `draft_tokens`.
pub const BN_MAX_DRAFT_TOKENS: u32 = 15;
const _: () = assert!(BN_MAX_DRAFT_TOKENS as usize == crate::schedule::MAX_DRAFT);

/// The largest `stop_strings_count` and `stop_tokens_count`.
pub const BN_MAX_STOPS: u32 = 256;

const FLAGS: u32 = BN_REQUEST_NO_STREAM
    | BN_REQUEST_POLL_BY_ID
    | BN_REQUEST_ECHO_PROMPT
    | BN_REQUEST_IGNORE_EOS
    | BN_REQUEST_LOGPROBS
    | BN_REQUEST_PARSE_SPECIAL
    | BN_REQUEST_EMBED
    | BN_REQUEST_EMBED_RAW
    | BN_REQUEST_NO_CACHE
    | BN_REQUEST_DROP_LATE
    | BN_REQUEST_END_UNREAD
    | BN_REQUEST_CHAIN_LOGPROBS
    | BN_REQUEST_PARSE_OUTPUT
    | BN_REQUEST_PROMPT_LOGPROBS
    | BN_REQUEST_SCORE;

/// One request. `bn_request_params_init` fills in the defaults; then set one of `prompt`,
/// `prompt_tokens`, `messages` and `chat_json`. Nothing that it points to is needed after the call
/// that submits it.
#[repr(C)]
pub struct bn_request_params {
    /// `sizeof(bn_request_params)`; set by `bn_request_params_init`.
    pub struct_size: u32,
    /// `BN_REQUEST_*` flags. Default 0. An unknown flag is `BN_ERR_UNSUPPORTED`.
    pub flags: u32,
    /// The prompt as text. The tokenizer adds the tokens that the model wants in front of it
    /// (BOS), and those that it wants behind a text to embed (EOS).
    pub prompt: bn_string,
    /// The prompt as token ids, used as they are.
    pub prompt_tokens: *const u32,
    /// Number of `prompt_tokens`.
    pub prompt_tokens_count: usize,
    /// The prompt as a conversation, first message first. The model's chat template makes the
    /// prompt and begins the assistant's answer. `content` never becomes a control token; choose
    /// `role` yourself.
    pub messages: *const bn_chat_message,
    /// Number of `messages`, at most 65536.
    pub messages_count: usize,
    /// `sizeof(bn_chat_message)`; set by `bn_request_params_init`.
    pub message_size: usize,
    /// Tokens that end the output, besides the model's own end tokens. They count even with
    /// `BN_REQUEST_IGNORE_EOS`.
    pub stop_tokens: *const u32,
    /// Number of `stop_tokens`, at most `BN_MAX_STOPS`.
    pub stop_tokens_count: usize,
    /// Texts that end the output. The returned text ends before the first one; `tokens` and usage
    /// count every generated token. Only generated text is searched. Each has 1 to 65536 bytes.
    pub stop_strings: *const bn_string,
    /// Number of `stop_strings`, at most `BN_MAX_STOPS`.
    pub stop_strings_count: usize,
    /// Returned in every event of the request. The library does not use it.
    pub user_data: u64,
    /// Seed of the random numbers. The same seed, prompt and parameters give the same output,
    /// whatever else runs. Default 0.
    pub seed: u64,
    /// Requests with different salts share no part of the prefix cache, so that a client cannot
    /// tell from timing what clients with other salts have asked. Default 0: all requests that set
    /// none share.
    pub cache_salt: u64,
    /// The most tokens to generate, default 128. 0: as many as `max_sequence_length` leaves, which
    /// limits the output in any case.
    pub max_new_tokens: u32,
    /// Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` with what
    /// it has. 0 (default): the engine's `default_timeout_ms`. `BN_TIMEOUT_NONE`: no timeout.
    pub timeout_ms: u32,
    /// Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` if it is
    /// still queued. 0 (default): it may wait as long as `timeout_ms` allows.
    pub queue_timeout_ms: u32,
    /// 0 to `BN_PRIORITY_MAX`, the most urgent. Default `BN_PRIORITY_DEFAULT`. Requests are ordered
    /// by arrival and priority; `priority_ageing_ms` says what priorities are worth, and bounds how
    /// long a low one waits. If a request finds no room, running ones that are behind it and of a
    /// lower priority are interrupted for it, the last one first. They go on later, with the same
    /// output.
    pub priority: u32,
    /// 0 to 100. 0 (default): always the most likely token.
    pub temperature: f32,
    /// Sample from this many most likely tokens. 0 (default): all.
    pub top_k: u32,
    /// Sample from the most likely tokens that together reach this probability, above 0, at most
    /// 1 (default).
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one, 0 (default) to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or output, above
    /// 0, at most 100. 1 (default): off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the output, -100 to 100. Default 0.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it is in the output, -100 to 100. Default 0.
    pub presence_penalty: f32,
    /// With `BN_REQUEST_LOGPROBS`: how many of the most likely tokens to return for each
    /// generated one, at most 32. Default 0.
    pub top_logprobs: u32,
    /// With `BN_REQUEST_EMBED`: `BN_POOLING_*`. Default `BN_POOLING_MODEL`.
    pub pooling: i32,
    /// Must be 0.
    pub reserved: u32,
    /// A name of 1 to 256 bytes. When the request ends, the keys and values of its prompt and output
    /// are kept in the KV cache under this name, in place of what had the name before: the next turn
    /// of a conversation, with the same `cache_salt`, finds them however busy the engine was
    /// meanwhile. Nothing changes if the request fails, ends while it does not run, or needs more
    /// than half of the KV cache. That is what all sessions may hold together: the least recently
    /// used goes first, also to make room for a request that does not fit alone. Names belong to
    /// the engine: two users need two names. Refused with `BN_REQUEST_NO_CACHE`. Not set
    /// (default): none.
    pub session: bn_string,
    /// The trace that the request belongs to, as in W3C's `traceparent`: its spans go to
    /// `bn_engine_config.on_span`. All zeros (default): it is not traced.
    pub trace_id: [u8; 16],
    /// The span of the caller's that its spans belong to. All zeros (default): none. Refused without
    /// `trace_id`.
    pub parent_id: [u8; 8],
    /// What works on the distribution, in this order: `BN_SAMPLER_*`, each at most once. One that is
    /// left out must be off. Not set (default): all, in the order of their numbers.
    pub samplers: *const i32,
    /// Number of `samplers`.
    pub samplers_count: usize,
    /// What is added to the logits of some tokens.
    pub logit_bias: *const bn_logit_bias,
    /// Number of `logit_bias`, at most 4096.
    pub logit_bias_count: usize,
    /// Texts of 1 to 1024 bytes that do not come, alone or behind a space, as the tokens that the
    /// tokenizer makes of them. The same text made of other tokens can come.
    pub bad_words: *const bn_string,
    /// Number of `bad_words`, at most 256.
    pub bad_words_count: usize,
    /// Texts that no repetition goes across, for `dry_multiplier`. NULL (default): a line break,
    /// `:`, `"` and `*`. Each has 1 to 65536 bytes.
    pub dry_breakers: *const bn_string,
    /// Number of `dry_breakers`, at most 256. 0 with `dry_breakers` set: none.
    pub dry_breakers_count: usize,
    /// With `BN_REQUEST_LOGPROBS`: tokens whose log probabilities to return for each generated one,
    /// behind those of `top_logprobs`.
    pub logprob_tokens: *const u32,
    /// Number of `logprob_tokens`, at most 256.
    pub logprob_tokens_count: usize,
    /// `temperature` moves by this much up and down, 0 (default) to 100, with the entropy of the
    /// tokens that are left: up where many are likely, down where one is.
    pub temperature_range: f32,
    /// How it moves, above 0, at most 100: the entropy as a share of the greatest possible one,
    /// raised to this. Default 1.
    pub temperature_exponent: f32,
    /// Sample from the tokens whose surprise is closest to the entropy and that together reach this
    /// probability, above 0, at most 1 (default).
    pub typical_p: f32,
    /// Drop tokens whose logits are more than this many standard deviations below the greatest one,
    /// above 0, at most 1000. 0 (default): off.
    pub top_n_sigma: f32,
    /// The probability with which all tokens that are at least `xtc_threshold` likely are dropped
    /// but the least likely of them, 0 (default) to 1.
    pub xtc_probability: f32,
    /// Above 0, at most 1. Default 0.1.
    pub xtc_threshold: f32,
    /// Mirostat 2: keep the surprise of tokens at this many bits, above 0, at most 100, in place of
    /// all `BN_SAMPLER_*` but temperature. 0 (default): off.
    pub mirostat_tau: f32,
    /// How fast mirostat follows, 0 to 1. Default 0.1.
    pub mirostat_eta: f32,
    /// The penalties look at this many of the latest tokens of prompt and output. 0 (default): at
    /// all.
    pub penalty_window: u32,
    /// DRY: subtracted, times `dry_base` to the power of n - `dry_allowed_length`, from the logit of
    /// a token that would make a repetition of n tokens one longer. 0 (default, off) to 100.
    pub dry_multiplier: f32,
    /// 1 to 100. Default 1.75.
    pub dry_base: f32,
    /// Shorter repetitions cost nothing. Default 2; 0 is as 1.
    pub dry_allowed_length: u32,
    /// DRY looks at this many of the latest tokens of prompt and output. 0 (default): at all.
    pub dry_window: u32,
    /// The model's end tokens and `stop_tokens` do not come before so many tokens, unless a
    /// `constraint` leaves nothing else. Default 0.
    pub min_new_tokens: u32,
    /// The adapter that the request runs with, of the same engine. NULL (default): none. Requests
    /// with different adapters share no part of the prefix cache.
    pub adapter: *const bn_adapter,
    /// What the adapter's updates are multiplied with, -100 to 100. Default 1.
    pub adapter_scale: f32,
    /// What drafts tokens for the model to verify several in one step, `BN_SPECULATION_*`. It makes
    /// the output faster where drafts are right, and never changes it. Default
    /// `BN_SPECULATION_DEFAULT`.
    pub speculation: i32,
    /// The most tokens drafted for one step, up to `BN_MAX_DRAFT_TOKENS`. How many there are follows
    /// from how many were right, and from the time that they take. 0 (default): the engine's.
    pub draft_tokens: u32,
    /// `BN_CONSTRAINT_*`. Default `BN_CONSTRAINT_NONE`.
    pub constraint_kind: i32,
    /// What the output must match, as `constraint_kind` says; at most 524288 bytes. Tokens that
    /// would break it do not come, whatever else is asked for. When it is matched, the model's end
    /// tokens may come, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if there is no way to
    /// go on. An output that `max_new_tokens` or a stop string ends early is the beginning of a
    /// match. It is compiled while the request is submitted, and the latest ones stay compiled.
    /// Not set (default): none.
    pub constraint: bn_string,
    /// Called before each token is sampled, to change its logits. Default NULL. Refused with
    /// `BN_REQUEST_EMBED`.
    pub on_logits: bn_logits_callback,
    /// Passed to `on_logits`.
    pub on_logits_context: *mut c_void,
    /// The prompt as a conversation with tools: a JSON object with the fields of OpenAI's chat
    /// completions `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, and of transformers'
    /// chat templates `chat_template_kwargs` (an object: the template's variables), `documents`,
    /// `add_generation_prompt` (default true) and `continue_final_message`: the answer goes on with
    /// the last message. Other fields are refused, nulls ignored. No text in it becomes a control
    /// token, names included. At most 64 MiB, 65536 messages and 1048576 values.
    ///
    /// Messages go to the template as they are, but contents that are lists of text parts become one
    /// text, and `arguments` that are JSON texts become objects, as in vLLM. If the template knows
    /// no tools, they are described in the system message.
    ///
    /// A `tool_choice` of "required" or of a function makes the output such a call, as its
    /// `parameters` say, "auto" with `strict` tools or without `parallel_tool_calls` the calls that
    /// come; `constraint` must not be set then. With "none", tools are shown to the model, and calls
    /// are text.
    ///
    /// `tool_format` ("hermes", "llama3", "mistral", "mistral11", "gemma", "none") and
    /// `reasoning_format` ("think", "mistral", "none") say how the model writes calls and reasoning,
    /// in place of what its template tells.
    pub chat_json: bn_string,
    /// With `BN_REQUEST_PROMPT_LOGPROBS` or `BN_REQUEST_SCORE`: the first position of the prompt
    /// whose token's log probability is wanted. Default 0.
    pub logprobs_from: u32,
    /// Must be 0.
    pub reserved2: u32,
}

grown!(
    bn_request_params: 192, priority: BN_PRIORITY_DEFAULT, message_size: size_of::<bn_chat_message>(),
    max_new_tokens: RequestParams::default().max_new_tokens, top_p: SamplingParams::default().top_p,
    repetition_penalty: SamplingParams::default().repetition_penalty,
    temperature_exponent: SamplingParams::default().temperature_exponent,
    typical_p: SamplingParams::default().typical_p, xtc_threshold: SamplingParams::default().xtc_threshold,
    mirostat_eta: SamplingParams::default().mirostat_eta, dry_base: Dry::default().base,
    dry_allowed_length: Dry::default().allowed, adapter_scale: 1.0
);

grown!(bn_chat_message: 32; SIZED = false);

impl bn_request_params {
    /// A caller's parameters with `implied` added to their flags. Borrows what they point to.
    ///
    /// # Safety
    /// `from` is NULL or points to a struct as the header describes it, for `'a`.
    pub(super) unsafe fn take<'a>(from: *const Self, implied: u32) -> Result<RequestParams<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let params = growth::read(from)?;
            Self { flags: params.flags | implied, ..params }.to_engine()
        }
    }

    /// # Safety
    /// Pointers are NULL or as the fields say, for `'a`.
    unsafe fn to_engine<'a>(&self) -> Result<RequestParams<'a>> {
        let has = |flag| self.flags & flag != 0;
        guard::flags(self.flags, FLAGS)?;
        guard::reserved::<Self>(self.reserved | self.reserved2)?;
        if has(BN_REQUEST_DROP_LATE) && self.queue_timeout_ms == 0 {
            return Err(Error::invalid("BN_REQUEST_DROP_LATE is set and needs queue_timeout_ms"));
        }
        let embedding = self.embedding()?;
        for (name, set) in [
            ("top_logprobs", self.top_logprobs > 0),
            ("logprob_tokens", self.logprob_tokens_count > 0),
            ("BN_REQUEST_CHAIN_LOGPROBS", has(BN_REQUEST_CHAIN_LOGPROBS)),
        ] {
            if set && !has(BN_REQUEST_LOGPROBS) {
                return Err(Error::invalid(format!("{name} is set and needs BN_REQUEST_LOGPROBS in flags")));
            }
        }
        for (name, count) in
            [("stop_tokens", self.stop_tokens_count), ("stop_strings", self.stop_strings_count)]
        {
            guard::count(name, count, BN_MAX_STOPS as usize)?;
        }
        guard::count("bad_words", self.bad_words_count, MAX_LISTED)?;
        // SAFETY: the caller's promise.
        let (stop_tokens, prompt, stop_strings) = unsafe {
            let tokens = guard::slice("stop_tokens", self.stop_tokens, self.stop_tokens_count)?;
            let strings = guard::texts("stop_strings", self.stop_strings, self.stop_strings_count)?;
            (tokens, self.prompt()?, strings)
        };
        Ok(RequestParams {
            prompt,
            embedding,
            max_new_tokens: self.max_new_tokens,
            // SAFETY: the caller's promise.
            sampling: unsafe { self.sampling() }?,
            stop_tokens: Cow::Borrowed(stop_tokens),
            stop_strings,
            // SAFETY: the caller's promise.
            bad_words: unsafe { guard::texts("bad_words", self.bad_words, self.bad_words_count) }?,
            // SAFETY: the caller's promise.
            constraint: unsafe { constraint(self.constraint_kind, self.constraint) }?,
            on_logits: self.logits_hook(),
            ignore_eos: has(BN_REQUEST_IGNORE_EOS),
            echo_prompt: has(BN_REQUEST_ECHO_PROMPT),
            stream: !has(BN_REQUEST_NO_STREAM),
            poll_by_id: has(BN_REQUEST_POLL_BY_ID),
            parse_output: has(BN_REQUEST_PARSE_OUTPUT),
            parse_special: has(BN_REQUEST_PARSE_SPECIAL),
            user_data: self.user_data,
            timeout_ms: self.timeout_ms,
            queue_timeout_ms: self.queue_timeout_ms,
            drop_late: has(BN_REQUEST_DROP_LATE),
            end_unread: has(BN_REQUEST_END_UNREAD),
            priority: self.priority()?,
            cache: !has(BN_REQUEST_NO_CACHE),
            cache_salt: self.cache_salt,
            // SAFETY: the caller's promise.
            session: unsafe { guard::optional_text("session", self.session) }?.map(Cow::Borrowed),
            trace: self.trace()?,
            adapter: self.adapter()?,
            scores: self.scores()?,
            speculation: speculation(self.speculation)?,
            draft_tokens: self.draft_tokens,
        })
    }

    fn adapter(&self) -> Result<Option<Adapted>> {
        match (self.adapter.is_null(), self.adapter_scale == 1.0) {
            (true, true) => Ok(None),
            (true, false) => Err(Error::invalid("adapter_scale is set and needs adapter")),
            (false, _) => {
                let adapter = registry::adapter(self.adapter)?;
                Ok(Some(Adapted { adapter, scale: self.adapter_scale }))
            }
        }
    }

    fn scores(&self) -> Result<Option<ScoreParams>> {
        let has = |flag| self.flags & flag != 0;
        match (has(BN_REQUEST_PROMPT_LOGPROBS), has(BN_REQUEST_SCORE)) {
            (false, false) if self.logprobs_from == 0 => Ok(None),
            (false, false) => Err(Error::invalid(
                "logprobs_from is set and needs BN_REQUEST_PROMPT_LOGPROBS or BN_REQUEST_SCORE in flags",
            )),
            (true, true) => {
                Err(Error::invalid("BN_REQUEST_PROMPT_LOGPROBS and BN_REQUEST_SCORE are both set"))
            }
            (generates, _) => Ok(Some(ScoreParams { from: self.logprobs_from, generates })),
        }
    }

    fn trace(&self) -> Result<Option<TraceContext>> {
        match (self.trace_id == [0; 16], self.parent_id == [0; 8]) {
            (false, _) => Ok(Some(TraceContext { trace: self.trace_id, parent: self.parent_id })),
            (true, true) => Ok(None),
            (true, false) => Err(Error::invalid("parent_id is set and needs trace_id")),
        }
    }

    fn priority(&self) -> Result<u8> {
        self.priority.try_into().map_err(|_| {
            Error::invalid(format!("priority is {}; it goes from 0 to {BN_PRIORITY_MAX}", self.priority))
        })
    }

    fn embedding(&self) -> Result<Option<EmbeddingParams>> {
        let raw = self.flags & BN_REQUEST_EMBED_RAW != 0;
        if self.flags & BN_REQUEST_EMBED == 0 {
            return match (raw, self.pooling) {
                (false, BN_POOLING_MODEL) => Ok(None),
                (true, _) => Err(Error::invalid("BN_REQUEST_EMBED_RAW needs BN_REQUEST_EMBED in flags")),
                _ => Err(Error::invalid("pooling is set and needs BN_REQUEST_EMBED in flags")),
            };
        }
        let poolings = [
            (BN_POOLING_MODEL, None),
            (BN_POOLING_LAST, Some(Pooling::Last)),
            (BN_POOLING_MEAN, Some(Pooling::Mean)),
            (BN_POOLING_FIRST, Some(Pooling::First)),
        ];
        let pooling = choice("pooling", self.pooling, "BN_POOLING", &poolings)?;
        Ok(Some(EmbeddingParams { pooling, normalize: !raw }))
    }

    unsafe fn prompt<'a>(&self) -> Result<Prompt<'a>> {
        // SAFETY: the caller's promise.
        let (text, ids, messages, chat) = unsafe {
            (
                guard::optional_text("prompt", self.prompt)?,
                guard::slice("prompt_tokens", self.prompt_tokens, self.prompt_tokens_count)?,
                conversation(self.messages, self.messages_count, self.message_size)?,
                guard::optional_text("chat_json", self.chat_json)?,
            )
        };
        match (text, chat, !self.prompt_tokens.is_null(), !self.messages.is_null()) {
            (Some(text), None, false, false) => Ok(Prompt::Text(Cow::Borrowed(text))),
            (None, Some(chat), false, false) => Ok(Prompt::ChatJson(Cow::Borrowed(chat))),
            (None, None, true, false) => Ok(Prompt::Tokens(Cow::Borrowed(ids))),
            (None, None, false, true) => Ok(Prompt::Chat(Cow::Owned(messages))),
            (None, None, false, false) => Err(Error::invalid(
                "prompt, prompt_tokens, messages and chat_json are all NULL: a request has one of them",
            )),
            _ => Err(Error::invalid(
                "more than one of prompt, prompt_tokens, messages and chat_json is set: a request has one of them",
            )),
        }
    }
}

/// A caller's conversation.
///
/// # Safety
/// `messages` is NULL or points to `count` messages, `size` bytes apart, whose strings
/// are as the header says, for `'a`.
pub(super) unsafe fn conversation<'a>(
    messages: *const bn_chat_message,
    count: usize,
    size: usize,
) -> Result<Vec<Message<'a>>> {
    if count > MAX_MESSAGES {
        let message = format!("{count} messages; at most {MAX_MESSAGES} are taken");
        return Err(Error::new(Status::TooLong, message));
    }
    let from = Array::new(messages.cast_mut(), size, count)?;
    let mut out = Vec::new();
    reserve(&mut out, count, "messages")?;
    for at in 0..count {
        // SAFETY: the caller's promise.
        let bn_chat_message { role, content } = unsafe { from.read(at) }?;
        // SAFETY: the caller's promise.
        let text = |name, from| unsafe { guard::text(&format_args!("messages[{at}].{name}"), from) };
        out.push(Message { role: text("role", role)?, content: text("content", content)? });
    }
    Ok(out)
}

/// The request waits for admission.
pub const BN_STAGE_QUEUED: i32 = 0;
/// The request was admitted. It takes part in forward passes, unless it is paused or interrupted.
pub const BN_STAGE_RUNNING: i32 = 1;
/// The request has finished. Its last event may still wait to be polled.
pub const BN_STAGE_FINISHED: i32 = 2;

/// Where a request is: `bn_request_info_init`, then `bn_request_get_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_request_info {
    /// `sizeof(bn_request_info)`; set by `bn_request_info_init`.
    pub struct_size: u32,
    /// `BN_STAGE_*`.
    pub stage: i32,
    /// For `BN_STAGE_QUEUED`: the number of queued requests that were submitted before it, whatever
    /// their priorities are. Otherwise 0.
    pub queue_position: u64,
}

grown!(bn_request_info: 16);

impl bn_request_info {
    pub(super) fn of(stage: Stage) -> Self {
        let (stage, position) = match stage {
            Stage::Queued(position) => (BN_STAGE_QUEUED, position as u64),
            Stage::Running => (BN_STAGE_RUNNING, 0),
            Stage::Finished => (BN_STAGE_FINISHED, 0),
        };
        Self { stage, queue_position: position, ..Self::defaults() }
    }
}
