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
/// Compute the prompt's embedding, and return it in one event. `max_new_tokens` is ignored;
/// sampling and stop fields, `messages`, `chat_json` and the output flags must have their
/// defaults.
pub const BN_TASK_EMBED: i32 = 1;
/// Return the prompt's tokens from `logprobs_from` on and their log probabilities, in one event
/// that finishes the request as `BN_FINISH_LENGTH`. The tokens before them come from the prefix
/// cache if they are there, so continuations of one prompt compute it once. For reranking,
/// classification and evaluation. `max_new_tokens` is ignored; stop fields, `constraint`,
/// `on_logits` and `chat_json` are refused.
pub const BN_TASK_SCORE: i32 = 2;

/// One event at the end, with the whole text and all tokens.
pub const BN_REQUEST_NO_STREAM: u32 = 1 << 0;
/// Only a `bn_poll` of the request's own id returns its events: `BN_ANY` and the wait descriptor do
/// not see them. Refused in callback mode.
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
/// With `BN_TASK_EMBED`: do not divide the vector by its Euclidean length.
pub const BN_REQUEST_EMBED_RAW: u32 = 1 << 6;

/// Take nothing from the prefix cache and leave nothing there. Results are the same. Refused with
/// `session`.
pub const BN_REQUEST_NO_CACHE: u32 = 1 << 7;

/// Needs `queue_timeout_ms`: end a queued request, as `BN_FINISH_TIMED_OUT`, as soon as its first
/// token is predicted to come later than that. In overload, no time goes into requests that would
/// be late anyway.
pub const BN_REQUEST_DROP_LATE: u32 = 1 << 8;

/// End the request, as `BN_FINISH_CANCELLED`, when its unread output would pause it
/// (`max_unread_bytes`).
pub const BN_REQUEST_END_UNREAD: u32 = 1 << 9;

/// With `BN_REQUEST_LOGPROBS`: log probabilities of the distribution that the token is drawn from,
/// behind penalties, temperature and samplers (of a dropped token: -infinity), instead of the
/// model's own.
pub const BN_REQUEST_CHAIN_LOGPROBS: u32 = 1 << 10;

/// Needs `chat_json`: events have the answer's reasoning in `reasoning`, calls of tools in
/// `tool_calls`, and the rest in `text`, without the markers between them and line breaks beside
/// these. A call is returned as soon as its name is known and its arguments begin, and these as
/// they come. If they turn out not to be JSON, the call keeps what was returned of them, and the
/// rest is text. Stop strings are looked for in all that is generated.
pub const BN_REQUEST_PARSE_OUTPUT: u32 = 1 << 11;

/// With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: return the log probabilities of the
/// prompt's tokens too, from `logprobs_from` on: each one given those before it, by the model's
/// own softmax. Before that position, and for the first token, they are NaN. Refused with
/// `chat_json`.
pub const BN_REQUEST_PROMPT_LOGPROBS: u32 = 1 << 12;

/// The default of `bn_request_params.priority`.
pub const BN_PRIORITY_DEFAULT: u32 = 128;
/// The most urgent `bn_request_params.priority`.
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
    | BN_REQUEST_PROMPT_LOGPROBS;

/// One request. Set one of `prompt`, `prompt_tokens`, `messages` and `chat_json`. Nothing that it
/// points to is needed after the call that submits it.
#[repr(C)]
pub struct bn_request_params {
    pub struct_size: u32,
    /// `BN_TASK_*`. Default `BN_TASK_GENERATE`.
    pub task: i32,
    /// `BN_REQUEST_*`. Default 0.
    pub flags: u32,
    /// 0 to `BN_PRIORITY_MAX`, the most urgent. Default `BN_PRIORITY_DEFAULT`. Requests are ordered
    /// by arrival and priority; `bn_engine_config.priority_ageing_ms` says how much a priority is
    /// worth. A request without room interrupts running ones that are behind it and of lower
    /// priority, the last one first. They go on later, with the same output.
    pub priority: u32,
    /// Returned in every event of the request.
    pub user_data: u64,

