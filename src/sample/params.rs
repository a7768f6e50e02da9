//! The sampling parameters of a request.

use super::filters::{DEFAULT_ORDER, Filter};
use crate::base::{Error, Result};
use crate::ops::{self, Draw};

/// Sampling parameters of one request. The defaults are greedy, with everything else off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Maximum change of the temperature, up or down, with the entropy of the remaining tokens; 0 is off.
    pub temperature_range: f32,
    /// Exponent of the change; 1 is linear.
    pub temperature_exponent: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub typical_p: f32,
    /// 0 is off.
    pub top_n_sigma: f32,
    /// 0 is off.
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
    /// Target surprise in bits per token, replacing the filters; 0 is off.
    pub mirostat_tau: f32,
    pub mirostat_eta: f32,
    /// The filters that run, in this order. A filter that is left out must be off.
    pub order: Vec<Filter>,
    /// 1 is off; applies to prompt and output tokens (Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// 0 is off; multiplied by a token's count in the output.
    pub frequency_penalty: f32,
    /// 0 is off; applied once if a token is in the output.
    pub presence_penalty: f32,
    /// Number of latest tokens that the penalties consider; 0: all.
    pub penalty_window: u32,
    pub dry: Dry,
    /// Numbers added to the logits of these tokens. -infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Forbidden token sequences: the last token of one is forbidden after the others.
    pub bad_words: Vec<Vec<u32>>,
    /// Number of tokens before which no end or stop token comes, even if end tokens are ignored.
    pub min_new_tokens: u32,
    pub seed: u64,
    /// Number of most likely tokens whose log probabilities are also reported.
    pub top_logprobs: u32,
    /// Whether the chosen token's log probability is reported.
    pub logprobs: bool,
    /// Tokens whose log probabilities are also reported.
    pub logprob_tokens: Vec<u32>,
    /// Whether log probabilities are those that the chain draws from, instead of the model's.
    pub chain_logprobs: bool,
}

/// Penalties for repeating sequences ("Don't Repeat Yourself", p-e-w,
/// github.com/oobabooga/text-generation-webui/pull/5677). If a token would continue a repetition of n tokens, and n
/// is at least `allowed`, its logit is reduced by `multiplier * base^(n - allowed)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    pub base: f32,
    pub allowed: u32,
    /// Number of latest tokens that are considered; 0: all.
    pub window: u32,
    /// Texts that end any repetition.
    pub breakers: Vec<Box<str>>,
}

impl Default for Dry {
    fn default() -> Self {
        let breakers = ["\n", ":", "\"", "*"].map(Into::into).into();
        Self { multiplier: 0.0, base: 1.75, allowed: 2, window: 0, breakers }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            temperature_range: 0.0,
            temperature_exponent: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat_tau: 0.0,
            mirostat_eta: 0.1,
            order: DEFAULT_ORDER.into(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 0,
            dry: Dry::default(),
            logit_bias: Vec::new(),
            bad_words: Vec::new(),
            min_new_tokens: 0,
            seed: 0,
            top_logprobs: 0,
            logprobs: false,
            logprob_tokens: Vec::new(),
            chain_logprobs: false,
        }
    }
}

/// Maximum `top_logprobs` of a request.
pub const MAX_TOP_LOGPROBS: u32 = 32;
/// Maximum number of `logprob_tokens`, of breakers and of the tokens of a bad word. There may be twice as many
/// `bad_words`: each word of a request gives two, alone and after a space.
pub const MAX_LISTED: usize = 256;
/// Maximum number of `logit_bias` entries.
pub const MAX_BIASES: usize = 4096;

const _: () = assert!(MAX_TOP_LOGPROBS as usize <= ops::MAX_TOPS && MAX_LISTED <= ops::MAX_LISTED);

impl SamplingParams {
    /// The draw of the token at `position`, for operations that draw on the device that holds the logits. `None` if
    /// the request needs more than a `Draw` offers. The caller must add the list of penalties or biases (`Edits`) and
    /// the `report` for log probabilities, and must not use it before `min_new_tokens`.
    pub fn draw(&self, position: u64) -> Option<Draw> {
        let Self { temperature, top_k, top_p, min_p, seed, .. } = *self;
        let filters = [Filter::TopNSigma, Filter::Typical, Filter::Xtc];
        let filtered = self.order != DEFAULT_ORDER || filters.iter().any(|filter| filter.is_on(self));
        let moves = self.temperature_range > 0.0 || self.mirostat_tau > 0.0;
        let windowed = self.has_penalties() && self.penalty_window > 0;
        let listed = windowed || self.dry.multiplier > 0.0 || !self.bad_words.is_empty();
        let plain = !(filtered || moves || listed || self.chain_logprobs);
        plain.then_some(Draw {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            position,
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            edits: (0, 0),
            report: None,
        })
    }

    /// Whether a draw needs a list of `Edits`.
    pub fn edits(&self) -> bool {
        self.has_penalties() || !self.logit_bias.is_empty()
    }

