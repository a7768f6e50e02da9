//! How tokens are drawn: OpenAI's fields, and those of vLLM and llama.cpp under their names.
use crate::failure::{Failure, Result};
use crate::fields::{EXACT, Real, U32, Whole};
use crate::models::Held;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A penalty's or a bias's number.
type Signed = Real<-100, 100>;
type Share = Real<0, 1>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sampling {
    pub seed: Option<Whole<{ -EXACT }, EXACT>>,
    pub temperature: Option<Real<0, 100>>,
    pub top_p: Option<Share>,
    top_k: Option<Whole<-1, U32>>,
    min_p: Option<Share>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<Real<0, 100>>,
    frequency_penalty: Option<Signed>,
    presence_penalty: Option<Signed>,
    logit_bias: Option<Value>,
    typical_p: Option<Share>,
    top_n_sigma: Option<Real<0, 1000>>,
    xtc_probability: Option<Share>,
    xtc_threshold: Option<Share>,
    mirostat_tau: Option<Real<0, 100>>,
    mirostat_eta: Option<Share>,
    dynatemp_range: Option<Real<0, 100>>,
    dynatemp_exponent: Option<Real<0, 100>>,
    repeat_last_n: Option<Whole<-1, U32>>,
    dry_multiplier: Option<Real<0, 100>>,
    dry_base: Option<Real<1, 100>>,
    dry_allowed_length: Option<Whole<0, U32>>,
    dry_penalty_last_n: Option<Whole<-1, U32>>,
}

/// The model's recommendation, or else what is usual: in a chat the values that chats commonly have
/// (`bn_model_info.sampling_fields`), elsewhere those of OpenAI's completions, temperature 1 alone.
pub fn defaults(held: &Held, chat: bool) -> bn::Sampling {
    let recommended = &held.info.recommended;
    let mut sampling = bn::Sampling { temperature: 1.0, ..bn::Sampling::default() };
    if chat && recommended.is_empty() {
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (0.8, 40, 0.95, 0.05);
    }
    set(&mut sampling.temperature, recommended.temperature);
    set(&mut sampling.top_k, recommended.top_k);
    set(&mut sampling.top_p, recommended.top_p);
    set(&mut sampling.min_p, recommended.min_p);
    set(&mut sampling.repetition_penalty, recommended.repetition_penalty);
    sampling
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

impl Sampling {
    /// Changes what the request says. -1 is the engine's 0, "all", where llama.cpp and Ollama have it.
    pub fn apply(&self, to: &mut bn::Sampling) -> Result<()> {
        let all = |value: i64| u32::try_from(value).unwrap_or(0);
        set(&mut to.seed, self.seed.map(|v| v.0 as u64));
        set(&mut to.temperature, self.temperature.map(|v| v.0));
        set(&mut to.top_p, self.top_p.map(|v| v.0));
        set(&mut to.top_k, self.top_k.map(|v| all(v.0)));
        set(&mut to.min_p, self.min_p.map(|v| v.0));
        set(&mut to.repetition_penalty, self.repetition_penalty.map(|v| v.0));
        set(&mut to.frequency_penalty, self.frequency_penalty.map(|v| v.0));
        set(&mut to.presence_penalty, self.presence_penalty.map(|v| v.0));
        set(&mut to.typical_p, self.typical_p.map(|v| v.0));
        set(&mut to.top_n_sigma, self.top_n_sigma.map(|v| v.0));
        set(&mut to.xtc_probability, self.xtc_probability.map(|v| v.0));
        set(&mut to.xtc_threshold, self.xtc_threshold.map(|v| v.0));
        set(&mut to.mirostat_tau, self.mirostat_tau.map(|v| v.0));
        set(&mut to.mirostat_eta, self.mirostat_eta.map(|v| v.0));
        set(&mut to.temperature_range, self.dynatemp_range.map(|v| v.0));
        set(&mut to.temperature_exponent, self.dynatemp_exponent.map(|v| v.0));
        set(&mut to.penalty_window, self.repeat_last_n.map(|v| all(v.0)));
        set(&mut to.dry_multiplier, self.dry_multiplier.map(|v| v.0));
        set(&mut to.dry_base, self.dry_base.map(|v| v.0));
        set(&mut to.dry_allowed_length, self.dry_allowed_length.map(|v| v.u32()));
        set(&mut to.dry_window, self.dry_penalty_last_n.map(|v| all(v.0)));
        if let Some(biases) = &self.logit_bias {
            to.logit_bias = logit_bias(biases)?;
        }
        Ok(())
    }
}

/// Token ids, as texts, and numbers added to their logits; OpenAI's -100 forbids a token.
fn logit_bias(value: &Value) -> Result<Vec<(u32, f32)>> {
    let wrong =
        || Failure::invalid("'logit_bias' must be an object of token ids with numbers from -100 to 100");
    let biases: &Map<String, Value> = value.as_object().ok_or_else(wrong)?;
    let one = |(token, bias): (&String, &Value)| {
        let token = token.parse().ok().filter(|_| token.starts_with(|c: char| c.is_ascii_digit()))?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((token, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
    };
    biases.iter().map(|entry| one(entry).ok_or_else(wrong)).collect()
}
