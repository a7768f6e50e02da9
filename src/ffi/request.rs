//! `bn_request_params` and its way into `RequestParams`; `bn_request_info`.

use super::callbacks::bn_logits_callback;
use super::chat::bn_chat_message;
use super::config::choice;
use super::constraint::constraint;
use super::growth::{self, Array, Grown, grown};
use super::guard;
use super::pooling::*;
use super::registry;
use super::sampling::bn_logit_bias;
use super::speculation::speculation;
use super::types::*;
use crate::base::{Error, Result, Status, reserve};
use crate::engine::api::{
    Adapted, EmbeddingParams, Message, Pooling, Prompt, RequestParams, ScoreParams, Stage, TraceContext,
};
use crate::sample::{Dry, MAX_LISTED, SamplingParams};
use crate::text::chat::MAX_MESSAGES;
use std::borrow::Cow;
use std::ffi::c_void;

/// Generate an output.
pub const BN_TASK_GENERATE: i32 = 0;
/// Return the prompt's embedding, in one event. `max_new_tokens` is ignored; sampling and stop
/// fields, `on_logits`, `messages`, `chat_json` and the output flags must have their defaults.
pub const BN_TASK_EMBED: i32 = 1;
/// Return the prompt's tokens from `logprobs_from` on and their log probabilities, in one event, as
/// `BN_FINISH_LENGTH`. `max_new_tokens` is ignored; stop fields, `constraint`, `on_logits` and
/// `chat_json` are refused.
pub const BN_TASK_SCORE: i32 = 2;
/// Return how relevant `document` is to the query in `prompt`, in one event, as
/// `BN_FINISH_EMBEDDING` with one number within 0 and 1. For models with
/// `bn_model_info.scores_pairs`; others return `BN_ERR_UNSUPPORTED`. A decoder puts both into the
/// prompt that its files have for it. In place of both, `messages` of the roles "system", "query"
/// and "document", in this order, give that prompt another instruction; without "system" it has its
/// own. Models without such a prompt return `BN_ERR_UNSUPPORTED` for them. `pooling`,
/// `BN_REQUEST_EMBED_RAW` and `BN_REQUEST_EMBED_UNIT` are refused, the rest is as with
/// `BN_TASK_EMBED`.
pub const BN_TASK_RERANK: i32 = 3;

/// One event at the end, with the whole text and all tokens.
pub const BN_REQUEST_NO_STREAM: u32 = 1 << 0;
/// Only a `bn_poll` of the request's id returns its events. Refused in callback mode.
pub const BN_REQUEST_POLL_BY_ID: u32 = 1 << 1;
/// Return the prompt's text and tokens in front of the output.
pub const BN_REQUEST_ECHO_PROMPT: u32 = 1 << 2;
/// Do not end at the model's end tokens.
pub const BN_REQUEST_IGNORE_EOS: u32 = 1 << 3;
/// Return the log probability of each generated token, and of others as `top_logprobs` and
/// `logprob_tokens` say.
pub const BN_REQUEST_LOGPROBS: u32 = 1 << 4;
/// Control tokens spelled out in `prompt` (like `<|eot_id|>`) become those tokens. Not for text
/// from outside.
pub const BN_REQUEST_PARSE_SPECIAL: u32 = 1 << 5;
/// With `BN_TASK_EMBED`: do not divide the vector by its Euclidean length. Without this flag and
/// `BN_REQUEST_EMBED_UNIT` it is divided, unless the model's folder has a `modules.json` that says
/// otherwise.
pub const BN_REQUEST_EMBED_RAW: u32 = 1 << 6;

/// Take nothing from the prefix cache and leave nothing there. Results are the same. Refused with
/// `session`.
pub const BN_REQUEST_NO_CACHE: u32 = 1 << 7;

/// Needs `queue_timeout_ms`: end a queued request, as `BN_FINISH_TIMED_OUT`, once its first token
/// is predicted to come later than that.
pub const BN_REQUEST_DROP_LATE: u32 = 1 << 8;

/// End the request, as `BN_FINISH_CANCELLED`, when `max_unread_bytes` would pause it.
pub const BN_REQUEST_END_UNREAD: u32 = 1 << 9;

/// With `BN_REQUEST_LOGPROBS`: those of the distribution that the token is drawn from, behind
/// penalties, temperature and samplers (of a dropped token: -infinity).
pub const BN_REQUEST_CHAIN_LOGPROBS: u32 = 1 << 10;