    /// The prompt as text. The tokenizer puts in front of it the tokens that the model wants (BOS),
    /// and behind a text to embed those that it wants there (EOS).
    pub prompt: bn_string,
    /// The prompt as token ids, used as they are.
    pub prompt_tokens: *const u32,
    pub prompt_tokens_count: usize,
    /// The prompt as a conversation, first message first. The model's chat template makes the
    /// prompt and begins the assistant's answer. `content` never becomes a control token, but
    /// `role` may.
    pub messages: *const bn_chat_message,
    /// Number of `messages`, at most 65536.
    pub messages_count: usize,
    /// `sizeof(bn_chat_message)`; set by `bn_request_params_init`.
    pub message_size: usize,
    /// The prompt as a conversation with tools: a JSON object with the fields of OpenAI's chat
    /// completions `messages`, `tools`, `tool_choice`, `parallel_tool_calls`, and of
    /// transformers' chat templates `chat_template_kwargs` (the template's variables),
    /// `documents`, `add_generation_prompt` and `continue_final_message` (the answer goes on
    /// with the last message). `tool_format` and `reasoning_format` say how the model writes
    /// calls and reasoning, in place of what its template tells. Other fields are refused, nulls
    /// ignored. No text in it becomes a control token, names included. At most 64 MiB, 65536
    /// messages and 1048576 values.
    ///
    /// A `tool_choice` of "required" or of a function constrains the output to such a call, as its
    /// `parameters` say; "auto" with `strict` tools, or without `parallel_tool_calls`, constrains
    /// the calls that come. `constraint` must not be set then. With "none", the model sees the
    /// tools, and calls are text. docs/chat.md says more.
    pub chat_json: bn_string,

    /// The most tokens to generate, default 128. 0: as many as `max_sequence_length` leaves, which
    /// limits the output in any case.
    pub max_new_tokens: u32,
    /// Neither the model's end tokens (with `BN_REQUEST_IGNORE_EOS` too) nor `stop_tokens` come
    /// before this many tokens, unless a `constraint` leaves nothing else. Stop strings may.
    /// Default 0.
    pub min_new_tokens: u32,
    /// Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT` with what it
    /// has. 0 (default): the engine's `default_timeout_ms`. `BN_FOREVER`: no timeout.
    pub timeout_ms: u32,
    /// Milliseconds from submit after which a request that is still queued ends as
    /// `BN_FINISH_TIMED_OUT`. 0 (default): `timeout_ms` alone counts.
    pub queue_timeout_ms: u32,
    /// Tokens that end the output, besides the model's own end tokens. They count even with
    /// `BN_REQUEST_IGNORE_EOS`.
    pub stop_tokens: *const u32,
    /// Number of `stop_tokens`, at most `BN_MAX_STOPS`.
    pub stop_tokens_count: usize,
    /// Texts of 1 to 65536 bytes that end the output. The returned text ends before the first one;
    /// `tokens` and usage count every generated token. Only generated text is searched.
    pub stop_strings: *const bn_string,
    /// Number of `stop_strings`, at most `BN_MAX_STOPS`.
    pub stop_strings_count: usize,

