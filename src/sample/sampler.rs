//! From a row of logits to a token.
//!
//! The order is Hugging Face's: repetition penalty, frequency and presence penalties, temperature, top-k,
//! top-p, min-p, draw; each filter works on what the one before left, renormalized.
//! - Repetition (Keskar et al. 2019): once for each distinct token of prompt and output, a positive logit is
//!   divided by the penalty, another multiplied.
//! - Frequency and presence (OpenAI): `logit -= frequency * count + presence` for tokens of the output.
//! - top-k keeps the k most likely; top-p the fewest most likely whose mass reaches p; min-p what is at
//!   least min_p times as likely as the most likely. Among equals the lower id comes first.

use super::philox::uniform;
use super::softmax::{exp_neg, sum_exp};
use super::{Logprob, SamplingParams};
use crate::base::{Error, Result};
use std::cmp::Ordering;

#[derive(Clone, Copy)]
struct Candidate {
    logit: f32,
    token: u32,
    /// `e^((logit - max) / temperature)`.
    weight: f32,
}

/// Scratch for a vocabulary, reused by every request. Allocates nothing after `new`.
pub struct Sampler {
    vocab: usize,
    /// 0: a token not seen; otherwise 1 + its count in the output. All 0 between calls.
    counts: Vec<u32>,
    /// Penalized tokens and their logits before.
    touched: Vec<(u32, f32)>,
    candidates: Vec<Candidate>,
}

/// First size of the candidate list for top-p; it grows by `TOP_P_GROWTH` until it holds enough mass.
const TOP_P_START: usize = 256;
const TOP_P_GROWTH: usize = 8;

/// Most likely first, the lower id among equals. There is no NaN here.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The greatest value (-infinity where there is none), and whether one is NaN. In lanes, which compilers turn into
/// vectors.
fn greatest(values: &[f32]) -> (f32, bool) {
    const LANES: usize = 16;
    let (mut most, mut nan) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let mut take = |values: &[f32]| {
        for ((most, nan), &x) in most.iter_mut().zip(&mut nan).zip(values) {
            *most = if x > *most { x } else { *most };
            *nan |= x.is_nan();
        }
    };
    let (whole, rest) = values.as_chunks::<LANES>();
    whole.iter().for_each(|values| take(values));
    take(rest);
    (most.into_iter().fold(f32::NEG_INFINITY, f32::max), nan.contains(&true))
}

/// The most likely token, the lowest id among equals, and its logit. An error that fails this request alone
/// where the row is no distribution.
fn argmax(logits: &[f32]) -> Result<(u32, f32)> {
    const PART: usize = 512;
    let (mut from, mut max, mut nan) = (0, f32::NEG_INFINITY, false);
    for (i, part) in logits.chunks(PART).enumerate() {
        let (most, has_nan) = greatest(part);
        if most > max {
            (from, max) = (i * PART, most);
        }
        nan |= has_nan;
    }
    if nan || !max.is_finite() {
        let what = if nan {
            "hold NaN"
        } else if max > 0.0 {
            "hold +infinity"
        } else {
            "are all -infinity"
        };
        return Err(Error::bad_model(format!(
            "the model's logits {what}: no token can be sampled; its weights may be damaged, or overflow on this prompt"
        )));
    }
    let token = from + logits[from..].iter().position(|&x| x == max).unwrap_or(0);
    Ok((token as u32, max))
}