/// Needs `chat_json`: events have reasoning in `reasoning`, calls of tools in `tool_calls`, and the
/// rest in `text`, without their markers. If a call's arguments turn out not to be JSON, it keeps
/// what was returned, and the rest is text. Stop strings are looked for in all that is
/// generated.
pub const BN_REQUEST_PARSE_OUTPUT: u32 = 1 << 11;

/// With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: also those of the prompt's tokens from
/// `logprobs_from` on, by the model's own softmax. Refused with `chat_json`.
pub const BN_REQUEST_PROMPT_LOGPROBS: u32 = 1 << 12;

/// With `BN_TASK_EMBED`: divide the vector by its Euclidean length, whatever the model's folder
/// says. Refused with `BN_REQUEST_EMBED_RAW`.
pub const BN_REQUEST_EMBED_UNIT: u32 = 1 << 13;

/// Halfway between the least urgent priority, 0, and the most urgent.
pub const BN_PRIORITY_DEFAULT: u32 = 128;
/// The most urgent priority.
pub const BN_PRIORITY_MAX: u32 = 255;

/// The largest `stop_strings_count` and `stop_tokens_count`.
pub const BN_MAX_STOPS: u32 = 256;

const FLAGS: u32 = BN_REQUEST_NO_STREAM
    | BN_REQUEST_POLL_BY_ID
    | BN_REQUEST_ECHO_PROMPT
    | BN_REQUEST_IGNORE_EOS
    | BN_REQUEST_LOGPROBS
    | BN_REQUEST_PARSE_SPECIAL
    | BN_REQUEST_EMBED_RAW
    | BN_REQUEST_NO_CACHE
    | BN_REQUEST_DROP_LATE
    | BN_REQUEST_END_UNREAD
    | BN_REQUEST_CHAIN_LOGPROBS
    | BN_REQUEST_PARSE_OUTPUT
    | BN_REQUEST_PROMPT_LOGPROBS
    | BN_REQUEST_EMBED_UNIT;

/// One request, with one of `prompt`, `prompt_tokens`, `messages` and `chat_json`.
#[repr(C)]
pub struct bn_request_params {
    pub struct_size: u32,
    /// `BN_TASK_*`.
    pub task: i32,
    /// `BN_REQUEST_*`.
    pub flags: u32,
    /// 0 to `BN_PRIORITY_MAX`, default `BN_PRIORITY_DEFAULT`. `priority_ageing_ms` weighs it
    /// against arrival. A request without room interrupts running ones behind it and of lower
    /// priority, the last first; they go on later, with the same output.
    pub priority: u32,
    /// Returned in every event.
    pub user_data: u64,

    /// A text. The tokenizer adds what the model wants in front (BOS) and, to embed, behind
    /// (EOS).
    pub prompt: bn_string,
    /// Token ids, used as they are.
    pub prompt_tokens: *const u32,
    pub prompt_tokens_count: usize,
    /// A conversation of up to 65536 messages, in order, for the model's chat template, which
    /// begins the assistant's answer. `content` never becomes a control token, but `role` may.
    pub messages: *const bn_chat_message,
    pub messages_count: usize,
    /// `sizeof(bn_chat_message)`; the default.
    pub message_size: usize,
    /// A conversation with tools: a JSON object with the fields that docs/chat.md describes. Others
    /// are refused, nulls ignored. No text in it becomes a control token. At most 64 MiB, 65536
    /// messages and 1048576 values.
    ///
    /// A `tool_choice` of "required" or a function constrains the output to such a call, "auto"
    /// with `strict` tools or without `parallel_tool_calls` the calls that come; `constraint` must
    /// not be set then. Elsewhere a `constraint` in JSON is for answers that are not calls.
    pub chat_json: bn_string,

    /// The most tokens to generate, default 128. 0: as many as `max_sequence_length` leaves, the
    /// limit in any case.
    pub max_new_tokens: u32,
    /// Neither end tokens (with `BN_REQUEST_IGNORE_EOS` too) nor `stop_tokens` come before this
    /// many tokens, unless a `constraint` leaves nothing else. Stop strings may.
    pub min_new_tokens: u32,
    /// Milliseconds from submit until the request ends as `BN_FINISH_TIMED_OUT` with what it has.
    /// 0: the engine's `default_timeout_ms`. `BN_FOREVER`: none.
    pub timeout_ms: u32,
    /// Milliseconds that it may be queued, with the same end. 0: only `timeout_ms` counts.
    pub queue_timeout_ms: u32,
    /// They end the output besides the model's end tokens, even with `BN_REQUEST_IGNORE_EOS`.
    pub stop_tokens: *const u32,
    pub stop_tokens_count: usize,
    /// Texts of 1 to 65536 bytes that end the output. Only generated text is searched. The returned
    /// text ends before the first one; `tokens` and usage have every generated token.
    pub stop_strings: *const bn_string,
    pub stop_strings_count: usize,

