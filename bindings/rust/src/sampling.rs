//! How tokens are drawn.
use crate::{params, sys, text};

/// A step that works on the distribution that a token is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Sampler {
    /// `temperature`, with `temperature_range`.
    Temperature = sys::BN_SAMPLER_TEMPERATURE,
    /// `top_n_sigma`.
    TopNSigma = sys::BN_SAMPLER_TOP_N_SIGMA,
    /// `top_k`.
    TopK = sys::BN_SAMPLER_TOP_K,
    /// `typical_p`.
    TypicalP = sys::BN_SAMPLER_TYPICAL_P,
    /// `top_p`.
    TopP = sys::BN_SAMPLER_TOP_P,
    /// `min_p`.
    MinP = sys::BN_SAMPLER_MIN_P,
    /// `xtc_probability`.
    Xtc = sys::BN_SAMPLER_XTC,
}

/// How a token is drawn, and how its logit changes before that. The default always draws the most likely token; a chat
/// wants its model's own ([`ModelInfo::recommended`](crate::ModelInfo::recommended)). Fields are named and counted as in
/// the C header, which has the range of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The same seed, prompt and parameters give the same output, whatever else runs.
    pub seed: u64,
    /// 0 to 100. 0: always the most likely token.
    pub temperature: f32,
    /// How far the temperature moves with the entropy of the remaining tokens, 0 to 100.
    pub temperature_range: f32,
    /// For that, the power of the entropy's share of the greatest possible one.
    pub temperature_exponent: f32,
    /// Keep this many most likely tokens. 0: all.
    pub top_k: u32,
    /// Keep the most likely tokens that together reach this probability.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely one.
    pub min_p: f32,
    /// Keep the tokens with a surprise closest to the entropy that together reach this probability.
    pub typical_p: f32,
    /// Drop logits more than this many standard deviations below the greatest. 0: off.
    pub top_n_sigma: f32,
    /// The probability of dropping all tokens at least `xtc_threshold` likely but the least likely of them.
    pub xtc_probability: f32,
    /// The least probability to which `xtc_probability` applies.
    pub xtc_threshold: f32,
    /// Mirostat 2: the surprise of tokens to keep, in bits. 0: off.
    pub mirostat_tau: f32,
    /// How fast it follows.
    pub mirostat_eta: f32,
    /// The samplers, in their order. Empty: all, in the order of [`Sampler`].
    pub samplers: Vec<Sampler>,
    /// Penalties look at this many of the latest tokens. 0: all.
    pub penalty_window: u32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output. 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the output.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a token in the output.
    pub presence_penalty: f32,
    /// DRY: the penalty of a token that would lengthen a repetition. 0: off.
    pub dry_multiplier: f32,
    /// DRY: the growth of the penalty with the repetition's length.
    pub dry_base: f32,
    /// DRY: shorter repetitions cost nothing.
    pub dry_allowed_length: u32,
    /// The same as `penalty_window` for DRY.
    pub dry_window: u32,
    /// Texts that no repetition crosses. None: a line break, `:`, `"` and `*`.
    pub dry_breakers: Option<Vec<String>>,
    /// Tokens, and the numbers that are added to their logits, -100 to 100. Negative infinity: the token is
    /// never generated.
    pub logit_bias: Vec<(u32, f32)>,
    /// Texts that are never generated, alone or after a space.
    pub bad_words: Vec<String>,
}

impl Default for Sampling {
    /// The library's defaults.
    fn default() -> Self {
        let raw = params::defaults().sampling;
        Self {
            seed: raw.seed,
            temperature: raw.temperature,
            temperature_range: raw.temperature_range,
            temperature_exponent: raw.temperature_exponent,
            top_k: raw.top_k,
            top_p: raw.top_p,
            min_p: raw.min_p,
            typical_p: raw.typical_p,
            top_n_sigma: raw.top_n_sigma,
            xtc_probability: raw.xtc_probability,
            xtc_threshold: raw.xtc_threshold,
            mirostat_tau: raw.mirostat_tau,
            mirostat_eta: raw.mirostat_eta,
            samplers: Vec::new(),
            penalty_window: raw.penalty_window,
            repetition_penalty: raw.repetition_penalty,
            frequency_penalty: raw.frequency_penalty,
            presence_penalty: raw.presence_penalty,
            dry_multiplier: raw.dry_multiplier,
            dry_base: raw.dry_base,
            dry_allowed_length: raw.dry_allowed_length,
            dry_window: raw.dry_window,
            dry_breakers: None,
            logit_bias: Vec::new(),
            bad_words: Vec::new(),
        }
    }
}

/// The arrays that the library's struct points to.
pub(crate) struct SamplingArrays {
    samplers: Vec<u32>,
    breakers: Option<Vec<sys::bn_string>>,
    biases: Vec<sys::bn_logit_bias>,
    bad_words: Vec<sys::bn_string>,
}

impl SamplingArrays {
    pub fn new(sampling: &Sampling) -> Self {
        let bias = |&(token, bias): &(u32, f32)| sys::bn_logit_bias { token, bias };
        Self {
            samplers: sampling.samplers.iter().map(|sampler| *sampler as u32).collect(),
            breakers: sampling.dry_breakers.as_deref().map(text::views),
            biases: sampling.logit_bias.iter().map(bias).collect(),
            bad_words: text::views(&sampling.bad_words),
        }
    }
}

impl Sampling {
    /// Sets all fields but the hook's. They are valid while `arrays` and this are.
    pub(crate) fn write(&self, arrays: &SamplingArrays, to: &mut sys::bn_sampling) {
        to.seed = self.seed;
        to.temperature = self.temperature;
        to.temperature_range = self.temperature_range;
        to.temperature_exponent = self.temperature_exponent;
        to.top_k = self.top_k;
        to.top_p = self.top_p;
        to.min_p = self.min_p;
        to.typical_p = self.typical_p;
        to.top_n_sigma = self.top_n_sigma;
        to.xtc_probability = self.xtc_probability;
        to.xtc_threshold = self.xtc_threshold;
        to.mirostat_tau = self.mirostat_tau;
        to.mirostat_eta = self.mirostat_eta;
        (to.samplers, to.samplers_count) = (text::array(&arrays.samplers), arrays.samplers.len());
        to.penalty_window = self.penalty_window;
        to.repetition_penalty = self.repetition_penalty;
        to.frequency_penalty = self.frequency_penalty;
        to.presence_penalty = self.presence_penalty;
        to.dry_multiplier = self.dry_multiplier;
        to.dry_base = self.dry_base;
        to.dry_allowed_length = self.dry_allowed_length;
        to.dry_window = self.dry_window;
        if let Some(breakers) = &arrays.breakers {
            // The field is set, even if it is empty.
            (to.dry_breakers, to.dry_breakers_count) = (breakers.as_ptr(), breakers.len());
        }
        (to.logit_bias, to.logit_bias_count) = (text::array(&arrays.biases), arrays.biases.len());
        (to.bad_words, to.bad_words_count) = (text::array(&arrays.bad_words), arrays.bad_words.len());
    }
}
