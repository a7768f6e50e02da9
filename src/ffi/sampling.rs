//! A request's samplers.

use super::callbacks::bn_logits_callback;
use super::config::choice;
use super::guard;
use super::string::bn_string;
use super::types::Context;
use crate::base::Result;
use crate::engine::api::LogitsHook;
use crate::sample::{Dry, Filter, MAX_BIASES, MAX_LISTED, SamplingParams};
use std::borrow::Cow;
use std::ffi::c_void;
use std::sync::Arc;

/// `temperature`, with `temperature_range`.
pub const BN_SAMPLER_TEMPERATURE: u32 = 0;
/// `top_n_sigma`.
pub const BN_SAMPLER_TOP_N_SIGMA: u32 = 1;
/// `top_k`.
pub const BN_SAMPLER_TOP_K: u32 = 2;
/// `typical_p`.
pub const BN_SAMPLER_TYPICAL_P: u32 = 3;
/// `top_p`.
pub const BN_SAMPLER_TOP_P: u32 = 4;
/// `min_p`.
pub const BN_SAMPLER_MIN_P: u32 = 5;
/// `xtc_probability`.
pub const BN_SAMPLER_XTC: u32 = 6;

const SAMPLERS: [(u32, Filter); 7] = [
    (BN_SAMPLER_TEMPERATURE, Filter::Temperature),
    (BN_SAMPLER_TOP_N_SIGMA, Filter::TopNSigma),
    (BN_SAMPLER_TOP_K, Filter::TopK),
    (BN_SAMPLER_TYPICAL_P, Filter::Typical),
    (BN_SAMPLER_TOP_P, Filter::TopP),
    (BN_SAMPLER_MIN_P, Filter::MinP),
    (BN_SAMPLER_XTC, Filter::Xtc),
];

/// A token and the number to add to its logit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_logit_bias {
    /// Its id.
    pub token: u32,
    /// -100 to 100, or `-INFINITY`: the token does not come.
    pub bias: f32,
}

/// The logits of a request's next token, before anything else changes them.
#[repr(C)]
pub struct bn_logits {
    pub struct_size: u32,
    /// Number of `logits`.
    pub vocab_size: u32,
    /// As in `bn_request_params`.
    pub user_data: u64,
    /// The prompt's tokens.
    pub prompt_tokens: *const u32,
    pub prompt_tokens_count: usize,
    /// The tokens generated so far.
    pub output_tokens: *const u32,
    pub output_tokens_count: usize,
    /// One for each token, to be changed in place. `-INFINITY` forbids a token; at least one must
    /// stay finite, and none may be NaN or `INFINITY`, or the request fails with
    /// `BN_ERR_INVALID_ARGUMENT`.
    pub logits: *mut f32,
}

/// How a token is drawn, and how its logit changes before that. The defaults always draw the most
/// likely token; a chat wants its model's own (`bn_model_info.sampling_fields`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_sampling {
    /// The same seed, prompt and parameters give the same output, whatever else runs.
    pub seed: u64,
    /// 0 to 100. 0: always the most likely token.
    pub temperature: f32,
    /// 0 to 100: how far the temperature moves with the entropy of the remaining tokens, up if
    /// many are likely, down if one is.
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
    /// Keep the tokens with a surprise closest to the entropy that together reach this
    /// probability, above 0 to 1. Default 1.
    pub typical_p: f32,
    /// Drop logits more than this many standard deviations below the greatest, up to 1000. 0:
    /// off.
    pub top_n_sigma: f32,
    /// 0 to 1: the probability of dropping all tokens at least `xtc_threshold` likely but the
    /// least likely of them.
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
    pub samplers: *const u32,
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
    /// Up to 256 texts of 1 to 1024 bytes that do not come, alone or after a space, in the
    /// tokenizer's own spelling; other tokens may spell them.
    pub bad_words: *const bn_string,
    pub bad_words_count: usize,
    /// Changes the logits before each token.
    pub on_logits: bn_logits_callback,
    pub on_logits_context: *mut c_void,
    /// Room for later fields: 0.
    pub reserved: [u64; 4],
}

impl bn_sampling {
    /// The sampling parameters, without the request's length and log probabilities.
    ///
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn as_engine(&self) -> Result<SamplingParams> {
        guard::reserved("sampling", &self.reserved)?;
        // SAFETY (of all): the caller's promise.
        let biases = unsafe { list("logit_bias", self.logit_bias, self.logit_bias_count, MAX_BIASES) }?;
        Ok(SamplingParams {
            temperature: self.temperature,
            temperature_range: self.temperature_range,
            temperature_exponent: self.temperature_exponent,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            order: unsafe { self.order() }?,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.penalty_window,
            dry: unsafe { self.dry() }?,
            logit_bias: biases.iter().map(|one| (one.token, one.bias)).collect(),
            seed: self.seed,
            ..SamplingParams::default()
        })
    }

    /// # Safety
    /// As [`bn_sampling::as_engine`], for `'a`.
    pub(super) unsafe fn bad_words<'a>(&self) -> Result<Vec<Cow<'a, str>>> {
        guard::count("bad_words", self.bad_words_count, MAX_LISTED)?;
        // SAFETY: the caller's promise.
        unsafe { guard::texts("bad_words", self.bad_words, self.bad_words_count) }
    }

    unsafe fn order(&self) -> Result<Vec<Filter>> {
        if self.samplers.is_null() && self.samplers_count == 0 {
            return Ok(SamplingParams::default().order);
        }
        // SAFETY: the caller's promise.
        let order = unsafe { list("samplers", self.samplers, self.samplers_count, SAMPLERS.len()) }?;
        order.iter().map(|sampler| choice("a sampler", *sampler, "BN_SAMPLER", &SAMPLERS)).collect()
    }

    unsafe fn dry(&self) -> Result<Dry> {
        guard::count("dry_breakers", self.dry_breakers_count, MAX_LISTED)?;
        let breakers = match self.dry_breakers.is_null() && self.dry_breakers_count == 0 {
            true => Dry::default().breakers,
            false => {
                // SAFETY: the caller's promise.
                let texts =
                    unsafe { guard::texts("dry_breakers", self.dry_breakers, self.dry_breakers_count) }?;
                texts.into_iter().map(Into::into).collect()
            }
        };
        Ok(Dry {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed: self.dry_allowed_length,
            window: self.dry_window,
            breakers,
        })
    }

    pub(super) fn logits_hook(&self) -> Option<LogitsHook> {
        let call = self.on_logits?;
        let context = Context::new(self.on_logits_context);
        Some(LogitsHook(Arc::new(move |row| {
            let row = bn_logits {
                struct_size: size_of::<bn_logits>() as u32,
                vocab_size: row.logits.len() as u32,
                user_data: row.user_data,
                prompt_tokens: row.prompt.as_ptr(),
                prompt_tokens_count: row.prompt.len(),
                output_tokens: row.output.as_ptr(),
                output_tokens_count: row.output.len(),
                logits: row.logits.as_mut_ptr(),
            };
            // SAFETY: the header's contract for `on_logits`; `row` outlives the call.
            unsafe { call(&row, context.get()) }
        })))
    }
}

/// # Safety
/// As for `guard::slice`.
pub(super) unsafe fn list<'a, T>(name: &str, from: *const T, count: usize, most: usize) -> Result<&'a [T]> {
    guard::count(name, count, most)?;
    // SAFETY: the caller's promise.
    unsafe { guard::slice(name, from, count) }
}