    /// Seed of the random numbers. The same seed, prompt and parameters give the same output,
    /// whatever else runs. Default 0.
    pub seed: u64,
    /// 0 to 100. 0 (default): always the most likely token.
    pub temperature: f32,
    /// The temperature moves by this much up and down, 0 (default) to 100, with the entropy of the
    /// remaining tokens: up if many are likely, down if one is.
    pub temperature_range: f32,
    /// Shape of that movement: the entropy as a share of the greatest possible one, raised to this.
    /// Above 0, at most 100, default 1.
    pub temperature_exponent: f32,
    /// Sample from this many most likely tokens. 0 (default): all.
    pub top_k: u32,
    /// Sample from the most likely tokens that together reach this probability, above 0, at most 1
    /// (default).
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one, 0 (default) to 1.
    pub min_p: f32,
    /// Sample from the tokens whose surprise is closest to the entropy and that together reach this
    /// probability, above 0, at most 1 (default).
    pub typical_p: f32,
    /// Drop tokens whose logits are more than this many standard deviations below the greatest one,
    /// up to 1000. 0 (default): off.
    pub top_n_sigma: f32,
    /// The probability, 0 (default) to 1, of dropping all tokens that are at least `xtc_threshold`
    /// likely except the least likely of them.
    pub xtc_probability: f32,
    /// Above 0, at most 1. Default 0.1.
    pub xtc_threshold: f32,
    /// Mirostat 2: keep the surprise of tokens at this many bits, up to 100, with no other
    /// `BN_SAMPLER_*` on but temperature. 0 (default): off.
    pub mirostat_tau: f32,
    /// How fast mirostat follows, 0 to 1. Default 0.1.
    pub mirostat_eta: f32,
    /// The samplers and their order: `BN_SAMPLER_*`, each at most once. One that is left out must
    /// be off. Not set (default): all, in the order of their numbers.
    pub samplers: *const i32,
    pub samplers_count: usize,

    /// The penalties look at this many of the latest tokens of prompt and output. 0 (default):
    /// all.
    pub penalty_window: u32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or output, above 0,
    /// at most 100. 1 (default): off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the output, -100 to 100. Default
    /// 0.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it is in the output, -100 to 100. Default 0.
    pub presence_penalty: f32,
    /// DRY: a token that would lengthen a repetition of n tokens loses `dry_multiplier` times
    /// `dry_base` to the power of n - `dry_allowed_length` in its logit. 0 (default, off) to
    /// 100.
    pub dry_multiplier: f32,
    /// 1 to 100. Default 1.75.
    pub dry_base: f32,
    /// Shorter repetitions cost nothing. Default 2; 0 is as 1.
    pub dry_allowed_length: u32,
    /// DRY looks at this many of the latest tokens of prompt and output. 0 (default): all.
    pub dry_window: u32,
    /// Texts of 1 to 65536 bytes that no repetition crosses; a token whose text has one loses
    /// nothing. NULL (default): a line break, `:`, `"` and `*`.
    pub dry_breakers: *const bn_string,
    /// Number of `dry_breakers`, at most 256. 0 with `dry_breakers` set: none.
    pub dry_breakers_count: usize,

    /// Numbers to add to the logits of some tokens.
    pub logit_bias: *const bn_logit_bias,
    /// Number of `logit_bias`, at most 4096.
    pub logit_bias_count: usize,
    /// Texts of 1 to 1024 bytes that do not come, alone or behind a space, in the tokenizer's own
    /// spelling. The same text made of other tokens can come.
    pub bad_words: *const bn_string,
    /// Number of `bad_words`, at most 256.
    pub bad_words_count: usize,
    /// Changes the logits before each token is sampled. Default NULL. Refused with
    /// `BN_TASK_EMBED`.
    pub on_logits: bn_logits_callback,
    pub on_logits_context: *mut c_void,

    /// `BN_CONSTRAINT_*`. Default `BN_CONSTRAINT_NONE`.
    pub constraint_kind: i32,
    /// `BN_JSON_*`: the spelling of the JSON of a constraint or of tool calls, and the meaning of
    /// its schemas. A schema's own "x-guidance" overrides these flags. Default 0. Needs a
    /// `constraint_kind` with JSON or Lark, or `chat_json`.
    pub json_flags: u32,
    /// The output matches this, as `constraint_kind` says; at most 524288 bytes. Tokens that would
    /// break it do not come, whatever else is asked for. When it is matched, the model's end tokens
    /// may come, even with `BN_REQUEST_IGNORE_EOS`, and nothing else if the match cannot go on. An
    /// output that `max_new_tokens` or a stop string ends early is the beginning of a match. It is
    /// compiled while the request is submitted; the latest ones stay compiled. Not set (default):
    /// none.
    pub constraint: bn_string,