    /// The same seed, prompt and parameters give the same output, whatever else runs.
    pub seed: u64,
    /// 0 to 100. 0: always the most likely token.
    pub temperature: f32,
    /// 0 to 100: how far the temperature moves with the entropy of the remaining tokens, up if many
    /// are likely, down if one is.
    pub temperature_range: f32,
    /// For that, the power of the entropy's share of the greatest possible one. Above 0 to 100,
    /// default 1.
    pub temperature_exponent: f32,
    /// Keep this many most likely tokens. 0: all.
    pub top_k: u32,
    /// Keep the most likely tokens that together reach this probability, above 0 to 1. Default
    /// 1.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one, 0 to 1.
    pub min_p: f32,
    /// Keep the tokens with a surprise closest to the entropy that together reach this probability,
    /// above 0 to 1. Default 1.
    pub typical_p: f32,
    /// Drop logits more than this many standard deviations below the greatest, up to 1000. 0:
    /// off.
    pub top_n_sigma: f32,
    /// 0 to 1: the probability of dropping all tokens at least `xtc_threshold` likely but the least
    /// likely of them.
    pub xtc_probability: f32,
    /// Above 0 to 1. Default 0.1.
    pub xtc_threshold: f32,
    /// Mirostat 2: the surprise of tokens to keep, in bits, up to 100; no other `BN_SAMPLER_*` but
    /// temperature may be on. 0: off.
    pub mirostat_tau: f32,
    /// How fast it follows, 0 to 1. Default 0.1.
    pub mirostat_eta: f32,
    /// `BN_SAMPLER_*` in their order, each at most once. One that is left out must be off. NULL:
    /// all, in the order of their numbers.
    pub samplers: *const i32,
    pub samplers_count: usize,

    /// Penalties look at this many of the latest tokens of prompt and output. 0: all.
    pub penalty_window: u32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output. Above 0 to
    /// 100, default 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the output, -100 to 100.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a token in the output, -100 to 100.
    pub presence_penalty: f32,
    /// DRY: a token that would lengthen a repetition of n tokens loses `dry_multiplier` times
    /// `dry_base` to the power of n - `dry_allowed_length` in its logit. 0 (off) to 100.
    pub dry_multiplier: f32,
    /// 1 to 100. Default 1.75.
    pub dry_base: f32,
    /// Shorter repetitions cost nothing. Default 2; 0 means 1.
    pub dry_allowed_length: u32,
    /// The same as `penalty_window` for DRY.
    pub dry_window: u32,
    /// Up to 256 texts of 1 to 65536 bytes that no repetition crosses; tokens with one lose
    /// nothing. NULL: a line break, `:`, `"` and `*`. Not NULL with a count of 0: none.
    pub dry_breakers: *const bn_string,
    pub dry_breakers_count: usize,

    /// Added to the logits of up to 4096 tokens.
    pub logit_bias: *const bn_logit_bias,
    pub logit_bias_count: usize,
    /// Up to 256 texts of 1 to 1024 bytes that do not come, alone or behind a space, in the
    /// tokenizer's own spelling; other tokens may spell them.
    pub bad_words: *const bn_string,
    pub bad_words_count: usize,
    /// Changes the logits before each token.
    pub on_logits: bn_logits_callback,
    pub on_logits_context: *mut c_void,

    /// `BN_CONSTRAINT_*`.
    pub constraint_kind: i32,
    /// `BN_JSON_*`, for JSON or Lark constraints and `chat_json` alone. A schema's "x-guidance"
    /// overrides them.
    pub json_flags: u32,
    /// What the output matches, as `constraint_kind` says, whatever else is asked for; at most
    /// 524288 bytes. Once matched, the model's end tokens may come, even with
    /// `BN_REQUEST_IGNORE_EOS`, and nothing else if the match cannot go on. What ends early is the
    /// beginning of a match. It is compiled at submit; the latest ones stay compiled. A request
    /// may still fail later, where its constraint needs more than docs/decoding.md allows.
    pub constraint: bn_string,

