//! A request's samplers.

use super::config::choice;
use super::guard;
use super::request::{BN_REQUEST_CHAIN_LOGPROBS, BN_REQUEST_LOGPROBS, bn_request_params};
use super::types::Context;
use crate::base::Result;
use crate::engine::api::LogitsHook;
use crate::sample::{Dry, Filter, MAX_BIASES, MAX_LISTED, SamplingParams};
use std::sync::Arc;

/// `temperature`, with `temperature_range`.
pub const BN_SAMPLER_TEMPERATURE: i32 = 0;
/// `top_n_sigma`.
pub const BN_SAMPLER_TOP_N_SIGMA: i32 = 1;
/// `top_k`.
pub const BN_SAMPLER_TOP_K: i32 = 2;
/// `typical_p`.
pub const BN_SAMPLER_TYPICAL_P: i32 = 3;
/// `top_p`.
pub const BN_SAMPLER_TOP_P: i32 = 4;
/// `min_p`.
pub const BN_SAMPLER_MIN_P: i32 = 5;
/// `xtc_probability`.
pub const BN_SAMPLER_XTC: i32 = 6;

const SAMPLERS: [(i32, Filter); 7] = [
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

/// The logits of a request's next token, before anything else looks at them.
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

impl bn_request_params {
    /// # Safety
    /// Pointers are NULL or as the fields say.
    pub(super) unsafe fn sampling(&self) -> Result<SamplingParams> {
        // SAFETY (of all): the caller's promise.
        let biases = unsafe { list("logit_bias", self.logit_bias, self.logit_bias_count, MAX_BIASES) }?;
        let count = self.logprob_tokens_count;
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
            bad_words: Vec::new(),
            min_new_tokens: self.min_new_tokens,
            seed: self.seed,
            top_logprobs: self.top_logprobs,
            logprobs: self.flags & BN_REQUEST_LOGPROBS != 0,
            logprob_tokens: unsafe { list("logprob_tokens", self.logprob_tokens, count, MAX_LISTED) }?
                .to_vec(),
            chain_logprobs: self.flags & BN_REQUEST_CHAIN_LOGPROBS != 0,
        })
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
unsafe fn list<'a, T>(name: &str, from: *const T, count: usize, most: usize) -> Result<&'a [T]> {
    guard::count(name, count, most)?;
    // SAFETY: the caller's promise.
    unsafe { guard::slice(name, from, count) }
}
