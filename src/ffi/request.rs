//! `bn_request_params`, and its conversion to `RequestParams`; `bn_request_info`.

use super::chat::bn_chat;
use super::config::choice;
use super::constraint::bn_constraint;
use super::growth::{self, Grown, grown};
use super::guard;
use super::picture::{bn_picture, pictures};
use super::pooling::bn_embedding_params;
use super::question::{bn_question, questions};
use super::registry;
use super::sampling::{bn_sampling, list};
use super::speculation::speculation;
use super::trace::bn_trace;
use super::types::*;
use crate::base::{Error, Result};
use crate::engine::api::{Adapted, EmbeddingParams, Prompt, Question, RequestParams, ScoreParams, Stage};
use crate::sample::{Dry, MAX_LISTED, SamplingParams};
use std::borrow::Cow;

/// Generate an output.
pub const BN_TASK_GENERATE: u32 = 0;
/// Return the prompt's embedding, in one event. `max_new_tokens` is ignored; `sampling`, `chat`,
/// stop fields and the output flags must have their defaults.
pub const BN_TASK_EMBED: u32 = 1;
/// Return the prompt's tokens from `logprobs_from` on and their log probabilities, in one event,
/// as `BN_FINISH_LENGTH`. `max_new_tokens` is ignored; stop fields, `constraint`, `on_logits` and
/// `chat.json` are refused.
pub const BN_TASK_SCORE: u32 = 2;
/// Return how relevant `document` is to the query in `prompt`, in one event, as
/// `BN_FINISH_EMBEDDING` with one number within 0 and 1. For models with
/// `bn_model_info.scores_pairs`; others return `BN_ERR_UNSUPPORTED`. A decoder puts both into the
/// prompt that its files have for it. In place of both, `chat.messages` of the roles "system",
/// "query" and "document", in this order, give that prompt another instruction; without "system"
/// it has its own. Models without such a prompt return `BN_ERR_UNSUPPORTED` for them. `embedding`
/// is refused, the rest is as with `BN_TASK_EMBED`.
pub const BN_TASK_RERANK: u32 = 3;
/// Return the answers to `questions` about the prompt, in one event, as `BN_FINISH_LENGTH`: how
/// likely each option is as the next text. Tokens that questions have in common, the prompt's
/// first, are computed once, and the rest side by side. `session` is refused, the rest is as with
/// `BN_TASK_EMBED`, but `chat` is taken. `BN_ERR_UNSUPPORTED` for models that generate nothing.
pub const BN_TASK_DECIDE: u32 = 4;

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
/// Take nothing from the prefix cache and leave nothing there. Results are the same. Refused with
/// `session`.
pub const BN_REQUEST_NO_CACHE: u32 = 1 << 6;

/// Needs `queue_timeout_ms`: end a queued request, as `BN_FINISH_TIMED_OUT`, once its first token
/// is predicted to come later than that.
pub const BN_REQUEST_DROP_LATE: u32 = 1 << 7;

/// End the request, as `BN_FINISH_CANCELLED`, when `max_unread_bytes` would pause it.
pub const BN_REQUEST_END_UNREAD: u32 = 1 << 8;

/// With `BN_REQUEST_LOGPROBS`: those of the distribution that the token is drawn from, after
/// penalties, temperature and samplers (of a dropped token: -infinity).
pub const BN_REQUEST_CHAIN_LOGPROBS: u32 = 1 << 9;

/// Needs `chat.json`: events have reasoning in `reasoning`, calls of tools in `tool_calls`, and
/// the rest in `text`, without their markers. If a call's arguments turn out not to be JSON, it
/// keeps what was returned, and the rest is text. Stop strings are looked for in all that is
/// generated.
pub const BN_REQUEST_PARSE_OUTPUT: u32 = 1 << 10;

/// With `BN_REQUEST_ECHO_PROMPT` and `BN_REQUEST_LOGPROBS`: also those of the prompt's tokens from
/// `logprobs_from` on, by the model's own softmax. Refused with `chat.json`.
pub const BN_REQUEST_PROMPT_LOGPROBS: u32 = 1 << 11;