    /// With `BN_REQUEST_LOGPROBS`: so many of the most likely tokens for each generated one, up to
    /// 32.
    pub top_logprobs: u32,
    /// The prompt's first position for `BN_REQUEST_PROMPT_LOGPROBS` and `BN_TASK_SCORE`.
    pub logprobs_from: u32,
    /// With `BN_REQUEST_LOGPROBS`: up to 256 more tokens, behind those of `top_logprobs`.
    pub logprob_tokens: *const u32,
    pub logprob_tokens_count: usize,

    /// With `BN_TASK_EMBED`: `BN_POOLING_*`.
    pub pooling: i32,
    /// Factor of `adapter`, -100 to 100. Default 1.
    pub adapter_scale: f32,
    /// An adapter of the same engine. Requests with different ones share no part of the prefix
    /// cache.
    pub adapter: *const bn_adapter,

    /// Requests with different salts share no part of the prefix cache, so timing tells nothing
    /// about the prompts of others.
    pub cache_salt: u64,
    /// A name of 1 to 256 bytes; two users of an engine need two. When the request ends, its keys
    /// and values stay in the KV cache under this name, in place of what had it, for a next turn
    /// with the same `cache_salt`. Nothing changes if the request fails, ends while it does not
    /// run, or needs more than half of the KV cache, the limit of all sessions together. The least
    /// recently used goes first, also for a request that does not fit alone.
    pub session: bn_string,

    /// `BN_SPECULATION_*`. Drafts never change the output.
    pub speculation: i32,
    /// The most drafted for one step; fewer where fewer pay. 0: the engine's.
    pub draft_tokens: u32,

    /// The trace of the request's spans, as in W3C's `traceparent`, for `on_span`.
    pub trace_id: [u8; 16],
    /// The caller's span that they belong to. Needs `trace_id`.
    pub parent_id: [u8; 8],

    /// With `BN_TASK_RERANK` and `prompt`: the text that the query is about. NULL beside
    /// `prompt_tokens`, which hold both texts.
    pub document: bn_string,

    /// With `BN_REQUEST_PARSE_OUTPUT`: after this many tokens of reasoning its end marker comes in
    /// place of the model's next tokens. Default 18446744073709551615: no bound.
    pub max_reasoning_tokens: u64,
}

grown!(
    bn_request_params: 440, priority: BN_PRIORITY_DEFAULT, message_size: size_of::<bn_chat_message>(),
    max_new_tokens: RequestParams::default().max_new_tokens, top_p: SamplingParams::default().top_p,
    repetition_penalty: SamplingParams::default().repetition_penalty,
    temperature_exponent: SamplingParams::default().temperature_exponent,
    typical_p: SamplingParams::default().typical_p, xtc_threshold: SamplingParams::default().xtc_threshold,
    mirostat_eta: SamplingParams::default().mirostat_eta, dry_base: Dry::default().base,
    dry_allowed_length: Dry::default().allowed, adapter_scale: 1.0, max_reasoning_tokens: u64::MAX
);

