//! From a row of logits to a token: changes to single logits (`adjust`), the filters in the request's order
//! (`filters`), and a draw.

use super::adjust::Row;
use super::kept::Kept;
use super::left::{Room, filled};
use super::philox::uniform;
use super::state::SamplerState;
use super::{Allowed, Known, Logprob, MAX_BIASES, MAX_LISTED, SamplingParams};
use crate::base::{Error, Result, reserve};
use crate::kernels::Isa;
use crate::kernels::rows::logits::{TOP, among, tops};
use crate::ops::Reported;

/// Scratch memory for a vocabulary, reused by all requests. Allocates no memory after `new`.
pub struct Sampler {
    isa: Isa,
    vocab: usize,
    counts: Vec<u32>,
    repeats: Vec<u32>,
    changes: Vec<(u32, f32)>,
    /// A row with the tokens that are not allowed at -infinity.
    allowed: Vec<f32>,
    /// The greatest of each `TOP` logits: of the model's, and of the logits that the token is drawn from.
    raw_tops: Vec<f32>,
    tops: Vec<f32>,
    room: Room,
}

/// Writes the greatest of each `TOP` logits to `greatest`. Returns the most likely token, the lowest id among equals,
/// or why the logits are no distribution.
fn argmax(isa: Isa, logits: &[f32], greatest: &mut [f32]) -> std::result::Result<u32, &'static str> {
    let nan = tops(isa, logits, greatest);
    let max = greatest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if nan || !max.is_finite() {
        return Err(if nan {
            "hold NaN"
        } else if max > 0.0 {
            "hold +infinity"
        } else {
            "are all -infinity"
        });
    }
    let from = TOP * greatest.iter().position(|&x| x == max).unwrap_or(0);
    Ok((from + logits[from..].iter().position(|&x| x == max).unwrap_or(0)) as u32)
}

/// Error for a model's raw logits. Fails only its own request.
fn no_distribution(what: &str) -> Error {
    Error::bad_model(format!(
        "the model's logits {what}: no token can be sampled; its weights may be damaged, or overflow on this prompt"
    ))
}

/// Converts the result of a draw by operations (`Op::Head`). Returns its token, and appends the log probabilities
/// that `Sampler::sample` would append; or returns the error that `sample` would return for such a row.
pub fn drawn(token: i32, report: Option<Reported>, logprobs: &mut Vec<Logprob>) -> Result<u32> {
    let token = match token {
        -1 => return Err(no_distribution("hold NaN")),
        -2 => return Err(no_distribution("hold +infinity")),
        -3 => return Err(no_distribution("are all -infinity")),
        -4 => return Err(nothing_left(&["logit_bias"], false)),
        token => u32::try_from(token).map_err(|_| Error::internal(format!("{token} was drawn")))?,
    };
    if let Some(report) = report {
        let softmax = Softmax { max: report.max, temperature: 1.0, mass: report.mass };
        logprobs.extend(softmax.logprobs([(token, report.logit)].into_iter().chain(report.likely())));
    }
    Ok(token)
}

/// Converts logits to log probabilities.
struct Softmax {
    max: f32,
    temperature: f32,
    /// Sum of all weights.
    mass: f64,
}

impl Softmax {
    fn logprobs(&self, logits: impl IntoIterator<Item = (u32, f32)>) -> impl Iterator<Item = Logprob> {
        let (max, temperature, log_mass) = (f64::from(self.max), f64::from(self.temperature), self.mass.ln());
        logits.into_iter().map(move |(token, logit)| {
            let logprob = (f64::from(logit) - max) / temperature - log_mass;
            // Rounding must not make a probability greater than 1.
            Logprob { token, logprob: (logprob as f32).min(0.0) }
        })
    }
}

/// Random numbers of a position: the draw's, and those of the filters.
const DRAW: u32 = 0;
const FILTER: u32 = 1;

