//! `bn_request_params` and its way into `RequestParams`.

use super::growth::{self, Grown};
use super::guard;
use super::status::bn_error;
use super::types::bn_string;
use crate::base::{Error, Result, Status};
use crate::engine::Engine;
use crate::engine::api::{EmbeddingParams, Pooling, Prompt, RequestParams};
use crate::sample::SamplingParams;
use std::ffi::c_char;

/// `bn_request_params.flags`: no events on the way; one event at the end, with the whole text and all ids.
pub const BN_REQUEST_NO_STREAM: u32 = 1;
/// The request's events come only to `bn_poll` of its own id: `BN_ANY` does not see them, and the wait
/// file descriptor does not tell of them. `BN_ERR_INVALID_ARGUMENT` in
/// callback mode.
pub const BN_REQUEST_POLL_BY_ID: u32 = 2;
/// Give the prompt's text and ids back in front of the output.
pub const BN_REQUEST_ECHO_PROMPT: u32 = 4;
/// Go on through the model's end tokens, up to `max_new_tokens`.
pub const BN_REQUEST_IGNORE_EOS: u32 = 8;
/// Report the log probability of each generated token, and of `top_logprobs` others.
pub const BN_REQUEST_LOGPROBS: u32 = 16;
/// Special tokens written out in a text prompt (like `<|eot_id|>`) are those tokens, not text. Leave it off
/// for text from outside.
pub const BN_REQUEST_PARSE_SPECIAL: u32 = 32;
/// A request for the prompt's embedding: nothing is generated, and the one event of the request, its completion,
/// has the vector. It goes through the same queue and steps as others. `max_new_tokens` is not looked at, and what
/// else shapes an output (sampling, stops, `BN_REQUEST_ECHO_PROMPT`, `BN_REQUEST_IGNORE_EOS`,
/// `BN_REQUEST_LOGPROBS`) must have its default. The prompt may be as long as `max_sequence_length`.
pub const BN_REQUEST_EMBED: u32 = 64;
/// With `BN_REQUEST_EMBED`: the pooled vector as it is. Without this flag it is divided by its Euclidean length (a
/// vector of zeros stays one), so that the dot product of two is their cosine similarity.
pub const BN_REQUEST_EMBED_RAW: u32 = 128;

/// `bn_request_params.pooling`: what the model is made for, `bn_model_facts.pooling`.
pub const BN_POOLING_MODEL: i32 = 0;
/// The last prompt token's hidden state behind the final norm.
pub const BN_POOLING_LAST: i32 = 1;
/// The mean of the hidden states of all prompt tokens.
pub const BN_POOLING_MEAN: i32 = 2;
/// The first prompt token's hidden state.
pub const BN_POOLING_FIRST: i32 = 3;

const _: () = {
    assert!(BN_POOLING_LAST == Pooling::Last as i32);
    assert!(BN_POOLING_MEAN == Pooling::Mean as i32);
    assert!(BN_POOLING_FIRST == Pooling::First as i32);
};

/// The most `stop_strings_count` and `stop_tokens_count` may be.
pub const BN_MAX_STOPS: u32 = 256;

const FLAGS: u32 = BN_REQUEST_NO_STREAM
    | BN_REQUEST_POLL_BY_ID
    | BN_REQUEST_ECHO_PROMPT
    | BN_REQUEST_IGNORE_EOS
    | BN_REQUEST_LOGPROBS
    | BN_REQUEST_PARSE_SPECIAL
    | BN_REQUEST_EMBED
    | BN_REQUEST_EMBED_RAW;