impl bn_request_params {
    /// A caller's parameters, for `task` if they say none. Borrows what they point to.
    ///
    /// # Safety
    /// `from` is NULL or points to a struct as the header describes it, for `'a`.
    pub(super) unsafe fn take<'a>(from: *const Self, task: i32) -> Result<RequestParams<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let params = growth::read(from)?;
            let task = if params.task == BN_TASK_GENERATE { task } else { params.task };
            let scores = if task == BN_TASK_SCORE { BN_REQUEST_LOGPROBS } else { 0 };
            Self { task, flags: params.flags | scores, ..params }.to_engine()
        }
    }

    /// # Safety
    /// Pointers are NULL or as the fields say, for `'a`.
    unsafe fn to_engine<'a>(&self) -> Result<RequestParams<'a>> {
        let has = |flag| self.flags & flag != 0;
        guard::flags("flags", self.flags, FLAGS)?;
        let tasks = [BN_TASK_GENERATE, BN_TASK_EMBED, BN_TASK_SCORE, BN_TASK_RERANK].map(|task| (task, ()));
        choice("task", self.task, "BN_TASK", &tasks)?;
        let json = self.json_options()?;
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
            constraint: unsafe { constraint(self.constraint_kind, self.constraint, json) }?,
            json,
            on_logits: self.logits_hook(),
            ignore_eos: has(BN_REQUEST_IGNORE_EOS),
            echo_prompt: has(BN_REQUEST_ECHO_PROMPT),
            stream: !has(BN_REQUEST_NO_STREAM),
            poll_by_id: has(BN_REQUEST_POLL_BY_ID),
            parse_output: has(BN_REQUEST_PARSE_OUTPUT),
            max_reasoning_tokens: self.max_reasoning_tokens,
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
        match (has(BN_REQUEST_PROMPT_LOGPROBS), self.task == BN_TASK_SCORE) {
            (false, false) if self.logprobs_from == 0 => Ok(None),
            (false, false) => Err(Error::invalid(
                "logprobs_from is set and needs BN_REQUEST_PROMPT_LOGPROBS or BN_TASK_SCORE",
            )),
            (true, true) => Err(Error::invalid("BN_REQUEST_PROMPT_LOGPROBS and BN_TASK_SCORE are both set")),
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
        let [raw, unit] = [BN_REQUEST_EMBED_RAW, BN_REQUEST_EMBED_UNIT].map(|flag| self.flags & flag != 0);
        if self.task == BN_TASK_RERANK && !raw && !unit && self.pooling == BN_POOLING_MODEL {
            return Ok(Some(EmbeddingParams { pooling: None, normalize: None, score: true }));
        }
        if self.task != BN_TASK_EMBED {
            return match (raw, unit, self.pooling) {
                (false, false, BN_POOLING_MODEL) => Ok(None),
                (true, ..) => Err(Error::invalid("BN_REQUEST_EMBED_RAW needs BN_TASK_EMBED")),
                (_, true, _) => Err(Error::invalid("BN_REQUEST_EMBED_UNIT needs BN_TASK_EMBED")),
                _ => Err(Error::invalid("pooling is set and needs BN_TASK_EMBED")),
            };
        }
        let poolings = [
            (BN_POOLING_MODEL, None),
            (BN_POOLING_LAST, Some(Pooling::Last)),
            (BN_POOLING_MEAN, Some(Pooling::Mean)),
            (BN_POOLING_FIRST, Some(Pooling::First)),
        ];
        let pooling = choice("pooling", self.pooling, "BN_POOLING", &poolings)?;
        if raw && unit {
            return Err(Error::invalid("BN_REQUEST_EMBED_RAW and BN_REQUEST_EMBED_UNIT exclude each other"));
        }
        let normalize = (raw || unit).then_some(unit);
        Ok(Some(EmbeddingParams { pooling, normalize, score: false }))
    }

    pub(super) unsafe fn prompt<'a>(&self) -> Result<Prompt<'a>> {
        // SAFETY: the caller's promise.
        let (document, text, ids, messages, chat) = unsafe {
            (
                guard::optional_text("document", self.document)?,
                guard::optional_text("prompt", self.prompt)?,
                guard::slice("prompt_tokens", self.prompt_tokens, self.prompt_tokens_count)?,
                conversation(self.messages, self.messages_count, self.message_size)?,
                guard::optional_text("chat_json", self.chat_json)?,
            )
        };
        if let Some(document) = document {
            let others = chat.is_some() || !self.prompt_tokens.is_null() || !self.messages.is_null();
            return match (text, self.task) {
                (_, BN_TASK_RERANK) if others => {
                    Err(Error::invalid("document is set beside prompt_tokens, messages or chat_json"))
                }
                (Some(query), BN_TASK_RERANK) => {
                    Ok(Prompt::Pair(Cow::Borrowed(query), Cow::Borrowed(document)))
                }
                (None, BN_TASK_RERANK) => {
                    Err(Error::invalid("document is set and needs the query in prompt"))
                }
                _ => Err(Error::invalid("document is set and needs BN_TASK_RERANK")),
            };
        }
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

/// It waits for admission.
pub const BN_STAGE_QUEUED: i32 = 0;
/// It takes part in forward passes, unless it is paused or interrupted.
pub const BN_STAGE_RUNNING: i32 = 1;
/// It has finished. Its last event may still wait to be polled.
pub const BN_STAGE_FINISHED: i32 = 2;

/// Where a request is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_request_info {
    pub struct_size: u32,
    /// `BN_STAGE_*`.
    pub stage: i32,
    /// With `BN_STAGE_QUEUED`: how many queued requests were submitted before it, whatever their
    /// priorities. Otherwise 0.
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