impl Sampler {
    /// Creates a sampler for sequences of at most `longest` tokens.
    pub fn new(vocab_size: usize, longest: usize, isa: Isa) -> Result<Self> {
        let mut changes = Vec::new();
        reserve(&mut changes, Self::most_changes(vocab_size), "the sampler")?;
        Ok(Self {
            isa,
            vocab: vocab_size,
            counts: filled(vocab_size)?,
            repeats: filled(longest)?,
            changes,
            allowed: filled(vocab_size)?,
            raw_tops: filled(vocab_size.div_ceil(TOP))?,
            tops: filled(vocab_size.div_ceil(TOP))?,
            room: Room::new(vocab_size)?,
        })
    }

    /// Bytes that a sampler takes.
    pub fn bytes(vocab_size: usize, longest: usize) -> usize {
        let changes = Self::most_changes(vocab_size).saturating_mul(size_of::<(u32, f32)>());
        let each = (size_of::<u32>() + size_of::<f32>()).saturating_mul(vocab_size);
        let tops = vocab_size.div_ceil(TOP) * 2 * size_of::<f32>();
        each.saturating_add(changes)
            .saturating_add(tops + Room::bytes(vocab_size))
            .saturating_add(longest.saturating_mul(4))
    }

    /// Penalties change a token once, and so does DRY.
    fn most_changes(vocab_size: usize) -> usize {
        vocab_size.saturating_mul(2).saturating_add(MAX_BIASES + 4 * MAX_LISTED)
    }

    /// Samples from `logits` (`[vocab_size]`), which are unchanged on return.
    ///
    /// `known` has the tokens so far. Their number is the position of the token to sample. Position and `seed` alone
    /// determine the draw, whatever else runs. If `params` ask for log probabilities, appends
    /// `params.logprobs_per_token()` entries: first that of the chosen token, then those of the most likely tokens in
    /// descending order (the lower id first among equals; token `u32::MAX` at -infinity if there are no more), then
    /// those of `logprob_tokens`. They are natural logarithms of the softmax of the raw logits. With
    /// `chain_logprobs`, they are those of the distribution that the token is drawn from, or at temperature 0 of the
    /// adjusted logits; tokens that `known.allowed` excludes are at -infinity there.
    ///
    /// `BadModel` if the logits have NaN or infinity, or nothing but -infinity; `InvalidArgument` if `on_logits` left
    /// such a row, or the parameters forbid all allowed tokens; `Internal` if the number of logits is not that of the
    /// vocabulary, or if more than `longest` tokens are known. Nothing is appended then.
    pub fn sample(
        &mut self,
        params: &SamplingParams,
        state: &mut SamplerState,
        logits: &mut [f32],
        known: &Known,
        logprobs: &mut Vec<Logprob>,
    ) -> Result<u32> {
        if logits.len() != self.vocab || known.len() > self.repeats.len() {
            let (got, want, known) = (logits.len(), self.vocab, known.len());
            return Err(Error::internal(format!("{got} logits for a vocabulary of {want}, {known} tokens")));
        }
        let raw = argmax(self.isa, logits, &mut self.raw_tops).map_err(|what| match known.hooked {
            true => Error::invalid(format!("on_logits left logits that {what}: no token can be sampled")),
            false => no_distribution(what),
        })?;
        let Self { isa, counts, repeats, changes, allowed, raw_tops, tops, room, .. } = self;
        let mut row = Row { logits, changes, counts, repeats };
        row.adjust(params, known, state);
        let (left, tops, best) = match known.allowed {
            Some(Allowed { bits, .. }) => {
                among(*isa, row.logits, bits, allowed);
                let best = argmax(*isa, allowed, tops);
                (&allowed[..], &tops[..], best)
            }
            None if row.changes.is_empty() => (&*row.logits, &raw_tops[..], Ok(raw)),
            None => {
                let best = argmax(*isa, row.logits, tops);
                (&*row.logits, &tops[..], best)
            }
        };
        let chosen = best.map_err(|_| forbidden(params, known)).map(|best| {
            let mut kept = Kept::all(*isa, left, tops, room);
            let chosen = match params.temperature > 0.0 {
                true => draw(params, state, &mut kept, known.len() as u64),
                false => best,
            };
            if params.chain_logprobs {
                report(params, &mut kept, chosen, logprobs);
            }
            chosen
        });
        row.undo();
        if !params.chain_logprobs && chosen.is_ok() {
            report(params, &mut Kept::all(*isa, row.logits, raw_tops, room), chosen.clone()?, logprobs);
        }
        chosen
    }
}