    /// With `BN_REQUEST_LOGPROBS`: how many of the most likely tokens to return for each generated
    /// one, at most 32. Default 0.
    pub top_logprobs: u32,
    /// With `BN_REQUEST_PROMPT_LOGPROBS` or `BN_TASK_SCORE`: the first position of the prompt whose
    /// log probability is wanted. Default 0.
    pub logprobs_from: u32,
    /// With `BN_REQUEST_LOGPROBS`: tokens whose log probabilities to return for each generated one,
    /// behind those of `top_logprobs`.
    pub logprob_tokens: *const u32,
    /// Number of `logprob_tokens`, at most 256.
    pub logprob_tokens_count: usize,

    /// With `BN_TASK_EMBED`: `BN_POOLING_*`. Default `BN_POOLING_MODEL`.
    pub pooling: i32,
    /// Factor of the adapter's update, -100 to 100. Default 1.
    pub adapter_scale: f32,
    /// The adapter that the request runs with, of the same engine. NULL (default): none. Requests
    /// with different adapters share no part of the prefix cache.
    pub adapter: *const bn_adapter,

    /// Requests with different salts share no part of the prefix cache, so that timing tells a
    /// client nothing about the prompts of others. Default 0: requests that set none share.
    pub cache_salt: u64,
    /// A name of 1 to 256 bytes. When the request ends, its keys and values stay in the KV cache
    /// under this name, in place of what had the name before. The next turn of the conversation,
    /// with the same `cache_salt`, finds them, however busy the engine was meanwhile. Nothing
    /// changes if the request fails, ends while it does not run, or needs more than half of the KV
    /// cache, which is the limit of all sessions together. The least recently used one goes first,
    /// also to make room for a request that does not fit alone. Names belong to the engine: two
    /// users need two names. Refused with `BN_REQUEST_NO_CACHE`. Not set (default): none.
    pub session: bn_string,

    /// `BN_SPECULATION_*`. Drafts never change the output. Default `BN_SPECULATION_DEFAULT`.
    pub speculation: i32,
    /// The most tokens drafted for one step, up to `BN_MAX_DRAFT_TOKENS`; their number follows from
    /// how many were right, and from the time that they take. 0 (default): the engine's.
    pub draft_tokens: u32,

    /// The trace that the request belongs to, as in W3C's `traceparent`: its spans go to
    /// `bn_engine_config.on_span`. All zeros (default): none.
    pub trace_id: [u8; 16],
    /// The caller's span that its spans belong to. All zeros (default): none. Needs `trace_id`.
    pub parent_id: [u8; 8],
}

grown!(
    bn_request_params: 432, priority: BN_PRIORITY_DEFAULT, message_size: size_of::<bn_chat_message>(),
    max_new_tokens: RequestParams::default().max_new_tokens, top_p: SamplingParams::default().top_p,
    repetition_penalty: SamplingParams::default().repetition_penalty,
    temperature_exponent: SamplingParams::default().temperature_exponent,
    typical_p: SamplingParams::default().typical_p, xtc_threshold: SamplingParams::default().xtc_threshold,
    mirostat_eta: SamplingParams::default().mirostat_eta, dry_base: Dry::default().base,
    dry_allowed_length: Dry::default().allowed, adapter_scale: 1.0
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
        let tasks = [BN_TASK_GENERATE, BN_TASK_EMBED, BN_TASK_SCORE].map(|task| (task, ()));
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
        let raw = self.flags & BN_REQUEST_EMBED_RAW != 0;
        if self.task != BN_TASK_EMBED {
            return match (raw, self.pooling) {
                (false, BN_POOLING_MODEL) => Ok(None),
                (true, _) => Err(Error::invalid("BN_REQUEST_EMBED_RAW needs BN_TASK_EMBED")),
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
        Ok(Some(EmbeddingParams { pooling, normalize: !raw }))
    }

    pub(super) unsafe fn prompt<'a>(&self) -> Result<Prompt<'a>> {
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
/// The request was admitted. It takes part in forward passes, unless it is paused or
/// interrupted.
pub const BN_STAGE_RUNNING: i32 = 1;
/// The request has finished. Its last event may still wait to be polled.
pub const BN_STAGE_FINISHED: i32 = 2;

/// Where a request is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_request_info {
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