/// Halfway between the least urgent priority, 0, and the most urgent.
pub const BN_PRIORITY_DEFAULT: u32 = 128;
/// The most urgent priority.
pub const BN_PRIORITY_MAX: u32 = 255;

/// The largest `stop_strings_count` and `stop_tokens_count`.
pub const BN_MAX_STOPS: u32 = 256;

const TASKS: [u32; 5] = [BN_TASK_GENERATE, BN_TASK_EMBED, BN_TASK_SCORE, BN_TASK_RERANK, BN_TASK_DECIDE];

const FLAGS: u32 = BN_REQUEST_NO_STREAM
    | BN_REQUEST_POLL_BY_ID
    | BN_REQUEST_ECHO_PROMPT
    | BN_REQUEST_IGNORE_EOS
    | BN_REQUEST_LOGPROBS
    | BN_REQUEST_PARSE_SPECIAL
    | BN_REQUEST_NO_CACHE
    | BN_REQUEST_DROP_LATE
    | BN_REQUEST_END_UNREAD
    | BN_REQUEST_CHAIN_LOGPROBS
    | BN_REQUEST_PARSE_OUTPUT
    | BN_REQUEST_PROMPT_LOGPROBS;

/// One request, with one of `prompt`, `prompt_tokens` and `chat`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_request_params {
    pub struct_size: u32,
    /// `BN_TASK_*`.
    pub task: u32,
    /// `BN_REQUEST_*`.
    pub flags: u32,
    /// 0 to `BN_PRIORITY_MAX`, default `BN_PRIORITY_DEFAULT`. `priority_ageing_ms` weighs it
    /// against arrival. A request without room interrupts running ones behind it and of lower
    /// priority, the last first; they go on later, with the same output.
    pub priority: u32,
    /// Returned in every event.
    pub user_data: u64,

    /// A text. The tokenizer adds the tokens that the model wants in front (BOS) and, for
    /// embeddings, after it (EOS).
    pub prompt: bn_string,
    /// With `BN_TASK_RERANK` and `prompt`: the text that the query is about. NULL beside
    /// `prompt_tokens`, which hold both texts.
    pub document: bn_string,
    /// Token ids, used as they are.
    pub prompt_tokens: *const u32,
    pub prompt_tokens_count: usize,
    /// A conversation.
    pub chat: bn_chat,

    /// They end the output besides the model's end tokens, even with `BN_REQUEST_IGNORE_EOS`.
    pub stop_tokens: *const u32,
    pub stop_tokens_count: usize,
    /// Texts of 1 to 65536 bytes that end the output. Only generated text is searched. The
    /// returned text ends before the first one; `tokens` and usage have every generated token.
    pub stop_strings: *const bn_string,
    pub stop_strings_count: usize,
    /// The most tokens to generate, default 128. 0: as many as `context_length` leaves, the
    /// limit in any case.
    pub max_new_tokens: u32,
    /// Neither end tokens (with `BN_REQUEST_IGNORE_EOS` too) nor `stop_tokens` come before this
    /// many tokens, unless a `constraint` leaves nothing else. Stop strings may, and
    /// `max_new_tokens`.
    pub min_new_tokens: u32,
    /// With `BN_REQUEST_PARSE_OUTPUT`: after this many tokens of reasoning its end marker comes in
    /// place of the model's next tokens. Default `BN_NO_LIMIT`.
    pub max_reasoning_tokens: u32,
    /// Milliseconds from submit until the request ends as `BN_FINISH_TIMED_OUT` with what it has.
    /// 0: the engine's `default_timeout_ms`; so `BN_NO_LIMIT` is for none.
    pub timeout_ms: u32,
    /// Milliseconds that it may be queued, with the same end. 0: only `timeout_ms` counts.
    pub queue_timeout_ms: u32,

    /// Factor of `adapter`, -100 to 100. Default 1.
    pub adapter_scale: f32,
    /// An adapter of the same engine. Requests with different ones share no part of the prefix
    /// cache.
    pub adapter: *const bn_adapter,

    /// How tokens are drawn.
    pub sampling: bn_sampling,
    /// The grammar that the output matches.
    pub constraint: bn_constraint,
    /// With `BN_REQUEST_LOGPROBS`: the number of most likely tokens to report for each generated
    /// one, up to 32.
    pub top_logprobs: u32,
    /// The prompt's first position for `BN_REQUEST_PROMPT_LOGPROBS` and `BN_TASK_SCORE`.
    pub logprobs_from: u32,
    /// With `BN_REQUEST_LOGPROBS`: up to 256 more tokens, after those of `top_logprobs`.
    pub logprob_tokens: *const u32,
    pub logprob_tokens_count: usize,
    /// With `BN_TASK_EMBED`.
    pub embedding: bn_embedding_params,

    /// `BN_SPECULATION_*`. Drafts never change the output.
    pub speculation: u32,
    /// The most tokens to draft for a step, or fewer if that saves more time. 0: the engine's
    /// default.
    pub draft_tokens: u32,
    /// Requests with different salts share no part of the prefix cache, so timing tells nothing
    /// about the prompts of others.
    pub cache_salt: u64,
    /// A name of 1 to 256 bytes; two users of an engine need two. When the request ends, its keys
    /// and values stay in the KV cache under this name, in place of what had it, for a next turn
    /// with the same `cache_salt`. Nothing changes if the request fails, ends while it does not
    /// run, or needs more than half of the KV cache, the limit of all sessions together. The least
    /// recently used goes first, also for a request that does not fit alone.
    pub session: bn_string,
    /// The caller's trace, for `on_span`.
    pub trace: bn_trace,

    /// With `BN_TASK_DECIDE`: 1 to `BN_MAX_QUESTIONS`.
    pub questions: *const bn_question,
    pub questions_count: usize,

    /// Pictures, for models that see (`bn_model_info.sees`), in the order of their places in the
    /// prompt. A conversation has a place for each part `{"type": "image"}`; a text with
    /// `BN_REQUEST_PARSE_SPECIAL` and `prompt_tokens` have one for each of the model's tokens that
    /// stand for a picture. `bn_submit` decodes them, on its caller's thread, and then needs them no
    /// longer. `BN_ERR_UNSUPPORTED` if the engine sees none.
    pub pictures: *const bn_picture,
    /// At most `BN_MAX_PICTURES`.
    pub pictures_count: usize,
}