/// One request. `bn_request_params_init` fills in the defaults; then set a prompt and change what you
/// need. Everything it points to is copied before the submitting call returns.
#[repr(C)]
pub struct bn_request_params {
    /// `sizeof(bn_request_params)`; set by `bn_request_params_init`.
    pub struct_size: u32,
    /// `BN_REQUEST_*`, or'ed. Default 0. An unknown one is `BN_ERR_UNSUPPORTED`.
    pub flags: u32,
    /// The prompt as UTF-8, `prompt_length` bytes; the tokenizer adds what the model wants in front and, to
    /// a text that is embedded, behind it. This or `prompt_tokens`, not both.
    pub prompt: *const c_char,
    /// Bytes of `prompt`, without a NUL.
    pub prompt_length: usize,
    /// The prompt as token ids, taken as they are.
    pub prompt_tokens: *const u32,
    /// Ids in `prompt_tokens`.
    pub prompt_tokens_count: usize,
    /// Ids that end the output besides the model's own end tokens, even with `BN_REQUEST_IGNORE_EOS`.
    pub stop_tokens: *const u32,
    /// Ids in `stop_tokens`, at most `BN_MAX_STOPS`.
    pub stop_tokens_count: usize,
    /// Texts that end the output; the text given out ends before the first of them, while tokens and usage still
    /// count the ids that made it. Only generated text is searched. None may be empty, or over 65,536 bytes.
    pub stop_strings: *const bn_string,
    /// Texts in `stop_strings`, at most `BN_MAX_STOPS`.
    pub stop_strings_count: usize,
    /// Echoed in every event of the request; nothing else is done with it.
    pub user_data: u64,
    /// For the random numbers: the same seed, prompt and parameters give the same output, whatever else is
    /// running. Default 0.
    pub seed: u64,
    /// Where to say why the request was refused (BN_OK and empty otherwise), written before the submitting call
    /// returns and not kept; but not where this struct's `struct_size` is wrong. `bn_generate` fills it beside its
    /// own. NULL (default): not wanted. Set its `struct_size`: a wrong one refuses the call.
    pub error: *mut bn_error,
    /// Tokens to generate at most, at least 1, default 128. The engine's `max_sequence_length` ends the output
    /// too.
    pub max_new_tokens: u32,
    /// Milliseconds from submit after which the request ends as `BN_FINISH_TIMED_OUT`, keeping what it has; looked at
    /// between forward passes, so up to one pass late.
    /// 0 (default): the engine's `default_timeout_ms`; `BN_TIMEOUT_NONE`: none.
    pub timeout_ms: u32,
    /// 0 to 100. 0 (default): always the most likely token.
    pub temperature: f32,
    /// Sample among this many most likely tokens. 0 (default): off.
    pub top_k: u32,
    /// Sample among the most likely tokens that together reach this probability, above 0, to 1. 1
    /// (default): off.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one, 0 to 1. 0 (default): off.
    pub min_p: f32,
    /// Divides the logits (multiplies negative ones) of tokens in prompt or output, above 0, to 100. 1
    /// (default): off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time that it is in the output, -100 to 100. 0 (default): off.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit once it is in the output, -100 to 100. 0 (default): off.
    pub presence_penalty: f32,
    /// Beside each generated token, the log probabilities of this many most likely ones, at most 32. Needs
    /// `BN_REQUEST_LOGPROBS`. Default 0.
    pub top_logprobs: u32,
    /// With `BN_REQUEST_EMBED`: which of the prompt's hidden states make the vector, `BN_POOLING_*`. Default
    /// `BN_POOLING_MODEL`, and nothing else without that flag.
    pub pooling: i32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), `struct_size` first, and numbers and raw pointers after it.
unsafe impl Grown for bn_request_params {
    const NAME: &'static str = "bn_request_params";
    const FIRST: usize = 136;
    fn defaults() -> Self {
        let defaults = RequestParams::default();
        let sampling = SamplingParams::default();
        Self {
            struct_size: 0,
            flags: 0,
            prompt: std::ptr::null(),
            prompt_length: 0,
            prompt_tokens: std::ptr::null(),
            prompt_tokens_count: 0,
            stop_tokens: std::ptr::null(),
            stop_tokens_count: 0,
            stop_strings: std::ptr::null(),
            stop_strings_count: 0,
            user_data: 0,
            seed: sampling.seed,
            error: std::ptr::null_mut(),
            max_new_tokens: defaults.max_new_tokens,
            timeout_ms: defaults.timeout_ms,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            top_logprobs: sampling.top_logprobs,
            pooling: BN_POOLING_MODEL,
            reserved: 0,
        }
    }
    fn set_struct_size(&mut self, size: u32) {
        self.struct_size = size;
    }
}

const _: () = assert!(size_of::<bn_request_params>() >= <bn_request_params as Grown>::FIRST);

impl bn_request_params {
    /// A caller's parameters with `implied` added to their flags, and where they want to be told of a refusal.
    ///
    /// # Safety
    /// `from` is NULL or points to a struct as the header describes it.
    pub(super) unsafe fn take(
        engine: &Engine,
        from: *const Self,
        implied: u32,
    ) -> (Result<RequestParams>, *mut bn_error) {
        // SAFETY: the caller's promise.
        match unsafe { growth::read(from) } {
            // Of a newer header's parameters, with a field set that this version does not know, the known part is
            // good: say there why.
            Err(error) if error.status == Status::Unsupported => {
                // SAFETY: the caller's promise; they are at least as large as ours.
                let tell = unsafe { (&raw const (*from).error).read_unaligned() };
                // SAFETY: as above.
                let good = !tell.is_null() && unsafe { growth::size_of_caller(tell) }.is_ok();
                (Err(error), if good { tell } else { std::ptr::null_mut() })
            }
            Err(error) => (Err(error), std::ptr::null_mut()),
            Ok(mut params) => {
                params.flags |= implied;
                if !params.error.is_null() {
                    // SAFETY: the caller's promise.
                    if let Err(error) = unsafe { growth::size_of_caller(params.error) } {
                        return (Err(error), std::ptr::null_mut());
                    }
                }
                // SAFETY: the caller's promise.
                (unsafe { params.to_engine(engine) }, params.error)
            }
        }
    }