impl Sampler {
    pub fn new(vocab_size: usize) -> Result<Self> {
        let (mut counts, mut touched, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
        counts
            .try_reserve_exact(vocab_size)
            .and_then(|()| touched.try_reserve_exact(vocab_size))
            .and_then(|()| candidates.try_reserve_exact(vocab_size))
            .map_err(|_| Error::out_of_memory("the sampler", Self::bytes(vocab_size)))?;
        counts.resize(vocab_size, 0);
        Ok(Self { vocab: vocab_size, counts, touched, candidates })
    }

    /// Bytes that a sampler of this vocabulary holds.
    pub fn bytes(vocab_size: usize) -> usize {
        vocab_size.saturating_mul(size_of::<u32>() + size_of::<(u32, f32)>() + size_of::<Candidate>())
    }

    /// Samples from `logits` (`[vocab_size]`, back as they came on return).
    ///
    /// `position` is that of the token to sample: with `seed` it alone decides the draw, whatever else runs.
    /// `prompt` and `output` are the tokens so far, for the penalties. Where `params` ask for log probabilities,
    /// appends `params.logprobs_per_token()` entries: the chosen token's, then the most likely tokens' in
    /// descending order (the lower id among equals; past the vocabulary's end token `u32::MAX` at -infinity).
    /// They are natural logarithms of the softmax of the raw logits, before penalties and temperature.
    ///
    /// `BadModel` where the logits hold NaN or infinity, or nothing but -infinity; `Internal` where they are not the
    /// vocabulary's. Then nothing is appended.
    pub fn sample(
        &mut self,
        params: &SamplingParams,
        logits: &mut [f32],
        prompt: &[u32],
        output: &[u32],
        position: u64,
        logprobs: &mut Vec<Logprob>,
    ) -> Result<u32> {
        if logits.len() != self.vocab {
            let (got, want) = (logits.len(), self.vocab);
            return Err(Error::internal(format!("{got} logits for a vocabulary of {want}")));
        }
        let raw = argmax(logits)?;
        let penalized = params.has_penalties();
        if penalized {
            self.penalize(params, logits, prompt, output);
        }
        let chosen = if penalized { argmax(logits) } else { Ok(raw) }.map(|(best, max)| {
            match params.temperature > 0.0 {
                true => self.draw(params, logits, max, uniform(params.seed, position)),
                false => best,
            }
        });
        for (token, logit) in self.touched.drain(..) {
            logits[token as usize] = logit;
        }
        let chosen = chosen?;
        if params.logprobs_per_token() > 0 {
            self.report(params.top_logprobs as usize, logits, raw.1, chosen, logprobs);
        }
        Ok(chosen)
    }

    /// Applies the penalties in place and remembers what it changed. O(prompt + output), not O(vocabulary).
    fn penalize(&mut self, params: &SamplingParams, logits: &mut [f32], prompt: &[u32], output: &[u32]) {
        let repetition = params.repetition_penalty;
        // Only the repetition penalty looks at the prompt.
        let prompt = if repetition != 1.0 { prompt } else { &[] };
        for (tokens, step) in [(prompt, 0), (output, 1)] {
            for &token in tokens {
                let Some(count) = self.counts.get_mut(token as usize) else { continue };
                if *count == 0 {
                    *count = 1;
                    self.touched.push((token, logits[token as usize]));
                }
                *count += step;
            }
        }
        for &(token, before) in &self.touched {
            let count = std::mem::take(&mut self.counts[token as usize]) - 1;
            let mut logit = if before > 0.0 { before / repetition } else { before * repetition };
            if count > 0 {
                logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
            // A tiny penalty can overflow; the largest finite logit says the same.
            logits[token as usize] = logit.min(f32::MAX);
        }
    }

    /// Draws by inverse distribution at `u` in [0, 1).
    fn draw(&mut self, params: &SamplingParams, logits: &[f32], max: f32, u: f64) -> u32 {
        let (t, min_p) = (params.temperature, params.min_p);
        let top_k = params.top_k as usize;
        if top_k > 0 && top_k < self.vocab {
            self.select(logits, top_k, max, t);
            let mass = self.candidates.iter().map(|c| f64::from(c.weight)).sum::<f64>();
            self.cut_top_p(params.top_p, mass);
        } else if params.top_p < 1.0 {
            let mass = sum_exp(logits, max, t, 0.0);
            let mut size = TOP_P_START;
            loop {
                self.select(logits, size, max, t);
                if self.cut_top_p(params.top_p, mass) || size >= self.vocab {
                    break;
                }
                size *= TOP_P_GROWTH;
            }
        } else {
            let weights = logits.iter().map(|&x| exp_neg((x - max) / t));
            let mass = sum_exp(logits, max, t, min_p);
            return pick((0u32..).zip(weights), min_p, u * mass);
        }
        let kept = self.candidates.iter().map(|c| (c.token, c.weight));
        let mass = kept.clone().filter(|c| c.1 >= min_p).map(|c| f64::from(c.1)).sum::<f64>();
        pick(kept, min_p, u * mass)
    }

    /// Leaves the `k` most likely tokens in `candidates`, in order.
    fn select(&mut self, logits: &[f32], k: usize, max: f32, temperature: f32) {
        let k = k.min(self.vocab);
        let found = &mut self.candidates;
        found.clear();
        if k == 0 {
            return;
        }
        // Collect, and drop the lesser half whenever twice as many as wanted have gathered. Ids ascend, so a
        // token that only equals the k-th has lost to it.
        let limit = k.saturating_mul(2).min(self.vocab);
        let mut bar = None;
        for (token, &logit) in (0u32..).zip(logits) {
            if bar.is_some_and(|bar| logit <= bar) {
                continue;
            }
            if found.len() == limit {
                found.select_nth_unstable_by(k - 1, order);
                found.truncate(k);
                bar = Some(found[k - 1].logit);
                if logit <= found[k - 1].logit {
                    continue;
                }
            }
            found.push(Candidate { logit, token, weight: 0.0 });
        }
        if found.len() > k {
            found.select_nth_unstable_by(k - 1, order);
            found.truncate(k);
        }
        found.sort_unstable_by(order);
        for c in found {
            c.weight = exp_neg((c.logit - max) / temperature);
        }
    }

    /// Keeps the fewest candidates whose weights reach `top_p * mass`; false when all of them don't.
    fn cut_top_p(&mut self, top_p: f32, mass: f64) -> bool {
        if top_p >= 1.0 {
            return true;
        }
        let (wanted, mut sum) = (f64::from(top_p) * mass, 0.0);
        for (i, c) in self.candidates.iter().enumerate() {
            sum += f64::from(c.weight);
            if sum >= wanted {
                self.candidates.truncate(i + 1);
                return true;
            }
        }
        false
    }

    fn report(&mut self, top: usize, logits: &[f32], max: f32, chosen: u32, out: &mut Vec<Logprob>) {
        let log_mass = sum_exp(logits, max, 1.0, 0.0).ln();
        let entry = |token: u32, logit: f32| {
            let logprob = (f64::from(logit) - f64::from(max) - log_mass) as f32;
            // Rounding must not make a probability of more than 1.
            Logprob { token, logprob: logprob.min(0.0) }
        };
        out.push(entry(chosen, logits[chosen as usize]));
        self.select(logits, top, max, 1.0);
        out.extend(self.candidates.iter().map(|c| entry(c.token, c.logit)));
        for _ in self.candidates.len()..top {
            out.push(Logprob { token: u32::MAX, logprob: f32::NEG_INFINITY });
        }
    }
}

/// The first token at which the running sum of weights of at least `floor` passes `target`; rounding may
/// leave it just short at the end, then the last one with any weight.
fn pick(weights: impl Iterator<Item = (u32, f32)>, floor: f32, target: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (token, weight) in weights.filter(|&(_, w)| w > 0.0 && w >= floor) {
        sum += f64::from(weight);
        last = token;
        if sum > target {
            break;
        }
    }
    last
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