impl Sampler {
    /// Appends `params.logprobs_per_token()` entries for `token`, from the softmax of the raw logits, as `sample`
    /// does for a chosen token. Errors as for `sample`.
    pub fn score(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        token: u32,
        logprobs: &mut Vec<Logprob>,
    ) -> Result<()> {
        argmax(self.isa, logits, &mut self.raw_tops).map_err(no_distribution)?;
        report(params, &mut Kept::all(self.isa, logits, &self.raw_tops, &mut self.room), token, logprobs);
        Ok(())
    }
}

/// Names the request's options that forbid tokens, for an error after no token was left.
fn forbidden(params: &SamplingParams, known: &Known) -> Error {
    let early = known.output.len() < params.min_new_tokens as usize && !known.ends.is_empty();
    let all = [
        ("on_logits", known.hooked),
        ("logit_bias", !params.logit_bias.is_empty()),
        ("bad_words", !params.bad_words.is_empty()),
        ("min_new_tokens", early),
    ];
    let named: Vec<&str> = all.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    nothing_left(&named, known.allowed.is_some())
}

/// `who`: one of these options, or all of them together, left no token; if there are none, the model did.
fn nothing_left(who: &[&str], constrained: bool) -> Error {
    let which = if constrained { "of those that the constraint allows" } else { "that could be sampled" };
    Error::invalid(match who {
        [] => format!("the model's logits leave no token {which}"),
        [one] => format!("{one} leaves no token {which}"),
        [others @ .., last] => format!("{} and {last} leave no token {which}", others.join(", ")),
    })
}

/// Runs the filters and draws the token at `position`.
fn draw(params: &SamplingParams, state: &mut SamplerState, kept: &mut Kept, position: u64) -> u32 {
    let number = |n| uniform(params.seed, position, n);
    for filter in &params.order {
        filter.run(params, kept, number(FILTER + *filter as u32));
    }
    if params.mirostat_tau == 0.0 {
        return kept.draw(number(DRAW)).token;
    }
    mirostat(params, &mut state.mirostat, kept, number(DRAW))
}

/// Mirostat 2 (Basu et al. 2021, arXiv:2007.14966): drops tokens whose surprise in bits is above a bound, then
/// adjusts the bound by the difference between the drawn token's surprise and `mirostat_tau`.
fn mirostat(params: &SamplingParams, bound: &mut f32, kept: &mut Kept, u: f64) -> u32 {
    let log_mass = kept.mass().ln();
    kept.keep_above(kept.logit(log_mass - f64::from(*bound) * std::f64::consts::LN_2));
    let drawn = kept.draw(u);
    let surprise = (kept.mass() / f64::from(kept.weight(drawn.logit))).log2() as f32;
    *bound -= params.mirostat_eta * (surprise - params.mirostat_tau);
    drawn.token
}

/// Appends log probabilities of `kept`.
fn report(params: &SamplingParams, kept: &mut Kept, chosen: u32, out: &mut Vec<Logprob>) {
    if params.logprobs_per_token() == 0 {
        return;
    }
    let softmax = Softmax { max: kept.max, temperature: kept.temperature, mass: kept.mass() };
    let top = params.top_logprobs as usize;
    let of = |kept: &Kept, token| (token, kept.find(token).unwrap_or(f32::NEG_INFINITY));
    out.extend(softmax.logprobs([of(kept, chosen)]));
    let no_more = std::iter::repeat((u32::MAX, f32::NEG_INFINITY));
    out.extend(softmax.logprobs(kept.most_likely(top).map(|c| (c.token, c.logit)).chain(no_more).take(top)));
    out.extend(softmax.logprobs(params.logprob_tokens.iter().map(|&token| of(kept, token))));
}

#[cfg(test)]
mod tests;