grown!(
    bn_request_params {
        struct_size, task, flags, priority, user_data, prompt, document, prompt_tokens,
        prompt_tokens_count, chat, stop_tokens, stop_tokens_count, stop_strings, stop_strings_count,
        max_new_tokens, min_new_tokens, max_reasoning_tokens, timeout_ms, queue_timeout_ms,
        adapter_scale, adapter, sampling, constraint, top_logprobs, logprobs_from, logprob_tokens,
        logprob_tokens_count, embedding, speculation, draft_tokens, cache_salt, session, trace,
        questions, questions_count, pictures, pictures_count,
    },
    priority: BN_PRIORITY_DEFAULT, max_new_tokens: RequestParams::default().max_new_tokens,
    max_reasoning_tokens: BN_NO_LIMIT, adapter_scale: 1.0, sampling.top_p: SamplingParams::default().top_p,
    sampling.repetition_penalty: SamplingParams::default().repetition_penalty,
    sampling.temperature_exponent: SamplingParams::default().temperature_exponent,
    sampling.typical_p: SamplingParams::default().typical_p,
    sampling.xtc_threshold: SamplingParams::default().xtc_threshold,
    sampling.mirostat_eta: SamplingParams::default().mirostat_eta,
    sampling.dry_base: Dry::default().base, sampling.dry_allowed_length: Dry::default().allowed
);