    unsafe fn to_engine(&self, engine: &Engine) -> Result<RequestParams> {
        let has = |flag| self.flags & flag != 0;
        guard::flags(self.flags, FLAGS)?;
        if self.reserved != 0 {
            return Err(Error::unsupported("reserved is not 0: a field that this version does not know"));
        }
        let embedding = self.embedding()?;
        if self.top_logprobs > 0 && !has(BN_REQUEST_LOGPROBS) {
            return Err(Error::invalid("top_logprobs is set and needs BN_REQUEST_LOGPROBS in flags"));
        }
        for (name, count) in
            [("stop_tokens", self.stop_tokens_count), ("stop_strings", self.stop_strings_count)]
        {
            if count > BN_MAX_STOPS as usize {
                return Err(Error::invalid(format!(
                    "{name}_count is {count}; it goes from 0 to {BN_MAX_STOPS}"
                )));
            }
        }
        // SAFETY: the caller's promise.
        let stop_tokens = unsafe { guard::slice("stop_tokens", self.stop_tokens, self.stop_tokens_count) }?;
        Ok(RequestParams {
            // SAFETY: the caller's promise.
            prompt: unsafe { self.prompt(engine) }?,
            embedding,
            max_new_tokens: self.max_new_tokens,
            sampling: self.sampling(),
            stop_tokens: guard::copy("stop_tokens", stop_tokens)?,
            // SAFETY: the caller's promise.
            stop_strings: unsafe { self.stop_strings() }?,
            ignore_eos: has(BN_REQUEST_IGNORE_EOS),
            echo_prompt: has(BN_REQUEST_ECHO_PROMPT),
            stream: !has(BN_REQUEST_NO_STREAM),
            poll_by_id: has(BN_REQUEST_POLL_BY_ID),
            parse_special: has(BN_REQUEST_PARSE_SPECIAL),
            user_data: self.user_data,
            timeout_ms: self.timeout_ms,
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
        let pooling = match self.pooling {
            BN_POOLING_MODEL => None,
            BN_POOLING_LAST => Some(Pooling::Last),
            BN_POOLING_MEAN => Some(Pooling::Mean),
            BN_POOLING_FIRST => Some(Pooling::First),
            other => {
                return Err(Error::invalid(format!(
                    "pooling is {other}; it goes from BN_POOLING_MODEL ({BN_POOLING_MODEL}) to BN_POOLING_FIRST ({BN_POOLING_FIRST})"
                )));
            }
        };
        Ok(Some(EmbeddingParams { pooling, normalize: !raw }))
    }

    fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            top_logprobs: self.top_logprobs,
            logprobs: self.flags & BN_REQUEST_LOGPROBS != 0,
        }
    }

    unsafe fn prompt(&self, engine: &Engine) -> Result<Prompt> {
        let embedding = self.flags & BN_REQUEST_EMBED != 0;
        engine.prompt_may_fit(self.prompt_length, self.prompt_tokens_count, embedding)?;
        match (self.prompt.is_null(), self.prompt_tokens.is_null()) {
            (true, true) if self.prompt_length == 0 && self.prompt_tokens_count == 0 => {
                Err(Error::invalid("prompt and prompt_tokens are both NULL: a request has one of them"))
            }
            (false, false) => {
                Err(Error::invalid("prompt and prompt_tokens are both set: a request has one of them"))
            }
            (false, true) if self.prompt_tokens_count == 0 => {
                // SAFETY: the caller's promise.
                let text = unsafe { guard::text("prompt", self.prompt, self.prompt_length) }?;
                guard::copy_text("prompt", text).map(Prompt::Text)
            }
            (true, false) if self.prompt_length == 0 => {
                // SAFETY: the caller's promise.
                let ids =
                    unsafe { guard::slice("prompt_tokens", self.prompt_tokens, self.prompt_tokens_count) }?;
                guard::copy("prompt_tokens", ids).map(Prompt::Tokens)
            }
            _ => Err(Error::invalid("prompt or prompt_tokens is NULL, its length is not 0")),
        }
    }

    unsafe fn stop_strings(&self) -> Result<Vec<String>> {
        // SAFETY: the caller's promise.
        let strings = unsafe { guard::slice("stop_strings", self.stop_strings, self.stop_strings_count) }?;
        let one = |(at, string): (usize, &bn_string)| {
            let what = format!("stop_strings[{at}]");
            // SAFETY: the caller's promise.
            let text = unsafe { guard::text(&what, string.data, string.length) }?;
            if text.is_empty() {
                return Err(Error::invalid(format!("{what} is empty")));
            }
            guard::copy_text(&what, text)
        };
        strings.iter().enumerate().map(one).collect()
    }
}
