//! The filters of a distribution. A filter is an entry of `FILTERS`; a request determines their order.
//!
//! Each works on the tokens that the one before has kept, renormalized:
//! - top-n-sigma (Tang et al. 2024, arXiv:2411.07641) keeps logits less than n standard deviations below the
//!   greatest.
//! - top-k keeps the k most likely tokens.
//! - typical (Meister et al. 2022, arXiv:2202.00666) keeps the fewest tokens whose surprise is closest to the
//!   entropy, until their mass reaches p.
//! - top-p (Holtzman et al. 2020, arXiv:1904.09751) keeps the fewest most likely tokens whose mass reaches p.
//! - min-p (Nguyen et al. 2024, arXiv:2407.01082) keeps tokens that are at least p times as likely as the most likely
//!   one.
//! - XTC ("exclude top choices", p-e-w, github.com/oobabooga/text-generation-webui/pull/6335) sometimes, at random,
//!   drops all tokens with a probability of at least `threshold`, except the least likely of them.
//! - temperature divides logits. Dynamic temperature (kalomaze, in llama.cpp) is between `temperature - range` and
//!   `temperature + range`: it follows the ratio of the entropy to its maximum, raised to `exponent`.

use super::SamplingParams;
use super::kept::Kept;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Filter {
    Temperature,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
}

/// The order of Hugging Face's transformers, as far as it has these filters, except that `Typical` follows `MinP`
/// there.
pub(super) const DEFAULT_ORDER: [Filter; 7] = [
    Filter::Temperature,
    Filter::TopNSigma,
    Filter::TopK,
    Filter::Typical,
    Filter::TopP,
    Filter::MinP,
    Filter::Xtc,
];

struct Entry {
    /// Name of the parameter that turns it on.
    name: &'static str,
    is_on: fn(&SamplingParams) -> bool,
    /// Runs the filter. `u` is a random number of its own, in [0, 1).
    run: fn(&SamplingParams, &mut Kept, u: f64),
}

/// In the order of `Filter`.
const FILTERS: [Entry; 7] = [
    Entry {
        name: "temperature",
        is_on: |p| p.temperature != 1.0 && p.temperature != 0.0 || p.temperature_range > 0.0,
        run: |p, kept, _| heat(p, kept),
    },
    Entry {
        name: "top_n_sigma",
        is_on: |p| p.top_n_sigma > 0.0,
        run: |p, kept, _| {
            kept.keep_above((f64::from(kept.max) - f64::from(p.top_n_sigma) * kept.deviation()) as f32)
        },
    },
    Entry { name: "top_k", is_on: |p| p.top_k > 0, run: |p, kept, _| kept.keep_first(p.top_k as usize) },
    Entry { name: "typical_p", is_on: |p| p.typical_p < 1.0, run: |p, kept, _| typical(p.typical_p, kept) },
    Entry { name: "top_p", is_on: |p| p.top_p < 1.0, run: |p, kept, _| kept.keep_most_likely(p.top_p) },
    Entry {
        name: "min_p",
        is_on: |p| p.min_p > 0.0,
        run: |p, kept, _| kept.keep_above(kept.max + kept.temperature * p.min_p.ln()),
    },
    Entry { name: "xtc_probability", is_on: |p| p.xtc_probability > 0.0, run: exclude },
];

impl Filter {
    pub fn name(self) -> &'static str {
        FILTERS[self as usize].name
    }

    pub fn is_on(self, params: &SamplingParams) -> bool {
        (FILTERS[self as usize].is_on)(params)
    }

    pub fn run(self, params: &SamplingParams, kept: &mut Kept, u: f64) {
        if self.is_on(params) {
            (FILTERS[self as usize].run)(params, kept, u)
        }
    }
}

fn heat(p: &SamplingParams, kept: &mut Kept) {
    let mut temperature = p.temperature;
    if p.temperature_range > 0.0 {
        let (count, entropy) = kept.entropy();
        let (low, high) = ((temperature - p.temperature_range).max(0.0), temperature + p.temperature_range);
        let share = if count > 1.0 { (entropy / count.ln()).clamp(0.0, 1.0) as f32 } else { 0.0 };
        temperature = low + (high - low) * share.powf(p.temperature_exponent);
    }
    kept.heat(temperature.max(f32::MIN_POSITIVE));
}

/// A token's surprise is `ln(mass) - (logit - max) / temperature`, so exactly one logit has a surprise equal to the
/// entropy.
fn typical(share: f32, kept: &mut Kept) {
    let (_, entropy) = kept.entropy();
    let log_mass = kept.mass().ln();
    kept.keep_closest(share, kept.logit(log_mass - entropy));
}

fn exclude(p: &SamplingParams, kept: &mut Kept, u: f64) {
    if u < f64::from(p.xtc_probability) {
        kept.drop_above(p.xtc_threshold);
    }
}