impl bn_request_params {
    /// A caller's parameters, for `task` if they say none. Borrows what they point to.
    ///
    /// # Safety
    /// `from` is NULL or points to a struct as the header describes it, for `'a`.
    pub(super) unsafe fn take<'a>(from: *const Self, task: u32) -> Result<RequestParams<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let params = growth::read(from)?;
            let task = if params.task == BN_TASK_GENERATE { task } else { params.task };
            let scores = if task == BN_TASK_SCORE { BN_REQUEST_LOGPROBS } else { 0 };
            Self { task, flags: params.flags | scores, ..params }.as_engine()
        }
    }

    /// # Safety
    /// Pointers are NULL or as the fields say, for `'a`.
    unsafe fn as_engine<'a>(&self) -> Result<RequestParams<'a>> {
        let has = |flag| self.flags & flag != 0;
        guard::flags("flags", self.flags, FLAGS)?;
        choice("task", self.task, "BN_TASK", &TASKS.map(|task| (task, ())))?;
        // SAFETY: the caller's promise.
        let (constraint, json) = unsafe { self.constraint.as_engine(!self.chat.json.data.is_null()) }?;
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
        // SAFETY: the caller's promise.
        let (stop_tokens, prompt, stop_strings, session) = unsafe {
            let tokens = guard::slice("stop_tokens", self.stop_tokens, self.stop_tokens_count)?;
            let strings = guard::texts("stop_strings", self.stop_strings, self.stop_strings_count)?;
            (tokens, self.prompt()?, strings, guard::optional_text("session", self.session)?)
        };
        Ok(RequestParams {
            prompt,
            // SAFETY (of all below): the caller's promise.
            pictures: unsafe { pictures(self.pictures, self.pictures_count) }?,
            embedding,
            max_new_tokens: self.max_new_tokens,
            // SAFETY: the caller's promise.
            sampling: unsafe { self.sampling() }?,
            stop_tokens: Cow::Borrowed(stop_tokens),
            stop_strings,
            // SAFETY: the caller's promise.
            bad_words: unsafe { self.sampling.bad_words() }?,
            constraint,
            json,
            on_logits: self.sampling.logits_hook(),
            ignore_eos: has(BN_REQUEST_IGNORE_EOS),
            echo_prompt: has(BN_REQUEST_ECHO_PROMPT),
            stream: !has(BN_REQUEST_NO_STREAM),
            poll_by_id: has(BN_REQUEST_POLL_BY_ID),
            parse_output: has(BN_REQUEST_PARSE_OUTPUT),
            max_reasoning_tokens: self.max_reasoning_tokens(),
            parse_special: has(BN_REQUEST_PARSE_SPECIAL),
            user_data: self.user_data,
            timeout_ms: self.timeout_ms,
            queue_timeout_ms: self.queue_timeout_ms,
            drop_late: has(BN_REQUEST_DROP_LATE),
            end_unread: has(BN_REQUEST_END_UNREAD),
            priority: self.priority()?,
            cache: !has(BN_REQUEST_NO_CACHE),
            cache_salt: self.cache_salt,
            session: session.map(Cow::Borrowed),
            trace: self.trace.as_engine()?,
            adapter: self.adapter()?,
            scores: self.scores()?,
            // SAFETY: the caller's promise.
            questions: unsafe { self.questions() }?,
            speculation: speculation(self.speculation)?,
            draft_tokens: self.draft_tokens,
        })
    }

    fn max_reasoning_tokens(&self) -> u64 {
        match self.max_reasoning_tokens {
            BN_NO_LIMIT => u64::MAX,
            most => most.into(),
        }
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

    /// # Safety
    /// `questions` is NULL or as the fields say, for `'a`.
    unsafe fn questions<'a>(&self) -> Result<Option<Vec<Question<'a>>>> {
        match (self.task, self.questions_count) {
            // SAFETY: the caller's promise.
            (BN_TASK_DECIDE, count) => unsafe { questions(self.questions, count) }.map(Some),
            (_, 0) => Ok(None),
            _ => Err(Error::invalid("questions is set and needs BN_TASK_DECIDE")),
        }
    }

    fn priority(&self) -> Result<u8> {
        self.priority.try_into().map_err(|_| {
            Error::invalid(format!("priority is {}; it goes from 0 to {BN_PRIORITY_MAX}", self.priority))
        })
    }

    /// `sampling`, and the other fields that affect how tokens and their log probabilities are
    /// made.
    ///
    /// # Safety
    /// Pointers are NULL or as the fields say.
    unsafe fn sampling(&self) -> Result<SamplingParams> {
        let count = self.logprob_tokens_count;
        // SAFETY: the caller's promise.
        let (sampling, listed) = unsafe {
            let listed = list("logprob_tokens", self.logprob_tokens, count, MAX_LISTED)?;
            (self.sampling.as_engine()?, listed)
        };
        Ok(SamplingParams {
            min_new_tokens: self.min_new_tokens,
            top_logprobs: self.top_logprobs,
            logprobs: self.flags & BN_REQUEST_LOGPROBS != 0,
            logprob_tokens: listed.to_vec(),
            chain_logprobs: self.flags & BN_REQUEST_CHAIN_LOGPROBS != 0,
            ..sampling
        })
    }

    fn embedding(&self) -> Result<Option<EmbeddingParams>> {
        guard::reserved("embedding", &self.embedding.reserved)?;
        match (self.task, self.embedding.is_default()) {
            (BN_TASK_EMBED, _) => self.embedding.as_engine().map(Some),
            (BN_TASK_RERANK, true) => {
                Ok(Some(EmbeddingParams { pooling: None, normalize: None, score: true }))
            }
            (_, true) => Ok(None),
            (_, false) => Err(Error::invalid("embedding is set and needs BN_TASK_EMBED")),
        }
    }

    unsafe fn prompt<'a>(&self) -> Result<Prompt<'a>> {
        // SAFETY: the caller's promise.
        let (document, text, ids, messages, chat) = unsafe {
            (
                guard::optional_text("document", self.document)?,
                guard::optional_text("prompt", self.prompt)?,
                guard::slice("prompt_tokens", self.prompt_tokens, self.prompt_tokens_count)?,
                self.chat.messages()?,
                self.chat.json()?,
            )
        };
        if let Some(document) = document {
            let others = chat.is_some() || !self.prompt_tokens.is_null() || !self.chat.messages.is_null();
            return match (text, self.task) {
                (_, BN_TASK_RERANK) if others => {
                    Err(Error::invalid("document is set beside prompt_tokens or chat"))
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
        match (text, chat, !self.prompt_tokens.is_null(), !self.chat.messages.is_null()) {
            (Some(text), None, false, false) => Ok(Prompt::Text(Cow::Borrowed(text))),
            (None, Some(chat), false, false) => Ok(Prompt::ChatJson(Cow::Borrowed(chat))),
            (None, None, true, false) => Ok(Prompt::Tokens(Cow::Borrowed(ids))),
            (None, None, false, true) => Ok(Prompt::Chat(Cow::Owned(messages))),
            (None, None, false, false) => Err(Error::invalid(
                "prompt, prompt_tokens, chat.messages and chat.json are all NULL: a request has one of them",
            )),
            _ => Err(Error::invalid(
                "more than one of prompt, prompt_tokens, chat.messages and chat.json is set: a request has one of them",
            )),
        }
    }
}

/// The request waits for admission.
pub const BN_STAGE_QUEUED: u32 = 0;
/// The request takes part in forward passes, unless it is paused or interrupted.
pub const BN_STAGE_RUNNING: u32 = 1;
/// The request has finished. Its last event may still wait to be polled.
pub const BN_STAGE_FINISHED: u32 = 2;

/// The stage of a request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_request_info {
    pub struct_size: u32,
    /// `BN_STAGE_*`.
    pub stage: u32,
    /// With `BN_STAGE_QUEUED`: how many queued requests were submitted before it, whatever their
    /// priorities. Otherwise 0.
    pub queue_position: u64,
}

grown!(bn_request_info { struct_size, stage, queue_position });

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