    /// `InvalidArgument` with the field, its range and its value. NaN is never in range.
    pub fn validate(&self) -> Result<()> {
        let above_0 = f32::from_bits(1);
        for (name, value, low, high, range) in [
            ("temperature", self.temperature, 0.0, 100.0, "0 to 100"),
            ("temperature_range", self.temperature_range, 0.0, 100.0, "0 to 100"),
            ("temperature_exponent", self.temperature_exponent, above_0, 100.0, "above 0 and at most 100"),
            ("top_p", self.top_p, above_0, 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "0 to 1"),
            ("typical_p", self.typical_p, above_0, 1.0, "above 0 and at most 1"),
            ("top_n_sigma", self.top_n_sigma, 0.0, 1000.0, "0 to 1000"),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0, "0 to 1"),
            ("xtc_threshold", self.xtc_threshold, above_0, 1.0, "above 0 and at most 1"),
            ("mirostat_tau", self.mirostat_tau, 0.0, 100.0, "0 to 100"),
            ("mirostat_eta", self.mirostat_eta, 0.0, 1.0, "0 to 1"),
            ("repetition_penalty", self.repetition_penalty, above_0, 100.0, "above 0 and at most 100"),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0, "-100 to 100"),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0, "-100 to 100"),
            ("dry_multiplier", self.dry.multiplier, 0.0, 100.0, "0 to 100"),
            ("dry_base", self.dry.base, 1.0, 100.0, "1 to 100"),
        ] {
            if !(low..=high).contains(&value) {
                return Err(Error::invalid(format!("{name} must be {range}, not {value}")));
            }
        }
        let words = self.bad_words.iter().map(Vec::len).max().unwrap_or(0);
        for (name, count, most) in [
            ("top_logprobs", self.top_logprobs as usize, MAX_TOP_LOGPROBS as usize),
            ("logprob_tokens_count", self.logprob_tokens.len(), MAX_LISTED),
            ("logit_bias_count", self.logit_bias.len(), MAX_BIASES),
            ("bad_words_count", self.bad_words.len(), 2 * MAX_LISTED),
            ("the tokens of a bad word", words, MAX_LISTED),
            ("dry_breakers_count", self.dry.breakers.len(), MAX_LISTED),
        ] {
            if count > most {
                return Err(Error::invalid(format!("{name} must be 0 to {most}, not {count}")));
            }
        }
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !valid_bias(*bias)) {
            let message =
                format!("the logit_bias of token {token} must be -100 to 100, or -infinity, not {bias}");
            return Err(Error::invalid(message));
        }
        self.validate_order()
    }

    fn validate_order(&self) -> Result<()> {
        for (i, filter) in self.order.iter().enumerate() {
            if self.order[..i].contains(filter) {
                return Err(Error::invalid(format!("samplers has {} twice", filter.name())));
            }
        }
        for filter in DEFAULT_ORDER.into_iter().filter(|filter| filter.is_on(self)) {
            let name = filter.name();
            if !self.order.contains(&filter) {
                return Err(Error::invalid(format!("{name} is set, and samplers leaves it out")));
            }
            if self.mirostat_tau > 0.0 && filter != Filter::Temperature {
                return Err(Error::invalid(format!("{name} and mirostat_tau are set; mirostat is alone")));
            }
        }
        Ok(())
    }

    /// Name of a parameter that differs from `other`.
    pub fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            ("seed", self.seed != other.seed),
            ("temperature", self.temperature != other.temperature),
            ("temperature_range", self.temperature_range != other.temperature_range),
            ("temperature_exponent", self.temperature_exponent != other.temperature_exponent),
            ("top_k", self.top_k != other.top_k),
            ("top_p", self.top_p != other.top_p),
            ("min_p", self.min_p != other.min_p),
            ("typical_p", self.typical_p != other.typical_p),
            ("top_n_sigma", self.top_n_sigma != other.top_n_sigma),
            ("xtc_probability", self.xtc_probability != other.xtc_probability),
            ("xtc_threshold", self.xtc_threshold != other.xtc_threshold),
            ("mirostat_tau", self.mirostat_tau != other.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta != other.mirostat_eta),
            ("samplers", self.order != other.order),
            ("repetition_penalty", self.repetition_penalty != other.repetition_penalty),
            ("frequency_penalty", self.frequency_penalty != other.frequency_penalty),
            ("presence_penalty", self.presence_penalty != other.presence_penalty),
            ("penalty_window", self.penalty_window != other.penalty_window),
            ("dry_multiplier", self.dry.multiplier != other.dry.multiplier),
            ("dry_base", self.dry.base != other.dry.base),
            ("dry_allowed_length", self.dry.allowed != other.dry.allowed),
            ("dry_window", self.dry.window != other.dry.window),
            ("dry_breakers", self.dry.breakers != other.dry.breakers),
            ("logit_bias", self.logit_bias != other.logit_bias),
            ("bad_words", self.bad_words != other.bad_words),
            ("min_new_tokens", self.min_new_tokens != other.min_new_tokens),
            ("top_logprobs", self.top_logprobs != other.top_logprobs),
            ("BN_REQUEST_LOGPROBS", self.logprobs != other.logprobs),
            ("logprob_tokens", self.logprob_tokens != other.logprob_tokens),
            ("BN_REQUEST_CHAIN_LOGPROBS", self.chain_logprobs != other.chain_logprobs),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(name, _)| name)
    }

    /// Number of entries that `Sampler::sample` reports per token: 0, or 1 for the chosen token, plus `top_logprobs`
    /// and the number of `logprob_tokens`.
    pub fn logprobs_per_token(&self) -> u32 {
        let more = self.top_logprobs + self.logprob_tokens.len() as u32;
        if self.logprobs || more > 0 { 1 + more } else { 0 }
    }

    /// Bytes of its lists.
    pub fn bytes(&self) -> usize {
        let words: usize = self.bad_words.iter().map(|word| 4 * word.capacity() + 32).sum();
        // A breaker, the copy in its pattern, and four bytes of fallback for each of its bytes.
        let breakers: usize = self.dry.breakers.iter().map(|text| 6 * text.len() + 96).sum();
        let lists =
            8 * self.logit_bias.capacity() + 4 * self.logprob_tokens.capacity() + self.order.capacity();
        words + breakers + lists
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

fn valid_bias(bias: f32) -> bool {
    (-100.0..=100.0).contains(&bias) || bias == f32::NEG_INFINITY
}
