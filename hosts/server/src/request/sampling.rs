//! How tokens are drawn: OpenAI's fields, and those of vLLM and llama.cpp under their names.
use crate::failure::{Failure, Result};
use crate::fields::{Bounds, EXACT, Fields, U32, real, whole};
use crate::models::Held;
use serde_json::{Map, Value};

type Set = fn(&mut bn::Sampling, f64);

/// Fields with their bounds.
const NUMBERS: &[(&str, Bounds, Set)] = &[
    ("temperature", real(0, 100), |to, x| to.temperature = x as f32),
    ("top_p", real(0, 1), |to, x| to.top_p = (x as f32).max(f32::MIN_POSITIVE)), // 0: the likeliest token
    ("top_k", whole(-1, U32), |to, x| to.top_k = count(x)),
    ("min_p", real(0, 1), |to, x| to.min_p = x as f32),
    ("repetition_penalty", real(0, 100), |to, x| to.repetition_penalty = x as f32),
    ("repeat_penalty", real(0, 100), |to, x| to.repetition_penalty = x as f32),
    ("frequency_penalty", real(-100, 100), |to, x| to.frequency_penalty = x as f32),
    ("presence_penalty", real(-100, 100), |to, x| to.presence_penalty = x as f32),
    ("typical_p", real(0, 1), |to, x| to.typical_p = x as f32),
    ("top_n_sigma", real(0, 1000), |to, x| to.top_n_sigma = x as f32),
    ("xtc_probability", real(0, 1), |to, x| to.xtc_probability = x as f32),
    ("xtc_threshold", real(0, 1), |to, x| to.xtc_threshold = x as f32),
    ("mirostat_tau", real(0, 100), |to, x| to.mirostat_tau = x as f32),
    ("mirostat_eta", real(0, 1), |to, x| to.mirostat_eta = x as f32),
    ("dynatemp_range", real(0, 100), |to, x| to.temperature_range = x as f32),
    ("dynatemp_exponent", real(0, 100), |to, x| to.temperature_exponent = x as f32),
    ("repeat_last_n", whole(-1, U32), |to, x| to.penalty_window = count(x)),
    ("dry_multiplier", real(0, 100), |to, x| to.dry_multiplier = x as f32),
    ("dry_base", real(1, 100), |to, x| to.dry_base = x as f32),
    ("dry_allowed_length", whole(0, U32), |to, x| to.dry_allowed_length = count(x)),
    ("dry_penalty_last_n", whole(-1, U32), |to, x| to.dry_window = count(x)),
];

/// Converts a count of llama.cpp and Ollama, in which -1 means "all", to the engine's, in which 0 does.
fn count(number: f64) -> u32 {
    number.max(0.0) as u32
}

/// Takes the fields, and applies them.
pub fn apply(fields: &mut Fields, to: &mut bn::Sampling) -> Result<()> {
    for (name, bounds, set) in NUMBERS {
        if let Some(number) = fields.take_number(name, *bounds)? {
            set(to, number);
        }
    }
    if let Some(value) = fields.take_value("seed") {
        to.seed = seed(&value)?.unwrap_or(to.seed);
    }
    if let Some(biases) = fields.take_value("logit_bias") {
        to.logit_bias = logit_bias(&biases)?;
    }
    Ok(())
}

/// The seed. None: -1, for any seed.
fn seed(value: &Value) -> Result<Option<u64>> {
    let real = value.as_f64().filter(|real| real.fract() == 0.0 && real.abs() <= EXACT as f64);
    let number = value.as_i64().or(real.map(|real| real as i64));
    let number = number.ok_or_else(|| Failure::invalid("'seed' must be a whole number of 64 bits"))?;
    Ok((number != -1).then_some(number as u64))
}

/// The model's recommendation, or else the usual values: in a chat those of `bn_model_info.sampling_fields`,
/// elsewhere those of OpenAI's completions, which is only temperature 1.
pub fn defaults(held: &Held, chat: bool) -> bn::Sampling {
    let recommended = &held.info.recommended;
    let mut sampling = bn::Sampling { temperature: 1.0, ..bn::Sampling::default() };
    if chat && recommended.is_empty() {
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (0.8, 40, 0.95, 0.05);
    }
    bn::Sampling {
        temperature: recommended.temperature.unwrap_or(sampling.temperature),
        top_k: recommended.top_k.unwrap_or(sampling.top_k),
        top_p: recommended.top_p.unwrap_or(sampling.top_p),
        min_p: recommended.min_p.unwrap_or(sampling.min_p),
        repetition_penalty: recommended.repetition_penalty.unwrap_or(sampling.repetition_penalty),
        ..sampling
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
